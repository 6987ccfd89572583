"""A poller in a process of its own, to be killed: mirrors a table and notes every delivery, until it is killed."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Any

from sqlalchemy import create_engine, text

from azure_functions_db import FileStateStore, PollTrigger, PostgresLogicalSource
from azure_functions_db.core.errors import DbError
from azure_functions_db.sources.postgres.pgoutput import lsn_of

PUT = "INSERT INTO mirror VALUES (:id, :v) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
NOTE = "INSERT INTO delivered (event_id, op, id, v, place) VALUES (:event_id, :op, :id, :v, :place)"


def main(url: str, mirror_url: str, table: str, state: str) -> None:
    mirror = create_engine(mirror_url)
    source = PostgresLogicalSource(url=url, tables=table, slot=table)
    trigger = PollTrigger(
        name="poller",
        source=source,
        checkpoint_store=FileStateStore(state),
        batch_size=1000,
        max_batches_per_tick=1000,
        lease_ttl_seconds=1,
    )
    while True:
        try:
            trigger.run(timer=None, handler=lambda events: apply(mirror, events))
        except DbError as error:  # another owner's lease, or a slot that is still held
            sys.stdout.write(f"{error}\n")


def apply(mirror: Any, events: list[Any]) -> None:
    """Apply changes in their order, and note each, in one transaction."""
    with mirror.begin() as connection:
        for is_delete, some in groupby(events, lambda event: event.op == "delete"):
            rows = [{"id": event.pk["id"], "v": (event.after or {}).get("v")} for event in some]
            connection.execute(text("DELETE FROM mirror WHERE id = :id" if is_delete else PUT), rows)
        notes = [
            {
                "event_id": event.event_id,
                "op": event.op,
                "id": event.pk["id"],
                "v": (event.after or {}).get("v"),
                "place": None if "snapshot" in event.metadata else lsn_of(event.metadata["lsn"]),
            }
            for event in events
        ]
        connection.execute(text(NOTE), notes)


if __name__ == "__main__":
    main(*sys.argv[1:])
