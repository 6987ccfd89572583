"""`azfdb inspect`: a poller's state document, readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from azure_functions_db.cli.drawing import problem, stacked, text, tree
from azure_functions_db.cli.options import AsJson, Exit, PollerName, Target, targeted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.operations.status import Inspection


@targeted
def inspect(
    target: Target,
    name: PollerName,
    as_json: AsJson = False,
) -> None:
    """Show a poller's state document, also one that makes no sense (exit code 1)."""
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.status import inspect

    inspection = inspect(target.one(name))
    show(inspection, _screen, as_json=as_json)
    raise typer.Exit(Exit.OK if inspection.problem is None else Exit.FAILED)


def _screen(result: Inspection, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    if result.problem is not None:
        return stacked(problem(result.poller, result.problem), text(result.raw or "", lines=True))
    return stacked(*(problem(result.poller, told) for told in result.trouble), tree(result.document or {}))
