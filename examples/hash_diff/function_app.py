"""Mirrors a table that nobody may alter: no cursor column, no trigger, only the right to read; with its deletes."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbWriter, HashDiffSource, RowChange, SqlSnapshots

app = func.FunctionApp()
db = DbBindings()
SHOP = "%SHOP_DB%"

customers = HashDiffSource(
    url="%ERP_DB%",
    table="customers",
    pk_columns=["number"],
    columns=["name", "city"],
    snapshots=SqlSnapshots(url=SHOP),
)


@app.timer_trigger(schedule="0 */5 * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=customers,
    checkpoint_store=BlobCheckpointStore(),
    batch_size=500,
    max_batches_per_tick=1000,
    time_budget_seconds=120,
)
@db.inject_writer("mirror", url=SHOP, table="customers_mirror")
def mirror_customers(timer: func.TimerRequest, events: list[RowChange], mirror: DbWriter) -> None:
    with mirror.transaction():
        for event in events:
            if event.op == "delete":
                mirror.delete(pk=dict(event.pk))
        rows = [dict(event.after) for event in events if event.after is not None]
        if rows:
            mirror.upsert_many(rows=rows, conflict_columns=["number"])
