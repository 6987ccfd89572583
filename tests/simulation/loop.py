"""The event loop of a process: asyncio's own, which waits in simulated time."""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from tests.simulation.world import Event

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.simulation.world import Process


class Loop(asyncio.BaseEventLoop):
    """Runs callbacks and coroutines as any loop does; who else is there has a turn whenever it waits for something."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._world = process.world
        self._selector = self
        self._woken = Event(process.world)
        self._contexts: dict[asyncio.Task[Any], Context] = {}
        self.set_task_factory(self._task)
        # What a process has not looked at when it dies is of no interest.
        self.set_exception_handler(lambda *_: None)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run until it is done, or the process dies."""
        task = self.create_task(main)
        try:
            asyncio._set_running_loop(self)
            while not task.done():
                self._run_once()  # type: ignore[attr-defined]
            task.result()
        finally:
            asyncio._set_running_loop(None)
            self._forget()
            self.close()

    def time(self) -> float:
        return self._world.now

    def select(self, timeout: float | None) -> tuple[()]:
        """Wait as a selector does: until something is handed in from elsewhere, or the time is up."""
        if timeout != 0:
            asyncio._set_running_loop(None)  # loops of other processes are at work in the same thread
            self._woken.wait(timeout)
            asyncio._set_running_loop(self)
        self._woken.clear()
        return ()

    def _process_events(self, events: object) -> None:
        """Do nothing: there are no files and sockets."""

    def _write_to_self(self) -> None:
        self._woken.set()

    def _task(self, loop: Any, work: Any, context: Context | None = None, **options: Any) -> asyncio.Task[Any]:
        context = context or copy_context()
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context, **options)
        self._contexts[task] = context
        task.add_done_callback(self._contexts.pop)
        return task

    def _forget(self) -> None:
        """Leave nothing behind that would be told of when it is collected."""
        for task, context in self._contexts.items():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            context.run(task.get_coro().close)
