"""Keeps a table of another database in step with one of MySQL or MariaDB, deletes included."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbReader, DbWriter, MySqlBinlogSource, RowChange

app = func.FunctionApp()
db = DbBindings()

products = MySqlBinlogSource(url="%SHOP_DB%", tables=["products"])


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=products,
    checkpoint_store=BlobCheckpointStore(),
    batch_size=1000,
    max_batches_per_tick=100,
    time_budget_seconds=240,
)
@db.inject_reader("present", url="%COPY_DB%")
@db.inject_writer("copy", url="%COPY_DB%", table="products")
def mirror_products(timer: func.TimerRequest, events: list[RowChange], present: DbReader, copy: DbWriter) -> None:
    changes = since_last_truncate(events)
    # Of each row only the last change counts: what came before it is overwritten anyway.
    last = {event.pk["id"]: event for event in changes}
    kept = [event.after for event in last.values() if event.after is not None]
    gone = [dict(event.pk) for event in last.values() if event.after is None]
    with copy.transaction():
        if len(changes) < len(events):
            gone = present.query("SELECT id FROM products", params={})
        for key in gone:
            copy.delete(pk=key)
        copy.upsert_many(rows=kept, conflict_columns=["id"])


def since_last_truncate(events: list[RowChange]) -> list[RowChange]:
    """Return the events that a table which was emptied at once has seen since."""
    emptied = [place for place, event in enumerate(events) if event.op == "truncate"]
    return events[emptied[-1] + 1 :] if emptied else events
