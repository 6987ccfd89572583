"""The options that commands share, and what a shell completes."""

from __future__ import annotations

import contextlib
import io
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


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


SUMMARIES = {
    "init": "Write a function app that follows a table.",
    "run": "Run an app's timer functions on their schedules.",
    "demo": "Show the library at work, on embedded parts.",
    "status": "Show where every poller stands.",
    "dashboard": "Show every poller in a browser.",
    "inspect": "Show a poller's state document.",
    "doctor": "Examine an app's sources, stores and schedules.",
    "tail": "Show what the next tick would deliver.",
    "pause": "Let no instance of a poller tick.",
    "resume": "Let a paused poller tick again.",
    "reset": "Move a poller's checkpoint.",
    "forget": "Remove a poller's state.",
    "clone": "Give another poller this one's position.",
    "export": "Write a poller's state document as JSON.",
    "lease": "Break a poller's lease.",
    "backfill": "Deliver a stretch of the source again.",
    "replay": "Give a stretch of the source to the handler, without any state.",
    "quarantine": "List, show, replay, drop and restore bad rows.",
    "outbox": "Make, show and prune an outbox.",
    "stream": "Create, drop and show what a source streams from.",
    "verify": "Compare the source with what was delivered.",
    "plan": "Tell what a workload takes, and what it costs.",
    "schema": "Print the JSON schema of what a command prints.",
    "migrate": "Come from release 0.8: what to change, and the checkpoints.",
}
"""Each command's name, which is that of its function and, but for `_HOMES`, of its module; and what it does."""

_HOMES = {"pause": "reset", "resume": "reset", "forget": "reset", "replay": "backfill"}

VERBS = "azure_functions_db.verbs"

PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # importing rich would double the time that help takes
}


class Commands(TyperGroup):
    """Builds a command when it is asked for: making all of them would cost as much as the rest of a short run."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as Click calls it
        """Return the names, in the order of the help."""
        return list(_summaries())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - as Click calls it
        """Return the command of a name, None where there is none."""
        verb = _verb(cmd_name)
        if verb is None:
            return None
        if not isinstance(verb, typer.Typer):
            alone = typer.Typer(add_completion=False, **PLAIN)
            alone.command(cmd_name)(verb)
            verb = alone
        return typer.main.get_command(verb)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as Click calls it
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_summaries().items()))


def _verb(name: str) -> Any:
    """Return the function or the Typer app behind a name: ours, else that of another package, else None."""
    if name in SUMMARIES:
        return getattr(import_module(f"azure_functions_db.cli.{_HOMES.get(name, name)}"), name)
    others = [entry for entry in entry_points(group=VERBS) if entry.name == name]
    return others[0].load() if others else None


def _summaries() -> dict[str, str]:
    """Return what each command does; those of other packages are named without being imported."""
    others = {entry.name: f"Added by {entry.module.partition('.')[0]}." for entry in entry_points(group=VERBS)}
    return {**SUMMARIES, **{name: others[name] for name in sorted(others) if name not in SUMMARIES}}
