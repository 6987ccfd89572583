"""`azfdb lease`: acts on a poller's lease."""

from __future__ import annotations

import typer

from azure_functions_db.cli.options import (
    BACKUPS,
    PLAIN,
    AppName,
    AppPlace,
    AsJson,
    BackupFolder,
    Force,
    PollerName,
    StoreUrl,
    Yes,
)

lease = typer.Typer(name="lease", add_completion=False, **PLAIN)


@lease.callback()
def _lease() -> None:
    """Act on a poller's lease."""


@lease.command("break")
def break_(
    name: PollerName,
    yes: Yes = False,
    force: Force = False,
    backups: BackupFolder = BACKUPS,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Free a poller's lease; one that is alive only with --force, and its holder cannot commit any more."""
    from azure_functions_db.cli.apps import pollers_of
    from azure_functions_db.cli.changes import perform
    from azure_functions_db.operations.reset import break_lease

    change = break_lease(pollers_of(app, store, app_name).one(name), force=force)
    perform(change, yes=yes, backups=backups, as_json=as_json)
