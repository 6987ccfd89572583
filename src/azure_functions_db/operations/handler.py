"""An app's handler, called without the host."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import threading
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, HandlerError
from azure_functions_db.core.types import HandledFirst
from azure_functions_db.decorator.composition import poll_composition_of
from azure_functions_db.operations.run import LATE_OUTPUT, is_timer, timer_of
from azure_functions_db.trigger.handler import PollContext, handled_count, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.operations.pollers import Definition
    from azure_functions_db.trigger.events import RowChange


@dataclass(frozen=True, slots=True)
class Handler:
    """The handler as a function of events and context, and whether its outcome has to be awaited."""

    call: Callable[[Any, Any], Any]
    is_async: bool


def handler_of(definition: Definition) -> Handler:
    """Return a poller's handler; its other parameters are filled as in the host."""
    plan = poll_composition_of(definition.function.call)
    if plan is None:
        raise AssertionError("a poller of an app has a plan")
    return Handler(partial(plan.deliver, _host_arguments(definition)), inspect.iscoroutinefunction(plan.handler))


def handler_function(definition: Definition) -> Callable[..., Any] | None:
    """Return the handler as its app has written it; None for a function that no app has."""
    plan = poll_composition_of(definition.function.call)
    return None if plan is None else plan.handler


def deliver(definition: Definition, events: Sequence[RowChange]) -> None:
    """Call the app's handler with events outside a tick, as a tick would."""
    handler = handler_of(definition)
    outcome = handler.call(_given(definition, events), _context(definition, events))
    outcome = asyncio.run(outcome) if handler.is_async else outcome
    count = handled_count(outcome, len(events)) if isinstance(outcome, HandledFirst) else len(events)
    if count < len(events):
        raise HandlerError(f"The handler got through {count} of {len(events)} events only")


def _given(definition: Definition, events: Sequence[RowChange]) -> list[Any]:
    """Return the events, or the models that the handler is given in their place."""
    model = definition.settings.model
    if model is None:
        return list(events)
    fitting, misfits = mapped(events, model)
    for misfit in misfits.values():
        raise misfit
    return fitting


def _context(definition: Definition, events: Sequence[RowChange]) -> PollContext:
    return PollContext(
        poller_name=definition.settings.name,
        invocation_id=str(uuid.uuid4()),
        batch_id=f"replay_{uuid.uuid4().hex}",
        lease_owner="azfdb",
        checkpoint_before={},
        checkpoint_after_candidate={},
        tick_started_at=dt.datetime.now(dt.UTC),
        source_name=definition.settings.source.source_descriptor.name,
        attempt=1,
        events=events,
        lease_lost=threading.Event(),
    )


def _host_arguments(definition: Definition) -> dict[str, Any]:
    function = definition.function
    if not is_timer(function):
        raise ConfigurationError(
            f"The function {function.name!r} is fired by a {function.trigger.type}: only the host has what it passes"
        )
    if function.late_outputs:
        raise ConfigurationError(
            f"The function {function.name!r} has the output binding {function.late_outputs[0].type} "
            f"{function.late_outputs[0].name!r}: what it sets there would be lost here. {LATE_OUTPUT}"
        )
    return timer_of(function).arguments(past_due=False, status={}, directory=Path.cwd())
