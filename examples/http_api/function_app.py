"""A small API over a table: read one row, list rows, write a row."""

from __future__ import annotations

import json
from typing import Any

import azure.functions as func

from azure_functions_db import DbBindings, DbOut

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
db = DbBindings()
SHOP = "%SHOP_DB%"
# A request decides about these columns and no others, whatever the table may get one day.
COLUMNS = {"id", "name", "city"}


def replied(body: Any, status: int = 200) -> func.HttpResponse:
    return func.HttpResponse(json.dumps(body, default=str), status_code=status, mimetype="application/json")


@app.route(route="customers/{id}", methods=["GET"])
@db.input("customer", url=SHOP, table="customers", pk=lambda req: {"id": int(req.route_params["id"])})
def get_customer(req: func.HttpRequest, customer: dict[str, Any] | None) -> func.HttpResponse:
    return replied(customer) if customer else replied({"error": "no such customer"}, 404)


@app.route(route="customers", methods=["GET"])
@db.input(
    "customers",
    url=SHOP,
    query="SELECT id, name FROM customers WHERE city = :city ORDER BY id",
    params=lambda req: {"city": req.params.get("city")},
)
def list_customers(req: func.HttpRequest, customers: list[dict[str, Any]]) -> func.HttpResponse:
    return replied(customers)


@app.route(route="customers", methods=["PUT"])
@db.output("customers", url=SHOP, table="customers", action="upsert", conflict_columns=["id"])
def put_customers(req: func.HttpRequest, customers: DbOut) -> func.HttpResponse:
    body = req.get_json()
    rows = body if isinstance(body, list) else [body]
    if any(set(row) != COLUMNS for row in rows):
        return replied({"error": "a customer has id, name and city, and nothing else"}, 400)
    customers.set(rows)
    return replied({"written": len(rows)}, 201)
