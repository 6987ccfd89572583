"""Rows that are there and may not be read yet: running transactions could still write before them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli import words

if TYPE_CHECKING:
    from azure_functions_db.core.types import Checkpoint, Horizon


def is_held_back(source: Any, horizon: Horizon | None, checkpoint: Checkpoint) -> bool:
    """Tell whether rows follow a checkpoint that the horizon keeps from being read."""
    return horizon is not None and source.count_changes(checkpoint, 1) > 0


class Announcement:
    """Says on standard error, once, whom a command waits for."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._is_made = quiet

    def __call__(self, horizon: Horizon) -> None:
        """Say it, unless it was said."""
        if not self._is_made:
            self._is_made = True
            print(
                f"azfdb: waiting for what may still write before the next rows: {words.holders(horizon)}",
                file=sys.stderr,
            )
