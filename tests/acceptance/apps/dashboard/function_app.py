"""An app with one poller and the dashboard."""

import os

import azure.functions as func

from azure_functions_db import DbBindings, FileStateStore, RowChange, SqlAlchemySource, dashboard_blueprint

app = func.FunctionApp()
db = DbBindings()
orders = SqlAlchemySource(url="%SHOP_DB%", table="orders", cursor_column="id", pk_columns=["id"])


@app.timer_trigger(schedule="0 */5 * * * *", arg_name="timer")
@db.trigger(arg_name="events", source=orders, checkpoint_store=FileStateStore(os.environ["STATE"]))
def copy_orders(timer: func.TimerRequest, events: list[RowChange]) -> None:
    """Take note of the orders."""


app.register_functions(dashboard_blueprint())
