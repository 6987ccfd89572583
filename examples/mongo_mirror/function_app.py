"""Keeps a table in step with a collection of MongoDB, deletes included."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbReader, DbWriter, MongoChangeStreamSource, RowChange

app = func.FunctionApp()
db = DbBindings()

products = MongoChangeStreamSource(uri="%SHOP_MONGO%", database="shop", collection="products")


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
    # Of each document only the last change counts; an update of one that is gone again has no document.
    last = {str(event.pk["_id"]): event.after for event in changes}
    kept = [row_of(document) for document in last.values() if document is not None]
    gone = [{"id": key} for key, document in last.items() if document is None]
    with copy.transaction():
        if len(changes) < len(events):
            gone = present.query("SELECT id FROM products", params={})
        for key in gone:
            copy.delete(pk=key)
        copy.upsert_many(rows=kept, conflict_columns=["id"])


def row_of(document: dict) -> dict:
    """Return the row of a document: its id as text, its price as a number of the database's."""
    return {"id": str(document["_id"]), "name": document["name"], "price": document["price"].to_decimal()}


def since_last_truncate(events: list[RowChange]) -> list[RowChange]:
    """Return the events since the collection was dropped or renamed the last time."""
    emptied = [place for place, event in enumerate(events) if event.op == "truncate"]
    return events[emptied[-1] + 1 :] if emptied else events
