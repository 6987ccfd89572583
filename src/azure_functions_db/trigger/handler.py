"""The user's handler behind one way to call it."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.bridge import LoopCall, all_awaited, with_all_awaited
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from azure_functions_db.trigger.context import PollContext
    from azure_functions_db.trigger.lease import Lease


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

    def call(self, events: Sequence[Any], context: PollContext, lease: Lease) -> None:
        """Call the handler and wait for its end."""
        arguments, named = self._arguments_of(events, context)
        if self._is_async and self._loop is not None:
            lease.watch(LoopCall(self._loop, lambda: with_all_awaited(self._function(*arguments, **named))))
            return
        with all_awaited():
            outcome = self._function(*arguments, **named)
        if inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
            raise ConfigurationError("The handler returned a generator: nothing in it has run")
        if inspect.isawaitable(outcome):
            lease.watch(LoopCall(self._loop_for(outcome), lambda: with_all_awaited(outcome)))

    def _loop_for(self, outcome: Any) -> asyncio.AbstractEventLoop:
        """Return the loop; without one, what nobody would await must not be taken for success."""
        if self._loop is None:
            if inspect.iscoroutine(outcome):
                outcome.close()
            raise ConfigurationError("The handler returned an awaitable, which only run_async() can await")
        return self._loop


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
