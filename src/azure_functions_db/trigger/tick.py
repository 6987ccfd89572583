"""One poll, from the lease to the last commit."""

from __future__ import annotations

import datetime as dt
import math
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import takewhile
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.errors import (
    CommitError,
    FetchError,
    HandlerError,
    LeaseAcquireError,
    LeaseConflictError,
    LostLeaseError,
    PollerError,
    PositionLostError,
    SerializationError,
    SourceConfigurationError,
    SourceInUseError,
    StateStoreError,
)
from azure_functions_db.core.ports import CountsChanges, LooksBriefly, ReadsAhead, TellsQuiet
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.core.signals import (
    BatchCommitted,
    FetchedNothing,
    HandlerRetried,
    LeaseRenewFailed,
    LeaseSkipped,
    PollerPaused,
    SourceReported,
    Stage,
    StageEnded,
    StageFailed,
    StageStarted,
    TickCompleted,
    TickResult,
    TickStarted,
)
from azure_functions_db.core.types import FetchResult
from azure_functions_db.trigger.batch import Batch, Checkpoint, Sample, undeliverable
from azure_functions_db.trigger.handler import Misfits, PollContext, count_before_failed, fitted
from azure_functions_db.trigger.lease import Lease, TickCancelled
from azure_functions_db.trigger.normalizers import EarlyEvents, normalized
from azure_functions_db.trigger.pace import WORTHWHILE_SECONDS, Linger, Pace, Page, PageAhead
from azure_functions_db.trigger.retry import FetchRetries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure_functions_db.core.errors import DbError
    from azure_functions_db.core.ports import ChangeReader
    from azure_functions_db.core.signals import Observers, TickSignal
    from azure_functions_db.core.types import Position
    from azure_functions_db.trigger.batch import Search
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import Handler
    from azure_functions_db.trigger.poll import PollSettings

    _Errors = Mapping[str, Exception]
    _Retry = Callable[[BaseException], float | None]

T = TypeVar("T")

# How old the last sign of an idle poller may become: what an operator sees of it is no older, and costs a write.
SIGN_OF_LIFE = dt.timedelta(minutes=2)
_NOT_TRIED = {TickResult.SKIPPED, TickResult.PAUSED, TickResult.CANCELLED}

# Further behind than this is far behind; counting on would cost more than it tells.
_MOST_ROWS = 10_000


