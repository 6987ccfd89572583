"""The options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from azure_functions_db.cli.completion import poller_names


def absolute(path: Path | None) -> Path | None:
    """Return where a path leads from here, before an app changes the directory; a link stays a link."""
    return None if path is None else path.absolute()


PollerName = Annotated[
    str, typer.Argument(metavar="NAME", help="The poller.", show_default=False, autocompletion=poller_names)
]
AnyPoller = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="One poller; all of them otherwise.", autocompletion=poller_names)
]

AppPlace = Annotated[
    str | None,
    typer.Option(
        "--app", envvar="AZFDB_APP", metavar="PATH", help="The function app: its directory or function_app.py."
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="AZFDB_STORE",
        metavar="URL",
        help="A state store instead of an app: azureblob://SETTING/CONTAINER, azuretable://SETTING/TABLE, "
        "file:///DIRECTORY or a database URL[#TABLE]; %NAME% stands for a setting.",
    ),
]
AppName = Annotated[
    str | None,
    typer.Option("--app-name", metavar="NAME", help="With --store: the app whose pollers are meant."),
]
SinkUrl = Annotated[
    str | None,
    typer.Option(
        "--quarantine", envvar="AZFDB_QUARANTINE", metavar="URL", help="With --store: where quarantined rows are."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for the poller's name to be typed.")]
Force = Annotated[bool, typer.Option("--force", help="Go on although a lease is alive; its holder is shut out.")]
BackupFolder = Annotated[
    Path, typer.Option("--backups", metavar="DIRECTORY", resolve_path=True, help="Where the replaced document is kept.")
]
BACKUPS = Path(".azfdb/backups")
