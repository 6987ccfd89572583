"""`azfdb reset`: another position for a poller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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


def reset(
    name: PollerName,
    to_beginning: Annotated[bool, typer.Option("--to-beginning", help="Deliver everything again.")] = False,
    to_checkpoint: Annotated[
        Path | None,
        typer.Option("--to-checkpoint", metavar="FILE", resolve_path=True, help="An exported document or a backup."),
    ] = None,
    to_cursor: Annotated[
        str | None,
        typer.Option(
            "--to-cursor", metavar="VALUE", help="Go on after this cursor value, with --pk; of a log, at this place."
        ),
    ] = None,
    pk: Annotated[
        list[str] | None, typer.Option("--pk", metavar="NAME=VALUE", help="A key column of that row; repeatable.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="The cursor's type, where it cannot be told: integer, timestamp, …")
    ] = None,
    adopt_fingerprint: Annotated[
        bool, typer.Option("--adopt-fingerprint", help="Keep the position for the app's changed source.")
    ] = False,
    yes: Yes = False,
    force: Force = False,
    backups: BackupFolder = BACKUPS,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Move a poller's checkpoint; shows before and after, asks first, keeps a backup.

    Refused while a lease is alive (exit code 5).
    """
    from azure_functions_db.cli.apps import pollers_of
    from azure_functions_db.cli.changes import perform
    from azure_functions_db.operations import reset

    _check_one_goal(to_beginning, to_checkpoint, to_cursor, adopt_fingerprint)
    poller = pollers_of(app, store, app_name).one(name)
    if to_checkpoint is not None:
        change = reset.to_checkpoint(poller, to_checkpoint, force=force)
    elif to_cursor is not None:
        change = reset.to_cursor(poller, to_cursor, kind, tuple(pk or ()), force=force)
    elif adopt_fingerprint:
        change = reset.adopt_fingerprint(poller, force=force)
    else:
        change = reset.to_beginning(poller, force=force)
    perform(change, yes=yes, backups=backups, as_json=as_json)


def _check_one_goal(*goals: object) -> None:
    if sum(goal is not None and goal is not False for goal in goals) != 1:
        raise typer.BadParameter(
            "give exactly one of --to-beginning, --to-checkpoint FILE, --to-cursor VALUE and --adopt-fingerprint"
        )
