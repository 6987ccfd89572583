"""Every form of signature that the worker has an opinion about, on one small table."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import azure.functions as func
from orders import bp  # type: ignore[import-not-found] # beside this file

from azure_functions_db import DbBindings, MemoryStateStore, SqlAlchemySource

if TYPE_CHECKING:
    from collections.abc import Callable

    from nowhere import Invoice  # type: ignore[import-not-found]

    from azure_functions_db import AsyncDbReader, DbOut, DbReader

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
app.register_functions(bp)
db = DbBindings()
URL = "%APP_DB%"


def by_id(req: func.HttpRequest) -> dict[str, int]:
    return {"id": int(req.params["id"])}


@app.route(route="checked")
@db.input("invoice", url=URL, table="invoices", pk=by_id)
def hidden_type_is_for_checkers_only(req: func.HttpRequest, invoice: Invoice) -> func.HttpResponse:
    return func.HttpResponse(invoice["customer"])


@app.route(route="keyword")
@db.inject_reader("reader", url=URL)
def keyword_only(req: func.HttpRequest, *, reader: DbReader) -> func.HttpResponse:
    return func.HttpResponse(str(reader.scalar("SELECT count(*) FROM invoices WHERE id = 1", params={})))


@app.route(route="default")
@db.inject_reader("reader", url=URL)
async def with_default(req: func.HttpRequest, reader: AsyncDbReader | None = None) -> func.HttpResponse:
    assert reader is not None
    return func.HttpResponse(str(await reader.scalar("SELECT count(*) FROM invoices WHERE id = 1", params={})))


@app.route(route="context")
@db.output("out", url=URL, table="invoices")
def with_context(req: func.HttpRequest, out: DbOut, context: func.Context) -> func.HttpResponse:
    out.set({"id": 2, "customer": "Grace"})
    return func.HttpResponse(f"{context.function_name} in {Path(context.function_directory).name}")


def shouted(fn: Callable[..., func.HttpResponse]) -> Callable[..., func.HttpResponse]:
    @functools.wraps(fn)
    def shouting(*args: Any, **kwargs: Any) -> func.HttpResponse:
        return func.HttpResponse(fn(*args, **kwargs).get_body().decode().upper())

    return shouting


@app.route(route="between")
@shouted
@db.inject_reader("reader", url=URL)
@shouted
def own_decorators_around(req: func.HttpRequest, reader: DbReader) -> func.HttpResponse:
    return func.HttpResponse(reader.scalar("SELECT customer FROM invoices WHERE id = :id", params={"id": 1}))


@app.timer_trigger(schedule="0 0 * * * *", arg_name="timer")
@db.output("out", url=URL, table="invoices")
def on_a_timer(timer: func.TimerRequest, out: DbOut) -> None:
    out.set([{"id": 10, "customer": "Alan"}, {"id": 11, "customer": "Edsger"}])


@app.queue_trigger(arg_name="message", queue_name="names", connection="AzureWebJobsStorage")
@app.queue_output(arg_name="answer", queue_name="answers", connection="AzureWebJobsStorage")
@db.inject_writer("invoices", url=URL, table="invoices")
async def on_a_queue(message: func.QueueMessage, answer: func.Out[str], invoices: Any) -> None:
    async with invoices.transaction():
        await invoices.insert(data={"id": 20, "customer": message.get_body().decode()})
    answer.set("written")


@app.route(route="failing")
@db.inject_writer("invoices", url=URL, table="invoices")
def failing(req: func.HttpRequest, invoices: Any) -> func.HttpResponse:
    with invoices.transaction():
        invoices.insert(data={"id": 30, "customer": "nobody"})
        raise LookupError("the handler's own error")


changes = SqlAlchemySource(url=URL, table="invoices", cursor_column="id", pk_columns=["id"])


@app.route(route="poll")
@db.trigger(arg_name="events", source=changes, checkpoint_store=MemoryStateStore())
def polled_over_http(req: func.HttpRequest, events: list[Invoice], context: func.Context) -> None:
    logging.getLogger("app").warning("%s got %d", context.function_name, len(events))
