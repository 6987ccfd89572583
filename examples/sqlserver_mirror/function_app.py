"""Keeps a table of another database in step with one of SQL Server, deletes included."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbWriter, RowChange, SqlServerChangeTrackingSource

app = func.FunctionApp()
db = DbBindings()

products = SqlServerChangeTrackingSource(url="%SHOP_DB%", table="products")


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=products,
    checkpoint_store=BlobCheckpointStore(),
    batch_size=1000,
    max_batches_per_tick=100,
    time_budget_seconds=240,
)
@db.inject_writer("copy", url="%COPY_DB%", table="products")
def mirror_products(timer: func.TimerRequest, events: list[RowChange], copy: DbWriter) -> None:
    with copy.transaction():
        for event in events:
            if event.after is None:
                copy.delete(pk=dict(event.pk))
        copy.upsert_many(rows=[event.after for event in events if event.after is not None], conflict_columns=["id"])
