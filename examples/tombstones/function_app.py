"""Keeps a search index in step with a table from which rows are really deleted."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbWriter, RowChange, SqlAlchemySource

app = func.FunctionApp()
db = DbBindings()
SHOP = "%SHOP_DB%"

products = SqlAlchemySource(
    url=SHOP,
    # Rows and tombstones draw their version from one sequence: together they are one ordered stream.
    query="""
        SELECT id, name, version, false AS deleted FROM products
        UNION ALL
        SELECT id, NULL, version, true FROM products_tombstones
    """,
    cursor_column="version",
    pk_columns=["id"],
    deleted_column="deleted",
)


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", source=products, checkpoint_store=BlobCheckpointStore(), max_batches_per_tick=100)
@db.inject_writer("index", url=SHOP, table="search_index")
def follow_products(timer: func.TimerRequest, events: list[RowChange], index: DbWriter) -> None:
    for event in events:
        if event.op == "delete":
            index.delete(pk={"id": event.pk["id"]})
        else:
            row = event.after or {}
            index.upsert(data={"id": row["id"], "name": row["name"]}, conflict_columns=["id"])
