"""An app's handler, called without the host."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.timers import is_timer, timer_of
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.decorator.plan import poll_plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.cli.targets import AppPoller


def handler_of(poller: AppPoller) -> Callable[[Any, Any], Any]:
    """Return the handler as a function of events and context; its other parameters are filled as in the host."""
    plan = poll_plan_of(poller.function.call)
    if plan is None:
        raise AssertionError("a poller of an app has a plan")
    return partial(plan.deliver, _host_arguments(poller))


def _host_arguments(poller: AppPoller) -> dict[str, Any]:
    function = poller.function
    if not is_timer(function):
        raise ConfigurationError(
            f"The function {function.name!r} is fired by a {function.trigger.type}: only the host has what it passes"
        )
    return timer_of(function).arguments(past_due=False, status={}, directory=Path.cwd())
