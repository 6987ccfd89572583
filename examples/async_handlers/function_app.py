"""The same decorators on async functions: what blocks runs in threads, the loop stays free."""

from __future__ import annotations

import json
from typing import Any

import azure.functions as func

from azure_functions_db import (
    AsyncDbOut,
    AsyncDbSession,
    BlobCheckpointStore,
    DbBindings,
    RowChange,
    SqlAlchemySource,
)

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
db = DbBindings()
SHOP = "%SHOP_DB%"

payments = SqlAlchemySource(url=SHOP, table="payments", cursor_column="id", pk_columns=["id"])


BALANCES = "SELECT name, balance FROM accounts WHERE name IN (:payer, :payee) ORDER BY name FOR UPDATE"


def replied(body: Any, status: int = 200) -> func.HttpResponse:
    return func.HttpResponse(json.dumps(body, default=str), status_code=status, mimetype="application/json")


@app.route(route="payments/{id}", methods=["GET"])
@db.input(
    "payment", url=SHOP, table="payments", pk=lambda req: {"id": int(req.route_params["id"])}, on_not_found="raise"
)
async def get_payment(req: func.HttpRequest, payment: dict[str, Any]) -> func.HttpResponse:
    return replied(payment)


@app.route(route="payments", methods=["POST"])
@db.output("payments", url=SHOP, table="payments")
async def add_payment(req: func.HttpRequest, payments: AsyncDbOut) -> func.HttpResponse:
    payment = req.get_json()
    # Named one by one: a request decides about these columns and no others.
    await payments.set({"id": int(payment["id"]), "amount": int(payment["amount"])})
    return replied({"written": True})


@app.route(route="transfer", methods=["POST"])
async def transfer(req: func.HttpRequest) -> func.HttpResponse:
    order = req.get_json()
    payer, payee, amount = str(order["from"]), str(order["to"]), int(order["amount"])
    if amount <= 0 or payer == payee:
        return replied({"error": "a transfer moves an amount from one account to another"}, 400)
    # Read and written in one transaction, and locked in between: nobody else can spend what was seen.
    async with AsyncDbSession(url=SHOP) as bank:
        rows = await bank.reader().query(BALANCES, params={"payer": payer, "payee": payee})
        balance = {row["name"]: row["balance"] for row in rows}
        if not {payer, payee} <= set(balance):
            return replied({"error": "no such account"}, 404)
        if balance[payer] < amount:
            return replied({"error": "not enough money"}, 409)
        accounts = bank.writer("accounts")
        await accounts.update(data={"balance": balance[payer] - amount}, pk={"name": payer})
        await accounts.update(data={"balance": balance[payee] + amount}, pk={"name": payee})
    return replied({"left": balance[payer] - amount})


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", source=payments, checkpoint_store=BlobCheckpointStore())
@db.output("receipts", url=SHOP, table="receipts", action="upsert", conflict_columns=["payment_id"])
async def write_receipts(timer: func.TimerRequest, events: list[RowChange], receipts: AsyncDbOut) -> None:
    await receipts.set([{"payment_id": event.pk["id"], "event_id": event.event_id} for event in events])
