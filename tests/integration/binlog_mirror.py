"""A process that mirrors a table into a SQLite file, and may be killed at any moment.

``python -m tests.integration.binlog_mirror URL FILE STOP``: it ends by itself when the file STOP is there and nothing
is left to read.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db import DbConfig, FetchError, MySqlBinlogSource, SqlServerChangeTrackingSource

if TYPE_CHECKING:
    from azure_functions_db.core.types import Change

Source = MySqlBinlogSource | SqlServerChangeTrackingSource
SCHEMA = """
    CREATE TABLE IF NOT EXISTS mirror (id INTEGER PRIMARY KEY, version INTEGER);
    CREATE TABLE IF NOT EXISTS delivered (
        number INTEGER PRIMARY KEY, op TEXT, position TEXT, id INTEGER, version INTEGER
    );
    CREATE TABLE IF NOT EXISTS checkpoint (one INTEGER PRIMARY KEY, value TEXT);
"""
PAGES = 20


def main(url: str, file: str, stop: str) -> None:
    source = source_of(url)
    with closing(sqlite3.connect(file, isolation_level=None)) as place:
        place.executescript(SCHEMA)
        while True:
            is_over = Path(stop).exists()
            try:
                taken = tick(source, place)
            except FetchError as error:
                if not error.transient:
                    raise
                continue
            if is_over and not taken:
                return


def source_of(url: str) -> Source:
    if url.startswith("mssql"):
        return SqlServerChangeTrackingSource(url=url, table="soaked")
    config = DbConfig(connection_url=url, connect_args={"ssl_disabled": True})
    return MySqlBinlogSource(db_config=config, tables=["soaked"])


def tick(source: Source, place: sqlite3.Connection) -> int:
    """Read some pages; each is applied, and only then its checkpoint is written, in a transaction of its own."""
    taken = 0
    with closing(source.open()) as reader:
        for _ in range(PAGES):
            row = place.execute("SELECT value FROM checkpoint").fetchone()
            page = reader.fetch_changes(json.loads(row[0]) if row else {}, 100)
            place.execute("BEGIN")
            for change in page.records:
                apply(place, change)
            place.execute("COMMIT")
            place.execute("REPLACE INTO checkpoint VALUES (1, ?)", [json.dumps(page.next_checkpoint)])
            taken += len(page.records)
            if not page.more:
                break
    return taken


def apply(place: sqlite3.Connection, change: Change) -> None:
    row: Any = change.after
    key, version = change.key["id"], None if row is None else row["version"]
    place.execute(
        "INSERT INTO delivered (op, position, id, version) VALUES (?, ?, ?, ?)",
        [change.op, change.position, key, version],
    )
    if row is None:
        place.execute("DELETE FROM mirror WHERE id = ?", [key])
    else:
        place.execute("REPLACE INTO mirror VALUES (?, ?)", [key, version])


if __name__ == "__main__":
    main(*sys.argv[1:])
