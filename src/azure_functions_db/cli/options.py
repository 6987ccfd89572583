"""The options that commands share, and what a shell completes."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Annotated

import typer


def poller_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the pollers, whose names begin so, of the app that --app or AZFDB_APP names; nothing is contacted."""
    app = ctx.params.get("app")
    if app is None or ctx.params.get("store"):
        return []  # a key pressed in some folder must not run the code that lies there
    from azure_functions_db.cli.apps import pollers_of

    aside = io.StringIO()
    with contextlib.redirect_stdout(aside), contextlib.redirect_stderr(aside):
        try:
            names = pollers_of(app).names()
        except Exception:  # noqa: BLE001 - whatever an app may raise: there is nobody to tell
            return []
    return [name for name in names if name.startswith(incomplete)]


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
        "cosmos://SETTING/DATABASE/CONTAINER, "
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
