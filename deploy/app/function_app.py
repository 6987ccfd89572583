"""Every order becomes a parcel: the app that `azd up` brings to Azure."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import (
    BlobCheckpointStore,
    BlobQuarantine,
    DbBindings,
    DbConfig,
    DbOut,
    OpenTelemetryMetrics,
    RowChange,
    SqlAlchemySource,
)

app = func.FunctionApp()
db = DbBindings()

SHOP = DbConfig(connection_url="%SHOP_DB%", credential="default")  # logs in as the app's identity
orders = SqlAlchemySource(db_config=SHOP, table="orders", cursor_column="updated_at", pk_columns=["id"])


@app.timer_trigger(schedule="*/30 * * * * *", arg_name="timer", use_monitor=False)
@db.trigger(
    arg_name="events",
    source=orders,
    checkpoint_store=BlobCheckpointStore(),
    quarantine=BlobQuarantine(),
    metrics=OpenTelemetryMetrics(),
    max_batches_per_tick=100,
    time_budget_seconds=240,
)
@db.output("parcels", db_config=SHOP, table="parcels", action="upsert", conflict_columns=["order_id"])
def ship(timer: func.TimerRequest, events: list[RowChange], parcels: DbOut) -> None:
    """Write the parcels; an upsert, so that a batch may come twice."""
    rows = [event.after for event in events if event.after is not None]
    parcels.set([{"order_id": row["id"], "customer": row["customer"]} for row in rows])
