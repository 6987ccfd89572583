"""Functions of a blueprint, in a module of their own."""

from __future__ import annotations

from typing import Any

import azure.functions as func

from azure_functions_db import DbBindings

bp = func.Blueprint()  # type: ignore[no-untyped-call]
db = DbBindings()


@bp.route(route="blueprint")
@db.input("rows", url="%APP_DB%", query="SELECT customer FROM invoices WHERE id = 1")
def in_a_blueprint(req: func.HttpRequest, rows: list[dict[str, Any]]) -> func.HttpResponse:
    return func.HttpResponse(",".join(row["customer"] for row in rows))
