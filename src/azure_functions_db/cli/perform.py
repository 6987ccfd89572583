"""A change of state from its rehearsal to its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db.cli.changes import confirm
from azure_functions_db.cli.output import show

if TYPE_CHECKING:
    from pathlib import Path

    from azure_functions_db.cli.changes import Changing
    from azure_functions_db.state.store import DocumentStateStore


def perform(changing: Changing, store: DocumentStateStore, *, yes: bool, backups: Path, as_json: bool) -> None:
    """Show what would change, have it confirmed, and do it."""
    rehearsed = changing.rehearsed(store)
    if not as_json:
        show(rehearsed, as_json=False)
    confirm(changing.poller, yes=yes)
    done = changing.performed(store, backups)
    show(done, as_json=as_json)
