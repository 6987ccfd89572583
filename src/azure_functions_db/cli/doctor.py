"""`azfdb doctor`: what could go wrong, before it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import findings_table, indented, stacked, text
from azure_functions_db.cli.options import AnyPoller, AsJson, Exit, Target, targeted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.operations.doctor import Health, PollerHealth


@targeted
def doctor(
    target: Target,
    name: AnyPoller = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 on warnings, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Examine sources, stores and schedules of an app; nothing is changed.

    Exit code 1 when there are errors.
    """
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.doctor import examine

    health = examine(target.pollers().chosen(name))
    show(health, _screen, as_json=as_json)
    wrong = {"error", "warning"} if strict else {"error"}
    raise typer.Exit(Exit.FAILED if wrong & health.grades else Exit.OK)


def _screen(result: Health, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    if not result.pollers:
        return text("There are no pollers here.")
    return stacked(*map(_block, result.pollers))


def _block(health: PollerHealth) -> RenderableType:
    return stacked(text(health.poller, "bold"), indented(findings_table(health.findings), below=1))
