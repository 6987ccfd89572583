"""`azfdb status`: where all pollers stand."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import (
    NONE,
    ago,
    duration,
    fits,
    grid,
    holders,
    indented,
    number,
    pairs,
    position,
    problem,
    rate,
    stacked,
    text,
)
from azure_functions_db.cli.options import AnyPoller, AppName, AppPlace, AsJson, SinkUrl, StoreUrl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from azure_functions_db.operations.pollers import Pollers
    from azure_functions_db.operations.status import LeaseStatus, PollerStatus, Status


def status(
    name: AnyPoller = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="With --watch: how often.", min=0.2)] = 2,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    quarantine: SinkUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show checkpoint, lag, rate, last success, lease, quarantine and late-commit horizon of every poller.

    Exit code 1 when a poller has a problem.
    """
    from azure_functions_db.cli.apps import pollers_of
    from azure_functions_db.cli.drawing import show, show_live
    from azure_functions_db.cli.exits import Exit

    pollers = pollers_of(app, store, app_name, quarantine)
    if watch:
        show_live(lambda: _status(pollers, name), _screen, every, as_json=as_json)
        return
    present = _status(pollers, name)
    show(present, _screen, as_json=as_json)
    raise typer.Exit(Exit.FAILED if present.has_problems else Exit.OK)


def _status(pollers: Pollers, name: str | None) -> Status:
    from azure_functions_db.operations.status import status_of

    chosen = pollers.with_others() if name is None else [pollers.one(name)]
    return status_of(chosen, dt.datetime.now(dt.UTC))


def _screen(result: Status, width: int) -> RenderableType:
    if not result.pollers:
        return text("There are no pollers here.")
    table = _table(result.pollers)
    if not fits(table, width):
        return stacked(*map(_block, result.pollers))
    problems = [problem(each.poller, message) for each in result.pollers for message in each.problems]
    return stacked(table, *problems)


def _table(pollers: Sequence[PollerStatus]) -> Table:
    table = grid("poller", "position", "lag", "waiting", "rate", "last success", "lease", "quarantined", "held back by")
    for each in pollers:
        table.add_row(text(each.poller, "bold"), *(text(content) for _, content in _facts(each)))
    return table


def _block(poller: PollerStatus) -> RenderableType:
    facts = [(name, text(content)) for name, content in _facts(poller) if content != NONE]
    facts += [("problem", text(message, "red")) for message in poller.problems]
    return stacked(text(poller.poller, "bold"), indented(pairs(facts), below=1))


def _facts(poller: PollerStatus) -> list[tuple[str, str]]:
    waiting = number(poller.waiting_rows) + ("+" if poller.waiting_is_more else "")
    # What could not be looked at may well have been taken.
    lease = NONE if poller.lease is None and poller.problems else _lease(poller.lease)
    return [
        ("position", position(poller.cursor, poller.key)),
        ("lag", duration(poller.lag_seconds)),
        ("waiting", f"{waiting} {poller.waiting_unit}" if poller.waiting_rows is not None else NONE),
        ("rate", rate(poller.rows_per_second)),
        ("last success", ago(poller.last_success_age_seconds)),
        ("lease", lease),
        ("quarantined", number(poller.quarantined)),
        ("held back by", holders(poller.horizon)),
    ]


def _lease(lease: LeaseStatus | None) -> str:
    if lease is None:
        return "never taken"
    if lease.alive:
        return f"{lease.owner} #{lease.token}, for {duration(lease.age_seconds)}"
    return f"free, last #{lease.token}"
