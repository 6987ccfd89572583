"""`azfdb quarantine`: the rows that a handler could not digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.commands import PLAIN
from azure_functions_db.cli.completion import poller_names
from azure_functions_db.cli.options import BACKUPS, AppPlace, AsJson, BackupFolder, Yes

if TYPE_CHECKING:
    from azure_functions_db.cli.entries import Entry
    from azure_functions_db.core.types import QuarantinedRow

quarantine = typer.Typer(name="quarantine", add_completion=False, **PLAIN)

Poller = Annotated[
    str | None,
    typer.Option("--poller", metavar="NAME", help="Rows of this poller only.", autocompletion=poller_names),
]
Error = Annotated[str | None, typer.Option("--error", metavar="TYPE", help="Rows of this kind of error only.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Event ids, or their first characters.")]
All = Annotated[bool, typer.Option("--all", help="Every row that --poller and --error leave.")]
Sink = Annotated[
    str | None,
    typer.Option(
        "--quarantine",
        envvar="AZFDB_QUARANTINE",
        metavar="URL",
        help="The quarantine itself instead of an app: azureblob://SETTING/CONTAINER, file:///DIRECTORY or a "
        "database URL[#TABLE].",
    ),
]


@dataclass(frozen=True, slots=True)
class Listed:
    """Quarantined rows."""

    rows: list[QuarantinedRow]


@dataclass(frozen=True, slots=True)
class Shown:
    """One quarantined row with all there is to know about it."""

    row: QuarantinedRow


@dataclass(frozen=True, slots=True)
class Dropped:
    """The rows that were dropped, and the file that still has them."""

    rows: list[QuarantinedRow]
    backup: str | None


@quarantine.callback()
def _quarantine() -> None:
    """List, show, replay and drop rows that a handler could not digest."""


@quarantine.command("list")
def list_(
    poller: Poller = None, error: Error = None, app: AppPlace = None, sink: Sink = None, as_json: AsJson = False
) -> None:
    """List quarantined rows, oldest first."""
    from azure_functions_db.cli.output import show

    show(Listed([entry.row for entry in _chosen(app, sink, poller, (), error)]), as_json=as_json)


@quarantine.command("show", short_help="Show one quarantined row.")
def show_(
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The event's id, or its first characters.")],
    poller: Poller = None,
    app: AppPlace = None,
    sink: Sink = None,
    as_json: AsJson = False,
) -> None:
    """Show one quarantined row: its error, its attempts and the event."""
    from azure_functions_db.cli.output import show

    show(Shown(_only(_chosen(app, sink, poller, (event_id,), None), event_id).row), as_json=as_json)


@quarantine.command("replay", short_help="Give rows to the app's handler again.")
def replay_(
    ids: Ids = None,
    all_: All = False,
    poller: Poller = None,
    error: Error = None,
    app: AppPlace = None,
    as_json: AsJson = False,
) -> None:
    """Give rows to the app's handler again, one by one; a row is removed when the handler has succeeded.

    Exit code 1 when a row failed again.
    """
    from azure_functions_db.cli.exits import Exit
    from azure_functions_db.cli.output import show
    from azure_functions_db.cli.replay import replayed

    _check_some(ids, all_=all_)
    report = replayed(_chosen(app, None, poller, tuple(ids or ()), error))
    show(report, as_json=as_json)
    raise typer.Exit(Exit.FAILED if report.failed else Exit.OK)


@quarantine.command("drop", short_help="Forget rows for good.")
def drop_(
    ids: Ids = None,
    all_: All = False,
    poller: Poller = None,
    error: Error = None,
    yes: Yes = False,
    backups: BackupFolder = BACKUPS,
    app: AppPlace = None,
    sink: Sink = None,
    as_json: AsJson = False,
) -> None:
    """Forget rows for good; they are shown first, have to be confirmed, and are kept in a file."""
    from azure_functions_db.cli.changes import confirm
    from azure_functions_db.cli.output import show

    _check_some(ids, all_=all_)
    chosen = _chosen(app, sink, poller, tuple(ids or ()), error)
    rows = [entry.row for entry in chosen]
    if not as_json:
        show(Listed(rows), as_json=False)
    if rows:
        confirm(*sorted({row.poller_name for row in rows}), yes=yes)
    show(Dropped(rows, _dropped(chosen, backups)), as_json=as_json)


def _only(entries: list[Entry], event_id: str) -> Entry:
    """Return the one entry; the same event may lie there for its poller and for a backfill."""
    from azure_functions_db.core.errors import ConfigurationError

    if len(entries) != 1:
        pollers = ", ".join(entry.row.poller_name for entry in entries) or "none"
        raise ConfigurationError(f"Name one --poller: the row {event_id[:12]} is in the quarantine of {pollers}")
    return entries[0]


def _check_some(ids: list[str] | None, *, all_: bool) -> None:
    if bool(ids) == all_:
        raise typer.BadParameter("name the rows by their ids, or say --all")


def _chosen(
    app: str | None, sink: str | None, poller: str | None, ids: tuple[str, ...], error: str | None
) -> list[Entry]:
    from azure_functions_db.cli.entries import Choice, chosen, entries_in
    from azure_functions_db.cli.store_urls import sink_at

    entries = _app_entries(app, poller) if sink is None else entries_in(sink_at(sink), poller)
    return chosen(entries, Choice(poller, ids, error))


def _app_entries(app: str | None, poller: str | None) -> list[Entry]:
    from azure_functions_db.cli.entries import entries_of
    from azure_functions_db.cli.targets import Targets

    targets = Targets(app)
    entries = entries_of(targets.all(), poller)
    if poller is not None and all(entry.row.poller_name != poller for entry in entries):
        _ = targets.one(poller).quarantine  # a poller that is not there, or has none, is told so
    return entries


def _dropped(entries: list[Entry], folder: Path) -> str | None:
    from azure_functions_db.cli.changes import saved

    if not entries:
        return None
    backup = saved(folder, "quarantine", [entry.row for entry in entries])
    for entry in entries:
        entry.remove()
    return backup
