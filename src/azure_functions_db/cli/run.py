"""`azfdb run`: a function app's timers on this machine, without the Functions host."""

from __future__ import annotations

from typing import Annotated

import typer


def run(
    app: Annotated[str, typer.Argument(help="Directory of the function app, or its function_app.py.")] = ".",
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
    from azure_functions_db.cli.local import run_on_schedule, run_once
    from azure_functions_db.cli.logs import set_up_logs

    set_up_logs(as_json=as_json, verbose=verbose)
    loaded = load_app(app)
    with hurried(hurry=False):  # its functions wait for the storage as they do in the host
        raise typer.Exit(asyncio.run(run_once(loaded, once) if once else run_on_schedule(loaded)))