class Tick:
    """One run of a poller: whoever gets the lease handles what has changed and moves the checkpoint."""

    def __init__(
        self, settings: PollSettings, handler: Handler, invocation_id: str | None = None, pace: Pace | None = None
    ) -> None:
        self._settings = settings
        self._pace = pace or Pace()
        self._handler = handler
        self._source = settings.source
        self._reader: ChangeReader | None = None
        self._stages = Stages(
            poller_name=settings.name,
            invocation_id=invocation_id or settings.new_id(),
            clock=settings.monotonic,
            observers=settings.observers,
        )
        self._say = self._stages.say
        self._stage = self._stages.run
        self.lease = self._new_lease()
        self._started_at = settings.now()
        self._began = settings.monotonic()
        self._result = TickResult.EMPTY
        self._batches = self._fetched = self._handled_count = 0
        self._ahead: PageAhead | None = None
        self._batch: Batch | None = None  # the one that is at hand
        self._last: Batch | None = None  # the one before, until the next page is being read
        self._unmoved: Checkpoint | None = None  # what a failed batch leaves to be written, where it is known
        self._failures = 0
        self._linger = self._new_linger()
        self._has_rested = False  # from then on it looks again and again, and tells no fact twice
        self._is_unwritten = False  # whether what a source has to remember waits for the next write
        self._batch_seconds = 0.0  # how long the last one took
        # A handler may change its rows: where they may be needed again, it is given copies.
        self._are_given_once = settings.quarantine is None and settings.retry_policy.max_attempts == 1
        # Row by row, a page has one row: only the source knows the position behind each.
        self._page_size, pages = (1, settings.batch_size) if settings.commit == "row" else (settings.batch_size, 1)
        self._most_pages = settings.max_batches_per_tick * pages
        # Within the handler's transaction nothing else is read; row by row, a page is too small to gain by it.
        self._may_read_ahead = settings.read_ahead and not settings.transactional and settings.commit == "batch"

    # The story.

    def run(self) -> int:
        """Return the number of events handled; 0 when there were none or somebody else is at it."""
        try:
            self._descriptor, self._needs = self._stage(
                Stage.DESCRIPTOR, lambda: (self._source.source_descriptor, self._source.capability())
            )
        except Exception as failure:
            self._note_failure(failure)
            self._clear_up()
            raise
        self._stages.source = self._descriptor.name
        self._whole = self._descriptor.whole or self._descriptor  # whose events they are, where a part of it is polled
        self._say(TickStarted, batch_size=self._settings.batch_size)
        try:
            with self._noting_failure():
                self._poll()
        except BaseException as error:
            self._complete(TickResult.CANCELLED if isinstance(error, TickCancelled) else TickResult.FAILED, error)
            raise
        self._complete(self._result)
        return self._handled_count

    def _poll(self) -> None:
        try:
            checkpoint = self._approach()
            while checkpoint is not None:
                checkpoint = self._step(checkpoint)
        except SourceInUseError:
            self._skip()

    def _step(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Take one batch from the source to its commit; return where to go on, None when the tick is over."""
        batch = self._fetch(checkpoint)
        if isinstance(batch, FetchResult):
            return self._rest(checkpoint, batch)
        if not self._hold():
            return None
        if batch.start is not None:
            self._fix_start(batch, batch.start)
        self._read_ahead(batch)
        try:
            return self._handled(batch)
        finally:
            batch.show_held()

    def _fix_start(self, batch: Batch, start: Checkpoint) -> None:
        """Commit where the source has begun, before anything of it is handled: after a crash it goes on from there."""
        failure = batch.before.notes.get("failure")  # nothing is well again before it is handled
        batch.before = batch.before.kept(start, self._settings.now()).noting(failure=failure)
        self._stage(Stage.COMMIT, lambda: self.lease.commit(batch.before.stored, last=False), batch.id)

    def _handled(self, batch: Batch) -> Checkpoint | None:
        """Deliver the batch; a tick with a quarantine may search it for poison rows instead."""
        return self._deliver(batch)

    def _complete(self, result: TickResult, error: BaseException | None = None) -> None:
        self._say(
            TickCompleted,
            result=result,
            fetched_count=self._fetched,
            handled_count=self._handled_count,
            batches=self._batches,
            duration_ms=(self._settings.monotonic() - self._began) * 1000,
            ended_at=self._settings.now(),
            error=error,
            consecutive_failures=None if result in _NOT_TRIED else self._failures,
        )

    # What an operator is told.

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Write down what goes wrong, then give back the lease and the source."""
        try:
            yield
        except LostLeaseError:
            self._failures += 1
            raise  # whoever has the lease now writes down how it fares
        except Exception as failure:
            self._note_failure(failure)
            raise
        finally:
            self._clear_up()

    def _note_failure(self, failure: Exception) -> None:
        """Note the failed tick beside the unmoved position, in the write that gives the lease back where it is held."""
        self._failures += 1
        with suppress(Exception):  # the failure itself is told; a store that cannot be written to fails on its own
            checkpoint = self._unmoved or Checkpoint.of(self.lease.load())
            failed = checkpoint.failed_with(failure, self._settings.now(), self._batch)
            self._failures = failed.notes["failure"]["attempts"]
            self.lease.note(failed.stored)

    def _note_success(self, checkpoint: Checkpoint) -> None:
        """Note that all is well again, or from time to time that an idle poller is alive."""
        if not self._is_sign_due(checkpoint):
            return
        with suppress(StateStoreError, PollerError):  # somebody else was faster, or the next tick will
            self.lease.note(self._alive(checkpoint).stored)

    def _is_sign_due(self, checkpoint: Checkpoint) -> bool:
        seen = checkpoint.ticked_at
        return checkpoint.failure is not None or seen is None or self._settings.now() - seen >= SIGN_OF_LIFE

    def _alive(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint.noting(failure=None, ticked_at=datetime_text(self._settings.now()))

    # The lease.

    def _approach(self) -> Checkpoint | None:
        """Return the checkpoint, None when another instance holds the lease."""
        try:
            self._stage(
                Stage.ACQUIRE, lambda: self.lease.approach(self._descriptor.fingerprint, *self._descriptor.former)
            )
        except LeaseConflictError:
            self._skip()
            return None
        if self.lease.paused is not None:
            self._result = TickResult.PAUSED
            self._say(PollerPaused, pause=self.lease.paused)
            return None
        self._loaded = Checkpoint.of(self._stage(Stage.LOAD, self.lease.load))
        if self._needs.needs_lease and not self._is_quiet(self._loaded) and not self._hold():
            return None
        return self._loaded if self._take_over() else None

    def _is_quiet(self, checkpoint: Checkpoint) -> bool:
        """Tell whether nothing is to be read, so that a tick with nothing to do takes no lease and writes nothing."""
        source, position = self._source, checkpoint.position
        if not isinstance(source, TellsQuiet):
            return False
        nothing = self._stage(Stage.FETCH, lambda: source.quiet(position))
        if nothing is None:
            return False
        self._ahead = PageAhead.read(position, lambda: nothing)
        return True

    def _take_over(self) -> bool:
        """Go on from where others have been for the same rows, if that is further; False when the lease is taken."""
        carried = self._settings.carried
        further = None if carried is None else self._stage(Stage.LOAD, lambda: carried(self._loaded))
        if further is None:
            return True
        if not self._hold():
            return False
        self._loaded = self._loaded.moved_to(further, self._settings.now())
        self._stage(Stage.COMMIT, lambda: self.lease.commit(self._loaded.stored, last=False))
        return True

    def _hold(self) -> bool:
        """Hold the lease from now on; False when another instance was faster."""
        if self.lease.is_held:
            return True
        try:
            self._stage(Stage.ACQUIRE, self.lease.hold)
        except LeaseConflictError:
            self._skip()
            return False
        if self._needs.acknowledges and self._loaded.position:
            # A crash may have come between the last commit and its acknowledgement.
            self._acknowledge(self._loaded)
        return True

    def _skip(self) -> None:
        self._result = TickResult.SKIPPED
        rival = self.lease.rival
        staleness = (self._settings.now() - rival.heartbeat_at).total_seconds() if rival else None
        self._say(LeaseSkipped, lease=rival, staleness_seconds=staleness)

    def _pause(self, seconds: float) -> None:
        """Wait before another try, but not through an interruption."""
        (self._settings.sleep or self.lease.pause)(seconds)
        self.lease.check()

    def _clear_up(self) -> None:
        """Give back the lease and the source; failing at that is told, not raised."""
        self.lease.stop()
        try:
            if self.lease.is_to_release:
                with suppress(PollerError):
                    self._stage(Stage.RELEASE, self.lease.release)
        finally:
            if self._ahead is not None:
                self._ahead.wait()
            self._close()

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(PollerError):
                self._stage(Stage.CLOSE, reader.close)

    def _new_lease(self) -> Lease:
        settings = self._settings
        return Lease(
            settings.store,
            settings.name,
            ttl_seconds=settings.lease_ttl_seconds,
            transactional=settings.transactional,
            may_steal=settings.may_steal,
            clock=settings.monotonic,
            tell=lambda error, lost: self._say(LeaseRenewFailed, lease_owner=self.lease.owner, error=error, lost=lost),
        )

    # Staying.

    def _new_linger(self) -> Linger | None:
        settings = self._settings
        if settings.linger_seconds is None:
            return None
        return Linger(
            settings.linger_seconds,
            settings.poll_interval_seconds,
            self._began,
            clock=settings.monotonic,
            wake=self.lease.wake,
        )

    def _lingers(self, batch_seconds: float) -> bool:
        """Tell whether the tick stays for what may come, with time enough for another batch."""
        if self._linger is None or self.lease.is_paused:
            return False
        return self._linger.lasts(self._seconds_left() - batch_seconds)

    def _rest(self, checkpoint: Checkpoint, found: FetchResult) -> Checkpoint | None:
        """With nothing to hand out, wait under the lease and return where to look again; None: the tick is over."""
        reached = Checkpoint.of(found.next_checkpoint)
        if self._linger is None or not self._lingers(self._batch_seconds):
            self._keep(reached, checkpoint)
            return None
        if not self._hold():
            return None
        checkpoint, self._has_rested, self._last = self._remembered(reached, checkpoint), True, None
        if isinstance(self._source, TellsQuiet):
            self._close()  # nobody is kept waiting, by a slot that is held say, while there is nothing to read
        self._pause(self._linger.pause(self._seconds_left() - self._batch_seconds, held_back=bool(found.more)))
        self._is_quiet(checkpoint)
        return checkpoint

    def _remembered(self, reached: Checkpoint, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with what its source has to remember, which can wait for the next write.

        Not where a source begins, or lets go of what lies before; nor where the state should tell that all is well.
        """
        has_news = checkpoint.has_news(reached)
        cannot_wait = has_news and (self._needs.acknowledges or not checkpoint.position)
        is_due = cannot_wait or self._is_sign_due(checkpoint)
        if has_news:
            checkpoint, self._is_unwritten = checkpoint.kept(reached, self._settings.now()), True
        if is_due:
            checkpoint, self._is_unwritten = self._alive(checkpoint), False
            self._stage(Stage.COMMIT, lambda: self.lease.commit(checkpoint.stored, last=False))
        if cannot_wait:
            self._acknowledge(checkpoint)
        return checkpoint

    # Reading.

    def _fetch(self, checkpoint: Checkpoint) -> Batch | FetchResult:
        """Return the batch behind a checkpoint; where nothing has changed, what the source says instead."""
        if self.lease.is_held:
            self.lease.check()
        began, spent = self._settings.monotonic(), dict[Stage, float]()
        search = self._search_after(checkpoint)
        limit = self._page_size if search is None else search.rows.stop
        page = self._due(checkpoint.position, spent)
        result, early = page or Page(self._read(checkpoint.position, limit, search, spent))
        for fact in result.facts if result.records or not self._has_rested else ():
            self._say(SourceReported, fact=fact)
        if not result.records:
            self._say(FetchedNothing, fetch_duration_ms=spent.get(Stage.FETCH, 0.0), checkpoint_before=checkpoint.json)
            return result
        self._fetched += len(result.records)
        batch = Batch(
            id=f"batch_{self._settings.new_id()}",
            before=checkpoint,
            after=Checkpoint.of(result.next_checkpoint),
            more=result.more is None or bool(result.more),  # who cannot tell is asked again
            is_maybe_last=result.more is None,
            began=began,
            attempts=checkpoint.failed_attempts,
            search=search,
            is_whole=len(result.records) > limit,
            spent=spent,
            cut=result.cut,
            start=None if result.start is None else Checkpoint.of(result.start),
        )
        self._batch = batch
        if self.lease.is_held and self._pace.is_read_at_once:
            self._read_ahead(batch)  # the database is at work while events are made
        self._stage(Stage.NORMALIZE, lambda: self._make_events(batch, result, early), batch.id)
        return batch

    def _due(self, position: Position, spent: dict[Stage, float]) -> Page | None:
        """Return the page behind a position if it was read ahead; what was read for another one is thrown away."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.is_here:
            return ahead.at(position)
        return self._stage(Stage.FETCH, lambda: ahead.at(position), spent=spent)

    def _read_ahead(self, batch: Batch) -> None:
        """Have the next page read while the handler has this one, where either of them waits for others."""
        if (
            self._ahead is None
            and self._may_read_ahead
            and batch.more
            and batch.search is None
            and self._batches + 1 < self._most_pages
            and self._pace.waited >= WORTHWHILE_SECONDS
            and self._reader_reads_ahead
        ):
            position = batch.after.position
            at_once = self._pace.is_read_at_once
            read = self._page_alone if at_once else self._page_with_events
            self._ahead = PageAhead.begin(position, partial(read, position), at_once=at_once)

    @cached_property
    def _reader_reads_ahead(self) -> bool:
        return isinstance(self._reader, ReadsAhead) and self._reader.reads_ahead

    def _page_alone(self, position: Position) -> Page:
        """Read a page beside a handler that computes: what is to be computed can wait until it is done."""
        return Page(self._page(position, self._page_size, None))

    def _page_with_events(self, position: Position) -> Page:
        """Read a page and make its events, while the handler that has the page before waits for others."""
        self._last = None  # its thousands of objects go here, where it takes no time between two calls of the handler
        page = self._page(position, self._page_size, None)
        return Page(page, EarlyEvents.made(self._settings.normalizer, page, self._whole))

    def _read(self, position: Position, limit: int, search: Search | None, spent: dict[Stage, float]) -> FetchResult:
        """Fetch, and fetch again after a pause where the database failed in passing."""
        retries = FetchRetries()
        while True:
            idle = perf_counter() - thread_time()  # a clock that stands still while this thread computes
            try:
                return self._stage(
                    Stage.FETCH, lambda: self._page(position, limit, search), spent=spent, retry=retries.after
                )
            except PositionLostError:
                self.lease.check()  # where the lease is lost, somebody else has gone on from there: nothing is missing
                raise
            except FetchError:
                if retries.pause is None:
                    raise
                self._pause(retries.pause)
            finally:
                self._pace.fetch_waits.append(perf_counter() - thread_time() - idle)

    def _page(self, position: Position, limit: int, search: Search | None) -> FetchResult:  # noqa: ARG002 - see IsolatingTick
        reader = self._opened()
        if self._has_rested and isinstance(reader, LooksBriefly):
            return reader.look(position, limit)
        return reader.fetch_changes(position, limit)

    def _opened(self) -> ChangeReader:
        if self._reader is None:
            self._reader = self._source.open() or self._source
        return self._reader

    def _make_events(self, batch: Batch, result: FetchResult, early: EarlyEvents | None) -> None:
        """Make the events of a page, and the checkpoint to write after them."""
        settings, fetched_at = self._settings, self._settings.now()
        metadata = {
            "batch_id": batch.id,
            "attempt": batch.attempts + 1,
            "fetched_at": fetched_at,
            "consumer": settings.consumer,
        }
        events = early.of(metadata) if early is not None else self._events_of(result, metadata)
        undecodable = {events[place].event_id: reason for place, reason in result.undecodable.items()}
        if undecodable and settings.quarantine is None:
            raise undeliverable(events, undecodable)
        batch.events, batch.undecodable = events, undecodable
        batch.after = batch.before.after(batch.after, batch.id, fetched_at, len(events))

    def _events_of(self, result: FetchResult, metadata: Mapping[str, Any]) -> list[RowChange]:
        settings = self._settings
        return normalized(settings.normalizer, result.records, self._whole, metadata, result.revisions, hidden=True)

    def _search_after(self, checkpoint: Checkpoint) -> Search | None:  # noqa: ARG002 - see IsolatingTick
        """Return the search for poison rows that a checkpoint tells of; there is none without a quarantine."""
        return None

    def _keep(self, reached: Checkpoint, checkpoint: Checkpoint) -> None:
        """Commit what a source has to remember with nothing to hand out: where "now" is, whom it waits for."""
        if not self._is_unwritten and not checkpoint.has_news(reached):
            self._note_success(checkpoint)
            return
        if not self._hold():
            return
        kept = checkpoint.kept(reached, self._settings.now())
        self._stage(Stage.COMMIT, lambda: self.lease.commit(kept.stored, last=not self._needs.acknowledges))
        self._acknowledge(reached)

    def _acknowledge(self, checkpoint: Checkpoint, batch_id: str | None = None) -> None:
        """Tell the source of a commit; failing at that is told, not raised, and done again by a later tick."""
        if self.lease.lost.is_set():
            return  # the source knows no token: an operator may have rewound what nobody held
        if self._ahead is not None and not self._ahead.is_here:
            if not self._needs.acknowledges:
                return  # nothing is let go of, and who reads ahead is asked for nothing else meanwhile
            self._ahead.wait()
        try:
            self._stage(Stage.ACKNOWLEDGE, lambda: self._opened().acknowledge(checkpoint.position), batch_id)
        except SourceInUseError:
            raise
        except PollerError:
            pass

    # Delivering: the whole batch goes to the handler.

    def _deliver(self, batch: Batch) -> Checkpoint | None:
        """Handle and commit the batch; where it failed, commit what was handled before the first failure, and raise."""
        try:
            self._settle_with_retries(batch)
        except HandledPartly as partly:
            return self._keep_first(batch, partly.count)
        except HandlerError as failure:
            first = self._first_of(batch, count_before_failed(failure.__cause__, batch.readable_events))
            if first is not None:
                self._settle_first(first)
            raise
        return self._go_on_after(batch)

    def _settle_with_retries(self, batch: Batch) -> None:
        pauses: Iterator[float] | None = None
        while True:
            try:
                return self._settle(batch)
            except HandlerError as error:
                pauses = pauses or self._settings.retry_policy.pauses()
                pause = next(pauses, None)
                if pause is None or not self._has_time(pause + batch.call_seconds):
                    raise
                attempt = batch.attempts + 1
                self._say(HandlerRetried, batch_id=batch.id, attempt=attempt, delay_seconds=pause, error=error)
                self._pause(pause)
                batch.next_attempt()

    def _settle(self, batch: Batch) -> None:
        """Call the handler and commit; in one transaction where that is wanted."""
        if not self._settings.transactional:
            self._call_for_all(batch)
            self._commit(batch)
            return
        self._put_undecodable_aside(batch)  # a sink in the same database must not wait for the transaction
        try:
            with self._transaction(batch):
                self._call_for_all(batch)
                self._write(batch)
        except (CommitError, LostLeaseError) as failure:
            self._raise_unless_committed(batch, failure)

    def _call_for_all(self, batch: Batch) -> None:
        events = batch.readable_events
        count = self._call(batch, events)
        if count < len(events):
            raise HandledPartly(count)

    # Delivering in part: what the handler got through is a batch of its own, the rest comes again.

    def _keep_first(self, batch: Batch, count: int) -> Checkpoint | None:
        """Commit the first events of a batch, as its handler has said; the tick is over."""
        first = self._first_of(batch, count)
        if first is None:
            raise HandlerError(
                f"The handler got through {count} event(s), but the source cannot stand behind them: all come again",
                poller_name=self._settings.name,
                batch_id=batch.id,
            )
        return self._settle_first(first)

    def _settle_first(self, first: Batch) -> Checkpoint | None:
        """Commit what was handled; where that was taken back with its transaction, handle it once more, alone."""
        try:
            if self._settings.transactional:
                self._settle(first)
            else:
                self._commit(first)
        except HandledPartly as partly:
            return self._keep_first(first, partly.count)
        return self._go_on_after(first)

    def _first_of(self, batch: Batch, count: int) -> Batch | None:
        """Return the first events as a batch with the position behind them, as far as the source can stand there."""
        events = batch.events[: batch.events.index(batch.readable_events[count])]
        page = self._page_of(batch, [event.event_id for event in events]) if count else None
        if page is None:
            return None
        reached, found = page
        events = [event for event in events if event.event_id in found]
        return replace(
            batch,
            after=batch.before.after(reached, batch.id, self._settings.now(), len(events)),
            events=events,
            undecodable={name: why for name, why in batch.undecodable.items() if name in found},
            more=True,
            ends_tick=True,
        )

    def _page_of(self, batch: Batch, ids: Sequence[str]) -> tuple[Checkpoint, frozenset[str]] | None:
        """Return where the longest page ends that holds none but these events, the first of a batch, and what it holds.

        A source that does not tell is read again: rows may have changed since, and a transaction may have to
        stay whole.
        """
        if self._ahead is not None:
            self._ahead.wait()
        wanted, limit = frozenset(ids), len(ids)
        if batch.cut is not None:
            return Checkpoint.of(batch.cut(limit)), wanted
        while limit > 0:
            result = self._read(batch.before.position, limit, None, batch.spent)
            found = [event.event_id for event in self._events_of(result, {})]
            known = sum(1 for _ in takewhile(wanted.__contains__, found))
            if found and known == len(found):
                return Checkpoint.of(result.next_checkpoint), frozenset(found)
            limit = min(known, limit - 1)
        return None

    # Handling.

    def _call(self, batch: Batch, events: Sequence[RowChange]) -> int:
        """Hand events to the handler; return how many it got through. In a search, misfits fail on their own."""
        began, idle = self._settings.monotonic(), perf_counter() - thread_time()
        fitting, misfits = self._given(batch, events)
        try:
            return self._stage(
                Stage.HANDLER, lambda: self._handle(batch, events, fitting, misfits), batch.id, batch.spent
            )
        except HandlerError:
            batch.attempts += batch.search is None
            raise
        finally:
            batch.call_seconds = self._settings.monotonic() - began
            self._pace.handler_waits.append(perf_counter() - thread_time() - idle)

    def _handle(self, batch: Batch, events: Sequence[RowChange], fitting: list[Any], misfits: _Errors) -> int:
        count = len(fitting)
        with self.lease.guard():
            if fitting:
                count = self._handler.call(fitting, self._context(batch, events), self.lease)
            if misfits:
                raise Misfits(misfits)
        return count

    def _given(self, batch: Batch, events: Sequence[RowChange]) -> tuple[list[Any], _Errors]:
        """Return what the handler is given, and the rows that fit no model."""
        settings, is_searched = self._settings, batch.search is not None
        given = list(events) if self._are_given_once else [event.with_own_rows() for event in events]
        if settings.model is None:
            return given, {}
        model = settings.model
        try:
            return self._stage(Stage.NORMALIZE, lambda: fitted(given, model, name_misfits=is_searched), batch.id)
        except SerializationError:
            batch.attempts += 1
            raise

    def _context(self, batch: Batch, events: Sequence[RowChange]) -> PollContext:
        budget = self._settings.time_budget_seconds
        return PollContext(
            poller_name=self._settings.name,
            invocation_id=self._stages.invocation_id,
            batch_id=batch.id,
            lease_owner=self.lease.owner,
            checkpoint_before=batch.before.json,
            checkpoint_after_candidate=batch.after.json,
            tick_started_at=self._started_at,
            source_name=self._stages.source,
            attempt=batch.attempts + 1,
            events=list(events),
            lease_lost=self.lease.lost,
            deadline=None if budget is None else self._started_at + dt.timedelta(seconds=budget),
        )

    # Committing.

    def _commit(self, batch: Batch) -> None:
        """Move the checkpoint behind the batch; where only the answer was lost, the store turns out to hold it."""
        try:
            self._write(batch)
        except (CommitError, LostLeaseError) as failure:
            self._raise_unless_committed(batch, failure)

    def _write(self, batch: Batch) -> None:
        """Move the checkpoint behind the batch, in the write that proves the lease."""
        self._put_undecodable_aside(batch)
        now = self._settings.now()
        batch.after = batch.after.written_at(now, self._sample(batch, now))
        batch.is_last = self._is_last(batch)
        # What a source lets go of must not be acknowledged by somebody who holds no lease any more.
        last = batch.is_last and not self._needs.acknowledges
        self._stage(Stage.COMMIT, lambda: self.lease.commit(batch.after.stored, last=last), batch.id, batch.spent)
        self._pace.commit_ms = batch.spent[Stage.COMMIT]

    def _sample(self, batch: Batch, now: dt.datetime) -> Sample:
        """Return what is noted of a batch; how long its own commit takes is not known yet: the last one stands in."""
        batch.lag_seconds = lag = lag_seconds(batch.events[-1].cursor, now)
        return Sample(
            rows=len(batch.events),
            batches=1,
            fetch_ms=round(batch.spent.get(Stage.FETCH, 0.0)),
            handler_ms=round(batch.spent.get(Stage.HANDLER, 0.0)),
            commit_ms=round(self._pace.commit_ms),
            lag_seconds=None if lag is None else round(lag),
        )

    def _raise_unless_committed(self, batch: Batch, failure: PollerError) -> None:
        try:
            stored = Checkpoint.of(self.lease.load())
        except Exception:  # noqa: BLE001 - not knowing counts as not committed: the batch comes again
            raise failure from None
        if stored.batch_id != batch.id:
            raise failure

    @contextmanager
    def _transaction(self, batch: Batch) -> Iterator[None]:
        with self._stages.translated(Stage.COMMIT, batch.id), self.lease.transaction():
            yield

    def _is_last(self, batch: Batch) -> bool:
        if batch.ends_tick:
            return True
        # The next batch is expected to take as long as this one.
        batch_seconds = self._settings.monotonic() - batch.began
        if self._lingers(batch_seconds):
            return False  # by then, time is what ends it, and not the number of its batches
        if not batch.more:
            return True
        # All steps of a search together count as one batch.
        is_over = self._search_after(batch.after) is None
        if is_over and self._batches + 1 >= self._most_pages:
            return True
        if not self._has_time(batch_seconds):
            return True
        return is_over and batch.is_maybe_last and not self._follows(batch.after)

    def _follows(self, checkpoint: Checkpoint) -> bool:
        """Ask a source that cannot tell whether more is waiting; what it gives is the next page.

        Asked before the commit, so that the last one gives the lease back in the same write. What goes
        wrong here is told when the next page is read.
        """
        if self._settings.transactional:
            return True  # inside the handler's transaction nothing else is read
        position = checkpoint.position
        if self._ahead is None:
            self._ahead = PageAhead.read(position, lambda: self._page(position, self._page_size, None))
        page = self._ahead.at(position)
        return page is None or bool(page.result.records)

    def _has_time(self, seconds: float) -> bool:
        """Tell whether something that takes so long would end within the time budget."""
        return seconds <= self._seconds_left()

    def _seconds_left(self) -> float:
        budget = self._settings.time_budget_seconds
        return math.inf if budget is None else self._began + budget - self._settings.monotonic()

    def _go_on_after(self, batch: Batch) -> Checkpoint | None:
        """Tell what was done; return the position to go on from, None when the tick is over."""
        self._batches += batch.is_last or self._search_after(batch.after) is None
        handled = batch.handled_events
        self._handled_count += len(handled)
        self._batch_seconds = self._settings.monotonic() - batch.began
        if self._linger is not None:
            self._linger.note_change()
        self._result = TickResult.HANDLED
        self._batch = None
        # It is taken apart before the next query is sent, or while its page is waited for; else beside the handler.
        is_next_here = self._ahead is not None and self._ahead.is_done and not self._pace.is_read_at_once
        self._last = batch if is_next_here else None
        self._acknowledge(batch.after, batch.id)
        self._tell_of(batch, handled)
        return None if batch.is_last else batch.after

    def _tell_of(self, batch: Batch, handled: Sequence[RowChange]) -> None:
        lag, spent = batch.lag_seconds, batch.spent
        waiting = None
        if lag is None and (batch.is_last or not batch.more):
            waiting = self._rows_behind(batch.after) if batch.more else 0
        self._say(
            BatchCommitted,
            batch_id=batch.id,
            batch_size=self._settings.batch_size,
            fetched_count=len(batch.events),
            handled_count=len(handled),
            checkpoint_before=batch.before.json,
            checkpoint_after=batch.after.json,
            lease_owner=self.lease.owner,
            fetch_duration_ms=spent.get(Stage.FETCH, 0.0),
            handler_duration_ms=spent.get(Stage.HANDLER, 0.0),
            commit_duration_ms=spent.get(Stage.COMMIT, 0.0),
            lag_seconds=lag,
            lag_rows=waiting,
            events=list(handled),
        )

    def _put_undecodable_aside(self, batch: Batch) -> None:
        """Do nothing: without a quarantine no such batch comes this far."""

    def _rows_behind(self, checkpoint: Checkpoint) -> int | None:
        """Return how many rows wait behind it, None where the source cannot count them or nobody asks; bounded."""
        with suppress(Exception):  # a number for a dashboard is not worth a failed tick
            if isinstance(self._source, CountsChanges) and self._settings.observers.are_heard(BatchCommitted):
                return self._source.count_changes(checkpoint.position, _MOST_ROWS)
        return None


class HandledPartly(BaseException):
    """The handler got through the first events only; it takes back a transaction that is open."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class _Rule(NamedTuple):
    says: str
    raises: type[DbError]
    keeps: tuple[type[DbError], ...] = ()
    passes: tuple[type[DbError], ...] = ()
    """What is no failure: somebody else is at it."""


_RULES = {
    Stage.DESCRIPTOR: _Rule("The source could not be described", SourceConfigurationError, (PollerError,)),
    Stage.ACQUIRE: _Rule(
        "The state store failed", LeaseAcquireError, (LeaseAcquireError, StateStoreError), (LeaseConflictError,)
    ),
    Stage.LOAD: _Rule("The checkpoint could not be loaded", StateStoreError, (StateStoreError, PollerError)),
    Stage.FETCH: _Rule(
        "Changes could not be read",
        FetchError,
        (FetchError, PositionLostError, SerializationError, SourceConfigurationError),
        (SourceInUseError,),
    ),
    Stage.NORMALIZE: _Rule("Records could not be turned into events", SerializationError, (SerializationError,)),
    Stage.HANDLER: _Rule("The handler failed", HandlerError, (LostLeaseError,)),
    Stage.QUARANTINE: _Rule("Rows could not be put into quarantine", CommitError),
    Stage.COMMIT: _Rule("The checkpoint could not be committed", CommitError, (PollerError,)),
    Stage.ACKNOWLEDGE: _Rule("The source could not be told of the commit", FetchError, (), (SourceInUseError,)),
    Stage.RENEW: _Rule("The lease could not be renewed", LostLeaseError),
    Stage.RELEASE: _Rule("The lease could not be released", CommitError),
    Stage.CLOSE: _Rule("The source could not be closed", FetchError),
}


class Stages:
    """Runs the stages of one tick: timed, told, and with errors of their own."""

    def __init__(
        self, *, poller_name: str, invocation_id: str, clock: Callable[[], float], observers: Observers
    ) -> None:
        self.poller_name = poller_name
        self.invocation_id = invocation_id
        self.source = ""
        self._clock = clock
        self._observers = observers
        self._is_traced = observers.trace_stages

    def say(self, kind: type[TickSignal], **facts: Any) -> None:
        """Tell the observers a fact about this tick, if one of them listens."""
        about = {"poller_name": self.poller_name, "invocation_id": self.invocation_id, "source": self.source}
        self._observers.tell(kind, about | facts)

    def run(
        self,
        stage: Stage,
        step: Callable[[], T],
        batch_id: str | None = None,
        spent: dict[Stage, float] | None = None,
        retry: _Retry | None = None,
    ) -> T:
        """Run one step: what it raises comes out as the error of its stage; ``spent`` adds up the milliseconds.

        ``retry`` says after which pause a failed one is tried again; whoever asked for the step does that.
        """
        if self._is_traced:
            self.say(StageStarted, stage=stage, batch_id=batch_id)
        began = self._clock()
        try:
            result = step()
        except BaseException as error:
            self._fail(stage, batch_id, (self._clock() - began) * 1000, error, retry)
            raise
        finally:
            if spent is not None:
                spent[stage] = spent.get(stage, 0.0) + (self._clock() - began) * 1000
        if self._is_traced:
            self.say(StageEnded, stage=stage, batch_id=batch_id, duration_ms=(self._clock() - began) * 1000)
        return result

    def _fail(
        self, stage: Stage, batch_id: str | None, duration_ms: float, error: BaseException, retry: _Retry | None
    ) -> None:
        """Tell of a failed step, and raise the error of its stage unless that is what it raised itself."""
        if isinstance(error, _RULES[stage].passes):
            self.say(StageEnded, stage=stage, batch_id=batch_id, duration_ms=duration_ms)
            return
        ours = self.translation(stage, error, batch_id) if isinstance(error, Exception) else error
        if ours is not error:
            ours.__cause__ = error  # observers want to know it, too
        facts = {"stage": stage, "batch_id": batch_id, "duration_ms": duration_ms, "error": ours}
        self.say(StageFailed, **facts, delay_seconds=None if retry is None else retry(ours))
        if ours is not error:
            raise ours from error

    @contextmanager
    def translated(self, stage: Stage, batch_id: str | None = None) -> Iterator[None]:
        """Turn what is raised into the error of this stage, and let it say what it is about."""
        try:
            yield
        except Exception as error:
            ours = self.translation(stage, error, batch_id)
            if ours is error:
                raise
            raise ours from error

    def translation(self, stage: Stage, error: Exception, batch_id: str | None) -> DbError:
        """Return the error of this stage that says what was raised, and what it is about."""
        ours = _ours(stage, error)
        for name, value in (("poller_name", self.poller_name), ("batch_id", batch_id), ("source", self.source)):
            if getattr(ours, name, "") is None:
                setattr(ours, name, value or None)
        return ours


def _ours(stage: Stage, error: Exception) -> DbError:
    rule = _RULES[stage]
    if isinstance(error, rule.keeps) and not (stage is Stage.ACQUIRE and getattr(error, "unreachable", False)):
        return error
    if stage is Stage.COMMIT and isinstance(error, LeaseConflictError):
        return LostLeaseError(f"The lease had passed to somebody else: {error}")
    ours = rule.raises(f"{rule.says}: {type(error).__name__}: {masked_words(error)}")
    if isinstance(ours, FetchError):
        ours.transient = isinstance(error, ConnectionError | TimeoutError)
    return ours
