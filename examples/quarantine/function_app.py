"""Puts rows aside that cannot be handled, lets the others through, and tries again on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbOut, RowChange, SqlAlchemySource, SqlQuarantine

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
db = DbBindings()
SHOP = "%SHOP_DB%"

orders = SqlAlchemySource(url=SHOP, table="orders", cursor_column="id", pk_columns=["id"])
quarantine = SqlQuarantine(url=SHOP)


def invoice(order: Mapping[str, Any]) -> dict[str, Any]:
    """Fail for an order without an amount, as real code fails for the one row nobody thought of."""
    return {"order_id": order["id"], "total": int(order["amount"]) * 125 // 100}


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=orders,
    checkpoint_store=BlobCheckpointStore(),
    quarantine=quarantine,
    max_attempts=2,
)
@db.output("invoices", url=SHOP, table="invoices", action="upsert", conflict_columns=["order_id"])
def write_invoices(timer: func.TimerRequest, events: list[RowChange], invoices: DbOut) -> None:
    invoices.set([invoice(event.after or {}) for event in events])


@app.route(route="replay", methods=["POST"])
@db.output("invoices", url=SHOP, table="invoices", action="upsert", conflict_columns=["order_id"])
def replay(req: func.HttpRequest, invoices: DbOut) -> func.HttpResponse:
    """Take up each row that was put aside, with the amount that is given for it; one that fails again stays."""
    amounts, replayed = req.get_json(), 0
    for row in list(quarantine.entries("write_invoices")):
        try:
            order = row.event["after"]
            invoices.set(invoice({**order, "amount": amounts.get(row.event_id, order["amount"])}))
        except (TypeError, ValueError):
            continue
        quarantine.remove(row.poller_name, row.event_id)
        replayed += 1
    return func.HttpResponse(json.dumps({"replayed": replayed}), mimetype="application/json")
