"""One page of 1,000 rows of five columns: the source beside the raw driver doing the same read.

Prints a JSON line per database, with medians of interleaved rounds: only ratios within one run mean
anything. ``--deep`` also compares pages at the beginning and at the end of a million rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, make_url, text

from azure_functions_db import SqlAlchemySource

PAGE = 1000
COLUMNS = "id, name, amount, active, updated_at"
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
    "sqlite": "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) "
    "SELECT i, 'name ' || i, i / 7.0, i % 2 = 0, strftime('%Y-%m-%d %H:%M:%f', 1767225600 + i / 1000.0, 'unixepoch') FROM s",
}


def fill(engine: Engine, rows: int) -> None:
    kind = engine.dialect.name
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS bench_rows"))
        connection.execute(text(f"CREATE TABLE bench_rows ({CREATE[kind]})"))
        connection.exec_driver_sql(
            f"INSERT INTO bench_rows {FILL[kind].format(rows=rows).replace('%', '%%' if kind != 'sqlite' else '%')}"
        )
        connection.execute(text("CREATE INDEX bench_rows_updated ON bench_rows (updated_at, id)"))
    if kind == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE bench_rows"))


def raw_reader(engine: Engine) -> Callable[[], Any]:
    """Return the driver's own way to read the page, over a connection that is kept open."""
    kind, url = engine.dialect.name, engine.url
    if kind == "sqlite":
        connection: Any = sqlite3.connect(str(url.database))
        mark = "(?, ?)"
    elif kind == "postgresql":
        import psycopg

        connection = psycopg.connect(
            url.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True
        )
        mark = "(%s, %s)"
    else:
        import pymysql

        connection = pymysql.connect(
            host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", database=url.database,
            autocommit=True,
        )  # fmt: skip
        mark = ""
    where = (
        f"(updated_at, id) > {mark}"
        if mark
        else "updated_at >= %s AND (updated_at > %s OR (updated_at = %s AND id > %s))"
    )
    statement = f"SELECT {COLUMNS} FROM bench_rows WHERE {where} ORDER BY updated_at, id LIMIT {PAGE + 1}"
    start = "2026-01-01 00:00:00.500"
    values = (start, 500) if mark else (start, start, start, 500)

    def read() -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, values)
        return cursor.fetchall()

    return read


def source_reader(url: str, position: tuple[Any, ...] = ("2026-01-01 00:00:00.500", 500)) -> Callable[[], Any]:
    source = SqlAlchemySource(url=url, table="bench_rows", cursor_column="updated_at", pk_columns=["id"])
    checkpoint = {"cursor": list(position)}

    def read() -> Any:
        # As in a drained backlog: the horizon has been found, page follows page.
        source._backlog = True
        return source.fetch_changes(checkpoint, PAGE)

    return read


def medians(readers: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            began = time.perf_counter()
            read()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken[rounds // 5 :]) for name, taken in times.items()}


def measure(url: str, rows: int, rounds: int, deep: bool) -> dict[str, Any]:
    engine = create_engine(url)
    fill(engine, rows)
    readers = {"raw": raw_reader(engine), "source": source_reader(url)}
    if deep:
        late = rows - rows // 100
        readers["late"] = source_reader(url, (f"2026-01-01 00:{late // 60000:02}:{late // 1000 % 60:02}.000", late))
    found = medians(readers, rounds)
    told = {"benchmark": "poll_fetch", "database": engine.dialect.name, "rows": rows, "page": PAGE}
    told |= {f"{name}_ms": round(taken * 1000, 3) for name, taken in found.items()}
    told["ratio_to_raw"] = round(found["source"] / found["raw"], 2)
    if deep:
        told["ratio_late_to_early"] = round(found["late"] / found["source"], 2)
    engine.dispose()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--deep", action="store_true")
    options = parser.parse_args()
    rows = 1_000_000 if options.deep else 20_000
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"sqlite:///{Path(folder) / 'bench.db'}"]
        for variable in ("AZFDB_TEST_POSTGRES_URL", "AZFDB_TEST_MARIADB_URL"):
            if variable in os.environ:
                server = make_url(os.environ[variable])
                name = "azfdb_bench"
                admin = create_engine(server, isolation_level="AUTOCOMMIT")
                with admin.connect() as connection:
                    connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
                    connection.execute(text(f"CREATE DATABASE {name}"))
                admin.dispose()
                urls.append(server.set(database=name).render_as_string(hide_password=False))
        for url in urls:
            print(json.dumps(measure(url, rows, options.rounds, options.deep)), flush=True)


if __name__ == "__main__":
    main()
