"""Keeps a MariaDB table in step with a PostgreSQL table."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbOut, RowChange, SqlAlchemySource

app = func.FunctionApp()
db = DbBindings()

products = SqlAlchemySource(
    url="%WAREHOUSE_DB%",
    table="products",
    cursor_column="updated_at",
    pk_columns=["id"],
    columns=["name", "price"],
)


@app.timer_trigger(schedule="*/30 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=products,
    checkpoint_store=BlobCheckpointStore(),
    batch_size=1000,
    max_batches_per_tick=100,
    time_budget_seconds=240,
)
@db.output("catalogue", url="%CATALOGUE_DB%", table="products", action="upsert", conflict_columns=["id"])
def sync_products(timer: func.TimerRequest, events: list[RowChange], catalogue: DbOut) -> None:
    # An upsert by key is idempotent: a batch that comes a second time changes nothing.
    rows = [event.after for event in events if event.after is not None]
    catalogue.set([{"id": row["id"], "name": row["name"], "price": row["price"]} for row in rows])
