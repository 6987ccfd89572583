"""The user's handler behind one way to call it, with what it may know of a batch and the models it may want."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from azure_functions_db.core.bridge import LoopCall, all_awaited, with_all_awaited
from azure_functions_db.core.errors import ConfigurationError, RowsFailed, SerializationError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.types import HandledFirst

if TYPE_CHECKING:
    import asyncio
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.trigger.batch import Reason
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.lease import Lease


class LeaseLost(Protocol):
    """Tells whether the lease was lost; then nothing that the handler does is confirmed."""

    def is_set(self) -> bool:
        """Tell whether the lease is lost by now."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost or the time is up; tell which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollContext:
    """The circumstances of one call of the handler."""

    poller_name: str
    invocation_id: str
    batch_id: str
    lease_owner: str
    checkpoint_before: CheckpointJson
    checkpoint_after_candidate: CheckpointJson
    """What will be committed when the handler has succeeded with the whole batch."""
    tick_started_at: dt.datetime
    source_name: str
    attempt: int
    """1 for the first delivery that this library knows of."""
    events: Sequence[RowChange] = field(repr=False)
    """The events themselves, also where the handler is given models: `RowsFailed` wants their ids."""
    lease_lost: LeaseLost = field(repr=False, compare=False)
    """Worth a look in a long handler: once it is set, stop."""
    deadline: dt.datetime | None = None
    """When the time budget of the tick is used up; None where it has none."""


class Handler:
    """Calls ``handler(events)`` or ``handler(events, context)``, plain or awaitable.

    An awaitable one runs on the host's loop; the calling thread waits for it and stops it when
    the tick is interrupted.
    """

    def __init__(self, function: Callable[..., Any], loop: asyncio.AbstractEventLoop | None = None) -> None:
        if not callable(function):
            raise ConfigurationError(f"The handler must be callable, not a {type(function).__name__}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError("The handler is a generator: nothing in it would run")
        self._function = function
        self._loop = loop
        self._is_async = is_async(function)
        self._arguments_of = arguments_reader(function)
        if self._is_async and loop is None:
            raise ConfigurationError("An async handler needs run_async() (await it on the host's loop)")

    def call(self, events: Sequence[Any], context: PollContext, lease: Lease) -> int:
        """Call the handler and wait for its end; return how many of the events, from the first, it got through."""
        given = len(events)  # the list is the handler's: it may take one after the other out of it
        outcome = self._called(events, context, lease)
        return handled_count(outcome, given) if isinstance(outcome, HandledFirst) else given

    def _called(self, events: Sequence[Any], context: PollContext, lease: Lease) -> Any:
        arguments, named = self._arguments_of(events, context)
        if self._is_async and self._loop is not None:
            return lease.watch(LoopCall(self._loop, lambda: with_all_awaited(self._function(*arguments, **named))))
        with all_awaited():
            outcome = self._function(*arguments, **named)
        if inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
            raise ConfigurationError("The handler returned a generator: nothing in it has run")
        if inspect.isawaitable(outcome):
            return lease.watch(LoopCall(self._loop_for(outcome), lambda: with_all_awaited(outcome)))
        return outcome

    def _loop_for(self, outcome: Any) -> asyncio.AbstractEventLoop:
        """Return the loop; without one, what nobody would await must not be taken for success."""
        if self._loop is None:
            if inspect.iscoroutine(outcome):
                outcome.close()
            raise ConfigurationError("The handler returned an awaitable, which only run_async() can await")
        return self._loop


def handled_count(outcome: HandledFirst, given: int) -> int:
    """Return how many of the events that it was given a handler says that it got through."""
    if not 0 < outcome.count <= given:
        raise ValueError(f"The handler returned {outcome} for {given} event(s)")
    return outcome.count


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling the function gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is async
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_reader(function: Callable[..., Any]) -> Callable[[Any, Any], _Arguments]:
    """Return what turns events and context into the arguments that the handler takes."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in callables do not tell
        parameters = []
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    if any(p.name == "context" and p.kind is p.KEYWORD_ONLY for p in parameters):
        return lambda events, context: ((events,), {"context": context})
    if len(positional) > 1 and (positional[1].name == "context" or positional[1].default is inspect.Parameter.empty):
        return lambda events, context: ((events, context), {})
    return lambda events, _context: ((events,), {})


class Model(Protocol):
    """What a Pydantic model class offers."""

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Return an instance made of the row; an exception when the row does not fit."""


def mapped(events: Sequence[RowChange], model: type[Model]) -> tuple[list[Any], dict[str, Exception]]:
    """Return what the handler is given, and the errors of the rows that do not fit by event id."""
    fitting: list[Any] = []
    misfits: dict[str, Exception] = {}
    for event in events:
        try:
            fitting.append(model.model_validate(event.after if event.after is not None else event.before))
        except Exception as misfit:  # noqa: BLE001 - a validator of the user's own may raise anything
            misfits[event.event_id] = misfit
    return fitting, misfits


def fitted(
    events: Sequence[RowChange], model: type[Model], *, name_misfits: bool
) -> tuple[list[Any], dict[str, Exception]]:
    """Return what `mapped` does; where misfits are not to be named one by one, the first of them is the failure."""
    fitting, misfits = mapped(events, model)
    if misfits and not name_misfits:
        first = misfit_text(next(iter(misfits.values())))
        raise SerializationError(f"{len(misfits)} row(s) do not fit the model: {first}")
    return fitting, misfits


def misfit_text(misfit: Exception) -> str:
    """Return what is wrong with a row; its values do not belong into logs."""
    errors = getattr(misfit, "errors", None)
    if not callable(errors) or not isinstance(misfit, ValueError):
        return f"{type(misfit).__name__}: {masked_words(misfit)}"
    misfitting = errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in misfitting)


class Misfits(RowsFailed):
    """The rows that fit no model, as against those that the handler itself has named."""


def count_before_failed(cause: BaseException | None, events: Sequence[RowChange]) -> int:
    """Return how many events come before the first that a handler has named; 0 where it named none, or strangers."""
    if not isinstance(cause, RowsFailed) or not cause.failures.keys() <= {event.event_id for event in events}:
        return 0
    return next(place for place, event in enumerate(events) if event.event_id in cause.failures)


def named_rows(cause: BaseException | None, events: Sequence[RowChange]) -> Mapping[str, Reason]:
    """Return the rows that a handler has named; none when it did not, or named strangers.

    That no row fits the model says more about the model than about the rows.
    """
    if not isinstance(cause, RowsFailed):
        return {}
    ids = {event.event_id for event in events}
    is_wrong_model = isinstance(cause, Misfits) and cause.failures.keys() == ids
    return cause.failures if cause.failures.keys() <= ids and not is_wrong_model else {}
