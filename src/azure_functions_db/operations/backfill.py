"""Delivers a range of a source to an app's handler again, under a poller name of its own."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, DbError, HandlerError, LeaseConflictError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import deserialize_part, json_safe, serialize_part
from azure_functions_db.core.signals import BatchCommitted, LeaseSkipped, PollerPaused, RowQuarantined, SourceReported
from azure_functions_db.core.types import Horizon, NullCursors
from azure_functions_db.operations.positions import range_source
from azure_functions_db.operations.run import deliver, handler_of
from azure_functions_db.trigger.normalizers import normalized, reading
from azure_functions_db.trigger.poll import PollTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure_functions_db.core.ports import ChangeReader
    from azure_functions_db.core.signals import Signal
    from azure_functions_db.core.types import (
        AdapterCapability,
        CheckpointJson,
        CursorPart,
        FetchResult,
        Pause,
        SourceDescriptor,
    )
    from azure_functions_db.operations.pollers import Poller, Pollers
    from azure_functions_db.operations.run import Handler
    from azure_functions_db.trigger.events import RowChange

_NOTE = "backfill"
# A tick ends when the range does; its lease is kept alive meanwhile.
_ALL_BATCHES = 1_000_000_000
# Beside what the source itself waits for running transactions.
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class CursorRange:
    """From one cursor value to another, both included; None is the source's own beginning or end."""

    first: CursorPart
    last: CursorPart

    def noted(self) -> dict[str, Any]:
        """Return the JSON form that the backfill's own checkpoint carries."""
        return {"from": serialize_part(self.first), "to": serialize_part(self.last)}

    @classmethod
    def noted_in(cls, checkpoint: CheckpointJson) -> CursorRange | None:
        """Return the range that a backfill's checkpoint carries; None for any other checkpoint."""
        match checkpoint:
            case {"metadata": {"backfill": {"from": first, "to": last}}}:
                return cls(deserialize_part(first), deserialize_part(last))
            case _:
                return None


def checkpoint_at(cursors: CursorRange) -> CheckpointJson:
    """Return the checkpoint of a backfill that is about to begin."""
    return {"metadata": {_NOTE: cursors.noted()}}


class RangeSource:
    """A range of a source, noted in every checkpoint so that a later run goes on with the same one."""

    def __init__(self, source: Any, cursors: CursorRange) -> None:
        self._source = source.ranged(cursors.first, cursors.last)
        self._note = {_NOTE: cursors.noted()}

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """The live source's own: events keep their ids."""
        descriptor: SourceDescriptor = self._source.source_descriptor
        return descriptor

    def validate(self) -> None:
        """Check the source."""
        self._source.validate()

    def open(self) -> RangeReader:
        """Begin to read the range."""
        return RangeReader(self._source.open() or self._source, self._note)

    def close(self) -> None:
        """Do nothing: readers are closed, not the source."""

    def capability(self) -> AdapterCapability:
        """Say what the source can tell."""
        capability: AdapterCapability = self._source.capability()
        return capability

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Read on within the range, as a reader for this once."""
        with reading(self) as reader:
            return reader.fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Tell the source nothing: what the live poller still needs is not let go."""

    def count_changes(self, checkpoint: CheckpointJson, most: int | None = None) -> int:
        """Return how many rows of the range are left; counting stops at ``most``."""
        return int(self._source.count_changes(checkpoint, most))


