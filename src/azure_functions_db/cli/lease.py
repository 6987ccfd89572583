"""`azfdb lease`: acts on a poller's lease."""

from __future__ import annotations

import typer

from azure_functions_db.cli.options import (
    BACKUPS,
    PLAIN,
    AsJson,
    BackupFolder,
    Force,
    PollerName,
    Target,
    Yes,
    targeted,
)

lease = typer.Typer(name="lease", add_completion=False, **PLAIN)


@lease.callback()
def _lease() -> None:
    """Act on a poller's lease."""


@lease.command("break")
@targeted
def break_(
    target: Target,
    name: PollerName,
    yes: Yes = False,
    force: Force = False,
    backups: BackupFolder = BACKUPS,
    as_json: AsJson = False,
) -> None:
    """Free a poller's lease; one that is alive only with --force, and its holder cannot commit any more."""
    from azure_functions_db.cli.changes import perform
    from azure_functions_db.operations.reset import break_lease

    change = break_lease(target.one(name), force=force)
    perform(change, yes=yes, backups=backups, as_json=as_json)
