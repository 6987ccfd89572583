"""What commands share: how they are found, their options and what a shell completes, and the exit codes."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

    from azure_functions_db.operations.pollers import Poller, Pollers


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
    str | None, typer.Argument(metavar="NAME", help="One poller; all of them otherwise.", autocompletion=poller_names)
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
        "--quarantine",
        envvar="AZFDB_QUARANTINE",
        metavar="URL",
        help="Where quarantined rows are, which a store does not tell, or in place of the app's own: "
        "azureblob://SETTING/CONTAINER, file:///DIRECTORY or a database URL[#TABLE].",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for the poller's name to be typed.")]
Force = Annotated[bool, typer.Option("--force", help="Go on although a lease is alive; its holder is shut out.")]
BackupFolder = Annotated[
    Path, typer.Option("--backups", metavar="DIRECTORY", resolve_path=True, help="Where the replaced document is kept.")
]
BACKUPS = Path(".azfdb/backups")


@dataclass(frozen=True, slots=True)
class Target:
    """Which pollers a command is about: those of an app, or those whose state is in a store."""

    app: str | None = None
    store: str | None = None
    app_name: str | None = None
    quarantine: str | None = None

    def pollers(self) -> Pollers:
        """Return the pollers."""
        from azure_functions_db.cli.apps import pollers_of

        return pollers_of(self.app, self.store, self.app_name, self.quarantine)

    def one(self, name: str) -> Poller:
        """Return the poller of a name, which must be there."""
        return self.pollers().one(name)


_TARGET = {"app": AppPlace, "store": StoreUrl, "app_name": AppName, "quarantine": SinkUrl}


def targeted(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which pollers are meant; it gets them as its first argument."""
    signature = inspect.signature(command, eval_str=True)
    _, *named = signature.parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("context", keyword, annotation=typer.Context)
    options = [inspect.Parameter(name, keyword, annotation=kind, default=None) for name, kind in _TARGET.items()]
    own = [each.replace(kind=keyword) for each in named]
    last = [each for each in own if each.name == "as_json"]

    @wraps(command)
    def told(context: typer.Context, **given: Any) -> None:
        target = _told_target(context, {name: given.pop(name) for name in _TARGET})
        command(target, **given)

    ordered = [context, *(each for each in own if each not in last), *options, *last]
    told.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined] # as inspect looks it up
    return told


def _told_target(context: typer.Context, given: dict[str, str | None]) -> Target:
    """Return what is meant: where an app or a store is typed, what the environment names is another's."""
    from_environment = {
        name for name in given if getattr(context.get_parameter_source(name), "name", "") == "ENVIRONMENT"
    }
    typed = {name for name in ("app", "store") if given[name] is not None} - from_environment
    dropped = from_environment if typed else set()
    return Target(**{name: None if name in dropped else value for name, value in given.items()})


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

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; storage that does not answer is told soon."""
        from azure_functions_db.azure import hurried  # which --help has no use for

        with hurried():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called; where there is none, say which one may be meant."""
        if args and args[0] not in SUMMARIES and not args[0].startswith("-"):
            _check_known(ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as Click calls it
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_summaries().items()))


def _check_known(ctx: Any, name: str) -> None:
    from azure_functions_db.core.errors import did_you_mean

    known = _summaries()
    if name not in known:
        ctx.fail(f"No such command {name!r}{did_you_mean(name, known)}")


def _verb(name: str) -> Any:
    """Return the function or the Typer app behind a name: ours, else that of another package, else None."""
    if name in SUMMARIES:
        return getattr(import_module(f"azure_functions_db.cli.{_HOMES.get(name, name)}"), name)
    others = [entry for entry in _other_verbs() if entry.name == name]
    return others[0].load() if others else None


def _summaries() -> dict[str, str]:
    """Return what each command does; those of other packages are named without being imported."""
    others = {entry.name: f"Added by {entry.module.partition('.')[0]}." for entry in _other_verbs()}
    return {**SUMMARIES, **{name: others[name] for name in sorted(others) if name not in SUMMARIES}}


def _other_verbs() -> Iterable[EntryPoint]:
    """Return the verbs of other packages."""
    # To import what parses all that packages say takes longer than a look whether one of them is meant.
    if not any(map(_may_add_verbs, sys.path)):
        return ()
    from importlib.metadata import entry_points

    return entry_points(group=VERBS)


def _may_add_verbs(place: str) -> bool:
    """Tell whether a package in this place of the path speaks of verbs, or cannot be looked at as easily as that."""
    path = Path(place)
    if path.suffix == ".egg" or path.is_file():
        return True
    try:
        return any(VERBS.encode() in told.read_bytes() for told in path.glob("*.*-info/entry_points.txt"))
    except OSError:
        return True


class Exit(IntEnum):
    """What an exit code says."""

    OK = 0
    """Done, and nothing is wrong."""
    FAILED = 1
    """It was tried and did not succeed, or a check found something wrong."""
    USAGE = 2
    """The command line cannot be understood, or a change was not confirmed."""
    MISCONFIGURED = 3
    """The app, a setting or a definition cannot work as it is, or there is no such poller."""
    UNREACHABLE = 4
    """The database, the state store or the quarantine did not answer or refused access."""
    LEASE_HELD = 5
    """Another instance is at work; try again, or wait for its lease to expire."""
    INTERRUPTED = 130
    """Ended by Ctrl-C before it was done."""


def exit_of(error: BaseException) -> Exit:
    """Return the exit code that tells of an error."""
    from azure_functions_db.cli.changes import NotConfirmedError
    from azure_functions_db.core.errors import (
        ConfigurationError,
        DbConnectionError,
        FetchError,
        LeaseAcquireError,
        LeaseConflictError,
        StateStoreError,
    )
    from azure_functions_db.sql.failures import is_forbidden

    match error:
        case NotConfirmedError():
            return Exit.USAGE
        case ConfigurationError() if error.__cause__ is None or not is_forbidden(error.__cause__):
            return Exit.MISCONFIGURED
        case LeaseConflictError():
            return Exit.LEASE_HELD
        case ConfigurationError() | DbConnectionError() | FetchError() | LeaseAcquireError():
            return Exit.UNREACHABLE
        case StateStoreError(unreachable=True):
            return Exit.UNREACHABLE
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case _:
            return Exit.FAILED
