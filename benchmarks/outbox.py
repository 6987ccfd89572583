"""A page of an outbox beside a keyset page and the raw driver's page of the same rows, fresh and after a million."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from common import compare, databases
from sqlalchemy import create_engine, text

from azure_functions_db import Outbox, OutboxSource, SqlAlchemySource

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from azure_functions_db.core.types import CheckpointJson

PAGE = 1000
ROWS = int(os.environ.get("AZFDB_BENCH_ROWS", "1000000"))
FILL = {
    "postgresql": "INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) "
    "SELECT gen_random_uuid(), 'order', i::text, 'OrderPlaced', "
    "jsonb_build_object('id', i, 'item', 'lamp', 'price', 12.5) FROM generate_series(1, {rows}) AS i",
    "mysql": "INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) SELECT uuid(), 'order', seq, "
    "'OrderPlaced', json_object('id', seq, 'item', 'lamp', 'price', 12.5) FROM seq_1_to_{rows}",
}
RAW = {
    "postgresql": "SELECT * FROM outbox WHERE (position, sequence) > (0, 0) ORDER BY position, sequence LIMIT 1000",
    "mysql": "SELECT * FROM outbox WHERE sequence > 0 ORDER BY sequence LIMIT 1000",
}


def fill(engine: Engine, rows: int, outbox: Outbox) -> None:
    statement = FILL[engine.dialect.name].format(table=outbox.table, rows=rows)
    with engine.begin() as connection:
        connection.execute(text(statement.replace(":", "\\:")))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ANALYZE {'TABLE ' if engine.dialect.name == 'mysql' else ''}{outbox.table}"))


def pages(kind: str, url: str, engine: Engine) -> None:
    """Compare a page with one of a keyset source, which waits for late commits in its own way, and the driver's."""
    fill(engine, 20 * PAGE, Outbox())
    by_position = engine.dialect.name == "postgresql"
    order: dict[str, Any] = {"cursor_column": "position" if by_position else "sequence", "pk_columns": ["sequence"]}
    keyset = SqlAlchemySource(url=url, table="outbox", **order)
    plain = SqlAlchemySource(url=url, table="outbox", in_flight="ignore", **order)
    outbox = OutboxSource(url=url)
    target = 1.3 if by_position else None
    reader = outbox.open()
    ours = lambda: reader.fetch_changes({}, PAGE)  # noqa: E731 - timed as it is
    compare("outbox page / keyset page", kind, ours, lambda: keyset.fetch_changes({}, PAGE), target=target)
    compare("outbox page / plain keyset page", kind, ours, lambda: plain.fetch_changes({}, PAGE), target=None)
    raw = engine.raw_connection()

    def driver() -> list[Any]:
        cursor = raw.cursor()
        cursor.execute(RAW[engine.dialect.name])
        return list(cursor.fetchall())

    compare("outbox page / raw driver", kind, ours, driver, target=None)
    raw.rollback()
    raw.close()


def after_many(kind: str, url: str, engine: Engine) -> None:
    """Compare the next page behind many rows that were delivered and removed with the first one of a new table."""
    used, new = Outbox("used"), Outbox("fresh")
    for outbox in (used, new):
        outbox.create(engine)
        if kind == "postgres":
            with engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE {outbox.table} SET (autovacuum_enabled = false)"))
    fill(engine, ROWS, used)
    began = time.perf_counter()
    position = drained(url, used)
    taken = (time.perf_counter() - began) / ROWS * 1_000_000
    print(
        json.dumps({"benchmark": "delivered and removed, ms per 1,000 rows", "case": kind, "ours_ms": round(taken, 1)})
    )
    for outbox in (used, new):
        fill(engine, 5 * PAGE, outbox)
    behind, first = (OutboxSource(url=url, outbox=outbox).open() for outbox in (used, new))
    compare(
        f"page after {ROWS:,} removed / first",
        kind,
        lambda: behind.fetch_changes(position, PAGE),
        lambda: first.fetch_changes({}, PAGE),
        target=1.3,
        rounds=60,
    )


def drained(url: str, outbox: Outbox) -> CheckpointJson:
    """Deliver and remove all there is, and return the position behind it."""
    reader, position, more = OutboxSource(url=url, outbox=outbox).open(), {}, True
    while more:
        result = reader.fetch_changes(position, 10 * PAGE)
        position, more = result.next_checkpoint, bool(result.records)
        reader.acknowledge(position)
    return position


def main() -> None:
    with databases() as urls:
        create_engine(urls["sqlite"]).connect().close()
        for kind in ("postgres", "mariadb"):
            engine = create_engine(urls[kind])
            Outbox().create(engine)
            pages(kind, urls[kind], engine)
            after_many(kind, urls[kind], engine)
            engine.dispose()


if __name__ == "__main__":
    main()
