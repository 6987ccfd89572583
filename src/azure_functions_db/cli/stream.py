"""`azfdb stream`: what a source streams from, a slot and a publication for instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import pairs, stacked, text
from azure_functions_db.cli.options import PLAIN, AsJson, PollerName, Target, Yes, targeted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.operations.stream import StreamReport, StreamView

stream = typer.Typer(name="stream", add_completion=False, **PLAIN)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the statements and change nothing.")]


@stream.callback()
def _stream() -> None:
    """Create, drop and show what a source streams from."""


@stream.command()
@targeted
def create(
    target: Target,
    name: PollerName,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make what is missing of it, and print the statements."""
    from azure_functions_db.cli.drawing import show as show_result
    from azure_functions_db.operations.stream import create_stream

    show_result(create_stream(target.one(name), dry_run=dry_run), _screen, as_json=as_json)


@stream.command()
@targeted
def drop(
    target: Target,
    name: PollerName,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove it, and print the statements; the poller's position is lost with it."""
    from azure_functions_db.cli.changes import confirm
    from azure_functions_db.cli.drawing import show as show_result
    from azure_functions_db.operations.stream import drop_stream

    poller = target.one(name)
    if not dry_run:
        confirm(name, yes=yes)
    show_result(drop_stream(poller, dry_run=dry_run), _screen, as_json=as_json)


@stream.command()
@targeted
def show(
    target: Target,
    name: PollerName,
    as_json: AsJson = False,
) -> None:
    """Show what is there, and what it costs the server."""
    from azure_functions_db.cli.drawing import show as show_result
    from azure_functions_db.operations.stream import show_stream

    show_result(show_stream(target.one(name)), _view, as_json=as_json)


def _screen(result: StreamReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    if not result.statements:
        return text("There is nothing to do.")
    head = "Done:" if result.done else "This would be done:"
    return stacked(text(head, "bold"), *(text(f"{statement};", lines=True) for statement in result.statements))


def _view(result: StreamView, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    return pairs([(name.replace("_", " "), text(str(value))) for name, value in result.stream.items()])
