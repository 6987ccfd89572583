"""Where sync meets async: threads for blocking work, and async calls that must be awaited in time."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

from azure_functions_db.core.errors import Code, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from azure_functions_db.core.config import DbConfig

_logger = logging.getLogger("azure_functions_db")

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _threads() -> ThreadPoolExecutor:
    # A tick keeps its thread while its async handler runs, so there are as many as pollers at work. They are not
    # those of the bindings, or ticks would wait for threads that their own handlers have to give back.
    return ThreadPoolExecutor(max_workers=1000, thread_name_prefix="azfdb")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work that may wait for this loop, or for long, in a thread, with this task's context."""
    context = contextvars.copy_context()
    call = partial(context.run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)


def in_background(work: Callable[[], T], *, at_once: bool) -> Future[T]:
    """Do blocking work in a thread, with this context; it begins when the caller waits for something, or at once.

    At once means to wait until it has begun, which hands it the interpreter until it blocks for the first time: a query
    is under way before the caller goes on to compute. What never blocks, as SQLite, gives it back only at its end.
    """
    if not at_once:
        return _threads().submit(contextvars.copy_context().run, work)
    begun = threading.Event()

    def run() -> T:
        begun.set()
        return work()

    outcome = _threads().submit(contextvars.copy_context().run, run)
    begun.wait()
    return outcome


