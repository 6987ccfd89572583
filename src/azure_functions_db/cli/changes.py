"""How a command changes a poller's state: shown beforehand, confirmed by hand, done and shown again."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.drawing import grid, number, position, show, shown, stacked, text, value
from azure_functions_db.core.errors import Code, DbError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import RenderableType

    from azure_functions_db.operations.reset import ChangeReport, Marks, PlannedChange

_LETTERS = 90


class NotConfirmedError(DbError):
    """The operator did not confirm; nothing was changed."""

    code = Code.NOT_CONFIRMED


def perform(change: PlannedChange, *, yes: bool, backups: Path, as_json: bool) -> None:
    """Show what would change, have it confirmed, and do it."""
    planned = change.dry_run()
    if not as_json:
        is_kept = planned.before is not None
        show(replace(planned, backup=str(backups) if is_kept else None), report_screen, as_json=False)
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


def report_screen(result: ChangeReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    """Draw what is about to change, or that it was done."""
    if result.done and result.action == "resume" and not (result.before or {}).get("paused"):
        return text(f"{result.poller} was not paused.")
    if result.done:
        kept = "" if result.backup is None else f"; the document before is in {result.backup}"
        return text(f"Done: {result.action} of {result.poller}{kept}.", "green")
    table = grid("", "before", "after")
    before, after = _facts(result.before or {}), _facts(result.after)
    for name, old in before.items():
        new = after[name]
        if old != new or name == "position":
            table.add_row(text(name), text(old), text(new, "" if old == new else "yellow"))
    kept = "" if result.backup is None else f"The document before will be kept in {result.backup}."
    told = [text(line, "yellow") for line in (_moved(result), kept) if line]
    return stacked(text(f"{result.poller}: {result.action}", "bold"), table, *told)


def _facts(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what an operator decides by, in a few lines; `azfdb inspect` shows all of it."""
    from azure_functions_db.trigger.batch import Checkpoint

    checkpoint = Checkpoint.of(document.get("checkpoint") or {})
    lease, paused, failure = document.get("lease"), document.get("paused"), checkpoint.failure
    facts = {
        "position": position(*checkpoint.shown_position) if "cursor" in checkpoint.position else checkpoint.position,
        "last batch": checkpoint.batch_id,
        "committed": checkpoint.committed_at,
        "source": document.get("source_fingerprint"),
        "failing": failure and f"{failure.attempts} tick(s): {failure.error_type}",
        "paused": paused and f"by {paused['by']}",
        "lease": lease and f"{lease['owner_id']}, token {lease['fencing_token']}, until {lease['expires_at']}",
    }
    return {name: _short(value(fact or None)) for name, fact in facts.items()}


def _short(words: str) -> str:
    """Return words of a screen's one or two lines; a resume token says no more by its middle."""
    return words if len(words) <= _LETTERS else f"{words[: _LETTERS - 20]}…{words[-19:]}"


def marks_screen(result: Marks, width: int) -> RenderableType:
    """Draw what was done to each of several pollers."""
    return stacked(*(report_screen(change, width) for change in result.changes))


def _moved(result: ChangeReport) -> str:
    if result.rows_again is None or result.rows_skipped is None:
        return "How many rows come again or are skipped cannot be told here." if "reset" in result.action else ""
    return f"{number(result.rows_again)} row(s) will come again, {number(result.rows_skipped)} will be skipped."
