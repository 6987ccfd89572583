"""Publishes every changed order to an event hub, and queues it for another service."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, PollContext, RowChange, SqlAlchemySource, SqlQuarantine
from azure_functions_db.relay import EventHubRelay, ServiceBusRelay

app = func.FunctionApp()
db = DbBindings()
SHOP = "%SHOP_DB%"

orders = SqlAlchemySource(url=SHOP, table="orders", cursor_column="version", pk_columns=["id"])
quarantine = SqlQuarantine(url=SHOP)
hub = EventHubRelay(connection="Events", event_hub="orders")
queue = ServiceBusRelay(connection="Bus", queue="orders")


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=orders,
    checkpoint_store=BlobCheckpointStore(),
    quarantine=quarantine,
    batch_size=1000,
    time_budget_seconds=60,
)
def publish_orders(timer: func.TimerRequest, events: list[RowChange], context: PollContext) -> None:
    hub(events, context)


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", source=orders, checkpoint_store=BlobCheckpointStore(), batch_size=1000)
async def queue_orders(timer: func.TimerRequest, events: list[RowChange], context: PollContext) -> None:
    await queue.send_async([event for event in events if event.after], context)
