"""Runs timer functions on their schedules in one process: sync ones in threads, async ones on the loop."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.errors import ConfigurationError, DbError
from azure_functions_db.operations.timers import Monitor, is_timer, timer_of, timers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from azure_functions_db.operations.apps import App
    from azure_functions_db.operations.timers import Timer

_log = logging.getLogger("azfdb")


class Scheduler:
    """Calls each timer function when it is due; the next tick is armed when one has ended.

    A failed tick is logged and harms no other. Ticks missed meanwhile collapse into one.
    """

    def __init__(
        self,
        timers: Sequence[Timer],
        directory: Path,
        monitor: Monitor,
        now: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._timers = timers
        self._directory = directory
        self._monitor = monitor
        self._now = now
        self._stopping = asyncio.Event()
        self._running = 0

    @property
    def names(self) -> list[str]:
        """The functions that are called."""
        return [timer.name for timer in self._timers]

    @property
    def running(self) -> int:
        """How many functions are at work right now."""
        return self._running

    def stop(self) -> None:
        """Fire no more; ticks that are under way come to their end."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep every timer until `stop` is called and the last tick has ended."""
        with ThreadPoolExecutor(max(1, len(self._timers)), thread_name_prefix="azfdb-timer") as threads:
            async with asyncio.TaskGroup() as tasks:
                for timer in self._timers:
                    tasks.create_task(self._keep(timer, threads))

    async def tick(self, timer: Timer, threads: ThreadPoolExecutor | None = None, *, past_due: bool = False) -> bool:
        """Call a function once and tell whether it succeeded."""
        started = time.perf_counter()
        self._running += 1
        try:
            await self._called(timer, threads, past_due=past_due)
        except Exception as error:  # noqa: BLE001 - whatever the function raised; logged with its traceback
            unlogged = None if _is_logged(error) else error
            _log.error("%s failed: %s", timer.name, error, extra=_fields(timer, started, error), exc_info=unlogged)
            return False
        finally:
            self._running -= 1
        _log.debug("%s done", timer.name, extra=_fields(timer, started))
        return True

    async def _called(self, timer: Timer, threads: ThreadPoolExecutor | None, *, past_due: bool) -> None:
        status = self._monitor.status(timer.name)
        call = partial(
            timer.function.call, **timer.arguments(past_due=past_due, status=status, directory=self._directory)
        )
        if timer.is_async:
            await call()
        else:
            await asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, call)

    async def _keep(self, timer: Timer, threads: ThreadPoolExecutor) -> None:
        monitored = timer.is_monitored(self._now())
        missed = monitored and self._monitor.is_past_due(timer.name, self._now())
        if missed or timer.runs_on_startup:
            await self._fire(timer, threads, monitored=monitored, past_due=missed)
        while await self._is_due(timer.schedule.after(self._now())):
            await self._fire(timer, threads, monitored=monitored)

    async def _fire(
        self, timer: Timer, threads: ThreadPoolExecutor, *, monitored: bool, past_due: bool = False
    ) -> None:
        fired = self._now()
        await self.tick(timer, threads, past_due=past_due)
        if monitored:
            self._monitor.note(timer.name, last=fired, following=timer.schedule.after(self._now()))

    async def _is_due(self, moment: dt.datetime) -> bool:
        """Wait for a moment; tell whether it came before the end."""
        # Until the end or for the time left: whichever comes first.
        while not self._stopping.is_set() and (left := (moment - self._now()).total_seconds()) > 0:
            try:
                await asyncio.wait_for(self._stopping.wait(), timeout=left)
            except TimeoutError:
                continue
        return not self._stopping.is_set()


async def run_once(app: App, name: str) -> bool:
    """Call one timer function of an app and return whether it succeeded."""
    functions = {function.name: function for function in app.functions if is_timer(function)}
    if name not in functions:
        raise ConfigurationError(f"The app has no timer function {name!r}; it has: {', '.join(functions) or 'none'}")
    timer = timer_of(functions[name])
    return await _scheduler(app, [timer]).tick(timer)


def scheduler_of(app: App) -> Scheduler:
    """Return what calls the timer functions of an app as they fall due."""
    timers = timers_of(app)
    if not timers:
        raise ConfigurationError("The app has no timer functions; azfdb run serves nothing else")
    return _scheduler(app, timers)


def _scheduler(app: App, timers: list[Timer]) -> Scheduler:
    return Scheduler(timers, app.directory, Monitor(app.directory / ".azfdb" / "timers"))


def _is_logged(error: Exception) -> bool:
    """Tell whether a poller has logged the error with its traceback already."""
    return isinstance(error, DbError) and getattr(error, "poller_name", None) is not None


def _fields(timer: Timer, started: float, error: BaseException | None = None) -> dict[str, object]:
    return {
        "function": timer.name,
        "duration_ms": round((time.perf_counter() - started) * 1000, 1),
        "error_type": None if error is None else type(error).__name__,
        "result": "success" if error is None else "failure",
    }
