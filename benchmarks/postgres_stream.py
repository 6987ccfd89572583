"""What the log costs: a source beside a bare stream, whose messages are decoded and dropped, and beside polling.

A ratio is the source's time over that of the bare stream: 1.67 is 0.6 of its speed. Memory is the peak of a process
that reads a transaction of a million rows, over that of one that reads ten thousand.
"""

# ruff: noqa: SLF001 - the bare stream is built from the source's own parts

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from statistics import median
from typing import Any

from common import databases, report, report_turns, write_log_at_commit
from sqlalchemy import create_engine, text

from azure_functions_db import DbConfig, EngineProvider, PostgresLogicalSource, SqlAlchemySource
from azure_functions_db.sources.postgres.changes import RowType, Session, Shape
from azure_functions_db.sources.postgres.pgoutput import Insert, Relation, decoded
from azure_functions_db.sources.postgres.replication import Replication

COLUMNS = (
    "id bigserial PRIMARY KEY, a int, b bigint, c text, d varchar(40), e numeric(12, 2), f double precision, "
    "g boolean, h timestamptz, i uuid"
)
ROW = "7, 123456789012, 'some text', 'a shorter one', 12.34, 0.5, true, now(), gen_random_uuid()"
CLOCK = time.perf_counter
FEW, MANY = 10_000, 1_000_000
BATCH = 1000


def main() -> None:
    if sys.argv[1:]:
        peak(*sys.argv[1:])
        return
    with databases() as urls:
        url = urls["postgres"]
        create_engine(urls["sqlite"]).connect().close()  # its file is removed with the databases
        write_log_at_commit(url)
        speed(url, "20,000 transactions of one row", lambda connection, table: singly(connection, table, 20_000))
        speed(url, "one transaction of 100,000 rows", lambda connection, table: at_once(connection, table, 100_000))
        memory(url)
        polling(url)


def singly(connection: Any, table: str, count: int) -> None:
    connection.execute(
        text(f"DO $$ BEGIN FOR n IN 1..{count} LOOP INSERT INTO {table} (a,b,c,d,e,f,g,h,i) VALUES ({ROW}); COMMIT; "
             "END LOOP; END $$")
    )  # fmt: skip


def at_once(connection: Any, table: str, count: int) -> None:
    connection.execute(text(f"INSERT INTO {table} (a,b,c,d,e,f,g,h,i) SELECT {ROW} FROM generate_series(1, {count})"))


class Bench:
    """A table with a slot, and something written to it."""

    def __init__(self, url: str, write: Any) -> None:
        self.url, self.table = url, f"t_{secrets.token_hex(4)}"
        self.engine = create_engine(url, isolation_level="AUTOCOMMIT")
        self.provider = EngineProvider()
        with self.engine.connect() as connection:
            connection.execute(text(f"CREATE TABLE {self.table} ({COLUMNS})"))
        self.source = PostgresLogicalSource(
            url=url, tables=self.table, slot=self.table, snapshot="never", engine_provider=self.provider
        )
        self.source.create_stream()
        with self.engine.connect() as connection:
            write(connection, self.table)

    def close(self) -> None:
        self.source.drop_stream()
        self.provider.dispose_all()
        self.engine.dispose()

    def ours(self) -> tuple[float, int]:
        """Read everything in batches, as a tick does."""
        began, count, checkpoint = CLOCK(), 0, {}
        reader = self.source.open()
        while True:
            page = reader.fetch_changes(checkpoint, BATCH)
            count, checkpoint = count + len(page.records), page.next_checkpoint
            if not page.more:
                break
        spent = CLOCK() - began
        reader.close()
        return spent, count

    def bare(self) -> tuple[float, int]:
        """Read everything from the same connection, decode every value and drop it."""
        began, count = CLOCK(), 0
        log = self.source._log()
        target = self.source._server().look().flushed_lsn
        feed = Replication(
            self.provider.get_engine(DbConfig(connection_url=self.url)), log._config, log._definition, "bare"
        )
        types: dict[int, RowType] = {}
        while True:
            received = feed.next(1.0)
            if isinstance(received, int):
                if received >= target:
                    break
                continue
            if received is None:
                break
            message = decoded(received)
            if isinstance(message, Relation):
                shape = Shape(tuple(c.name for c in message.columns), tuple(c.type_oid for c in message.columns))
                types[message.oid] = RowType(shape, Session(feed.connection.adapters, feed.connection), {})
            elif isinstance(message, Insert):
                types[message.oid]._load(message.new)
                count += 1
        spent = CLOCK() - began
        feed.close()
        return spent, count


def speed(url: str, case: str, write: Any) -> None:
    bench = Bench(url, write)
    turns = [(bench.ours(), bench.bare()) for _ in range(7)]
    ours, bare = ([spent for spent, _ in times] for times in zip(*turns, strict=True))
    counts = {count for turn in turns for _, count in turn}
    assert len(counts) == 1, turns
    report_turns("postgres_stream", case, ours, bare, target=1.67, rows_per_second=round(counts.pop() / median(ours)))
    bench.close()


def memory(url: str) -> None:
    """Compare the peaks of two processes of their own."""
    peaks = {}
    for count in (FEW, MANY):
        bench = Bench(url, lambda connection, table, count=count: at_once(connection, table, count))
        done = subprocess.run([sys.executable, __file__, url, bench.table], capture_output=True, text=True, check=True)
        read, peaks[count] = map(int, done.stdout.split())
        assert read == count, read
        bench.close()
    line = {"benchmark": "postgres_stream", "case": "memory, a million rows over ten thousand", "target": 1.3}
    print(json.dumps({**line, "ratio": round(peaks[MANY] / peaks[FEW], 2), "peak_mb": peaks[MANY] // 1024}), flush=True)


def peak(url: str, table: str) -> None:
    """Read a slot to its end; print how many rows that were, and the most memory it took."""
    import resource

    source = PostgresLogicalSource(url=url, tables=table, slot=table, snapshot="never")
    reader, count, checkpoint = source.open(), 0, {}
    while True:
        page = reader.fetch_changes(checkpoint, BATCH)
        count, checkpoint = count + len(page.records), page.next_checkpoint
        if not page.more:
            break
    reader.close()
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def polling(url: str) -> None:
    """Read the same rows by the log and by polling."""
    bench = Bench(url, lambda connection, table: at_once(connection, table, 100_000))
    keyset = SqlAlchemySource(
        url=url, table=bench.table, cursor_column="id", pk_columns=["id"], engine_provider=bench.provider
    )
    began, checkpoint = time.perf_counter(), {}
    while (page := keyset.fetch_changes(checkpoint, BATCH)).records:
        checkpoint = page.next_checkpoint
    polled = time.perf_counter() - began
    ours, count = min(bench.ours() for _ in range(3))
    report("postgres_stream", "beside polling the same rows", ours, polled, rows_per_second=round(count / ours))
    bench.close()


if __name__ == "__main__":
    main()
