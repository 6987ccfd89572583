"""A batch: the events of one fetch, the checkpoints on either side, and the search for those that cannot be handled."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from azure_functions_db.core.errors import SerializationError, app_traceback_text
from azure_functions_db.core.garbage import show_held
from azure_functions_db.core.secrets import masked, masked_words, shortened
from azure_functions_db.core.serializers import datetime_text, is_count, json_safe, timestamp, types_of
from azure_functions_db.core.types import Failure, QuarantinedRow, StuckBatch
from azure_functions_db.trigger.events import RowChange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.signals import Stage
    from azure_functions_db.core.types import CheckpointJson, Position


Reason = BaseException | str

# How many rows behind a suspect are tried in one tick, and how far the ticks get before they begin again.
_PATIENCE = 10
_FURTHEST = 1000
# Each time a suspect has failed, another row must be digested before it is tried again. An outage has to begin
# and to end twice within five calls to make a good row look like that.
_LAST_PROOF = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How far the search through a failed batch has come; it fits beside the checkpoint.

    Ever smaller parts of the batch are tried, in order, and committed once they are digested. A row
    that fails alone is a suspect: some row behind it has to be digested, then the suspect is tried
    again. Poison fails each time. In an outage, where everything fails, there is no such witness, and
    once the outage is over the suspect is digested.
    """

    parts: tuple[int, ...]
    """The number of rows in each part that is still to be tried."""
    suspect: str | None = None
    """The id of the event that failed alone."""
    proofs: int = 0
    """How often the suspect has failed and a witness was digested, in turn."""
    ahead: int = 0
    """How many rows behind the suspect have been tried as witnesses and failed, too."""

    @classmethod
    def through(cls, rows: int, *, named: bool) -> Self:
        """Return the search through a failed batch; where rows were named, it is tried as a whole once more."""
        return cls(parts=(rows,) if named else _halves(rows))

    @classmethod
    def noted_in(cls, written: object, most: int) -> Self | None:
        """Return the search that was noted; None for no such note, or one of larger batches than are wanted now."""
        match written:
            case {
                "parts": [_, *_] as parts,
                "suspect": None | str() as suspect,
                "proofs": 0 | 1 | 2 | 3 | 4 as proofs,
                "ahead": int() as ahead,
            } if ahead >= 0 and all(part in range(1, most + 1) for part in parts):
                return cls(parts=tuple(parts), suspect=suspect, proofs=proofs, ahead=ahead)
            case _:
                return None

    def noted(self) -> dict[str, Any]:
        """Return the JSON form that `noted_in` reads."""
        return {**asdict(self), "parts": list(self.parts)}

    @property
    def needs_witness(self) -> bool:
        """Whether a row behind the suspect is to be tried next."""
        return self.proofs % 2 == 1

    @property
    def rows(self) -> range:
        """The rows to try next, counted from the checkpoint."""
        return range(1 + self.ahead, 2 + self.ahead) if self.needs_witness else range(self.parts[0])

    @property
    def convicts(self) -> bool:
        """Whether the suspect is poison if it fails now."""
        return self.proofs == _LAST_PROOF

    def facing(self, event_id: str) -> Search:
        """Return the search at this first row: what is known of another one does not count against it."""
        return self if self.proofs == 0 or event_id == self.suspect else replace(self, suspect=None, proofs=0, ahead=0)

    def refused(self, event_id: str) -> Search:
        """Learn that the handler failed on what was tried; the event is the first behind the checkpoint."""
        if self.needs_witness:
            return self._without_witness()
        if self.parts[0] > 1:
            return replace(self, parts=(*_halves(self.parts[0]), *self.parts[1:]))
        return replace(self, suspect=event_id, proofs=self.proofs + 1)

    def witnessed(self) -> Search:
        """Learn that the handler digested a row behind the suspect."""
        return replace(self, proofs=self.proofs + 1)

    def passed(self, rows: int, *, more: bool) -> Search | None:
        """Learn that so many rows were digested and committed; None when the search is over."""
        left = self.parts[0] - rows
        parts = self.parts[1:] if left <= 0 else (left, *self.parts[1:])
        return Search(parts=parts) if parts and more else None

    def convicted(self, *, more: bool) -> Search | None:
        """Learn that the suspect was put aside; None when the search is over."""
        rest = self.passed(1, more=more)
        return rest and replace(rest, ahead=max(0, self.ahead - 1))

    def given_up(self) -> Search:
        """Return the search for a later tick, which tries the suspect itself and then the nearest rows again."""
        return replace(self, suspect=None, proofs=0, ahead=0)

    def _without_witness(self) -> Search:
        if self.proofs == 1 and (self.ahead + 1) % _PATIENCE:
            return replace(self, ahead=self.ahead + 1)
        # Enough for one tick: a later one begins with the suspect itself and looks further from here.
        ahead = self.ahead + (self.proofs == 1)
        return replace(self.given_up(), ahead=ahead if ahead < _FURTHEST else 0)


