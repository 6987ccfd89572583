"""A batch on its way through a tick."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.trigger.poison import Search

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from azure_functions_db.core.types import Checkpoint, FetchResult
    from azure_functions_db.trigger.events import RowChange

_ATTEMPTS = "failed_attempts"
_BOOKKEEPING = {"last_successful_batch_id", "updated_at", "metadata"}
_SEARCH = "search"
_ASIDE = "aside"
_OF_UNCONFIRMED = {_ATTEMPTS, _SEARCH, _ASIDE}
RATE_SECONDS = 300


@dataclass(slots=True)
class Timing:
    """How long a stage took, once it is over; of several calls, their sum."""

    ms: float = 0.0


@dataclass(kw_only=True, slots=True)
class Batch:
    """The events of one fetch, where they begin and end, and what became of them."""

    id: str
    events: Sequence[RowChange]
    before: Checkpoint
    after: Checkpoint
    """What is committed once the batch is done."""
    more: bool
    began: float
    attempts: int
    """How often the handler has failed on this batch, in earlier ticks and in this one."""
    fetching: Timing
    handling: Timing = field(default_factory=Timing)
    committing: Timing = field(default_factory=Timing)
    search: Search | None = None
    """Set where the batch is no more than a step of the search for poison rows."""
    undecodable: Mapping[str, Exception] = field(default_factory=dict)
    """By event id, why rows cannot be handed out."""
    is_last: bool = False
    quarantined: set[str] = field(default_factory=set)

    @property
    def handled(self) -> int:
        """The number of events that the handler has digested."""
        return len(self.events) - len(self.quarantined)

    @property
    def handled_events(self) -> Sequence[RowChange]:
        """The events that the handler has digested."""
        if not self.quarantined:
            return self.events
        return [event for event in self.events if event.event_id not in self.quarantined]

    @property
    def readable_events(self) -> Sequence[RowChange]:
        """The events that the handler is given."""
        if not self.undecodable:
            return self.handled_events
        return [event for event in self.handled_events if event.event_id not in self.undecodable]


def failed_attempts(checkpoint: Checkpoint) -> int:
    """Return how often the batch after this checkpoint has failed so far."""
    return int((checkpoint.get("metadata") or {}).get(_ATTEMPTS, 0))


def search_after(checkpoint: Checkpoint, batch_size: int) -> Search | None:
    """Return the search for poison rows that goes on behind this checkpoint."""
    return Search.noted_in((checkpoint.get("metadata") or {}).get(_SEARCH), batch_size)


def unconfirmed_batch(checkpoint: Checkpoint) -> str | None:
    """Return the batch whose rows were about to be put aside when it was last heard of."""
    return (checkpoint.get("metadata") or {}).get(_ASIDE)


def with_failed_attempts(checkpoint: Checkpoint, attempts: int) -> Checkpoint:
    """Return the same position, remembering how often the batch after it has failed."""
    return _with_note(checkpoint, _ATTEMPTS, attempts)


def with_search(checkpoint: Checkpoint, search: Search | None) -> Checkpoint:
    """Return the same position, remembering how far the search behind it has come."""
    return _with_note(checkpoint, _SEARCH, search and search.noted())


def with_rows_aside(checkpoint: Checkpoint, batch_id: str | None) -> Checkpoint:
    """Return the same position, remembering that rows of this batch go into quarantine before it moves."""
    return _with_note(checkpoint, _ASIDE, batch_id)


def _with_note(checkpoint: Checkpoint, name: str, note: Any) -> Checkpoint:
    others = {other: value for other, value in (checkpoint.get("metadata") or {}).items() if other != name}
    return {**checkpoint, "metadata": others if note is None else {**others, name: note}}


def has_news(reached: Checkpoint, position: Checkpoint) -> bool:
    """Tell whether a source has something to remember that is not written yet; what the tick adds is no news."""
    parts = ((name, value) for name, value in reached.items() if name not in _BOOKKEEPING)
    return any(value is not None and value != position.get(name) for name, value in parts)


def committed_checkpoint(
    position: Checkpoint, *, before: Checkpoint, batch_id: str, updated_at: str, row_count: int
) -> Checkpoint:
    """Return the checkpoint to write after a batch."""
    # What is noted of an unconfirmed batch ends with it.
    kept: dict[str, Any] = {
        name: value for name, value in (position.get("metadata") or {}).items() if name not in _OF_UNCONFIRMED
    }
    return {
        **position,
        "last_successful_batch_id": batch_id,
        "updated_at": updated_at,
        "metadata": {
            **kept,
            "row_count": row_count,
            "rows_per_second": rows_per_second(before, updated_at, row_count),
        },
    }


def joined(found: FetchResult, further: FetchResult) -> FetchResult:
    """Return what two reads in a row have found."""
    first = len(found.records)
    return replace(
        further,
        records=[*found.records, *further.records],
        revisions={**found.revisions, **{first + place: label for place, label in further.revisions.items()}},
        undecodable={**found.undecodable, **{first + place: why for place, why in further.undecodable.items()}},
    )


def rows_per_second(before: Checkpoint, updated_at: str, row_count: int) -> float:
    """Return the rate after a batch, averaged over about five minutes as a load average is."""
    earlier = before.get("updated_at")
    old = float((before.get("metadata") or {}).get("rows_per_second", 0))
    new = row_count / RATE_SECONDS
    if earlier is None or not old:
        return round(new, 6)
    passed = dt.datetime.fromisoformat(updated_at) - dt.datetime.fromisoformat(earlier)
    return round(old * math.exp(-max(0.0, passed.total_seconds()) / RATE_SECONDS) + new, 6)
