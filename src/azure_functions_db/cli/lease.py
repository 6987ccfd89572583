"""`azfdb lease`: acts on a poller's lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from azure_functions_db.cli.commands import PLAIN
from azure_functions_db.cli.options import (
    BACKUPS,
    AppName,
    AppPlace,
    AsJson,
    BackupFolder,
    Force,
    PollerName,
    StoreUrl,
    Yes,
)

if TYPE_CHECKING:
    from azure_functions_db.state.reset import StateChange
    from azure_functions_db.state.store import DocumentStateStore

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
    from azure_functions_db.cli.changes import Changing
    from azure_functions_db.cli.perform import perform
    from azure_functions_db.cli.targets import Targets

    target = Targets(app, store, app_name).one(name)
    target.check_state()
    changing = Changing("break the lease", name, lambda store: _broken(store, name, force=force))
    perform(changing, target.documents, yes=yes, backups=backups, as_json=as_json)


def _broken(store: DocumentStateStore, name: str, *, force: bool) -> StateChange:
    from azure_functions_db.core.errors import LeaseConflictError

    held = None if force else store.look(name).lease
    if held is not None:
        raise LeaseConflictError(
            f"The lease of poller {name!r} is alive: {held.owner_id} renewed it at {held.heartbeat_at:%H:%M:%S}Z. "
            "--force breaks it all the same",
            poller_name=name,
            owner_id=held.owner_id,
        )
    return store.break_lease(name)
