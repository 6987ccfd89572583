"""`azfdb status`: where all pollers stand."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.options import AnyPoller, AppName, AppPlace, AsJson, SinkUrl, StoreUrl

if TYPE_CHECKING:
    from azure_functions_db.cli.standing import Status
    from azure_functions_db.cli.targets import Targets


def status(
    name: AnyPoller = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="With --watch: how often.", min=0.2)] = 2,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    quarantine: SinkUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show checkpoint, lag, rate, last success, lease, quarantine and late-commit horizon of every poller.

    Exit code 1 when a poller has a problem.
    """
    from azure_functions_db.cli.exits import Exit
    from azure_functions_db.cli.output import show, show_live
    from azure_functions_db.cli.targets import Targets

    targets = Targets(app, store, app_name, quarantine)
    if watch:
        show_live(lambda: _status(targets, name), every, as_json=as_json)
        return
    found = _status(targets, name)
    show(found, as_json=as_json)
    raise typer.Exit(Exit.FAILED if found.has_problems else Exit.OK)


def _status(targets: Targets, name: str | None) -> Status:
    from azure_functions_db.cli.standing import status_of

    chosen = targets.with_strangers() if name is None else [targets.one(name)]
    return status_of(chosen, dt.datetime.now(dt.UTC))
