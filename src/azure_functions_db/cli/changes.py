"""How a command changes a poller's state: shown beforehand, confirmed by hand, done and shown again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from azure_functions_db.cli.drawing import NONE, flat, grid, show, shown, stacked, text
from azure_functions_db.core.errors import Code, DbError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from azure_functions_db.operations.reset import ChangeReport, PlannedChange


class NotConfirmedError(DbError):
    """The operator did not confirm; nothing was changed."""

    code = Code.NOT_CONFIRMED


def perform(change: PlannedChange, *, yes: bool, backups: Path, as_json: bool) -> None:
    """Show what would change, have it confirmed, and do it."""
    planned = change.dry_run()
    if not as_json:
        show(planned, _screen, as_json=False)
    confirm(change.poller, yes=yes)
    show(change.apply(backups), _screen, as_json=as_json)


def confirm(*pollers: str, yes: bool) -> None:
    """Go on only with ``--yes`` or after the pollers' names were typed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmedError("Nothing was changed: add --yes, or run this where the poller's name can be typed")
    print(f"Type the poller's name ({shown(' '.join(pollers))}) to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().split() != list(pollers):
        raise NotConfirmedError("Nothing was changed: that is not the poller's name")


def _screen(result: ChangeReport, width: int) -> RenderableType:
    if result.done:
        kept = "there was no document before" if result.backup is None else f"the one before is in {result.backup}"
        return text(f"Done: {result.action} of {result.poller}; {kept}.", "green")
    before, after = flat(result.before or {}), flat(result.after)
    names = list(dict.fromkeys([*before, *after]))
    both = [(name, before.get(name, NONE), after.get(name, NONE)) for name in names]
    rows = [row for row in both if row[1:] != (NONE, NONE)]
    if width < 100:
        return stacked(text(f"{result.poller}: {result.action}", "bold"), *map(_block, rows))
    table = grid("", "before", "after", title=text(f"{result.poller}: {result.action}"))
    for name, old, new in rows:
        table.add_row(text(name), text(old), text(new, "" if old == new else "yellow"))
    return table


def _block(row: tuple[str, str, str]) -> RenderableType:
    name, old, new = row
    if old == new:
        return text(f"  {name}: {old}")
    return stacked(text(f"  {name}"), text(f"    - {old}", "red"), text(f"    + {new}", "green"))
