"""One poller whose processes are led through a fault step by step, and judged at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, create_engine, text

from azure_functions_db.quarantine import FileQuarantine
from tests.chaos.fleet import Fleet
from tests.chaos.judge import Entry, Verdict, calls_in, judged
from tests.chaos.poller import Task
from tests.chaos.record import Gates, entries
from tests.chaos.sky import Sky
from tests.integration.traffic import create_table
from tests.support.waiting import wait_for

POLLER = "scene"
TTL = 1.0
PATIENCE = 60


class Scene:
    """A table, its poller's processes and their journal."""

    def __init__(self, folder: Path, url: str, storage: str, container: str, without: str) -> None:
        self._folder = folder
        self._place: dict[str, Any] = {"url": url, "storage": storage, "container": container, "without": without}
        self._fleet = Fleet(folder)
        self.sky = Sky(folder)
        self.engine = create_engine(url)
        self.committed: dict[int, int] = {}
        create_table(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._fleet.abandon()
        self.engine.dispose()

    def write(self, *versions: int) -> None:
        """Commit rows with these versions, in an order that the poller will see."""
        for version in versions:
            with self.engine.begin() as connection:
                self.insert(connection, version)

    def insert(self, connection: Connection, version: int) -> None:
        number = len(self.committed) + 1
        values = {"i": number, "v": version}
        connection.execute(
            text("INSERT INTO changes (id, version, stamp) VALUES (:i, :v, current_timestamp(6))"), values
        )
        self.committed[number] = version

    def start(self, who: str, hold: Sequence[str] = (), **options: Any) -> None:
        """Start a process that will be held at some places."""
        for place in hold:
            Gates(self._folder, who).close(place)
        task = Task(folder=str(self._folder), poller=POLLER, who=who, ttl=TTL, **self._place, **options)
        self._fleet.start(task)

    def let_go(self, who: str, place: str) -> None:
        Gates(self._folder, who).open(place)

    def kill(self, who: str) -> None:
        self._fleet.kill(who)

    def seen(self, **facts: Any) -> list[Entry]:
        """The journal's entries that say this."""
        return [entry for entry in entries(self._folder, POLLER) if facts.items() <= entry.items()]

    def wait_for(self, count: int = 1, **facts: Any) -> None:
        wait_for(lambda: len(self.seen(**facts)) >= count, PATIENCE, f"never seen: {facts}")

    def wait_for_row(self, number: int) -> None:
        """Wait until a handler has digested a row."""
        wait_for(lambda: number in self._digested(), PATIENCE, f"row {number} never arrived")

    def verdict(self) -> Verdict:
        """End the scene and judge it."""
        self._fleet.dismiss()
        assert self._fleet.deaths == []
        return judged(entries(self._folder, POLLER), self.committed, quarantined(self._folder, POLLER))

    def _digested(self) -> set[int]:
        calls = calls_in(entries(self._folder, POLLER))
        return {number for call in calls if call.digested for number, _ in call.rows}


def quarantined(folder: Path, poller: str) -> Iterable[tuple[int, int]]:
    """The rows and versions that lie in the sink."""
    after = [entry.event["after"] for entry in FileQuarantine(folder / "quarantine").entries(poller)]
    return [(row["id"], row["version"]) for row in after]
