"""An app's functions without the host: timers on their schedules, and a poller's handler alone.

Sync functions run in threads, async ones on the loop of the one process.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import inspect
import json
import logging
import os
import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import (
    Code,
    ConfigurationError,
    DbError,
    HandlerError,
    StateStoreError,
    code_behind,
    did_you_mean,
)
from azure_functions_db.core.files import make_folder, read_whole, replace_whole
from azure_functions_db.core.ports import ListsPollers
from azure_functions_db.core.serializers import parsed_json, shown, timestamp
from azure_functions_db.core.types import HandledFirst
from azure_functions_db.decorator.composition import poll_composition_of
from azure_functions_db.trigger.handler import PollContext, handled_count, mapped
from azure_functions_db.trigger.pace import end_lingering

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.operations.pollers import App, AppFunction, Definition
    from azure_functions_db.trigger.events import RowChange


_log = logging.getLogger("azfdb")

_SEEING_OFF_SECONDS = 0.05


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
        """Fire no more; ticks that are under way come to their end, and those that linger end now."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep every timer until `stop` is called and the last tick has ended."""
        with ThreadPoolExecutor(max(1, len(self._timers)), thread_name_prefix="azfdb-timer") as threads:
            async with asyncio.TaskGroup() as tasks:
                for timer in self._timers:
                    tasks.create_task(self._keep(timer, threads))
                tasks.create_task(self._see_off())

    async def _see_off(self) -> None:
        """Once it is to end, let no tick linger: not those that do, nor one that has only just begun."""
        await self._stopping.wait()
        while self._running:
            end_lingering()
            await asyncio.sleep(_SEEING_OFF_SECONDS)

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
        there = ", ".join(functions) or "none"
        raise ConfigurationError(
            f"The app has no timer function {name!r}; it has: {there}{did_you_mean(name, functions)}"
        )
    timer = timer_of(functions[name])
    _warn_of_outputs([timer])
    return await _scheduler(app, [timer]).tick(timer)


def check_stores(app: App) -> None:
    """Ask each state store once: one that does not answer is worth a line now rather than one for each tick."""
    for poller in {id(each.settings.store): each for each in app.pollers().values()}.values():
        store = poller.settings.store
        try:
            if isinstance(store, ListsPollers):
                store.inspect(poller.name)
        except StateStoreError as error:
            if error.unreachable:
                raise


def scheduler_of(app: App) -> Scheduler:
    """Return what calls the timer functions of an app as they fall due."""
    timers = timers_of(app)
    if not timers:
        raise ConfigurationError("The app has no timer functions; azfdb run serves nothing else")
    _warn_of_outputs(timers)
    return _scheduler(app, timers)


def _warn_of_outputs(timers: Sequence[Timer]) -> None:
    for function in (timer.function for timer in timers):
        for binding in function.outputs:
            late = f". {LATE_OUTPUT}" if function.late_outputs else ""
            named = f"{binding.type} {binding.name!r}"
            _log.warning("%s has the output binding %s, which only the host writes%s", function.name, named, late)


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
        "error_code": code_behind(error),
        "result": "success" if error is None else "failure",
    }


LATE_OUTPUT = (
    "The host writes an output binding after the function has returned, when the checkpoint has moved: what fails "
    "there is lost. Write in the handler instead, with a client of the service or a relay"
)
_MONITORED_FROM = dt.timedelta(minutes=1)
# Eight digits are as many days as .NET can count.
_SPAN = re.compile(r"(?:(?P<days>\d{1,8})\.)?(?P<first>\d{1,2}):(?P<second>\d{1,2})(?::(?P<third>\d{1,2}))?", re.ASCII)


class Schedule(Protocol):
    """Tells when a timer fires next."""

    def after(self, moment: dt.datetime) -> dt.datetime:
        """Return the first occurrence later than a moment."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Six fields, from seconds to days of the week; five are read as starting at second 0."""

    expression: str

    def after(self, moment: dt.datetime) -> dt.datetime:
        """Return the first matching second after a moment."""
        from cronsim import CronSim

        times = CronSim(self.expression, moment)
        # Unlike crontab, NCRONTAB wants the day of the month and the day of the week both to match.
        times.day_and = True
        try:
            return next(times)
        except StopIteration:
            raise _never(self.expression) from None


@dataclass(frozen=True, slots=True)
class Interval:
    """The same time between two ticks."""

    length: dt.timedelta

    def after(self, moment: dt.datetime) -> dt.datetime:
        """Return the moment one interval later."""
        try:
            return moment + self.length
        except OverflowError:
            raise _never(str(self.length)) from None


def _never(schedule: str) -> ConfigurationError:
    return ConfigurationError(f"The schedule {schedule!r} never comes round", code=Code.SCHEDULE_UNREADABLE)


