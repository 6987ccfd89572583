"""A batch: the events of one fetch, with the checkpoint on either side of them."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from azure_functions_db.core.errors import SerializationError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import datetime_text, json_safe, types_of
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.poison import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.signals import Stage
    from azure_functions_db.core.types import CheckpointJson, Position
    from azure_functions_db.trigger.poison import Reason

RATE_SECONDS = 300
"""Over how long the rate of rows is averaged."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a poller stands: the position that its source gave, and what is noted beside it.

    ``json`` is the form in which state stores keep it.
    """

    position: Position = field(default_factory=dict)
    batch_id: str | None = None
    """The last batch that was committed."""
    updated_at: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the tick and its tools remember from one write to the next."""

    @classmethod
    def of(cls, written: CheckpointJson) -> Self:
        """Return the checkpoint that a state store holds, or that a source returned."""
        position = dict(written)
        batch_id, updated_at = position.pop("last_successful_batch_id", None), position.pop("updated_at", None)
        return cls(position, batch_id, updated_at, position.pop("metadata", None) or {})

    @cached_property
    def json(self) -> CheckpointJson:
        """The JSON form."""
        beside = {"last_successful_batch_id": self.batch_id, "updated_at": self.updated_at, "metadata": self.notes}
        return {**self.position, **{name: value for name, value in beside.items() if value}}

    @property
    def failed_attempts(self) -> int:
        """How often the batch behind it has failed so far."""
        return int(self.notes.get("failed_attempts", 0))

    @property
    def unconfirmed_batch(self) -> str | None:
        """The batch whose rows were about to be put aside when it was last heard of."""
        return self.notes.get("aside")

    def search(self, batch_size: int) -> Search | None:
        """Return the search for poison rows that goes on behind it."""
        return Search.noted_in(self.notes.get("search"), batch_size)

    def moved_to(self, position: Position, at: dt.datetime) -> Self:
        """Return the checkpoint at another position; what was noted of the batch behind this one ends."""
        return replace(self, position=position, updated_at=datetime_text(at), notes={})

    def noting(self, **notes: Any) -> Self:
        """Return the same position with other notes; None takes one away."""
        merged = {**self.notes, **notes}
        return replace(self, notes={name: note for name, note in merged.items() if note is not None})

    def with_search(self, search: Search | None) -> Self:
        """Return the same position, remembering how far the search behind it has come."""
        return self.noting(search=search and search.noted())

    def has_news(self, reached: Checkpoint) -> bool:
        """Tell whether a source has something to remember that is not written here yet."""
        position = self.position
        return any(value is not None and value != position.get(name) for name, value in reached.position.items())

    def kept(self, reached: Checkpoint, at: dt.datetime) -> Self:
        """Return the checkpoint with what its source has to remember, though it handed out nothing."""
        notes = {**self.notes, **reached.notes}
        return replace(self, position={**self.position, **reached.position}, updated_at=datetime_text(at), notes=notes)

    def after(self, reached: Checkpoint, batch_id: str, at: dt.datetime, row_count: int) -> Checkpoint:
        """Return the checkpoint to write behind a batch; what was noted of it while it failed ends with it."""
        measured = {"row_count": row_count, "rows_per_second": self._rows_per_second(at, row_count)}
        counted = reached.noting(failed_attempts=None, search=None, aside=None, **measured)
        return replace(counted, batch_id=batch_id)

    def written_at(self, at: dt.datetime) -> Self:
        """Return the same checkpoint with the time at which it is written."""
        return replace(self, updated_at=datetime_text(at))

    def _rows_per_second(self, at: dt.datetime, row_count: int) -> float:
        """Return the rate after a batch, averaged over about five minutes as a load average is."""
        old, new = float(self.notes.get("rows_per_second", 0)), row_count / RATE_SECONDS
        if self.updated_at is None or not old:
            return round(new, 6)
        passed = at - dt.datetime.fromisoformat(self.updated_at)
        return round(old * math.exp(-max(0.0, passed.total_seconds()) / RATE_SECONDS) + new, 6)


@dataclass(kw_only=True, slots=True)
class Batch:
    """The events of one fetch, where they begin and end, and what became of them."""

    id: str
    before: Checkpoint
    after: Checkpoint
    """What is committed once the batch is done."""
    more: bool
    """Whether more may be waiting behind it."""
    began: float
    attempts: int
    """How often the handler has failed on this batch, in earlier ticks and in this one."""
    spent: dict[Stage, float]
    """The milliseconds that each stage took; of several calls, their sum."""
    events: Sequence[RowChange] = ()
    cut: Callable[[int], Position] | None = None
    """Gives the position behind the first so many of the events, where the source can tell."""
    call_seconds: float = 0.0
    """How long the last call of the handler took."""
    search: Search | None = None
    """Set where the batch is no more than a step of the search for poison rows."""
    is_whole: bool = False
    """Set where the source gave more than was asked for, to keep a transaction whole: it cannot be taken in parts."""
    undecodable: Mapping[str, Exception] = field(default_factory=dict)
    """By event id, why rows cannot be handed out."""
    is_maybe_last: bool = False
    """Set where the source cannot tell whether more is waiting."""
    ends_tick: bool = False
    """Set where the rest of a batch is left for a later tick."""
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
        return checkpoint.noting(failed_attempts=self.attempts).with_search(search)

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
                # Of a row that Python cannot hold there are only texts.
                types=None if event.event_id in self.undecodable else _types_of(event),
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


def _types_of(event: RowChange) -> dict[str, str] | None:
    parts = ("cursor", "pk", "before", "after", "metadata")
    try:
        return types_of({name: getattr(event, name) for name in parts})
    except RecursionError:
        return None


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
