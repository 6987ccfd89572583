"""Takes orders over HTTP and tells the warehouse of each: no order without its event, no event without its order."""

from __future__ import annotations

import json
from typing import Any

import azure.functions as func

from azure_functions_db import (
    BlobCheckpointStore,
    DbBindings,
    DbWriter,
    Outbox,
    OutboxSource,
    RowChange,
    processed_once,
)

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
db = DbBindings()
SHOP = "%SHOP_DB%"
WAREHOUSE = "%WAREHOUSE_DB%"

outbox = Outbox()


@app.route(route="orders", methods=["POST"])
@db.inject_writer("orders", url=SHOP, table="orders")
def place_order(req: func.HttpRequest, orders: DbWriter) -> func.HttpResponse:
    body = req.get_json()
    order = {"id": int(body["id"]), "item": str(body["item"])}
    # One transaction: the order and its event are both there, or neither is.
    with orders.transaction():
        orders.insert(data=order)
        event_id = outbox.add(orders, topic="order", key=order["id"], type="OrderPlaced", payload=order)
    return func.HttpResponse(json.dumps({"event": str(event_id)}), status_code=201)


@app.timer_trigger(schedule="*/5 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=OutboxSource(url=SHOP, outbox=outbox),
    checkpoint_store=BlobCheckpointStore(),
    max_batches_per_tick=100,
)
@db.inject_writer("parcels", url=WAREHOUSE, table="parcels")
def tell_warehouse(timer: func.TimerRequest, events: list[RowChange], parcels: DbWriter) -> None:
    # The inbox: an event that is delivered twice makes one parcel.
    with processed_once(events, url=WAREHOUSE) as new:
        parcels.insert_many(rows=[parcel(event) for event in new])


def parcel(event: RowChange) -> dict[str, Any]:
    order = (event.after or {})["payload"]
    return {"order_id": order["id"], "item": order["item"]}
