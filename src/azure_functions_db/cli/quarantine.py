"""`azfdb quarantine`: the rows that a handler could not digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import grid, indented, pairs, stacked, text, tree, value
from azure_functions_db.cli.options import (
    BACKUPS,
    PLAIN,
    AsJson,
    BackupFolder,
    Exit,
    Target,
    Yes,
    poller_names,
    targeted,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.core.types import QuarantinedRow
    from azure_functions_db.operations.quarantine import Entry, ReplayReport

quarantine = typer.Typer(name="quarantine", add_completion=False, **PLAIN)

Poller = Annotated[
    str | None,
    typer.Option("--poller", metavar="NAME", help="Rows of this poller only.", autocompletion=poller_names),
]
Error = Annotated[str | None, typer.Option("--error", metavar="TYPE", help="Rows of this kind of error only.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Event ids, or their first characters.")]
All = Annotated[bool, typer.Option("--all", help="Every row that --poller and --error leave.")]


@dataclass(frozen=True, slots=True)
class EntryList:
    """Quarantined rows."""

    rows: list[QuarantinedRow]


@dataclass(frozen=True, slots=True)
class EntryDetail:
    """One quarantined row with all there is to know about it."""

    row: QuarantinedRow


@dataclass(frozen=True, slots=True)
class DropReport:
    """The rows that were dropped, and the file that still has them."""

    rows: list[QuarantinedRow]
    backup: str | None


@quarantine.callback()
def _quarantine() -> None:
    """List, show, replay, drop and restore rows that a handler could not digest."""


@quarantine.command("list")
@targeted
def list_(
    target: Target,
    poller: Poller = None,
    error: Error = None,
    as_json: AsJson = False,
) -> None:
    """List quarantined rows, oldest first."""
    from azure_functions_db.cli.drawing import show

    show(
        EntryList([entry.row for entry in _selected(target, poller, (), error)]),
        _list_screen,
        as_json=as_json,
    )


@quarantine.command("show", short_help="Show one quarantined row.")
@targeted
def show_(
    target: Target,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The event's id, or its first characters.")],
    poller: Poller = None,
    as_json: AsJson = False,
) -> None:
    """Show one quarantined row: its error, its attempts and the event."""
    from azure_functions_db.cli.drawing import show

    entry = _only(_selected(target, poller, (event_id,), None), event_id)
    show(EntryDetail(entry.row), _detail_screen, as_json=as_json)


@quarantine.command("replay", short_help="Give rows to the app's handler again.")
@targeted
def replay_(
    target: Target,
    ids: Ids = None,
    all_: All = False,
    poller: Poller = None,
    error: Error = None,
    refetch: Annotated[bool, typer.Option("--refetch", help="The rows as they are now, not as they were.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give rows to the app's handler again, one by one; a row is removed when the handler has succeeded.

    Exit code 1 when a row failed again.
    """
    from azure_functions_db.cli.apps import printed_aside
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.quarantine import replay

    _check_some(ids, all_=all_)
    entries = _selected(target, poller, tuple(ids or ()), error, for_handler=True)
    with printed_aside():
        report = replay(entries, refetch=refetch)
    show(report, _replay_screen, as_json=as_json)
    raise typer.Exit(Exit.FAILED if report.failed else Exit.OK)


@quarantine.command("drop", short_help="Forget rows for good.")
@targeted
def drop_(
    target: Target,
    ids: Ids = None,
    all_: All = False,
    poller: Poller = None,
    error: Error = None,
    yes: Yes = False,
    backups: BackupFolder = BACKUPS,
    as_json: AsJson = False,
) -> None:
    """Forget rows for good; they are shown first, have to be confirmed, and are kept in a file."""
    from azure_functions_db.cli.changes import confirm
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.quarantine import drop

    _check_some(ids, all_=all_)
    entries = _selected(target, poller, tuple(ids or ()), error)
    rows = [entry.row for entry in entries]
    if not as_json:
        show(EntryList(rows), _list_screen, as_json=False)
    if rows:
        confirm(*sorted({row.poller_name for row in rows}), yes=yes)
    show(DropReport(rows, drop(entries, backups)), _drop_screen, as_json=as_json)


@quarantine.command("restore", short_help="Take back rows that were dropped.")
@targeted
def restore_(
    target: Target,
    ids: Ids = None,
    all_: All = False,
    poller: Poller = None,
    error: Error = None,
    backups: BackupFolder = BACKUPS,
    as_json: AsJson = False,
) -> None:
    """Put rows back into quarantine that were dropped within the last week, from the files that kept them."""
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.pollers import sink_at
    from azure_functions_db.operations.quarantine import Selection, restorable, restore

    _check_some(ids, all_=all_)
    rows = restorable(backups, Selection(poller, tuple(ids or ()), error))
    if target.quarantine is None:
        restore(rows, target.pollers())
    else:
        sink_at(target.quarantine).put(rows)
    show(EntryList(rows), _restore_screen, as_json=as_json)


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


def _selected(
    target: Target, poller: str | None, ids: tuple[str, ...], error: str | None, *, for_handler: bool = False
) -> list[Entry]:
    """Return the rows that are meant; a quarantine alone has them, their handlers are the app's."""
    from azure_functions_db.operations.pollers import sink_at
    from azure_functions_db.operations.quarantine import Selection, app_entries, entries_in, selected

    if target.quarantine is None or for_handler:
        entries = app_entries(target.pollers(), poller)
    else:
        entries = entries_in(sink_at(target.quarantine), poller)
    return selected(entries, Selection(poller, ids, error))


def _list_screen(result: EntryList, width: int) -> RenderableType:
    if not result.rows:
        return text("Nothing is in quarantine.")
    if width < 100:
        return stacked(*map(_block, result.rows))
    table = grid("id", "poller", "key", "error", "attempts", "since")
    for row in result.rows:
        table.add_row(*map(text, _facts(row)))
    return table


def _block(row: QuarantinedRow) -> RenderableType:
    event_id, *facts = _facts(row)
    named = pairs(zip(("poller", "key", "error", "attempts", "since"), map(text, facts), strict=True))
    return stacked(text(event_id, "bold"), indented(named))


def _facts(row: QuarantinedRow) -> tuple[str, ...]:
    key = " ".join(f"{name}={value(part)}" for name, part in row.event.get("pk", {}).items())
    error = f"{row.error_type}: {row.error}"
    return row.event_id[:12], row.poller_name, key, error, str(row.attempts), value(row.quarantined_at)


def _detail_screen(result: EntryDetail, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    from azure_functions_db.operations.reports import jsonable

    told = jsonable(result.row)
    where = told.pop("traceback") or ""
    return stacked(tree(told), text(where, lines=True))


def _replay_screen(result: ReplayReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    failures = [text(f"{event_id[:12]}: {reason}", "red") for event_id, reason in result.failed.items()]
    return stacked(*failures, text(f"{len(result.handled)} handled, {len(result.failed)} failed again."))


def _restore_screen(result: EntryList, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    if not result.rows:
        return text("Nothing was restored: no such row was dropped within the last week.")
    return text(f"{len(result.rows)} row(s) are in quarantine again.")


def _drop_screen(result: DropReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    kept = "" if result.backup is None else f"; they are kept in {result.backup}"
    return text(f"{len(result.rows)} row(s) dropped{kept}.")
