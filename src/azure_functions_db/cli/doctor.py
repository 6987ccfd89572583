"""`azfdb doctor`: what could go wrong, before it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import indented, stacked, text
from azure_functions_db.cli.options import AnyPoller, AppName, AppPlace, AsJson, StoreUrl

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.operations.doctor import Health, PollerHealth

_GRADES = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("WARN", "yellow"), "error": ("FAIL", "red")}


def doctor(
    name: AnyPoller = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 on warnings, too.")] = False,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Examine sources, stores and schedules of an app; nothing is changed.

    Exit code 1 when there are errors.
    """
    from azure_functions_db.cli.apps import pollers_of
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.cli.exits import Exit
    from azure_functions_db.operations.doctor import examine

    health = examine(pollers_of(app, store, app_name).chosen(name))
    show(health, _screen, as_json=as_json)
    wrong = {"error", "warning"} if strict else {"error"}
    raise typer.Exit(Exit.FAILED if wrong & health.grades else Exit.OK)


def _screen(result: Health, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    if not result.pollers:
        return text("There are no pollers here.")
    return stacked(*map(_block, result.pollers))


def _block(health: PollerHealth) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in health.findings:
        mark, style = _GRADES[finding.grade]
        content = text(finding.text, lines=True)
        if finding.remedy:
            content.append_text(text(f"\n→ {finding.remedy}", lines=True))
        table.add_row(text(mark, style), text(finding.check), content)
    return stacked(text(health.poller, "bold"), indented(table, below=1))
