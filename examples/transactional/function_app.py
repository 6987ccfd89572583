"""Adds every sale to a running total exactly once, although delivery is at-least-once."""

from __future__ import annotations

from typing import Any

import azure.functions as func

from azure_functions_db import DbBindings, DbWriter, RowChange, SqlAlchemySource, SqlStateStore

app = func.FunctionApp()
db = DbBindings()
BOOKS = "%BOOKS_DB%"

sales = SqlAlchemySource(url=BOOKS, table="sales", cursor_column="id", pk_columns=["id"])


@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(
    arg_name="events",
    source=sales,
    # The checkpoint lives in the database that the handler writes to ...
    checkpoint_store=SqlStateStore(url=BOOKS),
    # ... so both can commit in one transaction, or neither.
    transactional=True,
    batch_size=10,
    max_batches_per_tick=50,
)
@db.inject_writer("ledger", url=BOOKS, table="ledger")
def book_sales(timer: func.TimerRequest, events: list[RowChange], ledger: DbWriter) -> None:
    # Not idempotent on purpose: booking a sale twice would show.
    ledger.insert_many(rows=[entry(event) for event in events])


def entry(event: RowChange) -> dict[str, Any]:
    row = event.after or {}
    return {"sale_id": row["id"], "amount": row["amount"]}
