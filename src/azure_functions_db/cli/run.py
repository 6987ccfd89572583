"""`azfdb run`: a function app's timers on this machine, without the Functions host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.options import AppPlace

if TYPE_CHECKING:
    import logging

    from azure_functions_db.operations.pollers import App
    from azure_functions_db.operations.run import Scheduler


def run(
    place: Annotated[
        str | None, typer.Argument(metavar="APP", help="Directory of the function app, or its function_app.py.")
    ] = None,
    app: AppPlace = None,
    once: Annotated[str | None, typer.Option(help="Call this function once and end.", metavar="NAME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log one JSON object per line.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens inside, too.")] = False,
) -> None:
    """Run an app's timer functions on their schedules; Ctrl-C ends it.

    Schedules are read in UTC. Settings come from the environment, then from local.settings.json.
    Exit code 0 after Ctrl-C or a successful --once, 1 when that call failed, 3 when the app cannot run.
    """
    import asyncio

    from azure_functions_db.azure.storage import hurried
    from azure_functions_db.cli.apps import load_app
    from azure_functions_db.cli.exits import Exit
    from azure_functions_db.cli.logs import set_up_logs
    from azure_functions_db.operations.run import check_stores, run_once

    if place is not None and app not in {None, place, os.environ.get("AZFDB_APP")}:
        raise typer.BadParameter("give the app once: as an argument or as --app")
    set_up_logs(as_json=as_json, verbose=verbose)
    loaded = load_app(place or app or ".")
    check_stores(loaded)
    with hurried(hurry=False):  # its functions wait for the storage as they do in the host
        succeeded = asyncio.run(run_once(loaded, once) if once else _run_until_signalled(loaded))
    raise typer.Exit(Exit.OK if succeeded else Exit.FAILED)


async def _run_until_signalled(app: App) -> bool:
    import logging

    from azure_functions_db.operations.run import scheduler_of

    log, scheduler = logging.getLogger("azfdb"), scheduler_of(app)
    _end_on_signals(scheduler, log)
    log.info("running %s; Ctrl-C ends it", ", ".join(scheduler.names), extra={"functions": scheduler.names})
    await scheduler.run()
    log.info("ended")
    return True


def _end_on_signals(scheduler: Scheduler, log: logging.Logger) -> None:
    """Let the first signal end it after the running ticks, the second at once."""
    import asyncio
    import os
    import signal

    from azure_functions_db.cli.exits import Exit

    asked = 0

    def end() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(Exit.INTERRUPTED)  # threads cannot be stopped; their leases expire
        scheduler.stop()
        if scheduler.running:
            log.info("waiting for %d running function(s); Ctrl-C again abandons them", scheduler.running)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The loop's own way of handling signals does not exist on Windows.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(end))
