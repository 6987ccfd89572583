"""A batch on its way through a tick."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import SerializationError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import json_safe
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.poison import Search

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from azure_functions_db.core.signals import Stage
    from azure_functions_db.core.types import Checkpoint, FetchResult
    from azure_functions_db.trigger.poison import Reason

_ATTEMPTS = "failed_attempts"
_BOOKKEEPING = {"last_successful_batch_id", "updated_at", "metadata"}
_SEARCH = "search"
_ASIDE = "aside"
_OF_UNCONFIRMED = {_ATTEMPTS, _SEARCH, _ASIDE}
RATE_SECONDS = 300


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
    spent: dict[Stage, float]
    """The milliseconds that each stage took; of several calls, their sum."""
    call_seconds: float = 0.0
    """How long the last call of the handler took."""
    search: Search | None = None
    """Set where the batch is no more than a step of the search for poison rows."""
    is_whole: bool = False
    """Set where the source gave more than was asked for, to keep a transaction whole: it cannot be taken in parts."""
    undecodable: Mapping[str, Exception] = field(default_factory=dict)
    """By event id, why rows cannot be handed out."""
    is_last: bool = False
    quarantined: set[str] = field(default_factory=set)

    @property
    def handled_events(self) -> Sequence[RowChange]:
        """The events that the handler has digested."""
        if not self.quarantined:
            return self.events
        return [event for event in self.events if event.event_id not in self.quarantined]

    @property
    def readable_events(self) -> Sequence[RowChange]:
        """The events that the handler is given."""
        if not self.undecodable and not self.quarantined:
            return self.events
        return [event for event in self.handled_events if event.event_id not in self.undecodable]

    def noting(self, checkpoint: Checkpoint, search: Search | None) -> Checkpoint:
        """Return the checkpoint with how far the search through this batch has come."""
        if search is None:
            return checkpoint
        return with_search(with_failed_attempts(checkpoint, self.attempts), search)

    def next_attempt(self) -> None:
        """Let the events say that they are delivered once more."""
        attempt = {"attempt": self.attempts + 1}
        self.events = [event.with_metadata(MappingProxyType({**event.metadata, **attempt})) for event in self.events]

    def rows_aside(self, poller_name: str, culprits: Mapping[str, Reason], at: dt.datetime) -> list[QuarantinedRow]:
        """Return the rows of these events as they are put aside."""
        return [
            QuarantinedRow(
                poller_name=poller_name,
                event_id=event.event_id,
                event=_json_of(event),
                error_type="RowsFailed" if isinstance(reason, str) else type(reason).__name__,
                error=masked_words(reason),
                attempts=self.attempts,
                batch_id=self.id,
                quarantined_at=at,
            )
            for event, reason in (
                (event, culprits[event.event_id]) for event in self.events if event.event_id in culprits
            )
        ]


def _json_of(event: RowChange) -> dict[str, Any]:
    """Return the event as it is put aside; a document that is nested too deeply is a text in it."""
    try:
        return event.to_json()
    except RecursionError:
        row = {name: _flat(value) for name, value in (event.after or {}).items()}
        return RowChange(
            event.event_id, event.op, event.source, event.cursor, event.pk, None, row, event.metadata
        ).to_json()


def _flat(value: Any) -> Any:
    try:
        return json_safe(value)
    except RecursionError:
        return json.dumps(value, default=str)


def undeliverable(events: Sequence[RowChange], reasons: Mapping[str, Exception]) -> SerializationError:
    """Return the error of a batch with rows that Python cannot hold and nobody puts aside."""
    first = next(event for event in events if event.event_id in reasons)
    key = ", ".join(f"{name}={value!r}" for name, value in first.pk.items())
    return SerializationError(
        f"{reasons[first.event_id]}, in the row with {key} and cursor {first.cursor!r}. Correct the row, give the "
        'poller a quarantine=, or have such values delivered as texts (undecodable="text")'
    )


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
