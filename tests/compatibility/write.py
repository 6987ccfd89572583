"""Writes what a user of an earlier state of the library has on disk: run it with that state's own code.

`python -m tests.compatibility.write FOLDER`. The files in ``written`` were made by commit 3c91e43; they are never
made anew, as they stand for what is out there.
``state/shop/failing.json`` is of later: a poller that fails, and is paused.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from azure_functions_db import (
    FileQuarantine,
    FileStateStore,
    ProcessedLedger,
    RowChange,
    RowsFailed,
    SqlAlchemySource,
    SqlQuarantine,
    SqlStateStore,
)
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.trigger.poll import PollTrigger

URL = "sqlite:///shop.db"
SOURCE = SourceDescriptor("orders", "sqlalchemy", "sha256:of-the-orders")
ZONE = dt.timezone(dt.timedelta(hours=2))
VALUES: list[Any] = [
    *(None, True, False, 0, 7, -(2**70), 1.5, -0.0, 1e300, "", "plain", "it's", "both ' and \"", "line\nbreak\\"),
    *("ünï", "日本", "\x00\x7f", "\u200b", b"", b"\x00\xff'", Decimal("1.50"), Decimal("-0E-7")),
    UUID("12345678-1234-5678-1234-567812345678"),
    *(dt.date(2026, 11, 16), dt.time(23, 59, 58), dt.time(1, 2, 3, 4), dt.time(1, tzinfo=dt.UTC)),
    *(dt.datetime(2026, 11, 16, 5, 6, 7), dt.datetime(2026, 11, 16, 5, 6, 7, 89, tzinfo=dt.UTC)),  # noqa: DTZ001 - as databases hand them out
    *(dt.datetime(2026, 11, 16, 7, 6, 7, 89, tzinfo=ZONE), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59)),  # noqa: DTZ001 - as above
]


def event_ids() -> dict[str, str]:
    """The ids of changes with every kind of cursor and key, by what was changed."""
    keys: list[dict[str, Any]] = [*({"id": value} for value in VALUES), {"a": 1, "b": "x", "c": None}]
    changes = [("upsert", value, {"id": 1}) for value in VALUES] + [("delete", 5, key) for key in keys]
    return {
        f"{op} {cursor!r} {key!r}": RowChange(None, op, SOURCE, cursor, key).event_id for op, cursor, key in changes
    }


def poll() -> None:
    """Deliver seven rows of a table; the fifth ends in quarantine."""
    shop = sqlite3.connect("shop.db")
    shop.execute("CREATE TABLE orders (id integer PRIMARY KEY, version integer NOT NULL UNIQUE, note text)")
    shop.executemany(
        "INSERT INTO orders VALUES (?, ?, ?)", [(number, number * 10, f"n{number}") for number in range(1, 8)]
    )
    shop.commit()
    shop.close()
    source = SqlAlchemySource(url=URL, table="orders", cursor_column="version", pk_columns=["id"])
    stores: dict[str, tuple[Any, Any]] = {
        "in-files": (FileStateStore("state", app_name="shop"), FileQuarantine("quarantine")),
        "in-sql": (SqlStateStore(url=URL, app_name="shop"), SqlQuarantine(url=URL)),
    }
    ledger = ProcessedLedger(url=URL, scope="shop")
    for name, (store, sink) in stores.items():

        def handle(events: list[RowChange]) -> None:
            bad = {event.event_id: "no good" for event in events if event.pk["id"] == 5}
            if bad:
                raise RowsFailed(bad)
            with ledger.once(events):
                pass

        trigger = PollTrigger(
            name=name, source=source, checkpoint_store=store, quarantine=sink, max_attempts=1, batch_size=4
        )
        for _ in range(3):
            trigger.run(timer=None, handler=handle)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    os.chdir(place)  # a fingerprint covers the URL, so the URL has to be the same wherever the files are read
    Path("event_ids.json").write_text(json.dumps(event_ids(), indent=1))
    poll()
    Path("shop.sql").write_text("\n".join(sqlite3.connect("shop.db").iterdump()))
    Path("shop.db").unlink()