def parsed_schedule(text: str) -> Schedule:
    """Return the schedule that a timer trigger was given."""
    if span := _SPAN.fullmatch(text.strip()):
        return Interval(_length(span, text))
    from cronsim import CronSim, CronSimError

    try:
        CronSim(text, dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
    except (CronSimError, ValueError) as error:
        raise ConfigurationError(
            f"The schedule {shown(text)} is neither an NCRONTAB expression (second minute hour day month weekday) "
            f"nor a time span (hh:mm:ss): {error}",
            code=Code.SCHEDULE_UNREADABLE,
        ) from None
    return Cron(text)


def _length(span: re.Match[str], text: str) -> dt.timedelta:
    days, first, second, third = (int(span[name] or 0) for name in ("days", "first", "second", "third"))
    if first >= 24:
        # .NET reads 24:00:00 as 24 days, so the host does: the fields are then days, hours, minutes.
        length = dt.timedelta(days=days + first, hours=second, minutes=third)
    else:
        length = dt.timedelta(days=days, hours=first, minutes=second, seconds=third)
    if not length:
        raise ConfigurationError(f"The time span {text!r} is no time at all", code=Code.SCHEDULE_UNREADABLE)
    return length


@dataclass(frozen=True, slots=True)
class Timer:
    """A function with the schedule on which it is called."""

    function: AppFunction
    schedule: Schedule

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def is_async(self) -> bool:
        """Whether the function runs on the loop rather than in a thread."""
        return inspect.iscoroutinefunction(self.function.call)

    @property
    def runs_on_startup(self) -> bool:
        """Whether it is called once right away."""
        return bool(getattr(self.function.trigger, "run_on_startup", False))

    def is_monitored(self, now: dt.datetime) -> bool:
        """Whether a tick that was missed while nothing ran is made up for.

        As in the host: unless switched off, and not for schedules of less than a minute.
        """
        first = self.schedule.after(now)
        is_switched_off = getattr(self.function.trigger, "use_monitor", None) is False
        return not is_switched_off and self.schedule.after(first) - first >= _MONITORED_FROM

    def arguments(self, *, past_due: bool, status: dict[str, str], directory: Path) -> dict[str, Any]:
        """Return what the host would call the function with."""
        from azure.functions.timer import TimerRequest

        request = TimerRequest(past_due=past_due, schedule_status=status, schedule={"AdjustForDST": True})
        given = {self.function.trigger.name: request, **{name: _unwritten() for name in _taken_outputs(self.function)}}
        if "context" in inspect.signature(self.function.call).parameters:
            given["context"] = _context(self.name, directory)
        return given


def _taken_outputs(function: AppFunction) -> set[str]:
    """Return the parameters by which a function sets output bindings; it may also return what goes there."""
    return {binding.name for binding in function.outputs} & set(inspect.signature(function.call).parameters)


def _unwritten() -> Any:
    """Return what takes a value as the host's output binding does, and writes it nowhere."""
    from azure.functions import Out

    class Unwritten(Out[Any]):
        value: Any = None

        def set(self, val: Any) -> None:
            self.value = val

        def get(self) -> Any:
            return self.value

    return Unwritten()


def _context(name: str, directory: Path) -> Any:
    return SimpleNamespace(
        function_name=name,
        function_directory=str(directory),
        invocation_id=str(uuid.uuid4()),
        trace_context=SimpleNamespace(trace_parent="", trace_state="", attributes={}),
        retry_context=SimpleNamespace(retry_count=0, max_retry_count=0, exception=None),
    )


def timers_of(app: App) -> list[Timer]:
    """Return the timer functions of an app."""
    return [timer_of(function) for function in app.functions if is_timer(function)]


def is_timer(function: AppFunction) -> bool:
    """Tell whether a timer fires the function."""
    return bool(function.trigger.type == "timerTrigger")


def timer_of(function: AppFunction) -> Timer:
    """Return the function with its schedule, whose ``%NAME%`` settings are read now."""
    served = [function.trigger, *function.outputs]
    if foreign := [binding for binding in function.bindings if binding not in served]:
        raise ConfigurationError(
            f"The function {function.name!r} has a binding that only the Functions host can serve: "
            f"{foreign[0].type} {foreign[0].name!r}"
        )
    _check_parameters(function)
    return Timer(function, schedule_of(function))


def schedule_of(function: AppFunction) -> Schedule:
    """Return the schedule of a timer function, whose ``%NAME%`` settings are read now."""
    return parsed_schedule(expanded(function.trigger.schedule))


def _check_parameters(function: AppFunction) -> None:
    """Refuse a function that the host would not load: what it passes and what the function takes must agree."""
    taken = set(inspect.signature(function.call).parameters) - {"context"} - _taken_outputs(function)
    passed = function.trigger.name
    if not taken:
        raise ConfigurationError(
            f"The function {function.name!r} has no parameter {passed!r}, which its trigger passes: add it",
            code=Code.DECORATORS_WRONG,
        )
    if taken != {passed}:
        raise ConfigurationError(
            f"The function {function.name!r} takes {', '.join(sorted(map(repr, taken)))}, but its trigger passes "
            f"{passed!r}: give the trigger's arg_name= and the parameter one name",
            code=Code.DECORATORS_WRONG,
        )


@dataclass(frozen=True, slots=True)
class Monitor:
    """Remembers in files when each timer last fired and when it should fire next."""

    folder: Path

    def status(self, name: str) -> dict[str, str]:
        """Return the timer's status in the host's form; empty where there is none."""
        try:
            return dict(parsed_json(read_whole(self.folder / f"{name}.json") or b""))
        except (OSError, ValueError, TypeError):
            return {}

    def note(self, name: str, *, last: dt.datetime, following: dt.datetime) -> None:
        """Remember that a timer fired and when it is due again."""
        make_folder(self.folder)
        status = {"Last": last.isoformat(), "Next": following.isoformat(), "LastUpdated": last.isoformat()}
        replace_whole(self.folder / f"{name}.json", json.dumps(status).encode(), by_way_of=f".{os.getpid()}.part")

    def is_past_due(self, name: str, now: dt.datetime) -> bool:
        """Tell whether a tick was due while nothing ran."""
        try:
            return timestamp(self.status(name).get("Next")) < now
        except ValueError:
            return False


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
    outcome = handler.call(_given(definition, events), _poll_context(definition, events))
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


def _poll_context(definition: Definition, events: Sequence[RowChange]) -> PollContext:
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
