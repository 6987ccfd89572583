"""`azfdb run`: a function app's timers on this machine, without the Functions host."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.exits import Exit
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from azure_functions_db.cli.apps import App
    from azure_functions_db.cli.clockwork import Clockwork
    from azure_functions_db.cli.timers import Timer

_log = logging.getLogger("azfdb")


def run(
    app: Annotated[str, typer.Argument(help="Directory of the function app, or its function_app.py.")] = ".",
    once: Annotated[str | None, typer.Option(help="Call this function once and end.", metavar="NAME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log one JSON object per line.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens inside, too.")] = False,
) -> None:
    """Run an app's timer functions on their schedules; Ctrl-C ends it.

    Exit code 0 after Ctrl-C or a successful --once, 1 when that call failed, 3 when the app cannot run.
    """
    from azure_functions_db.cli.apps import load_app
    from azure_functions_db.cli.logs import set_up_logs

    set_up_logs(as_json=as_json, verbose=verbose)
    loaded = load_app(app)
    code = asyncio.run(run_once(loaded, once) if once else run_on_schedule(loaded))
    raise typer.Exit(code)


async def run_once(app: App, name: str) -> Exit:
    """Call one timer function of an app and tell how it went."""
    from azure_functions_db.cli.timers import is_timer, timer_of

    found = [function for function in app.functions if function.name == name and is_timer(function)]
    if not found:
        known = ", ".join(function.name for function in app.functions if is_timer(function)) or "none"
        raise ConfigurationError(f"The app has no timer function {name!r}; it has: {known}")
    timer = timer_of(found[0])
    return Exit.OK if await _clockwork(app, [timer]).tick(timer) else Exit.FAILED


async def run_on_schedule(app: App) -> Exit:
    """Call the timer functions of an app as they fall due, until a signal ends it."""
    from azure_functions_db.cli.timers import timers_of

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
    from azure_functions_db.cli.clockwork import Clockwork
    from azure_functions_db.cli.timers import Monitor

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

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)
