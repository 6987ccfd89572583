"""A table of five columns with as many rows as wanted, and the driver's own way to page through it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Engine, text

PAGE = 1000
COLUMNS = "id, name, amount, active, updated_at"
_CREATE = {
    "postgresql": "id bigint PRIMARY KEY, name text, amount double precision, active boolean, updated_at timestamptz",
    "mysql": "id bigint PRIMARY KEY, name varchar(50), amount double, active boolean, updated_at datetime(6)",
    "sqlite": "id integer PRIMARY KEY, name text, amount real, active boolean, updated_at datetime",
}
_FILL = {
    "postgresql": "SELECT i, 'name ' || i, i / 7.0, i % 2 = 0, timestamptz '2026-01-01' + i * interval '1 ms' "
    "FROM generate_series(1, {rows}) AS i",
    "mysql": "SELECT seq, concat('name ', seq), seq / 7.0, seq % 2 = 0, "
    "timestamp '2026-01-01 00:00:00' + INTERVAL seq * 1000 MICROSECOND FROM seq_1_to_{rows}",
    "sqlite": "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) "
    "SELECT i, 'name ' || i, i / 7.0, i % 2 = 0, "
    "strftime('%Y-%m-%d %H:%M:%f', 1767225600 + i / 1000.0, 'unixepoch') || '000' FROM s",
}
# Each in the form that its optimiser turns into an index range.
_AFTER = {
    "postgresql": "(updated_at, id) > (%(c)s, %(p)s)",
    "mysql": "updated_at >= %(c)s AND (updated_at > %(c)s OR (updated_at = %(c)s AND id > %(p)s))",
    "sqlite": "(updated_at, id) > (:c, :p)",
}


def fill(engine: Engine, rows: int) -> None:
    """Make the table anew."""
    kind = engine.dialect.name
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS bench_rows"))
        connection.execute(text(f"CREATE TABLE bench_rows ({_CREATE[kind]})"))
        chosen = _FILL[kind].format(rows=rows)
        connection.exec_driver_sql(
            f"INSERT INTO bench_rows {chosen if kind == 'sqlite' else chosen.replace('%', '%%')}"
        )
        connection.execute(text("CREATE INDEX bench_rows_updated ON bench_rows (updated_at, id)"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE TABLE bench_rows" if kind == "mysql" else "ANALYZE bench_rows"))


def driver_pages(engine: Engine) -> Callable[[int], Iterator[list[Any]]]:
    """Return the floor: the raw driver on a connection that is kept open, page after page."""
    kind = engine.dialect.name
    connection = _connection(engine)
    page = f"SELECT {COLUMNS} FROM bench_rows WHERE {_AFTER[kind]} ORDER BY updated_at, id LIMIT {PAGE}"

    def pages(count: int) -> Iterator[list[Any]]:
        cursor, key = "2026-01-01 00:00:00", 0
        for _ in range(count):
            answer = connection.cursor()
            answer.execute(page, {"c": cursor, "p": key})
            rows = answer.fetchall()
            cursor, key = rows[-1][4], rows[-1][0]
            yield rows

    return pages


def _connection(engine: Engine) -> Any:
    url = engine.url
    if engine.dialect.name == "sqlite":
        return sqlite3.connect(str(url.database))
    if engine.dialect.name == "postgresql":
        import psycopg

        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(plain, autocommit=True)
    import pymysql

    return pymysql.connect(
        host=url.host or "",
        port=url.port or 3306,
        user=url.username,
        password=url.password or "",
        database=str(url.database),
        autocommit=True,
    )
