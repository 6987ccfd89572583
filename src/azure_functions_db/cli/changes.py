"""How a command changes a poller's state: shown beforehand, confirmed by hand, done and shown again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from azure_functions_db.cli.drawing import NONE, flat, grid, number, show, shown, stacked, text
from azure_functions_db.core.errors import Code, DbError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from azure_functions_db.operations.reset import ChangeReport, Marks, PlannedChange


class NotConfirmedError(DbError):
    """The operator did not confirm; nothing was changed."""

    code = Code.NOT_CONFIRMED


def perform(change: PlannedChange, *, yes: bool, backups: Path, as_json: bool) -> None:
    """Show what would change, have it confirmed, and do it."""
    planned = change.dry_run()
    if not as_json:
        show(planned, report_screen, as_json=False)
    confirm(change.poller, yes=yes)
    show(change.apply(backups), report_screen, as_json=as_json)


def confirm(*pollers: str, yes: bool) -> None:
    """Go on only with ``--yes`` or after the pollers' names were typed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmedError("Nothing was changed: add --yes, or run this where the poller's name can be typed")
    print(f"Type the poller's name ({shown(' '.join(pollers))}) to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().split() != list(pollers):
        raise NotConfirmedError("Nothing was changed: that is not the poller's name")


def report_screen(result: ChangeReport, width: int) -> RenderableType:
    """Draw what is about to change, or that it was done."""
    if result.done and result.action == "resume" and not (result.before or {}).get("paused"):
        return text(f"{result.poller} was not paused.")
    if result.done:
        kept = "" if result.backup is None else f"; the document before is in {result.backup}"
        return text(f"Done: {result.action} of {result.poller}{kept}.", "green")
    before, after = flat(result.before or {}), flat(result.after)
    names = list(dict.fromkeys([*before, *after]))
    both = [(name, before.get(name, NONE), after.get(name, NONE)) for name in names]
    rows = [row for row in both if row[1:] != (NONE, NONE)]
    moved = text(_moved(result), "yellow")
    if width < 100:
        return stacked(text(f"{result.poller}: {result.action}", "bold"), *map(_block, rows), moved)
    table = grid("", "before", "after", title=text(f"{result.poller}: {result.action}"))
    for name, old, new in rows:
        table.add_row(text(name), text(old), text(new, "" if old == new else "yellow"))
    return stacked(table, moved)


def marks_screen(result: Marks, width: int) -> RenderableType:
    """Draw what was done to each of several pollers."""
    return stacked(*(report_screen(change, width) for change in result.changes))


def _moved(result: ChangeReport) -> str:
    if result.rows_again is None or result.rows_skipped is None:
        return "How many rows come again or are skipped cannot be told here." if "reset" in result.action else ""
    return f"{number(result.rows_again)} row(s) will come again, {number(result.rows_skipped)} will be skipped."


def _block(row: tuple[str, str, str]) -> RenderableType:
    name, old, new = row
    if old == new:
        return text(f"  {name}: {old}")
    return stacked(text(f"  {name}"), text(f"    - {old}", "red"), text(f"    + {new}", "green"))
