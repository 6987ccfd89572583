"""Calls of the async faces that must be awaited before the invocation that made them ends.

A coroutine that nobody awaits does nothing, and Python says so only when it is collected, if at
all. Here each call is noted when it is made and struck off when it begins.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

P = ParamSpec("P")
T = TypeVar("T")


class Calls:
    """The calls of one invocation: those that nobody has awaited yet, and those that are under way."""

    def __init__(self) -> None:
        self._unawaited: dict[object, tuple[str, Coroutine[Any, Any, Any]]] = {}
        self._under_way: set[asyncio.Future[BaseException | None]] = set()

    def note(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Return the call as a coroutine that is struck off when it is awaited."""
        ticket = object()
        coroutine = self._run(ticket, work)
        self._unawaited[ticket] = (name, coroutine)
        return coroutine

    async def finish(self) -> None:
        """Wait for the calls that were handed to tasks; what they raise is raised here."""
        await asyncio.sleep(0)  # a task that was made a moment ago begins now
        while self._under_way:
            ended, _ = await asyncio.wait(set(self._under_way))
            for error in [call.result() for call in ended]:
                if error is not None:
                    raise error

    def refuse_unawaited(self) -> None:
        """Raise where a call was never awaited."""
        names = self.drop_unawaited()
        if names:
            raise ConfigurationError(
                f"{' and '.join(names)} was called but never awaited, so nothing of it was done: await it"
            )

    def drop_unawaited(self) -> list[str]:
        """Close the calls that will never begin, and return their names."""
        dropped = list(self._unawaited.values())
        self._unawaited.clear()
        for _, coroutine in dropped:
            coroutine.close()
        return list(dict.fromkeys(name for name, _ in dropped))

    async def _run(self, ticket: object, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._unawaited.pop(ticket, None)
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._under_way.add(done)
        failure: BaseException | None = None
        try:
            return await work()
        except BaseException as error:
            failure = error
            raise
        finally:
            self._under_way.discard(done)
            done.set_result(failure)


_calls: ContextVar[Calls | None] = ContextVar("azfdb_calls", default=None)


def must_be_awaited(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let an async method be noted by the invocation that calls it."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        calls = _calls.get()
        if calls is None:
            return method(*args, **kwargs)
        return calls.note(f"{type(args[0]).__name__}.{method.__name__}", lambda: method(*args, **kwargs))

    # Mocks of the faces ask for it; Python 3.11 has no such mark.
    mark: Callable[[Any], Any] = getattr(inspect, "markcoroutinefunction", lambda function: function)
    marked: Callable[P, Coroutine[Any, Any, T]] = mark(call)
    return marked


@contextmanager
def all_awaited() -> Iterator[Calls]:
    """Fail at the end where a call that was made inside was never awaited."""
    calls = Calls()
    token = _calls.set(calls)
    try:
        yield calls
        calls.refuse_unawaited()
    finally:
        calls.drop_unawaited()
        _calls.reset(token)


async def with_all_awaited(work: Awaitable[T]) -> T:
    """Return what an async function returns, once all its calls have come to their end."""
    with all_awaited() as calls:
        result = await work
        await calls.finish()
        return result
