"""The commands of `azfdb`: a list that costs nothing, and each of them imported when it is called.

Other packages add theirs as entry points of the group ``azure_functions_db.verbs``: the name of the
command, and a function as Typer takes it, or a ``typer.Typer``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

SUMMARIES = {
    "run": "Run an app's timer functions on their schedules.",
    "demo": "Show the library at work, on embedded parts.",
    "status": "Show where every poller stands.",
    "inspect": "Show a poller's state document.",
    "doctor": "Examine an app's sources, stores and schedules.",
    "tail": "Show what the next tick would deliver.",
    "reset": "Move a poller's checkpoint.",
    "clone": "Give another poller this one's position.",
    "export": "Write a poller's state document as JSON.",
    "lease": "Break a poller's lease.",
    "backfill": "Deliver a stretch of the source again.",
    "quarantine": "List, show, replay and drop bad rows.",
    "stream": "Create, drop and show what a source streams from.",
    "verify": "Compare the source with what was delivered.",
}
"""Each command's name, which is that of its module and of its function there, and what it does."""

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
        return getattr(import_module(f"azure_functions_db.cli.{name}"), name)
    others = [entry for entry in entry_points(group=VERBS) if entry.name == name]
    return others[0].load() if others else None


def _summaries() -> dict[str, str]:
    """Return what each command does; those of other packages are named without being imported."""
    others = {entry.name: f"Added by {entry.module.partition('.')[0]}." for entry in entry_points(group=VERBS)}
    return {**SUMMARIES, **{name: others[name] for name in sorted(others) if name not in SUMMARIES}}
