"""A million rows compared with their snapshot: unchanged, 1 % changed, 10 % deleted.

An unchanged scan stands beside the database's own sum of the same hashes in one statement, with the snapshot read too.
The bytes are those that went through a socket in between, in a scan of its own that is not timed.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from common import databases
from sqlalchemy import create_engine, make_url, text

from azure_functions_db import EngineProvider, HashDiffSource, SqlSnapshots

if TYPE_CHECKING:
    from azure_functions_db.core.types import CheckpointJson

COUNT = int(os.environ.get("AZFDB_BENCH_ROWS", "1000000"))
ROUNDS = 3
TABLE = (
    "CREATE TABLE bench_diff (id INTEGER PRIMARY KEY, name VARCHAR(50), city VARCHAR(50), amount DECIMAL(12, 2), "
    "score DOUBLE PRECISION, note VARCHAR(100), made TIMESTAMP NULL)"
)
NUMBERS = {
    "postgres": "SELECT n FROM generate_series({first}, {last}) AS s (n)",
    "mariadb": "SELECT seq AS n FROM seq_{first}_to_{last}",
    "sqlite": "WITH RECURSIVE s (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last}) SELECT n FROM s",
}
NAME = {"postgres": "'name ' || n", "mariadb": "concat('name ', n)", "sqlite": "'name ' || n"}


def resident_mib() -> float:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096 / 2**20


class Drained:
    """One scan to its end: how long it took, what it found, and the most memory seen."""

    def __init__(self, source: HashDiffSource, checkpoint: CheckpointJson, limit: int = 5000) -> None:
        began, self.changes, self.mib = time.perf_counter(), 0, 0.0
        self.checkpoint = checkpoint
        with closing(source.open()) as reader:
            more: bool | None = True
            while more:
                page = reader.fetch_changes(self.checkpoint, limit)
                self.changes += len(page.records)
                self.checkpoint, more = page.next_checkpoint, page.more
                self.mib = max(self.mib, resident_mib())
                if page.records:
                    reader.acknowledge(self.checkpoint)
        self.seconds = time.perf_counter() - began


class Wire:
    """Lets a server be reached through a socket that counts bytes."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._target = (parsed.host or "127.0.0.1", parsed.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = parsed.set(host="127.0.0.1", port=self._listener.getsockname()[1])
        self.bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            one, other = self._listener.accept()[0], socket.create_connection(self._target)
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.bytes += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()


def fill(kind: str, url: str, first: int, last: int) -> None:
    engine = create_engine(url)
    numbers = NUMBERS[kind].format(first=first, last=last)
    values = f"n, {NAME[kind]}, 'a city of some length', n / 3.0, n / 7.0, {NAME[kind]}, '2026-01-01 00:00:00'"
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO bench_diff SELECT {values} FROM ({numbers}) AS numbers"))
    engine.dispose()


def run(url: str, statement: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


def source_at(url: str, provider: EngineProvider, snapshots: SqlSnapshots, name: str = "bench") -> HashDiffSource:
    return HashDiffSource(
        url=url,
        table="bench_diff",
        pk_columns=["id"],
        name=name,
        snapshots=snapshots,
        rows_per_tick=100 * COUNT,
        engine_provider=provider,
    )


def whole_sum(source: HashDiffSource, checkpoint: CheckpointJson, sums: list[float]) -> float:
    """Return the seconds of one statement that sums up all hashes, noted by themselves, and of reading the snapshot."""
    began = time.perf_counter()
    with source.connected() as (relation, connection):
        relation.digest(connection, None, None)
    sums.append(time.perf_counter() - began)
    root = source.documents.root(checkpoint["cursor"]["snapshot"])
    for block in root.blocks:
        source.documents.block(block, {})
    return time.perf_counter() - began


@contextmanager
def wired(kind: str, url: str) -> Iterator[Wire | None]:
    yield None if kind == "sqlite" else Wire(url)


def tell(case: str, kind: str, scan: Drained, wire: Wire | None, **more: object) -> None:
    line = {
        "benchmark": f"hash diff of {COUNT:,} rows, {case}",
        "case": kind,
        "ours_ms": round(scan.seconds * 1000),
        "changes": scan.changes,
        "rows_per_second": round(COUNT / scan.seconds),
        "wire_bytes": None if wire is None else wire.bytes,
        "mib": round(scan.mib, 1),
        **more,
    }
    print(json.dumps(line), flush=True)


def through(wire: Wire | None, snapshots: SqlSnapshots, checkpoint: CheckpointJson) -> None:
    """Scan once more through the counting socket; what it leaves behind belongs to no checkpoint."""
    if wire is None:
        return
    wire.bytes = 0
    provider = EngineProvider()
    there = source_at(wire.url.render_as_string(hide_password=False), provider, snapshots)
    with closing(there.open()) as reader:
        more: bool | None = True
        while more:
            page = reader.fetch_changes(checkpoint, 5000)
            checkpoint, more = page.next_checkpoint, page.more
    provider.dispose_all()


def measure(kind: str, url: str, place: str) -> None:
    provider = EngineProvider()
    snapshots = SqlSnapshots(url=place, engine_provider=provider)
    run(url, TABLE)
    fill(kind, url, 1, COUNT // 10)
    small = Drained(source_at(url, provider, snapshots, "small"), {})
    fill(kind, url, COUNT // 10 + 1, COUNT)
    run(url, "ANALYZE TABLE bench_diff" if kind == "mariadb" else "ANALYZE")
    source = source_at(url, provider, snapshots)
    loaded = Drained(source, {})
    with wired(kind, url) as wire:
        tell("first scan", kind, loaded, None, ratio=round(loaded.mib / small.mib, 3), target=1.2)
        sums: list[float] = []
        at = loaded.checkpoint
        turns = [(Drained(source, at), whole_sum(source, at, sums)) for _ in range(ROUNDS)]
        alone = statistics.median(scan.seconds / one for (scan, _), one in zip(turns, sums, strict=True))
        ratio = statistics.median(scan.seconds / baseline for scan, baseline in turns)
        through(wire, snapshots, loaded.checkpoint)
        baseline_ms = round(statistics.median(baseline for _, baseline in turns) * 1000)
        scan = sorted((scan for scan, _ in turns), key=lambda one: one.seconds)[ROUNDS // 2]
        line = {"ratio": round(ratio, 3), "target": 1.5, "baseline_ms": baseline_ms, "beside_sum": round(alone, 3)}
        tell("unchanged", kind, scan, wire, **line)
        run(url, "UPDATE bench_diff SET name = 'changed' WHERE id % 100 = 0")
        through(wire, snapshots, loaded.checkpoint)
        changed = Drained(source, loaded.checkpoint)
        tell("1 % changed", kind, changed, wire)
        run(url, "DELETE FROM bench_diff WHERE id % 10 = 1")
        through(wire, snapshots, changed.checkpoint)
        tell("10 % deleted", kind, Drained(source, changed.checkpoint), wire)
    provider.dispose_all()


if __name__ == "__main__":
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        for kind in ("postgres", "mariadb", "sqlite"):
            measure(kind, urls[kind], f"sqlite:///{folder}/{kind}.db")
