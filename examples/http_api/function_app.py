"""A small API over a table: read one row, list rows, write a row."""

from __future__ import annotations

import json
from typing import Any

import azure.functions as func

from azure_functions_db import DbBindings, DbOut

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
db = DbBindings()
SHOP = "%SHOP_DB%"


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
    rows = req.get_json()
    customers.set(rows)
    return replied({"written": len(rows) if isinstance(rows, list) else 1}, 201)
