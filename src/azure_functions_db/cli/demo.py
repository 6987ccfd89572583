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
from contextlib import closing, contextmanager, suppress
from contextlib import nullcontext as quiet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.live import Live
    from rich.text import Text

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
    raise typer.Exit(1 if report.lost or report.quarantined != 1 else 0)


@dataclass(frozen=True, slots=True)
class Report:
    """What became of the changes that were written; all but ``again`` add up to ``written``."""

    written: int
    delivered: int
    overtaken: int
    """Followed by a newer change of the same row before it was read: only the newest state is delivered."""
    quarantined: int
    lost: int
    """Neither handled nor put aside, at the end; before it, what still waits."""
    again: int
    """Deliveries of something that had been delivered before."""

    def __str__(self) -> str:
        return (
            f"written {self.written} = delivered {self.delivered} + overtaken {self.overtaken} + "
            f"quarantined {self.quarantined} + lost {self.lost}; delivered again {self.again}"
        )


class Demo:
    """Plays the story in a folder and tells it as it happens."""

    def __init__(self, folder: Path) -> None:
        from azure_functions_db.cli.drawing import console

        self.folder = folder
        self.console = console()
        self.began = time.monotonic()
        self.doing = {1: "off", 2: "off"}
        """What each poller does: off, waits or polls."""
        self.moments: list[tuple[float, dict[int, str]]] = []
        """What each poller did, whenever it was looked at."""
        self.marks: list[tuple[float, int, str]] = []
        """When something happened to a poller, and its sign."""
        make_shop(folder)

    def run(self) -> Report:
        """Play it through: a line for each event, and where there is a terminal, where things stand."""
        from rich.live import Live

        writer = threading.Thread(target=change_orders, args=(self.folder,), daemon=True)
        self.console.print(f"A shop in SQLite, its orders polled in batches of 20. Order {POISON} cannot be shipped.\n")
        with (
            Live(console=self.console, transient=True, auto_refresh=False)
            if self.console.is_terminal
            else quiet() as live
        ):
            writer.start()
            self._poll_and_crash(live)
            self._poll_to_the_end(live, writer)
        report = self.report()
        self.console.print()
        self.console.print(self.time_line())
        self.console.print(f"\n{report}", soft_wrap=True)
        return report

    def _poll_and_crash(self, live: Live | None) -> None:
        with running_poller(self.folder) as poller:
            self._tell(1, "polls", "poller 1 starts and polls")
            while len(deliveries(self.folder)) < CRASH_AFTER and poller.poll() is None:
                self._show(live)
        self._tell(1, "off", f"poller 1 is killed in the middle of a batch; the checkpoint is {self._position()}", "✗")

    def _poll_to_the_end(self, live: Live | None, writer: threading.Thread) -> None:
        before, stood = deliveries(self.folder).total(), self._position()
        with running_poller(self.folder) as poller:
            self._tell(2, "waits", f"poller 2 starts and waits: the dead one's lease has up to {LEASE_SECONDS} s left")
            told: set[str] = set()
            while (writer.is_alive() or self.report().lost) and poller.poll() is None:
                for sign, (happened, text, mark) in self._news(before, stood).items():
                    if happened and sign not in told:
                        told.add(sign)
                        self._tell(2, "polls", text, mark)
                self._show(live)
            self._tell(2, "off", "every change is accounted for" if poller.poll() is None else "poller 2 has ended")
            (self.folder / "stop").touch()
            poller.wait()

    def _news(self, before: int, stood: Any) -> dict[str, tuple[bool, str, str]]:
        """Return what may have happened to the second poller, in the order in which it does."""
        resumed = f"poller 2 has the lease and goes on from {stood}: what was not committed comes again"
        fails = f"the batch with order {POISON} fails; it is tried again, then searched"
        aside = f"order {POISON} is put aside with its error; the others of its batch are delivered"
        return {
            "resumed": (deliveries(self.folder).total() > before, resumed, "▶"),
            "fails": ((self.folder / "failed").exists(), fails, "!"),
            "aside": (bool(self.report().quarantined), aside, "●"),
        }

    def _tell(self, poller: int, doing: str, happened: str, mark: str = "") -> None:
        passed = time.monotonic() - self.began
        self.moments.append((passed, dict(self.doing)))
        self.doing[poller] = doing
        if mark:
            self.marks.append((passed, poller, mark))
        self.console.print(f"{passed:5.1f} s  {happened}")

    def _show(self, live: Live | None) -> None:
        self.moments.append((time.monotonic() - self.began, dict(self.doing)))
        if live is not None:
            live.update(self.status(), refresh=True)
        time.sleep(0.05)

    def _position(self) -> Any:
        return store_in(self.folder).load_checkpoint("orders").get("cursor", {}).get("value", 0)

    def report(self) -> Report:
        """Return what is known by now; what was delivered is read first, so that it was also written."""
        seen = deliveries(self.folder)
        aside = {f"{row.event['pk']['id']}@{row.event['cursor']}" for row in sink_in(self.folder).entries()}
        written, newest = changes(self.folder)
        missing = written - set(seen) - aside
        return Report(
            len(written), len(seen), len(missing - newest), len(aside), len(missing & newest), seen.total() - len(seen)
        )

    def status(self) -> Text:
        """Return where things stand, in a line."""
        from rich.text import Text

        report = self.report()
        done = round(20 * (report.written - report.lost) / max(report.written, 1))
        numbers = f"{report.delivered} delivered, {report.lost} waiting, {report.quarantined} in quarantine"
        return Text(
            f"{'█' * done}{'░' * (20 - done)}  {report.written} changes: {numbers}", no_wrap=True, overflow="crop"
        )

    def time_line(self) -> Text:
        """Return what each poller did, drawn to the width of the terminal."""
        from rich.text import Text

        width = min(self.console.width, 100) - 12
        whole = self.moments[-1][0]
        lines = [self._strip(poller, width, whole) for poller in (1, 2)]
        scale = f"{'':10}0 s{f'{whole:.1f} s':>{width - 3}}"
        return Text(
            "\n".join([*lines, scale, "          ━ polls  ░ waits  ✗ killed  ▶ resumes  ! fails  ● quarantine"])
        )

    def _strip(self, poller: int, width: int, whole: float) -> str:
        drawn = [" "] * width
        for passed, doing in self.moments:
            drawn[min(int(passed / whole * width), width - 1)] = _DRAWN[doing[poller]]
        for place in range(1, width):  # where nobody looked, it went on
            if drawn[place] == " " and drawn[place - 1] != " " and any(sign != " " for sign in drawn[place:]):
                drawn[place] = drawn[place - 1]
        free = 0  # two events of one moment stand side by side
        for passed, marked, sign in self.marks:
            if marked == poller:
                place = min(max(int(passed / whole * width), free), width - 1)
                drawn[place], free = sign, place + 1
        return f"poller {poller}  {''.join(drawn).rstrip()}"


