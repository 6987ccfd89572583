"""Prints every order that is new or has changed, every two seconds."""

from __future__ import annotations

import azure.functions as func

from azure_functions_db import DbBindings, FileStateStore, RowChange, SqlAlchemySource

app = func.FunctionApp()
db = DbBindings()

orders = SqlAlchemySource(
    url="sqlite:///shop.db",
    table="orders",
    cursor_column="version",
    pk_columns=["id"],
)


@app.timer_trigger(schedule="*/2 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", source=orders, checkpoint_store=FileStateStore("state"))
def changed_orders(timer: func.TimerRequest, events: list[RowChange]) -> None:
    for event in events:
        print("changed:", event.after)
