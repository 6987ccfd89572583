"""A function app's timers in this process, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

from azure_functions_db.cli.clockwork import Clockwork
from azure_functions_db.cli.exits import Exit
from azure_functions_db.cli.timers import Monitor, Timer, is_timer, timer_of, timers_of
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from azure_functions_db.cli.apps import App

_log = logging.getLogger("azfdb")


async def run_once(app: App, name: str) -> Exit:
    """Call one timer function of an app and tell how it went."""
    found = [function for function in app.functions if function.name == name and is_timer(function)]
    if not found:
        known = ", ".join(function.name for function in app.functions if is_timer(function)) or "none"
        raise ConfigurationError(f"The app has no timer function {name!r}; it has: {known}")
    timer = timer_of(found[0])
    return Exit.OK if await _clockwork(app, [timer]).tick(timer) else Exit.FAILED


async def run_on_schedule(app: App) -> Exit:
    """Call the timer functions of an app as they fall due, until a signal ends it."""
    timers = timers_of(app)
    if not timers:
        raise ConfigurationError("The app has no timer functions; azfdb run serves nothing else")
    clockwork = _clockwork(app, timers)
    _end_on_signals(clockwork)
    names = ", ".join(timer.name for timer in timers)
    _log.info("running %s; Ctrl-C ends it", names, extra={"functions": [timer.name for timer in timers]})
    await clockwork.run()
    _log.info("ended")
    return Exit.OK


def _clockwork(app: App, timers: list[Timer]) -> Clockwork:
    return Clockwork(timers, app.directory, Monitor(app.directory / ".azfdb" / "timers"))


def _end_on_signals(clockwork: Clockwork) -> None:
    """Let the first signal end it after the running ticks, the second at once."""
    asked = 0

    def end() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(Exit.INTERRUPTED)  # threads cannot be stopped; their leases expire
        clockwork.stop()
        if clockwork.running:
            _log.info("waiting for %d running function(s); Ctrl-C again abandons them", clockwork.running)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The loop's own way of handling signals does not exist on Windows.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(end))
