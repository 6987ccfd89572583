"""`azfdb reset`: another position for a poller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from azure_functions_db.cli.options import BACKUPS, AsJson, BackupFolder, Force, PollerName, Target, Yes, targeted


@targeted
def reset(
    target: Target,
    name: PollerName,
    to_beginning: Annotated[bool, typer.Option("--to-beginning", help="Deliver everything again.")] = False,
    to_checkpoint: Annotated[
        Path | None,
        typer.Option("--to-checkpoint", metavar="FILE", resolve_path=True, help="An exported document or a backup."),
    ] = None,
    to_end: Annotated[bool, typer.Option("--to-end", help="Skip everything that waits.")] = False,
    to_cursor: Annotated[
        str | None,
        typer.Option(
            "--to-cursor",
            metavar="VALUE",
            help="Go on with the rows of this cursor value, see --pk; of a log, at this place.",
        ),
    ] = None,
    pk: Annotated[
        list[str] | None,
        typer.Option("--pk", metavar="NAME=VALUE", help="Go on after the row of this key; once for each key column."),
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
    as_json: AsJson = False,
) -> None:
    """Move a poller's checkpoint; shows before and after, and how many rows come again or are skipped.

    Asks first, and keeps a backup. Refused while a lease is alive (exit code 5).
    """
    from azure_functions_db.cli.changes import perform
    from azure_functions_db.operations import reset

    _check_one_goal(to_beginning, to_end, to_checkpoint, to_cursor, adopt_fingerprint)
    if pk and to_cursor is None:
        raise typer.BadParameter("--pk goes with --to-cursor")
    poller = target.one(name)
    if to_checkpoint is not None:
        change = reset.to_checkpoint(poller, to_checkpoint, force=force)
    elif to_cursor is not None:
        change = reset.to_cursor(poller, to_cursor, kind, tuple(pk or ()), force=force)
    elif adopt_fingerprint:
        change = reset.adopt_fingerprint(poller, force=force)
    elif to_end:
        change = reset.to_end(poller, force=force)
    else:
        change = reset.to_beginning(poller, force=force)
    perform(change, yes=yes, backups=backups, as_json=as_json)


def _check_one_goal(*goals: object) -> None:
    if sum(goal is not None and goal is not False for goal in goals) != 1:
        raise typer.BadParameter(
            "give exactly one of --to-beginning, --to-end, --to-checkpoint FILE, --to-cursor VALUE and "
            "--adopt-fingerprint"
        )


@targeted
def pause(
    target: Target,
    name: PollerName,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="What others should know.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="WHO", help="You, unless this user and machine.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let no instance of a poller tick from its next tick on; a tick that is under way ends as it would.

    The mark is in the poller's state: instances that start later see it, too. It survives a reset.
    """
    from azure_functions_db.cli.changes import marks_screen
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations import reset

    marks = reset.pause(target.pollers().named(name), by or reset.operator(), why)
    show(marks, marks_screen, as_json=as_json)


@targeted
def resume(
    target: Target,
    name: PollerName,
    as_json: AsJson = False,
) -> None:
    """Let a paused poller tick again."""
    from azure_functions_db.cli.changes import marks_screen
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations import reset

    show(reset.resume(target.pollers().named(name)), marks_screen, as_json=as_json)


@targeted
def forget(
    target: Target,
    name: PollerName,
    yes: Yes = False,
    force: Force = False,
    backups: BackupFolder = BACKUPS,
    as_json: AsJson = False,
) -> None:
    """Remove a poller's state, of an old name or a backfill say; asks first, keeps a backup."""
    from azure_functions_db.cli.changes import perform
    from azure_functions_db.operations import reset

    change = reset.forget(target.one(name), force=force)
    perform(change, yes=yes, backups=backups, as_json=as_json)
