"""The timer functions of an app and their schedules: NCRONTAB expressions and time spans, as the host reads them."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import os
import re
import uuid
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.files import make_folder, read_whole, replace_whole
from azure_functions_db.core.serializers import parsed_json, timestamp

if TYPE_CHECKING:
    from pathlib import Path

    from azure_functions_db.operations.apps import App, AppFunction

_MONITORED_FROM = dt.timedelta(minutes=1)
_SPAN = re.compile(r"(?:(?P<days>\d+)\.)?(?P<first>\d{1,2}):(?P<second>\d{1,2})(?::(?P<third>\d{1,2}))?")


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
            raise ConfigurationError(f"The schedule {self.expression!r} never comes round") from None


@dataclass(frozen=True, slots=True)
class Interval:
    """The same time between two ticks."""

    length: dt.timedelta

    def after(self, moment: dt.datetime) -> dt.datetime:
        """Return the moment one interval later."""
        return moment + self.length


def parsed_schedule(text: str) -> Schedule:
    """Return the schedule that a timer trigger was given."""
    if span := _SPAN.fullmatch(text.strip()):
        return Interval(_length(span, text))
    from cronsim import CronSim, CronSimError

    try:
        CronSim(text, dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
    except CronSimError as error:
        raise ConfigurationError(
            f"The schedule {text!r} is neither an NCRONTAB expression (second minute hour day month weekday) "
            f"nor a time span (hh:mm:ss): {error}"
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
        raise ConfigurationError(f"The time span {text!r} is no time at all")
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
        given = {self.function.trigger.name: request}
        if "context" in inspect.signature(self.function.call).parameters:
            given["context"] = _context(self.name, directory)
        return given


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
    if foreign := [binding for binding in function.bindings if binding is not function.trigger]:
        raise ConfigurationError(
            f"The function {function.name!r} has a binding that only the Functions host can serve: "
            f"{foreign[0].type} {foreign[0].name!r}"
        )
    return Timer(function, parsed_schedule(expanded(function.trigger.schedule)))


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
