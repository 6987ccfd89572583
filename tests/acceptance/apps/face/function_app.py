"""Poll functions that ask for a context, each in another way."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import azure.functions as func

from azure_functions_db import DbBindings, MemoryStateStore, PollContext, RowChange, SqlAlchemySource

if TYPE_CHECKING:
    from collections.abc import Callable

app = func.FunctionApp()
db = DbBindings()
source = SqlAlchemySource(url="%APP_DB%", table="invoices", cursor_column="id", pk_columns=["id"])


def polled() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return db.trigger(arg_name="events", source=source, checkpoint_store=MemoryStateStore())


def tell(name: str, *contexts: Any) -> None:
    logging.getLogger("app").warning("%s got %s", name, [type(context).__name__ for context in contexts])


@app.timer_trigger(schedule="0 0 * * * *", arg_name="timer")
@polled()
def by_annotation(timer: func.TimerRequest, events: list[RowChange], about: PollContext) -> int:
    tell(about.poller_name, about)
    return len(events)


@app.timer_trigger(schedule="0 0 * * * *", arg_name="timer")
@polled()
def by_name(timer: func.TimerRequest, events: list[RowChange], context) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - the point
    tell(context.poller_name, context)


@app.timer_trigger(schedule="0 0 * * * *", arg_name="timer")
@polled()
async def by_name_async(timer: func.TimerRequest, events, context):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - the point
    tell(context.poller_name, context)


@app.timer_trigger(schedule="0 0 * * * *", arg_name="timer")
@polled()
def of_the_host(timer: func.TimerRequest, events: list[RowChange], context: func.Context) -> None:
    tell(context.function_name, context)


@app.timer_trigger(schedule="0 0 * * * *", arg_name="timer")
@polled()
def of_both(timer: func.TimerRequest, events: list[RowChange], about: PollContext, context: func.Context) -> None:
    assert about.invocation_id == context.invocation_id
    tell(context.function_name, about, context)
