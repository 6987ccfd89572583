"""The same decorators on async functions: what blocks runs in threads, the loop stays free."""

from __future__ import annotations

import json
from typing import Any

import azure.functions as func

from azure_functions_db import (
    AsyncDbOut,
    AsyncDbReader,
    AsyncDbWriter,
    BlobCheckpointStore,
    DbBindings,
    RowChange,
    SqlAlchemySource,
)

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
db = DbBindings()
SHOP = "%SHOP_DB%"

payments = SqlAlchemySource(url=SHOP, table="payments", cursor_column="id", pk_columns=["id"])


def replied(body: Any) -> func.HttpResponse:
    return func.HttpResponse(json.dumps(body, default=str), mimetype="application/json")


@app.route(route="payments/{id}", methods=["GET"])
@db.input(
    "payment", url=SHOP, table="payments", pk=lambda req: {"id": int(req.route_params["id"])}, on_not_found="raise"
)
async def get_payment(req: func.HttpRequest, payment: dict[str, Any]) -> func.HttpResponse:
    return replied(payment)


@app.route(route="payments", methods=["POST"])
@db.output("payments", url=SHOP, table="payments")
async def add_payment(req: func.HttpRequest, payments: AsyncDbOut) -> func.HttpResponse:
    await payments.set(req.get_json())
    return replied({"written": True})


@app.route(route="transfer", methods=["POST"])
@db.inject_reader("reader", url=SHOP)
@db.inject_writer("accounts", url=SHOP, table="accounts")
async def transfer(req: func.HttpRequest, reader: AsyncDbReader, accounts: AsyncDbWriter) -> func.HttpResponse:
    order = req.get_json()
    balance = await reader.scalar("SELECT balance FROM accounts WHERE name = :name", params={"name": order["from"]})
    async with accounts.transaction():
        await accounts.update(data={"balance": balance - order["amount"]}, pk={"name": order["from"]})
        await accounts.upsert(data={"name": order["to"], "balance": order["amount"]}, conflict_columns=["name"])
    return replied({"left": balance - order["amount"]})


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", source=payments, checkpoint_store=BlobCheckpointStore())
@db.output("receipts", url=SHOP, table="receipts", action="upsert", conflict_columns=["payment_id"])
async def write_receipts(timer: func.TimerRequest, events: list[RowChange], receipts: AsyncDbOut) -> None:
    await receipts.set([{"payment_id": event.pk["id"], "event_id": event.event_id} for event in events])
