"""`azfdb outbox`: makes an outbox, shows what is in it, removes what was delivered."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import duration, grid, number, stacked, text
from azure_functions_db.cli.options import PLAIN, AnyPoller, AsJson, PollerName, Target, Yes, targeted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.operations.outbox import CreateReport, CreateReports, OutboxStatuses, PruneReport

outbox = typer.Typer(name="outbox", add_completion=False, **PLAIN)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@outbox.callback()
def _outbox() -> None:
    """Make an outbox, show what is in it, and remove what was delivered."""


@outbox.command("create")
@targeted
def create_(
    target: Target,
    name: AnyPoller = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="The database instead of an app, with #TABLE if not outbox."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make the table of an outbox, or add the columns that it lacks; the statements are printed."""
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.outbox import CreateReports, create, outbox_pollers, outbox_source, source_at

    if url is not None and name is not None:
        raise typer.BadParameter("give a poller's name or --url, not both")
    found = [source_at(url)] if url else [outbox_source(one) for one in outbox_pollers(target.pollers(), name)]
    by_table = {(source.engine().url, source.outbox.label): source for source in found}
    reports = CreateReports([create(source, dry_run=dry_run) for source in by_table.values()])
    show(reports, _create_screen, as_json=as_json)


@outbox.command("status")
@targeted
def status_(
    target: Target,
    name: AnyPoller = None,
    as_json: AsJson = False,
) -> None:
    """Count what waits in an outbox and what was delivered and is still there."""
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.outbox import OutboxStatuses, outbox_pollers, status

    statuses = OutboxStatuses([status(poller) for poller in outbox_pollers(target.pollers(), name)])
    show(statuses, _status_screen, as_json=as_json)


@outbox.command("prune")
@targeted
def prune_(
    target: Target,
    name: PollerName,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Such as 30m, 12h or 7d; every delivered row otherwise.")
    ] = "0s",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove rows that a poller has delivered and that were kept or left behind; never one that it has not."""
    from azure_functions_db.cli.changes import confirm
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.outbox import prune

    age, poller = _age(older_than), target.pollers().one(name)
    planned = prune(poller, age, dry_run=True)
    if dry_run or not planned.rows:
        show(planned, _prune_screen, as_json=as_json)
        return
    if not as_json:
        show(planned, _prune_screen, as_json=False)
    confirm(name, yes=yes)
    show(prune(poller, age, dry_run=False), _prune_screen, as_json=as_json)


def _age(written: str) -> dt.timedelta:
    match = _AGE.fullmatch(written.strip())
    if match is None:
        raise typer.BadParameter(f"{written!r} is no age: write 90s, 30m, 12h or 7d")
    return dt.timedelta(**{_UNITS[match[2]]: float(match[1])})


def _create_screen(result: CreateReports, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    return stacked(*map(_created, result.outboxes))


def _created(result: CreateReport) -> RenderableType:
    if not result.statements:
        return text(f"{result.table} is there, nothing is missing.", "green")
    statements = [text(f"{statement};", lines=True) for statement in result.statements]
    done = text(f"Done: {result.table}.", "green") if result.done else text("Nothing was done: a dry run.")
    return stacked(*statements, done)


def _status_screen(result: OutboxStatuses, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    table = grid("poller", "table", "rows", "waiting", "lag", "delivered and still there")
    for one in result.outboxes:
        more = "+" if one.is_more else ""
        lag = duration(one.lag_seconds)
        facts = (one.poller, one.table, f"{number(one.rows)}{more}", number(one.waiting), lag, number(one.left))
        table.add_row(*map(text, facts))
    return table


def _prune_screen(result: PruneReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    done = "removed" if result.done else "to be removed"
    return text(f"{result.table}: {number(result.rows)} delivered row(s) of {result.poller} {done}.")
