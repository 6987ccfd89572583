"""An app's handler, called without the host."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.timers import is_timer, timer_of
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.decorator.composition import poll_composition_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.cli.targets import AppPoller


@dataclass(frozen=True, slots=True)
class Handling:
    """The handler as a function of events and context, and whether its outcome has to be awaited."""

    call: Callable[[Any, Any], Any]
    is_async: bool


def handling_of(poller: AppPoller) -> Handling:
    """Return a poller's handler; its other parameters are filled as in the host."""
    plan = poll_composition_of(poller.function.call)
    if plan is None:
        raise AssertionError("a poller of an app has a plan")
    return Handling(partial(plan.deliver, _host_arguments(poller)), inspect.iscoroutinefunction(plan.handler))


def _host_arguments(poller: AppPoller) -> dict[str, Any]:
    function = poller.function
    if not is_timer(function):
        raise ConfigurationError(
            f"The function {function.name!r} is fired by a {function.trigger.type}: only the host has what it passes"
        )
    return timer_of(function).arguments(past_due=False, status={}, directory=Path.cwd())
