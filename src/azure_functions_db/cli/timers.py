"""The timer functions of an app, as `azfdb run` calls them."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import os
import uuid
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.schedules import parsed_schedule
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.files import make_folder, read_whole, replace_whole
from azure_functions_db.core.foreign import parsed_json, timestamp

if TYPE_CHECKING:
    from pathlib import Path

    from azure_functions_db.cli.apps import App, AppFunction
    from azure_functions_db.cli.schedules import Schedule

_MONITORED_FROM = dt.timedelta(minutes=1)


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
        wanted = getattr(self.function.trigger, "use_monitor", None)
        return wanted is not False and self.schedule.after(first) - first >= _MONITORED_FROM

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
