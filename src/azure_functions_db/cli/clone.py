"""`azfdb clone`: one poller's position for another."""

from __future__ import annotations

from typing import Annotated

import typer

from azure_functions_db.cli.options import BACKUPS, AsJson, BackupFolder, Force, PollerName, Target, Yes, targeted


@targeted
def clone(
    target: Target,
    name: PollerName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The poller that gets the position.", show_default=False)],
    yes: Yes = False,
    force: Force = False,
    backups: BackupFolder = BACKUPS,
    as_json: AsJson = False,
) -> None:
    """Give another poller this one's position; one that has a position of its own only with --force."""
    from azure_functions_db.cli.changes import perform
    from azure_functions_db.operations import reset

    change = reset.clone(target.one(name), new, force=force)
    perform(change, yes=yes, backups=backups, as_json=as_json)
