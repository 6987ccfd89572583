"""A page in the middle of a million rows that share one cursor value, beside a page of rows that share none.

The key is NOT NULL, may be NULL, or belongs to a query, which does not say. Where the tie is the newest value there is,
each page looks anew who is writing, as rows may join it at any time: that is told, and has no target.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from common import databases, report_turns
from sqlalchemy import Engine, create_engine, text

from azure_functions_db import SqlAlchemySource

ROWS, PAGE, PAGES, ROUNDS = 1_000_000, 1000, 5, 20
_NUMBERS = {
    "postgresql": "SELECT i FROM generate_series(1, {rows}) AS i",
    "mysql": "SELECT seq AS i FROM seq_1_to_{rows}",
    "sqlite": "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) SELECT i FROM s",
}
_NAME = {"postgresql": "'name ' || i", "mysql": "concat('name ', i)", "sqlite": "'name ' || i"}


def fill(engine: Engine, table: str, *, version: str, null: bool) -> None:
    """Make a table whose rows have versions by an expression of their number, and keys of their own."""
    kind, key = engine.dialect.name, "NULL UNIQUE" if null else "NOT NULL UNIQUE"
    numbers = _NUMBERS[kind].format(rows=ROWS)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (id bigint {key}, version bigint NOT NULL, name varchar(50))"))
        connection.execute(text(f"INSERT INTO {table} SELECT i, {version}, {_NAME[kind]} FROM ({numbers}) AS n"))
        connection.execute(text(f"CREATE INDEX {table}_order ON {table} (version, id)"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ANALYZE TABLE {table}" if kind == "mysql" else f"ANALYZE {table}"))


def pages_of(url: str, *, at: tuple[int, int], **what: str) -> Callable[[], float]:
    """Return what reads some pages after a position and tells the seconds per page."""
    source = SqlAlchemySource(url=url, cursor_column="version", pk_columns=["id"], **what)  # type: ignore[arg-type]

    def read(count: int) -> None:
        checkpoint: dict[str, Any] = {"cursor": list(at)}
        for _ in range(count):
            result = source.fetch_changes(checkpoint, PAGE)
            if len(result.records) != PAGE:
                raise AssertionError(f"{len(result.records)} rows in a page")
            checkpoint = dict(result.next_checkpoint)

    def timed() -> float:
        read(2)  # to know the place: a process does that once
        began = time.perf_counter()
        read(PAGES)
        return (time.perf_counter() - began) / PAGES

    return timed


def side_by_side(case: str, url: str, tied: dict[str, str], plain: dict[str, str], target: float | None = 1.3) -> None:
    middle = ROWS // 2
    ours, beside = pages_of(url, at=(1, middle), **tied), pages_of(url, at=(middle, middle), **plain)
    ours(), beside()
    times = [(ours(), beside()) for _ in range(ROUNDS)]
    report_turns("long ties", case, [one for one, _ in times], [two for _, two in times], target=target)


def main() -> None:
    with databases() as urls:
        for kind, url in urls.items():
            engine = create_engine(url)
            for null in (False, True):
                suffix = "_null" if null else ""
                fill(engine, f"plain{suffix}", version="i", null=null)
                fill(engine, f"tied{suffix}", version=f"CASE WHEN i <= {ROWS * 9 // 10} THEN 1 ELSE i END", null=null)
            fill(engine, "newest", version="1", null=False)
            engine.dispose()
            side_by_side(f"{kind}, a key", url, {"table": "tied"}, {"table": "plain"})
            side_by_side(f"{kind}, a key that may be NULL", url, {"table": "tied_null"}, {"table": "plain_null"})
            queries = [{"query": f"SELECT id, version, name FROM {table}"} for table in ("tied", "plain")]
            side_by_side(f"{kind}, a query", url, *queries)
            side_by_side(f"{kind}, the newest value", url, {"table": "newest"}, {"table": "plain"}, None)


if __name__ == "__main__":
    main()