class Threads:
    """A few threads for calls of one database, which wait for nothing but their database.

    A thread that is at work takes one call after the other as long as there are any: to wake another one for each
    costs more than the work of many a call. For the same reason the results go back to their loop together, as many
    as there are when it looks.

    Those beyond the connections that a pool keeps work on ones that are opened for a call and closed after it, which
    takes longer than most calls. They are put to work where the others have not come for a call for a while.
    """

    def __init__(self, kept: int, most: int) -> None:
        self._executor = ThreadPoolExecutor(most, thread_name_prefix="azfdb-calls")
        self._kept = kept
        self._most = most
        self._at_work = 0
        self._taken = 0
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._replies: WeakKeyDictionary[asyncio.AbstractEventLoop, _Replies] = WeakKeyDictionary()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in one of the threads, with this task's context."""
        loop = asyncio.get_running_loop()
        replies = self._replies.get(loop) or self._replies.setdefault(loop, _Replies())
        reply: asyncio.Future[T] = loop.create_future()
        self._waiting.append((replies, reply, contextvars.copy_context(), work, args, kwargs))
        try:
            if not self._wake_one(self._kept):
                self._relieve_later(loop, replies)
        except RuntimeError:  # no thread can be started, or Python is about to end
            reply.cancel()
            raise
        return await reply

    def _wake_one(self, most: int) -> bool:
        """Put one more thread to work, unless so many are: then one of them takes the call."""
        with self._lock:
            if self._at_work >= most:
                return False
            self._at_work += 1
        try:
            self._executor.submit(self._work)
        except RuntimeError:
            with self._lock:
                self._at_work -= 1
            raise
        return True

    def _relieve_later(self, loop: asyncio.AbstractEventLoop, replies: _Replies) -> None:
        if self._kept < self._most and not replies.is_watched:
            replies.is_watched = True
            loop.call_later(_STUCK_SECONDS, self._relieve, loop, replies, self._taken)

    def _relieve(self, loop: asyncio.AbstractEventLoop, replies: _Replies, taken: int) -> None:
        """Put the other threads to work, too, if those at work have taken no call since then."""
        replies.is_watched = False
        if self._taken == taken:
            with suppress(RuntimeError):  # those at work go on
                any(not self._wake_one(self._most) for _ in range(len(self._waiting)))
        if self._waiting:
            self._relieve_later(loop, replies)

    def _work(self) -> None:
        """On a thread: make the calls that wait, except those that nobody waits for any more."""
        while (call := self._next()) is not None:
            self._taken += 1  # of two at once one may be lost: it is a sign of life
            replies, reply, context, work, args, kwargs = call
            if reply.cancelled():
                continue
            try:
                result = context.run(work, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whoever waits for it is to see it
                replies.send(reply, None, error)
            else:
                replies.send(reply, result, None)

    def _next(self) -> _Call | None:
        """Return the call that has waited for the longest time; None where this thread is no longer needed."""
        try:
            return self._waiting.popleft()
        except IndexError:
            with self._lock:  # whoever brings a call after this looks for a thread again
                if self._waiting:
                    return self._waiting.popleft()
                self._at_work -= 1
                return None


class _Replies:
    """Results on their way to a loop, which is woken once for all that have come."""

    is_watched = False
    """Whether this loop is going to see whether the threads still take calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []

    def send(self, reply: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """From a thread: have the reply given on its loop."""
        with self._lock:
            self._arrived.append((reply, result, error))
            is_first = len(self._arrived) == 1
        if is_first:
            with suppress(RuntimeError):  # a closed loop has ended its tasks
                reply.get_loop().call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for reply, result, error in arrived:
            if reply.done():
                continue
            if error is None:
                reply.set_result(result)
            else:
                reply.set_exception(_raisable(error))


def _raisable(error: BaseException) -> BaseException:
    """Return an error as a coroutine may raise it: a `StopIteration` would be taken for its end."""
    if not isinstance(error, StopIteration):
        return error
    told = RuntimeError("A call raised StopIteration")
    told.__cause__ = error
    return told


_Call = tuple[
    _Replies,
    "asyncio.Future[Any]",
    contextvars.Context,
    "Callable[..., Any]",
    tuple[Any, ...],
    dict[str, Any],
]


# The threads of a pool that sets no limit.
_WITHOUT_LIMIT = 20
# A few times what it takes to open a connection.
_STUCK_SECONDS = 0.02


def threads_of(config: DbConfig) -> Threads:
    """Return the threads for the calls of one database: a slow one holds up nobody else's.

    There are as many as its pool opens connections: more would only wait for one.
    """
    if config.pool_size > 0 and config.max_overflow >= 0:
        return _threads_of(config.connection_url, config.pool_size, config.pool_size + config.max_overflow)
    return _threads_of(config.connection_url, _WITHOUT_LIMIT, _WITHOUT_LIMIT)


@cache
def _threads_of(_place: str, kept: int, most: int) -> Threads:
    return Threads(kept, most)


def _after_fork() -> None:
    # Threads do not live on in a forked child.
    _threads.cache_clear()
    _threads_of.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class PinnedThread:
    """A thread of one's own: everything run on it runs on that one, in order.

    A transaction, a SQLite connection or a server-side cursor must stay where it was opened.
    """

    def __init__(self, name: str = "azfdb") -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._context = contextvars.copy_context()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work on the thread and wait for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self._context.run(work, *args, **kwargs))

    async def run_to_end(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that must not be cut short: a cancellation is delivered after it."""
        return await finished(self.run(work, *args, **kwargs))

    def close(self) -> None:
        """Let the thread end once its work is done; does not wait for it."""
        self._executor.shutdown(wait=False)


async def finished(work: Awaitable[T]) -> T:
    """Wait for work to its end even when the waiter is cancelled; then cancel the waiter."""
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as asked:
            cancellation = asked
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    return task.result()


def awaited_on(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """From a worker thread: run a coroutine on the host's loop and block until it is done."""
    return asyncio.run_coroutine_threadsafe(work(), loop).result()


class LoopCall(Generic[T]):
    """A coroutine on the host's loop that a worker thread waits for and may cancel.

    It runs in the thread's context. A cancelled one is done only when the coroutine has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._outcome: Future[T] = Future()
        self._task: asyncio.Task[T] | None = None
        self._unwanted = False
        loop.call_soon_threadsafe(self._start, work)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the coroutine's end; `TimeoutError` when it has not come in time."""
        return self._outcome.result(timeout)

    def done(self) -> bool:
        """Tell whether the coroutine has ended."""
        return self._outcome.done()

    def cancel(self) -> None:
        """Ask the coroutine to stop; its end is still to be waited for."""
        self._unwanted = True
        with suppress(RuntimeError):  # a closed loop has ended its tasks
            self._loop.call_soon_threadsafe(self._cancel_task)

    def _start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            self._task = self._loop.create_task(work())
        except Exception as refused:  # noqa: BLE001 - told to the thread that waits; here nobody would see it
            self._outcome.set_exception(refused)
            return
        self._task.add_done_callback(self._tell)
        if self._unwanted:
            self._task.cancel()

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _tell(self, task: asyncio.Task[T]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._outcome.set_result(task.result())
        else:
            self._outcome.set_exception(error)


# A coroutine that nobody awaits does nothing, and Python says so only when it is collected, if at
# all. Below, each call of an async face is noted when it is made and struck off when it begins.


class Calls:
    """The calls of one invocation: those that nobody has awaited yet, and those that are under way."""

    def __init__(self) -> None:
        self._unawaited: dict[object, tuple[str, Coroutine[Any, Any, Any]]] = {}
        self._under_way: set[asyncio.Future[BaseException | None]] = set()
        self._is_over = False

    def note(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Return the call as a coroutine that is struck off when it is awaited."""
        if self._is_over:
            _logger.warning(
                "%s was called by a task that has outlived its handler: what it does is not part of the batch, and is "
                "lost where the process ends. Await the task in the handler",
                name,
            )
            return work()
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

    def end(self, *, refuses: bool) -> None:
        """Close the calls that will never begin; ``refuses`` raises for them, as nothing else has been raised."""
        self._is_over = True
        if not self._unawaited:
            return
        dropped = list(self._unawaited.values())
        self._unawaited.clear()
        for _, coroutine in dropped:
            coroutine.close()
        if refuses:
            names = dict.fromkeys(name for name, _ in dropped)
            raise ConfigurationError(
                f"{' and '.join(names)} was called but never awaited, so nothing of it was done: await it",
                code=Code.NEVER_AWAITED,
            )

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


class all_awaited(Calls):  # noqa: N801 - used as a statement
    """Fails at the end where a call that was made inside was never awaited."""

    def __enter__(self) -> Self:
        self._token = _calls.set(self)
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        _calls.reset(self._token)
        self.end(refuses=failure is None)


async def with_all_awaited(work: Awaitable[T]) -> T:
    """Return what an async function returns, once all its calls have come to their end."""
    with all_awaited() as calls:
        result = await work
        await calls.finish()
        return result
