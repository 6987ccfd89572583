"""A process that mirrors a database into a SQLite file, and may be killed at any moment.

``python -m tests.integration.mongo_mirror URI FILE STOP``: it ends by itself when the file STOP is there and nothing is
left to read.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from azure_functions_db import FetchError, MongoChangeStreamSource
from azure_functions_db.sources.mongo.log import extended

if TYPE_CHECKING:
    from azure_functions_db.core.types import Change

SCHEMA = """
    CREATE TABLE IF NOT EXISTS mirror (collection TEXT, id TEXT, document TEXT, PRIMARY KEY (collection, id));
    CREATE TABLE IF NOT EXISTS checkpoint (one INTEGER PRIMARY KEY, value TEXT);
"""
PAGES = 20


def main(uri: str, file: str, stop: str) -> None:
    source = MongoChangeStreamSource(uri=uri, database="shop")
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


def tick(source: MongoChangeStreamSource, place: sqlite3.Connection) -> int:
    """Read some pages; each is applied, and only then its checkpoint is written, in a transaction of its own."""
    taken = 0
    with closing(source.open()) as reader:
        for _ in range(PAGES):
            row = place.execute("SELECT value FROM checkpoint").fetchone()
            page = reader.fetch_changes(json.loads(row[0]) if row else {}, 50)
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
    name = change.metadata["collection"]
    key = json.dumps(extended(change.key.get("_id")))
    if change.op == "truncate":
        place.execute("DELETE FROM mirror WHERE collection = ?", [name])
    elif change.after is None:
        place.execute("DELETE FROM mirror WHERE collection = ? AND id = ?", [name, key])
    else:
        place.execute("REPLACE INTO mirror VALUES (?, ?, ?)", [name, key, json.dumps(extended(change.after))])


if __name__ == "__main__":
    main(*sys.argv[1:])
