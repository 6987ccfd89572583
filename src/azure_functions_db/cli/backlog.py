"""What waits behind a checkpoint."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.ports import CountsChanges

if TYPE_CHECKING:
    from azure_functions_db.core.ports import ChangeSource
    from azure_functions_db.core.types import Checkpoint, FetchResult, Horizon

# Counting stops here: an operator needs no exact number beyond it.
_COUNTED = 100_000
# How much of a source that cannot count is read to count it.
_READ = 1_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many rows wait, for how long the oldest has, and what keeps them from being read."""

    rows: int
    is_more: bool
    """Whether there are more than were counted."""
    lag_seconds: float | None
    """The age of the oldest waiting row; None where the cursor is no timestamp."""
    horizon: Horizon | None


def backlog_of(source: ChangeSource, checkpoint: Checkpoint, now: dt.datetime) -> Backlog:
    """Look at what the next ticks would read; nothing is changed."""
    source.open()
    try:
        counts = isinstance(source, CountsChanges)
        result = source.fetch_changes(checkpoint, 1 if counts else _READ)
        if counts and (result.records or result.horizon):
            counted = source.count_changes(checkpoint, _COUNTED)  # type: ignore[attr-defined]  # a protocol beside the port
            rows = max(counted, len(result.records))
            return Backlog(rows, rows >= _COUNTED, _lag(source, result, rows, now), result.horizon)
        rows = len(result.records)
        return Backlog(rows, bool(result.more), _lag(source, result, rows, now), result.horizon)
    finally:
        source.close()


def _lag(source: Any, result: FetchResult, rows: int, now: dt.datetime) -> float | None:
    from azure_functions_db.core.clocks import lag_seconds

    if not rows:
        return 0.0
    if not result.records:
        return None  # rows are there, and held back
    return lag_seconds(result.records[0].get(getattr(source, "cursor_column", "")), now)
