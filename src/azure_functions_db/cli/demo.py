"""`azfdb demo`: the change trigger at work on this machine: a shop, a poller that is killed once, a poison row."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from azure_functions_db import FileQuarantine, FileStateStore, PollTrigger, RowChange

ROWS = 400
POISON = 123
CRASH_AFTER = 100
LEASE_SECONDS = 1.5


def demo() -> None:
    """Change rows in SQLite, poll them, crash in the middle, resume: nothing is lost.

    Exit code 0 when every row was delivered and the poison row is in quarantine, else 1.
    """
    with tempfile.TemporaryDirectory(prefix="azfdb-demo-") as folder:
        report = Demo(Path(folder)).run()
    print(f"\n{report}")
    raise typer.Exit(1 if report.lost or report.quarantined != 1 else 0)


@dataclass(frozen=True, slots=True)
class Report:
    """What became of the rows that were written."""

    written: int
    delivered: int
    duplicates: int
    quarantined: int

    @property
    def lost(self) -> int:
        """Rows whose last state was neither handled nor put aside."""
        return self.written - self.delivered

    def __str__(self) -> str:
        return (
            f"written {self.written}, delivered {self.delivered}, lost {self.lost}, "
            f"duplicates {self.duplicates}, quarantined {self.quarantined}"
        )


class Demo:
    """Plays the story in a folder and tells how it went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = "starting"
        make_shop(folder)

    def run(self) -> Report:
        """Play it through, with a live table where there is a terminal."""
        from rich.live import Live

        writer = threading.Thread(target=change_orders, args=(self.folder,), daemon=True)
        with Live(self.table(), refresh_per_second=10) as live:
            writer.start()
            self._poll_and_crash(live)
            self._poll_to_the_end(live, writer)
        return self.report()

    def _poll_and_crash(self, live: Any) -> None:
        poller = start_poller(self.folder)
        self.status = "polling"
        while len(deliveries(self.folder)) < CRASH_AFTER and poller.poll() is None:
            self._show(live)
        poller.kill()
        poller.wait()
        self.status = "killed (SIGKILL) in the middle of a batch"

    def _poll_to_the_end(self, live: Any, writer: threading.Thread) -> None:
        poller = start_poller(self.folder)
        before, resumed = len(deliveries(self.folder)), False
        while (writer.is_alive() or self.report().lost) and poller.poll() is None:
            resumed = resumed or len(deliveries(self.folder)) > before
            self.status = "resumed where the checkpoint stands" if resumed else "waiting for the dead poller's lease"
            self._show(live)
        self.status = "done"
        self._show(live)
        (self.folder / "stop").touch()
        poller.wait()

    def _show(self, live: Any) -> None:
        live.update(self.table())
        time.sleep(0.05)

    def report(self) -> Report:
        """Return what is known by now."""
        written, seen = last_states(self.folder), deliveries(self.folder)
        aside = {f"{row.event['pk']['id']}@{row.event['cursor']}" for row in sink_in(self.folder).entries()}
        delivered = written & (set(seen) | aside)
        return Report(len(written), len(delivered), seen.total() - len(seen), len(aside))

    def table(self) -> Table:
        """Return the live view."""
        from rich.table import Table

        report, checkpoint = self.report(), store_in(self.folder).load_checkpoint("orders")
        view = Table(title="azure-functions-db: orders changed in SQLite, delivered by the change trigger")
        for heading in ("rows written", "delivered", "duplicates", "quarantined", "checkpoint", "poller"):
            view.add_column(heading, justify="left" if heading == "poller" else "right")
        position = checkpoint.get("cursor", {}).get("value", "-")
        numbers = (report.written, report.delivered, report.duplicates, report.quarantined, position)
        view.add_row(*map(str, numbers), self.status)
        return view


def make_shop(folder: Path) -> None:
    """Make the database: orders, and a version that grows with every change."""
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER, version INTEGER NOT NULL)")
        database.execute("CREATE INDEX orders_changes ON orders (version, id)")
        database.commit()


def change_orders(folder: Path) -> None:
    """Insert orders and change some again, as an application would."""
    chance, version = random.Random(1), 0  # noqa: S311 - a demonstration, not a secret
    with closing(sqlite3.connect(folder / "shop.db", timeout=30)) as database:
        for number in range(1, ROWS + 1):
            version += 1
            amount = -1 if number == POISON else chance.randrange(1, 100)
            database.execute("INSERT INTO orders VALUES (?, ?, ?)", (number, amount, version))
            again = chance.randrange(1, number + 1)
            if again != POISON and number % 4 == 0:
                version += 1
                database.execute("UPDATE orders SET amount = amount + 1, version = ? WHERE id = ?", (version, again))
            database.commit()
            time.sleep(0.01)


def last_states(folder: Path) -> set[str]:
    """Return every order with its newest version."""
    with closing(sqlite3.connect(folder / "shop.db", timeout=30)) as database:
        return {f"{number}@{version}" for number, version in database.execute("SELECT id, version FROM orders")}


def deliveries(folder: Path) -> Counter[str]:
    """Return what the handler has digested, and how often."""
    journal = folder / "delivered"
    return Counter(journal.read_text().split("\n")[:-1]) if journal.exists() else Counter()


def store_in(folder: Path) -> FileStateStore:
    """Return the place of the checkpoint and the lease."""
    from azure_functions_db import FileStateStore

    return FileStateStore(folder / "state")


def sink_in(folder: Path) -> FileQuarantine:
    """Return the place of the rows that cannot be handled."""
    from azure_functions_db import FileQuarantine

    return FileQuarantine(folder / "quarantine")


def start_poller(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that polls: it can be killed like any other."""
    return subprocess.Popen([sys.executable, "-m", "azure_functions_db.cli.demo", str(folder)])  # noqa: S603 - our own module


def poll(folder: Path) -> None:
    """Tick until told to stop; this is what a timer function does in an app."""
    from azure_functions_db import HandlerError

    trigger = orders_trigger(folder)

    def ship(events: list[RowChange]) -> None:
        if any(event.after and event.after["amount"] < 0 for event in events):
            raise ValueError("an order must have an amount")
        with (folder / "delivered").open("a") as journal:
            journal.writelines(f"{event.pk['id']!r}@{event.cursor!r}\n" for event in events)
            journal.flush()
            time.sleep(0.05)

    while not (folder / "stop").exists():
        with suppress(HandlerError):  # the host would log it and fire again
            trigger.run(timer=None, handler=ship)
        time.sleep(0.05)


def orders_trigger(folder: Path) -> PollTrigger:
    """Return the change trigger of the shop's orders."""
    from azure_functions_db import PollTrigger, SqlAlchemySource

    return PollTrigger(
        name="orders",
        source=SqlAlchemySource(
            url=f"sqlite:///{folder / 'shop.db'}",
            table="orders",
            cursor_column="version",
            pk_columns=["id"],
            in_flight="ignore",  # SQLite has one writer at a time: nothing commits late
        ),
        checkpoint_store=store_in(folder),
        batch_size=20,
        lease_ttl_seconds=LEASE_SECONDS,
        quarantine=sink_in(folder),
        max_attempts=2,
    )


if __name__ == "__main__":
    import logging

    logging.disable()
    poll(Path(sys.argv[1]))
