"""One poller whose processes are led through a fault step by step, and judged at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

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


def removing(guard: str) -> pytest.MarkDecorator:
    """Run a test twice: with the guard in its place, and without it."""
    return pytest.mark.parametrize("without", ["", guard], ids=["guarded", "unguarded"])


class Scene:
    """A table, its poller's processes and their journal."""

    def __init__(self, folder: Path, url: str, storage: str, container: str, without: str) -> None:
        self._folder = folder
        self._place: dict[str, Any] = {"url": url, "storage": storage, "container": container, "without": without}
        self._fleet = Fleet(folder)
        self.sky = Sky(folder)
        self.engine = create_engine(url)
        self.committed: dict[int, int] = {}
        self._pollers = {POLLER}
        create_table(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._fleet.abandon()
        self.engine.dispose()

    def write(self, *versions: int, **columns: Any) -> None:
        """Commit rows with these versions, in an order that the poller will see."""
        for version in versions:
            with self.engine.begin() as connection:
                self.insert(connection, version, **columns)

    def insert(self, connection: Connection, version: int, **columns: Any) -> None:
        """Write a row; a column that is not given has what is usual: the next number, the time."""
        values = {"id": max(self.committed, default=0) + 1, "version": version} | columns
        given = {name: f":{name}" for name in values}
        placed = {"stamp": "current_timestamp(6)"} | given
        statement = f"INSERT INTO changes ({', '.join(placed)}) VALUES ({', '.join(placed.values())})"
        connection.execute(text(statement), values)
        self.committed[values["id"]] = version

    def execute(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def succeeds(self, statement: str) -> bool:
        """Try a statement; tell whether the server did it."""
        try:
            self.execute(statement)
        except DBAPIError:
            return False
        return True

    def move_to(self, url: str) -> None:
        """Go on at another server, which has the same table."""
        self.engine.dispose()
        self.engine = create_engine(url)
        self._place["url"] = url

    def start(self, who: str, hold: Sequence[str] = (), **options: Any) -> None:
        """Start a process that will be held at some places."""
        for place in hold:
            self.hold(who, place)
        usual: dict[str, Any] = {"folder": str(self._folder), "poller": POLLER, "ttl": TTL}
        task = Task(who=who, **usual | self._place | options)
        self._pollers.add(task.poller)
        self._fleet.start(task)

    def hold(self, who: str, place: str) -> None:
        Gates(self._folder, who).close(place)

    def let_go(self, who: str, place: str) -> None:
        Gates(self._folder, who).open(place)

    def kill(self, who: str) -> None:
        self._fleet.kill(who)

    def seen(self, **facts: Any) -> list[Entry]:
        """The journal's entries that say this."""
        return [entry for entry in self._journal() if facts.items() <= entry.items()]

    def wait_for(self, count: int = 1, **facts: Any) -> None:
        self._wait(lambda: len(self.seen(**facts)) >= count, f"never seen: {facts}")

    def wait_for_ticks(self, count: int = 2, **facts: Any) -> None:
        """Wait until a process has ticked so many times more; the second tick began after this moment."""
        self.wait_for(len(self.seen(what="ticked", **facts)) + count, what="ticked", **facts)

    def wait_for_row(self, number: int) -> None:
        """Wait until a handler has digested a row."""
        self._wait(lambda: number in self._digested(), f"row {number} never arrived")

    def verdict(self) -> Verdict:
        """End the scene and judge it."""
        self._fleet.dismiss()
        assert self._fleet.deaths == []
        return judged(self._journal(), self.committed, quarantined(self._folder, POLLER))

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait, but not for processes that have ended."""
        wait_for(lambda: condition() or self._has_deaths(), PATIENCE, what)
        assert self._fleet.deaths == []

    def _has_deaths(self) -> bool:
        self._fleet.note_deaths()
        return bool(self._fleet.deaths)

    def _journal(self) -> list[Entry]:
        return [entry for poller in sorted(self._pollers) for entry in entries(self._folder, poller)]

    def _digested(self) -> set[int]:
        calls = calls_in(self._journal())
        return {number for call in calls if call.digested for number, _ in call.rows}


def quarantined(folder: Path, poller: str) -> Iterable[tuple[int, int]]:
    """The rows and versions that lie in the sink."""
    after = [entry.event["after"] for entry in FileQuarantine(folder / "quarantine").entries(poller)]
    return [(row["id"], row["version"]) for row in after]
