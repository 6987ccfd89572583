"""Keeps a table of another database equal to a PostgreSQL table, deletes included."""

from __future__ import annotations

from itertools import groupby

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbSession, PostgresLogicalSource, RowChange

app = func.FunctionApp()
db = DbBindings()

products = PostgresLogicalSource(url="%WAREHOUSE_DB%", tables="products", slot="mirror_products")


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=products,
    checkpoint_store=BlobCheckpointStore(),
    name="mirror_products",
    batch_size=1000,
    max_batches_per_tick=100,
    time_budget_seconds=240,
)
def mirror_products(timer: func.TimerRequest, events: list[RowChange]) -> None:
    with DbSession(url="%MIRROR_DB%") as mirror:
        # Runs of the same kind are applied at once, in the order in which they were committed.
        for kind, run in groupby(events, key=_kind):
            _apply(mirror, kind, list(run))


def _apply(mirror: DbSession, kind: str, events: list[RowChange]) -> None:
    products, gone = mirror.writer("products"), [dict(event.pk) for event in events]
    if kind == "upsert":
        products.upsert_many(rows=_newest(events), conflict_columns=["id"])
        return
    if kind == "truncate":
        gone = mirror.reader().query("SELECT id FROM products", params={})
    for key in gone:
        products.delete(pk=key)


def _kind(event: RowChange) -> str:
    return event.op if event.op in {"delete", "truncate"} else "upsert"


def _newest(events: list[RowChange]) -> list[dict[str, object]]:
    """One statement cannot touch a row twice: of several versions the last one is written."""
    return list({event.pk["id"]: dict(event.after or {}) for event in events}.values())