def _halves(rows: int) -> tuple[int, ...]:
    return tuple(half for half in ((rows + 1) // 2, rows // 2) if half)


RATE_SECONDS = 300
"""Over how long the rate of rows is averaged."""

# What is told of the place of a batch: enough to find its rows.
_LONGEST_FIRST = 200
_LONGEST_TRACEBACK = 8_000


@dataclass(frozen=True)
class Checkpoint:
    """Where a poller stands: the position that its source gave, and what is noted beside it.

    ``json`` is the form that handlers and observers are given; ``stored`` has the history besides, and is what state
    stores keep.
    """

    position: Position = field(default_factory=dict)
    batch_id: str | None = None
    """The last batch that was committed."""
    updated_at: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the tick and its tools remember from one write to the next."""
    history: Any = None
    """What was done lately, for `history.samples`."""

    @classmethod
    def of(cls, written: CheckpointJson) -> Self:
        """Return the checkpoint that a state store holds, or that a source returned."""
        position = dict(written)
        batch_id, updated_at = position.pop("last_successful_batch_id", None), position.pop("updated_at", None)
        notes = dict(position.pop("metadata", None) or {})
        history = notes.pop("history", None)
        return cls(position, batch_id, updated_at, notes, history)

    @cached_property
    def json(self) -> CheckpointJson:
        """The JSON form."""
        beside = {"last_successful_batch_id": self.batch_id, "updated_at": self.updated_at, "metadata": self.notes}
        return {**self.position, **{name: value for name, value in beside.items() if value}}

    @property
    def stored(self) -> CheckpointJson:
        """The JSON form with the history."""
        return self.json if self.history is None else {**self.json, "metadata": {**self.notes, "history": self.history}}

    @property
    def failed_attempts(self) -> int:
        """How often the batch behind it has failed so far."""
        return int(self.notes.get("failed_attempts", 0))

    @property
    def unconfirmed_batch(self) -> str | None:
        """The batch whose rows were about to be put aside when it was last heard of."""
        return self.notes.get("aside")

    @property
    def failure(self) -> Failure | None:
        """What has gone wrong since the last success; None where nothing has, or where it cannot be read."""
        try:
            return _failure_in(self.notes.get("failure"))
        except ValueError:
            return None

    @property
    def shown_position(self) -> tuple[Any, dict[str, Any]]:
        """The cursor and the key of a keyset's position as people are shown them; another source's cursor as it is."""
        match self.position.get("cursor"):
            case {"value": value, "tiebreaker": dict() as key}:
                return value, {
                    name: part.get("value") if isinstance(part, dict) else part for name, part in key.items()
                }
            case list() as parts if parts:
                return parts[0], {str(place): part for place, part in enumerate(parts[1:], 1)}
            case other:
                return other, {}

    @property
    def committed_at(self) -> dt.datetime | None:
        """When it was last moved."""
        return _moment(self.updated_at)

    @property
    def rows_per_second(self) -> float | None:
        """The average rate when it was last moved; None where none was measured."""
        rate = self.notes.get("rows_per_second")
        return None if rate is None else float(rate)

    @property
    def succeeded_at(self) -> dt.datetime | None:
        """When a tick was last known to have gone well, with changes or without."""
        return _latest(self.committed_at, _moment(self.notes.get("ticked_at")))

    @property
    def ticked_at(self) -> dt.datetime | None:
        """When a poller was last known to tick, by what it has written."""
        return _latest(self.succeeded_at, None if self.failure is None else self.failure.last_at)

    def failed_with(self, error: Exception, at: dt.datetime, batch: Batch | None) -> Self:
        """Return the same position with one more failed tick noted beside it."""
        earlier = self.failure
        since, attempts = (at, 0) if earlier is None else (earlier.since, earlier.attempts)
        failure = {
            "attempts": attempts + 1,
            "error_type": type(error.__cause__ or error).__name__,
            "error": masked_words(error).split("\n", 1)[0],
            "since": datetime_text(since),
            "last_at": datetime_text(at),
            "batch": None if batch is None else batch.described(),
        }
        return replace(self.noting(failure=failure), history=noted(self.history, at, Sample(failures=1)))

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
        moved = replace(self, position={**self.position, **reached.position}, updated_at=datetime_text(at))
        return moved.noting(**reached.notes, failure=None, ticked_at=None)

    def after(self, reached: Checkpoint, batch_id: str, at: dt.datetime, row_count: int) -> Checkpoint:
        """Return the checkpoint to write behind a batch; what was noted of it while it failed ends with it."""
        notes = {**reached.notes, "row_count": row_count, "rows_per_second": self._rows_per_second(at, row_count)}
        # With each batch: `replace` takes three times as long.
        return Checkpoint(reached.position, batch_id, reached.updated_at, notes, self.history)

    def written_at(self, at: dt.datetime, sample: Sample) -> Self:
        """Return the same checkpoint with the time at which it is written, and what was done until then."""
        history = noted(self.history, at, sample)
        return type(self)(self.position, self.batch_id, datetime_text(at), self.notes, history)

    def _rows_per_second(self, at: dt.datetime, row_count: int) -> float:
        """Return the rate after a batch, averaged over about five minutes as a load average is."""
        old, new = self.rows_per_second or 0.0, row_count / RATE_SECONDS
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
    lag_seconds: float | None = None
    """The age of its last event when it was committed, where the cursor is a time."""
    start: Checkpoint | None = None
    """Where the source has begun, set where that is to be written before the batch is handled."""
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

    def described(self) -> dict[str, Any]:
        """Return what an operator is told of a batch that failed."""
        first = None
        if self.events:
            event = self.events[0]
            key = ", ".join(f"{name}={json_safe(value)}" for name, value in event.pk.items())
            first = shortened(masked(f"{json_safe(event.cursor)} ({key})"), _LONGEST_FIRST)
        return {"id": self.id, "rows": len(self.events), "first": first}

    def noting(self, checkpoint: Checkpoint, search: Search | None) -> Checkpoint:
        """Return the checkpoint with how far the search through this batch has come."""
        if search is None:
            return checkpoint
        return checkpoint.noting(failed_attempts=self.attempts).with_search(search)

    def show_held(self) -> None:
        """Show the garbage collector the events that others hold: lists that others have are always copies of ours."""
        show_held(self.events)

    def next_attempt(self) -> None:
        """Let the events say that they are delivered once more."""
        self.show_held()
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
                traceback=_traceback_of(reason),
            )
            for event, reason in (
                (event, culprits[event.event_id]) for event in self.events if event.event_id in culprits
            )
        ]


def _traceback_of(reason: Reason) -> str | None:
    """Return where a handler failed; of a long traceback its end, which tells most."""
    if isinstance(reason, str) or reason.__traceback__ is None:
        return None
    told = app_traceback_text(reason)
    return told if len(told) <= _LONGEST_TRACEBACK else f"…{told[-_LONGEST_TRACEBACK:]}"


def _failure_in(noted: Any) -> Failure | None:
    match noted:
        case {"attempts": attempts, "error_type": str() as kind, "error": str() as error, "batch": batch, **rest} if (
            is_count(attempts)
        ):
            since, last_at = timestamp(rest.get("since")), timestamp(rest.get("last_at"))
            return Failure(attempts, kind, error, since, last_at, _stuck_in(batch))
        case _:
            return None


def _stuck_in(noted: Any) -> StuckBatch | None:
    match noted:
        case {"id": str() as name, "rows": rows, "first": str() | None as first} if is_count(rows):
            return StuckBatch(name, rows, first)
        case _:
            return None


def _latest(*moments: dt.datetime | None) -> dt.datetime | None:
    return max((moment for moment in moments if moment is not None), default=None)


def _moment(text: Any) -> dt.datetime | None:
    try:
        return timestamp(text)
    except ValueError:
        return None


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


# What a poller did, minute by minute for an hour and hour by hour for a week, beside its checkpoint.
#
# It is written with commits that happen anyway, so it costs no request. Two texts, newest slot first: each slot is the
# number of its minute or hour since 1970 and the counters of a `Sample`, in hexadecimal. A text is quick to carry from
# one commit to the next: only its first slot is ever read again, and JSON has one value to write.

# More than a worker does in an hour; a slot stays short whatever is counted.
_MOST: Final = 16**8 - 1


@dataclass(frozen=True, slots=True)
class Sample:
    """What was done in a stretch of time, added up."""

    rows: int = 0
    batches: int = 0
    failures: int = 0
    """Ticks that failed."""
    fetch_ms: int = 0
    handler_ms: int = 0
    commit_ms: int = 0
    lag_seconds: int | None = None
    """At the end of it, where the source can tell."""


# With each batch: `dataclasses.astuple` takes ten times as long.
_counters: Final = attrgetter(*(counter.name for counter in fields(Sample)))


@dataclass(frozen=True, slots=True)
class Tier:
    """A row of slots of one length."""

    name: str
    seconds: int
    slots: int
    longest: int
    """Of its text: what is oldest goes when numbers are large."""


MINUTES: Final = Tier("minutes", 60, 60, 2_000)
HOURS: Final = Tier("hours", 3600, 168, 5_800)
_TIERS: Final = (MINUTES, HOURS)


def noted(history: object, at: dt.datetime, sample: Sample) -> dict[str, str]:
    """Return the history with a sample added to the present minute and hour; one that cannot be read begins anew."""
    texts: Mapping[Any, Any] = history if isinstance(history, dict) else {}
    seconds, counters = int(at.timestamp()), _counters(sample)
    return {tier.name: _with(tier, texts.get(tier.name), [seconds // tier.seconds, *counters]) for tier in _TIERS}


def samples(history: object, tier: Tier) -> list[tuple[dt.datetime, Sample]]:
    """Return the slots of a tier that something was noted in, the oldest first; what cannot be read is left out."""
    text = history.get(tier.name) if isinstance(history, dict) else None
    read = [_read(slot) for slot in text.split(";")[: tier.slots]] if isinstance(text, str) else []
    found = {
        number: Sample(*counters)
        for number, *counters in filter(None, read)
        if 0 < number * tier.seconds < _END_OF_TIME
    }
    return [(dt.datetime.fromtimestamp(number * tier.seconds, dt.UTC), found[number]) for number in sorted(found)]


_END_OF_TIME: Final = dt.datetime(9999, 1, 1, tzinfo=dt.UTC).timestamp()


# A slot is a list of its number, the counters and the lag while it is added to: with each batch, which makes no sample.
_Slot = list[Any]


def _with(tier: Tier, text: object, slot: _Slot) -> str:
    newest, _, older = text.partition(";") if isinstance(text, str) else ("", "", "")
    last = _read(newest)
    if last is None:
        return _written(slot)
    if last[0] >= slot[0]:  # a clock that went back goes on in the slot that is there
        return _cut(tier, f"{_written(_sum(last, slot))};{older}")
    return _cut(tier, f"{_written(slot)};{newest};{older}")


def _cut(tier: Tier, text: str) -> str:
    if len(text) > tier.longest:
        text = text[: text.rindex(";", 0, tier.longest)]
    if text.count(";") >= tier.slots:
        text = ";".join(text.split(";")[: tier.slots])
    return text.rstrip(";")


def _sum(slot: _Slot, younger: _Slot) -> _Slot:
    """Return both together, in the place of the first."""
    number, *counted, lag = slot
    _, *more, newer = younger
    sums = [min(_MOST, one + two) for one, two in zip(counted, more, strict=True)]
    return [number, *sums, lag if newer is None else min(_MOST, newer)]


def _read(text: str) -> _Slot | None:
    """Return a slot, None for what is none."""
    try:
        number, *counters, lag = text.split(",")
        slot = [int(number, 16), *[int(counter, 16) for counter in counters], int(lag, 16) if lag else None]
        return slot if len(slot) == _PARTS else None
    except ValueError:
        return None


def _written(slot: _Slot) -> str:
    return ",".join(["" if value is None else f"{max(0, value):x}" for value in slot])


_PARTS: Final = 1 + len(fields(Sample))
