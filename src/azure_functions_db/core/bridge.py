"""The only place where sync meets async."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread, with this task's context."""
    return await asyncio.to_thread(work, *args, **kwargs)


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
