"""Pages of 1,000 rows of five columns: the source beside the raw driver doing the same reads.

Also the source near the end of a million rows beside itself at their beginning.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from typing import Any

from common import compare, databases
from sqlalchemy import Engine, create_engine, text

from azure_functions_db import SqlAlchemySource

ROWS = int(os.environ.get("AZFDB_BENCH_ROWS", "1000000"))
PAGE = 1000
PAGES = 8
CREATE = {
    "postgresql": "id bigint PRIMARY KEY, name text, amount double precision, active boolean, updated_at timestamptz",
    "mysql": "id bigint PRIMARY KEY, name varchar(50), amount double, active boolean, updated_at datetime(6)",
    "sqlite": "id integer PRIMARY KEY, name text, amount real, active integer, updated_at text",
}
FILL = {
    "postgresql": "SELECT i, 'name ' || i, i / 7.0, i % 2 = 0, timestamptz '2026-01-01' + i * interval '1 ms' "
    "FROM generate_series(1, {rows}) AS i",
    "mysql": "SELECT seq, concat('name ', seq), seq / 7.0, seq % 2 = 0, "
    "timestamp '2026-01-01 00:00:00' + INTERVAL seq * 1000 MICROSECOND FROM seq_1_to_{rows}",
    "sqlite": "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) SELECT i, "
    "'name ' || i, i / 7.0, i % 2 = 0, strftime('%Y-%m-%d %H:%M:%f', 1767225600 + i / 1000.0, 'unixepoch') FROM s",
}
# What the source may take, so that the whole way to the handler stays within its budget.
TARGETS = {"postgresql": 1.75, "mysql": 1.25, "sqlite": 2.25}


class Source:
    """Reads a few pages, again and again, from some row on."""

    def __init__(self, url: str, row: int) -> None:
        self._source = SqlAlchemySource(url=url, table="bench_rows", cursor_column="updated_at", pk_columns=["id"])
        self._start: dict[str, Any] = {"cursor": [moment(row), row]} if row else {}
        self._checkpoint = self._start
        self._pages = 0

    def __call__(self) -> object:
        result = self._source.fetch_changes(self._checkpoint, PAGE)
        assert len(result.records) == PAGE
        self._pages = (self._pages + 1) % PAGES
        self._checkpoint = result.next_checkpoint if self._pages else self._start
        return result


class Raw:
    """The same with the driver's own connection and tuples."""

    def __init__(self, engine: Engine) -> None:
        self._connection, mark = opened(engine)
        where = f"(updated_at, id) > ({mark}, {mark})"
        if engine.dialect.name == "mysql":
            where = "updated_at >= %(c)s AND (updated_at > %(c)s OR (updated_at = %(c)s AND id > %(p)s))"
        self._named = engine.dialect.name == "mysql"
        self._statement = f"SELECT * FROM bench_rows WHERE {where} ORDER BY updated_at, id LIMIT {PAGE + 1}"
        self._position: tuple[Any, Any] = (moment(0), 0)
        self._pages = 0

    def __call__(self) -> object:
        cursor = self._connection.cursor()
        values = {"c": self._position[0], "p": self._position[1]} if self._named else self._position
        cursor.execute(self._statement, values)
        rows = cursor.fetchall()
        self._pages = (self._pages + 1) % PAGES
        self._position = (rows[PAGE - 1][4], rows[PAGE - 1][0]) if self._pages else (moment(0), 0)
        return rows


def opened(engine: Engine) -> tuple[Any, str]:
    """Return a connection of the raw driver without a transaction, and its mark for a parameter."""
    url = engine.url
    match engine.dialect.name:
        case "sqlite":
            return sqlite3.connect(str(url.database)), "?"
        case "postgresql":
            import psycopg

            plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
            return psycopg.connect(plain, autocommit=True), "%s"
        case _:
            import pymysql

            place = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
            return pymysql.connect(password=url.password or "", autocommit=True, **place), "%s"


def moment(row: int) -> str:
    return f"2026-01-01 00:{row // 60000:02}:{row // 1000 % 60:02}.{row % 1000:03}"


def fill(engine: Engine) -> None:
    kind = engine.dialect.name
    rows = FILL[kind].format(rows=ROWS).replace(":", "\\:")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE bench_rows ({CREATE[kind]})"))
        connection.execute(text(f"INSERT INTO bench_rows {rows}"))
        connection.execute(text("CREATE INDEX bench_rows_updated ON bench_rows (updated_at, id)"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(
            text({"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}[kind] + " bench_rows")
        )


def main() -> None:
    logging.getLogger("azure_functions_db").setLevel(logging.ERROR)
    with databases() as urls:
        for kind, url in urls.items():
            engine = create_engine(url)
            fill(engine)
            target = TARGETS[engine.dialect.name]
            early = Source(url, 0)
            compare("poll_fetch", f"{kind}: page of {PAGE} beside the raw driver", early, Raw(engine), target=target)
            late = Source(url, ROWS - ROWS // 100)
            compare("poll_fetch", f"{kind}: at 99 % of {ROWS} rows beside the first", late, early, target=1.3)
            engine.dispose()


if __name__ == "__main__":
    main()
