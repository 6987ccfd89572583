"""The chaos suite: pollers and writers on real servers, in bad weather, judged by what arrived."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from azure.storage.blob import ContainerClient
from sqlalchemy import create_engine, make_url, text

from tests.chaos.fleet import Fleet
from tests.chaos.judge import Verdict, judged, position
from tests.chaos.poller import Task
from tests.chaos.record import entries
from tests.chaos.scene import quarantined
from tests.chaos.weather import Weather
from tests.chaos.writer import StubbornWriter
from tests.conftest import execute
from tests.integration.traffic import create_table

if TYPE_CHECKING:
    from tests.chaos.servers import Servers

TTL = 1.5
SERVERS = ("postgres", "mariadb")
POLLERS = {"postgres": "postgres", "mariadb": "mariadb", "postgres_log": "postgres", "mariadb_log": "mariadb"}
"""Pollers by their names, and the server of each: its table is polled, or its log is read."""
CONTAINER = "chaos"
PATIENCE = 60.0
"""How long nothing may arrive, when the sky is clear, until what is missing counts as lost."""


class Storm:
    """Pollers of two processes each, two writers for each server, and the weather."""

    def __init__(self, folder: Path, servers: Servers, seed: int, without: str) -> None:
        self._folder = folder
        self._without = without
        self._storage = servers.settings["AZFDB_TEST_AZURITE"]
        self._databases = {
            server: new_database(servers.settings[f"AZFDB_TEST_{server.upper()}_URL"]) for server in SERVERS
        }
        self._urls = {poller: self._databases[server] for poller, server in POLLERS.items()}
        self._enough = threading.Event()
        self._writers = {
            server: [StubbornWriter(url, seed + number, self._enough) for number in range(2)]
            for server, url in self._databases.items()
        }
        self.fleet = Fleet(folder)
        self.weather = Weather(seed, TTL, self.fleet, servers, folder, self._databases)

    def rage(self, seconds: float) -> None:
        with ContainerClient.from_connection_string(self._storage, CONTAINER) as client:
            client.create_container()
        for url in self._databases.values():
            create_table(url)
        for poller in POLLERS:
            for number in (1, 2):
                self.fleet.start(self._task(poller, number))
        for writer in self._all_writers():
            writer.start()
        self.weather.rage(seconds)

    def settle(self) -> None:
        """Clear the sky, let the writers finish and the pollers catch up."""
        self.weather.clear_up()
        self._enough.set()
        for writer in self._all_writers():
            writer.join(60)
        self._catch_up()
        self.fleet.dismiss()

    def _catch_up(self) -> None:
        least, since = self._missing(), time.monotonic()
        while least and time.monotonic() - since < PATIENCE:
            time.sleep(0.5)
            if (missing := self._missing()) < least:
                least, since = missing, time.monotonic()

    def _missing(self) -> int:
        return sum(len(verdict.lost) for verdict in self.verdicts().values())

    def verdicts(self) -> dict[str, Verdict]:
        return {
            poller: judged(entries(self._folder, poller), rows_in(url), quarantined(self._folder, poller))
            for poller, url in self._urls.items()
        }

    def complaints(self) -> list[str]:
        """Whatever should not have happened, to the pollers or to the ground they stand on."""
        found = [f"{poller}: {each}" for poller, verdict in self.verdicts().items() for each in verdict.complaints]
        found += [f"a writer failed: {writer.failure!r}" for writer in self._all_writers() if writer.failure]
        found += [f"too short for any {trouble}" for trouble in self.weather.missing()]
        return found + self.fleet.deaths + self._vanished()

    def report(self) -> str:
        lines = [
            f"{poller}: {len(rows_in(self._urls[poller]))} rows, {verdict}"
            for poller, verdict in self.verdicts().items()
        ]
        lines += [f"{poller}: {self._told(poller)}" for poller in POLLERS]
        return "\n".join([*lines, f"weather: {dict(self.weather.seen)}"])

    def traces(self) -> list[str]:
        """When each lost row of a polled table was written, and who went by it first: where to begin the search."""
        verdicts = self.verdicts()
        return [self._trace(poller, number) for poller in SERVERS for number in verdicts[poller].missing]

    def _trace(self, poller: str, number: int) -> str:
        stamp, version = stamp_of(self._urls[poller], number)
        spans = [span for writer in self._writers[poller] if (span := writer.spans.get((number, version)))]
        steps = [each for each in entries(self._folder, poller, "committed") if position(each)[:1] >= (stamp,)]
        return f"{poller}: row {number} was stamped {stamp} and written within {spans}; first passed in {steps[:1]}"

    def _vanished(self) -> list[str]:
        """Rows that a server acknowledged and does not have: then nothing can be judged."""
        return [
            f"{server} itself lost version {version} of row {number}"
            for server, url in self._databases.items()
            for present in [rows_in(url)]
            for writer in self._writers[server]
            for number, version in writer.committed.items()
            if present.get(number, 0) < version
        ]

    def _told(self, poller: str) -> str:
        journal = entries(self._folder, poller)
        takes = [entry["who"] for entry in journal if entry["what"] == "took"]
        handovers = sum(before != after for before, after in pairwise(takes))
        failed = [entry for entry in journal if entry["what"] == "failed"]
        failures = Counter(entry["error"] for entry in failed)
        told = sum(entry["what"] == "told" for entry in journal)
        aside = len(list(quarantined(self._folder, poller)))
        counts = f"{len(takes)} leases, {handovers} handovers, {told} told of a loss, {aside} quarantined"
        last = f", the last one with {failed[-1]['message']}" if failed else ""
        return f"{counts}, failed ticks {dict(failures)}{last}"

    def _task(self, poller: str, number: int) -> Task:
        return Task(
            folder=str(self._folder),
            poller=poller,
            who=f"{poller}-{number}",
            url=self._urls[poller],
            ttl=TTL,
            storage=self._storage if POLLERS[poller] == "postgres" else None,
            reads_log=poller.endswith("_log"),
            container=CONTAINER,
            longest_work=0.15,
            overtime=0.02,
            rest=0.1,  # there are eight of them
            without=self._without,
        )

    def _all_writers(self) -> list[StubbornWriter]:
        return [writer for writers in self._writers.values() for writer in writers]


def new_database(server: str) -> str:
    url = make_url(server)
    execute(url, "CREATE DATABASE chaos")
    return url.set(database="chaos").render_as_string(hide_password=False)


def rows_in(url: str) -> dict[int, int]:
    """The newest version of every row, as the database has it."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {row.id: row.version for row in connection.execute(text("SELECT id, version FROM changes"))}
    engine.dispose()
    return found


def stamp_of(url: str, number: int) -> tuple[dt.datetime, int]:
    """The stamp and version of a row, as the database has them."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT stamp, version FROM changes WHERE id = :id"), {"id": number}).one()
    engine.dispose()
    return found.stamp, found.version
