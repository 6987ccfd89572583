"""Ten thousand rows: `DbWriter` beside the best way that each driver has."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
from common import compare, databases
from sqlalchemy import create_engine, make_url, text

from azure_functions_db import DbWriter

ROWS = 10_000
TARGETS = {
    ("insert_many", "postgres"): 1.6,
    ("upsert_many", "postgres"): 1.6,
    ("insert_many", "sqlite"): 1.6,
    ("upsert_many", "sqlite"): 1.4,
    ("insert_many", "mariadb"): 1.5,
    ("upsert_many", "mariadb"): 1.15,
}
COLUMNS = ["id", "customer", "status", "amount", "quantity", "note"]
DDL = """
    CREATE TABLE bench_bulk (
        id INTEGER PRIMARY KEY, customer VARCHAR(50), status VARCHAR(20), amount FLOAT, quantity INTEGER,
        note VARCHAR(200)
    )
"""
NAMES = ", ".join(COLUMNS)
CHANGES = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
DUPLICATES = ", ".join(f"{name} = VALUES({name})" for name in COLUMNS[1:])


def rows() -> list[dict[str, Any]]:
    return [
        {
            "id": key,
            "customer": f"customer {key}",
            "status": "new",
            "amount": key / 7,
            "quantity": key % 9,
            "note": "x" * 60,
        }
        for key in range(1, ROWS + 1)
    ]


Best = Callable[[list[tuple[Any, ...]]], None]


def sqlite_ways(url: str) -> dict[str, Best]:
    connection = sqlite3.connect(make_url(url).database or "")
    insert = f"INSERT INTO bench_bulk ({NAMES}) VALUES (?, ?, ?, ?, ?, ?)"

    def way(sql: str) -> Best:
        def write(values: list[tuple[Any, ...]]) -> None:
            with connection:
                connection.executemany(sql, values)

        return write

    return {"insert_many": way(insert), "upsert_many": way(f"{insert} ON CONFLICT (id) DO UPDATE SET {CHANGES}")}


def mariadb_ways(url: str) -> dict[str, Best]:
    at = make_url(url)
    connection = pymysql.connect(
        host=at.host, port=at.port, user=at.username, password=str(at.password), database=at.database
    )
    insert = f"INSERT INTO bench_bulk ({NAMES}) VALUES (%s, %s, %s, %s, %s, %s)"

    def way(sql: str) -> Best:
        def write(values: list[tuple[Any, ...]]) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(sql, values)
            connection.commit()

        return write

    return {"insert_many": way(insert), "upsert_many": way(f"{insert} ON DUPLICATE KEY UPDATE {DUPLICATES}")}


def postgres_ways(url: str) -> dict[str, Best]:
    connection = psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))

    def copy(target: str, values: list[tuple[Any, ...]]) -> None:
        with connection.cursor() as cursor, cursor.copy(f"COPY {target} ({NAMES}) FROM STDIN") as stream:
            for row in values:
                stream.write_row(row)

    def insert(values: list[tuple[Any, ...]]) -> None:
        copy("bench_bulk", values)
        connection.commit()

    def upsert(values: list[tuple[Any, ...]]) -> None:
        connection.execute("CREATE TEMPORARY TABLE detour (LIKE bench_bulk) ON COMMIT DROP")
        copy("detour", values)
        connection.execute(
            f"INSERT INTO bench_bulk ({NAMES}) SELECT {NAMES} FROM detour ON CONFLICT (id) DO UPDATE SET {CHANGES}"
        )
        connection.commit()

    return {"insert_many": insert, "upsert_many": upsert}


WAYS = {"sqlite": sqlite_ways, "mariadb": mariadb_ways, "postgres": postgres_ways}


def measure(kind: str, url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(DDL))
    given = rows()
    values = [tuple(row[name] for name in COLUMNS) for row in given]
    writer = DbWriter(url=url, table="bench_bulk")
    ours = {
        "insert_many": lambda: writer.insert_many(rows=given),
        "upsert_many": lambda: writer.upsert_many(rows=given, conflict_columns=["id"]),
    }
    best = WAYS[kind](url)

    def empty() -> None:
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM bench_bulk"))

    for name, mine in ours.items():
        compare(
            f"{name} of {ROWS:,} rows",
            kind,
            mine,
            lambda name=name: best[name](values),
            target=TARGETS[name, kind],
            rounds=9,
            before=empty if name == "insert_many" else lambda: None,
        )
    engine.dispose()


if __name__ == "__main__":
    with databases() as urls:
        for kind, url in urls.items():
            measure(kind, url)