_DRAWN = {"off": " ", "waits": "░", "polls": "━"}


def make_shop(folder: Path) -> None:
    """Make the database: orders, and a version that grows with every change."""
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER, version INTEGER NOT NULL)")
        database.execute("CREATE INDEX orders_changes ON orders (version, id)")
        database.execute("CREATE TABLE written (id INTEGER, version INTEGER)")  # for the report alone
        database.commit()


def change_orders(folder: Path) -> None:
    """Insert orders and change some again, as an application would."""
    chance, version = random.Random(1), 0  # noqa: S311 - a demonstration, not a secret
    with closing(sqlite3.connect(folder / "shop.db", timeout=30)) as database:
        for number in range(1, ROWS + 1):
            version += 1
            amount = -1 if number == POISON else chance.randrange(1, 100)
            database.execute("INSERT INTO orders VALUES (?, ?, ?)", (number, amount, version))
            database.execute("INSERT INTO written VALUES (?, ?)", (number, version))
            again = chance.randrange(1, number + 1)
            if again != POISON and number % 4 == 0:
                version += 1
                database.execute("UPDATE orders SET amount = amount + 1, version = ? WHERE id = ?", (version, again))
                database.execute("INSERT INTO written VALUES (?, ?)", (again, version))
            database.commit()
            time.sleep(0.01)


def changes(folder: Path) -> tuple[set[str], set[str]]:
    """Return every change that was written, and those that nothing newer has followed."""
    with closing(sqlite3.connect(folder / "shop.db", timeout=30)) as database:
        written = database.execute(
            "SELECT id, version, version = max(version) OVER (PARTITION BY id) FROM written"
        ).fetchall()
    return {f"{row[0]}@{row[1]}" for row in written}, {f"{row[0]}@{row[1]}" for row in written if row[2]}


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


@contextmanager
def running_poller(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that polls, and kill it at the end; Ctrl-C is for the one that tells the story."""
    command = [sys.executable, "-m", "azure_functions_db.cli.demo", str(folder)]
    poller = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - our own module
    try:
        yield poller
    finally:
        poller.kill()
        poller.wait()


def poll(folder: Path) -> None:
    """Tick until told to stop; this is what a timer function does in an app."""
    from azure_functions_db import PollerError

    trigger = orders_trigger(folder)

    def ship(events: list[RowChange]) -> None:
        if any(event.after and event.after["amount"] < 0 for event in events):
            (folder / "failed").touch()
            raise ValueError("an order must have an amount")
        with (folder / "delivered").open("a") as journal:
            journal.writelines(f"{event.pk['id']!r}@{event.cursor!r}\n" for event in events)
            journal.flush()
            time.sleep(0.05)

    while not (folder / "stop").exists():
        with suppress(PollerError):  # the host would log it and fire again
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