class RangeReader:
    """Reads a range and notes it in every checkpoint."""

    def __init__(self, reader: ChangeReader, note: Mapping[str, Any]) -> None:
        self._reader = reader
        self._note = note
        self.close = reader.close

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Read on within the range."""
        page = self._reader.fetch_changes(checkpoint, limit)
        metadata = {**(page.next_checkpoint.get("metadata") or {}), **self._note}
        facts = [fact for fact in page.facts if not isinstance(fact, NullCursors)]  # a range knows nothing of them
        return replace(page, next_checkpoint={**page.next_checkpoint, "metadata": metadata}, facts=facts)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Tell the source nothing: what the live poller still needs is not let go."""


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What a backfill has done."""

    poller: str
    live_poller: str
    rows: int
    seconds: float
    quarantined: int = 0
    """How many of the rows were put aside."""
    keeps_state: bool = False
    """Whether its state is still there."""


class Backfill:
    """A backfill that is ready to run, for the first time or once more; it listens to its own ticks."""

    def __init__(self, live: Poller, name: str, cursors: CursorRange, checkpoint: CheckpointJson) -> None:
        self._live = live
        self._name = name
        self._source = RangeSource(live.defined.settings.source, cursors)
        self._checkpoint = checkpoint
        self._first = checkpoint_at(cursors) if CursorRange.noted_in(checkpoint) is None else None
        self._advance: Callable[[int], object] = lambda _rows: None
        self._rows = 0
        self._announce: Callable[[Horizon], object] = lambda _horizon: None
        self._horizon: Horizon | None = None
        self._skipped = False
        self._pause: Pause | None = None
        self._quarantined = 0

    def count_left(self) -> int:
        """Return how many rows are still to be delivered."""
        return self._source.count_changes(self._checkpoint)

    def run(
        self,
        rate: float | None,
        advance: Callable[[int], object],
        announce: Callable[[Horizon], object],
        *,
        keep: bool = False,
    ) -> BackfillReport:
        """Deliver what is left of the range, at most so many rows a second; tell of each batch and of each wait.

        Its state is removed when it is complete, unless it is to be kept.
        """
        began = time.monotonic()
        self._advance, self._announce = advance, announce
        trigger, handler = self._trigger(rate), Paced(handler_of(self._live.defined), rate)
        self._begin()
        while not self._skipped and self._pause is None and self._goes_on(trigger, handler):
            pass
        if self._skipped:
            raise LeaseConflictError(
                f"Another process runs the backfill {self._name!r}; where it was killed, its lease ends by itself, "
                f"or at once with: azfdb lease break {self._name} --force",
                poller_name=self._name,
            )
        if self._pause is not None:
            raise ConfigurationError(
                f"The backfill {self._name!r} is paused by {self._pause.by}: azfdb resume {self._name}"
            )
        seconds = round(time.monotonic() - began, 3)
        kept = keep or not self._clear_up()
        return BackfillReport(self._name, self._live.name, self._rows, seconds, self._quarantined, kept)

    def _clear_up(self) -> bool:
        """Remove the state of a backfill that is complete; tell whether it is gone."""
        if not self._live.shows_documents:
            return False
        with suppress(DbError):  # the work is done, whatever becomes of what it leaves
            self._live.documents.forget(self._name)
            return True
        return False

    def notice(self, signal: Signal) -> None:
        """Take note of what a tick did."""
        match signal:
            case BatchCommitted():
                self._rows += signal.fetched_count
                self._advance(signal.fetched_count)
            case SourceReported(fact=Horizon() as horizon):
                self._horizon = horizon
            case LeaseSkipped():
                self._skipped = True
            case PollerPaused():
                self._pause = signal.pause
            case RowQuarantined():
                self._quarantined += 1

    def _begin(self) -> None:
        """Note the range before anything is delivered: whatever becomes of the first batch, this backfill goes on."""
        if self._first is None:
            return
        store = self._live.store
        try:
            lease_id = store.acquire_lease(self._name, self._live.defined.settings.lease_ttl_seconds)
        except LeaseConflictError:
            self._skipped = True
            return
        store.commit_checkpoint(self._name, self._first, lease_id)
        store.release_lease(self._name, lease_id)

    def _goes_on(self, trigger: PollTrigger, handler: Paced) -> bool:
        """Deliver what can be read; tell whether more is to come, now or when running transactions have ended."""
        self._horizon = None
        if _tick(trigger, handler):
            return True
        horizon, checkpoint = self._horizon, self._live.store.load_checkpoint(self._name)
        if horizon is None or self._skipped or self._pause or not is_held_back(self._source, horizon, checkpoint):
            return False
        self._announce(horizon)
        time.sleep(_PAUSE)
        return True

    def _trigger(self, rate: float | None) -> PollTrigger:
        settings = self._live.defined.settings
        batch_size = settings.batch_size if rate is None else max(1, min(settings.batch_size, int(rate)))
        return PollTrigger(
            name=self._name,
            source=self._source,
            checkpoint_store=self._live.store,
            normalizer=settings.normalizer,
            batch_size=batch_size,
            max_batches_per_tick=_ALL_BATCHES,
            lease_ttl_seconds=settings.lease_ttl_seconds,
            retry_policy=settings.retry_policy,
            quarantine=settings.quarantine,
            max_attempts=settings.max_attempts,
            model=settings.model,
            transactional=settings.transactional,
            commit=settings.commit,
            consumer=settings.consumer,
            observers=[self],
        )


class Paced:
    """A handler that is given no more rows a second than it should be."""

    def __init__(self, handler: Handler, rate: float | None) -> None:
        self._handle = handler.call
        self.is_async = handler.is_async
        self._rate = rate
        self._due = time.monotonic()

    def call(self, events: Sequence[Any], context: Any) -> Any:
        """Wait until these rows are due, then hand them on."""
        time.sleep(self._wait(len(events)))
        return self._handle(events, context)

    async def call_async(self, events: Sequence[Any], context: Any) -> Any:
        """Wait until these rows are due, then hand them on."""
        await asyncio.sleep(self._wait(len(events)))
        return await self._handle(events, context)

    def _wait(self, rows: int) -> float:
        if self._rate is None:
            return 0
        now = time.monotonic()
        wait = max(0.0, self._due - now)
        self._due = max(self._due, now) + rows / self._rate
        return wait


def _tick(trigger: PollTrigger, handler: Paced) -> int:
    if handler.is_async:
        return asyncio.run(trigger.run_async(timer=None, handler=handler.call_async))
    return trigger.run(timer=None, handler=handler.call)


def backfill_of(pollers: Pollers, name: str, new: str, first: str | None, last: str | None) -> Backfill:
    """Return the backfill of this name: the one that was begun, or a new one."""
    live = pollers.one(name)
    source = live.defined.settings.source
    range_source(source)
    if new in {poller.name for poller in pollers.all()}:
        raise ConfigurationError(f"{new!r} is a poller of the app: a backfill needs a name of its own")
    document = live.documents.inspect(new)
    checkpoint = {} if document is None else document["checkpoint"]
    begun = CursorRange.noted_in(checkpoint)
    if checkpoint.get("cursor") is not None and begun is None:
        raise ConfigurationError(f"{new!r} has a state that is no backfill's: choose another name")
    cursors = _range_of(live, first, last, begun)
    return Backfill(live, new, cursors, checkpoint)


def _range_of(live: Poller, first: str | None, last: str | None, begun: CursorRange | None) -> CursorRange:
    """Return the range to read; one that was begun goes on, and cannot change under way."""
    source = range_source(live.defined.settings.source)
    given = [None if text is None else source.cursor_from(text) for text in (first, last)]
    if begun is None:
        return CursorRange(given[0], _live_cursor(live) if given[1] is None else given[1])
    asked = CursorRange(begun.first if given[0] is None else given[0], begun.last if given[1] is None else given[1])
    if asked != begun:
        raise ConfigurationError(
            f"This backfill was begun from {begun.noted()['from'] or 'the beginning'} to "
            f"{begun.noted()['to'] or 'the end'}; "
            "another stretch needs another name"
        )
    return begun


def _live_cursor(live: Poller) -> CursorPart:
    checkpoint = live.store.load_checkpoint(live.name)
    if checkpoint.get("cursor") is None:
        raise ConfigurationError(f"Poller {live.name!r} has no checkpoint to fill up to: give --to")
    return range_source(live.defined.settings.source).cursor_at(checkpoint)


def is_held_back(source: Any, horizon: Horizon | None, checkpoint: CheckpointJson) -> bool:
    """Tell whether rows follow a checkpoint that running transactions keep from being read."""
    return horizon is not None and source.count_changes(checkpoint, 1) > 0


@dataclass(frozen=True, slots=True)
class ReplayedRange:
    """What was given to a handler once more, outside any tick."""

    poller: str
    rows: int


def replay_range(poller: Poller, first: str, last: str, announce: Callable[[Horizon], object]) -> ReplayedRange:
    """Give the rows from one cursor value to another to the app's handler, in batches; no state is read or written."""
    source = range_source(poller.defined.settings.source)
    ends = [source.cursor_from(text) for text in (first, last)]
    handler_of(poller.defined)  # what cannot be called from here is refused before anything is read
    rows = 0
    for batch in range_batches(poller, source.ranged(*ends), {}, poller.defined.settings.batch_size, announce):
        try:
            deliver(poller.defined, batch)
        except Exception as error:
            raise HandlerError(
                f"The handler failed after {rows} row(s), at a batch that begins with {json_safe(batch[0].cursor)}: "
                f"{type(error).__name__}: {masked_words(error)}"
            ) from error
        rows += len(batch)
    return ReplayedRange(poller.name, rows)


def range_batches(
    poller: Poller, source: Any, checkpoint: CheckpointJson, limit: int, announce: Callable[[Horizon], object]
) -> Iterator[list[RowChange]]:
    """Give the events of all rows after a checkpoint; what running transactions hold back is waited for."""
    settings = poller.defined.settings
    more = True
    with reading(source) as reader:
        while more:
            result = reader.fetch_changes(checkpoint, limit)
            if result.records:
                yield normalized(
                    settings.normalizer, result.records, settings.source.source_descriptor, {"replayed": True}
                )
            checkpoint, more = result.next_checkpoint, bool(result.more)
            if not more and result.horizon is not None and is_held_back(source, result.horizon, checkpoint):
                announce(result.horizon)
                more = True
