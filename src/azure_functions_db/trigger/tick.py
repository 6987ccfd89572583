"""One poll, from the lease to the last commit."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.errors import (
    CommitError,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    PollerError,
    RowsFailed,
    SerializationError,
    SourceInUseError,
)
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.core.signals import (
    BatchCommitted,
    HandlerRetried,
    LeaseRenewFailed,
    LeaseSkipped,
    RowQuarantined,
    Stage,
    TickCompleted,
    TickResult,
    TickStarted,
)
from azure_functions_db.trigger.batch import (
    Batch,
    has_news,
    unconfirmed_batch,
    with_failed_attempts,
    with_rows_aside,
)
from azure_functions_db.trigger.context import PollContext
from azure_functions_db.trigger.handler import Misfits, fitted, named_rows
from azure_functions_db.trigger.lease import Lease, TickCancelled, stored_lease
from azure_functions_db.trigger.poison import Search
from azure_functions_db.trigger.source import SourceSession
from azure_functions_db.trigger.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.core.types import Checkpoint
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import Handler
    from azure_functions_db.trigger.poison import Reason
    from azure_functions_db.trigger.poll import PollSettings

    _Errors = Mapping[str, Exception]


class Tick:
    """One run of a poller: whoever gets the lease handles what has changed and moves the checkpoint."""

    def __init__(self, settings: PollSettings, handler: Handler, invocation_id: str | None = None) -> None:
        self._settings = settings
        self._handler = handler
        self._stages = Stages(
            poller_name=settings.name,
            invocation_id=invocation_id or settings.new_id(),
            clock=settings.monotonic,
            observers=settings.observers,
        )
        self._say = self._stages.say
        self._stage = self._stages.run
        self._source = SourceSession(settings, self._stages, self._pause)
        self.lease = self._new_lease()
        self._started_at = settings.now()
        self._began = settings.monotonic()
        self._result = TickResult.EMPTY
        self._batches = self._handled = 0
        # A handler may change its rows: where they may be needed again, it is given copies.
        self._are_given_once = settings.quarantine is None and settings.retry_policy.max_attempts == 1
        self._last_handled: Sequence[RowChange] = ()

    # The story.

    def run(self) -> int:
        """Return the number of events handled; 0 when there were none or somebody else is at it."""
        self._source.describe()
        self._say(TickStarted, batch_size=self._settings.batch_size)
        try:
            self._poll()
        except BaseException as error:
            self._complete(TickResult.CANCELLED if isinstance(error, TickCancelled) else TickResult.FAILED, error)
            raise
        self._complete(self._result)
        return self._handled

    def _poll(self) -> None:
        try:
            position = self._approach()
            while position is not None:
                position = self._step(position)
        except SourceInUseError:
            self._skip()
        finally:
            self._clear_up()

    def _step(self, position: Checkpoint) -> Checkpoint | None:
        """Take one batch from the source to its commit; return where to go on, None when the tick is over."""
        batch = self._fetch(position)
        if batch is None or not self._hold():
            return None
        sink = self._settings.quarantine
        if sink is None:
            return self._deliver(batch)
        self._take_back(batch, sink)
        if batch.search is None or batch.is_whole:
            batch.search = None
            return self._deliver(batch)
        return self._isolate(batch, batch.search, sink)

    def _complete(self, result: TickResult, error: BaseException | None = None) -> None:
        self._say(
            TickCompleted,
            result=result,
            fetched_count=self._source.fetched,
            handled_count=self._handled,
            batches=self._batches,
            duration_ms=(self._settings.monotonic() - self._began) * 1000,
            ended_at=self._settings.now(),
            error=error,
        )

    # The lease.

    def _approach(self) -> Checkpoint | None:
        """Return the checkpoint, None when another instance holds the lease."""
        try:
            self._stage(Stage.ACQUIRE, lambda: self.lease.approach(self._source.descriptor.fingerprint))
        except LeaseConflictError:
            self._skip()
            return None
        self._loaded = self._stage(Stage.LOAD, self.lease.load)
        return None if self._source.needs.needs_lease and not self._hold() else self._loaded

    def _hold(self) -> bool:
        """Hold the lease from now on; False when another instance was faster."""
        self.lease.check()
        if self.lease.is_held:
            return True
        try:
            self._stage(Stage.ACQUIRE, self.lease.hold)
        except LeaseConflictError:
            self._skip()
            return False
        if self._source.needs.acknowledges and self._loaded.get("cursor") is not None:
            # A crash may have come between the last commit and its acknowledgement.
            self._source.acknowledge(self._loaded)
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
            self._source.close()

    def _new_lease(self) -> Lease:
        settings = self._settings
        stored = stored_lease(
            settings.store,
            settings.name,
            ttl_seconds=settings.lease_ttl_seconds,
            transactional=settings.transactional,
            may_steal=settings.may_steal,
        )
        return Lease(
            stored,
            ttl_seconds=settings.lease_ttl_seconds,
            clock=settings.monotonic,
            tell=lambda error, lost: self._say(LeaseRenewFailed, lease_owner=self.lease.owner, error=error, lost=lost),
        )

    # Reading.

    def _fetch(self, position: Checkpoint) -> Batch | None:
        """Return the next batch, None when nothing has changed."""
        self.lease.check()
        batch = self._source.next_batch(position)
        if batch.events:
            return batch
        self._keep(batch.after, position)
        return None

    def _keep(self, reached: Checkpoint, position: Checkpoint) -> None:
        """Commit what a source has to remember with nothing to hand out: where "now" is, whom it waits for."""
        if not has_news(reached, position) or not self._hold():
            return
        kept = {**position, **reached, "updated_at": datetime_text(self._settings.now())}
        self._stage(Stage.COMMIT, lambda: self.lease.commit(kept, last=not self._source.needs.acknowledges))
        self._source.acknowledge(reached)

    # Delivering: the whole batch goes to the handler.

    def _deliver(self, batch: Batch) -> Checkpoint | None:
        """Handle and commit the batch, or raise and leave the checkpoint where it is."""
        try:
            self._settle_with_retries(batch)
        except (HandlerError, SerializationError) as failure:
            sink = self._settings.quarantine
            if sink is None:
                raise
            return self._recover(batch, failure, sink)
        return self._go_on_after(batch)

    def _settle_with_retries(self, batch: Batch) -> None:
        pauses = self._settings.retry_policy.pauses()
        while True:
            try:
                return self._settle(batch)
            except HandlerError as error:
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
            self._call(batch, batch.readable_events)
            self._commit(batch)
            return
        if batch.undecodable:
            self._put_undecodable_aside(batch)  # a sink in the same database must not wait for the transaction
        try:
            with self._transaction(batch):
                self._call(batch, batch.readable_events)
                self._write(batch)
        except (CommitError, LostLeaseError) as failure:
            self._raise_unless_committed(batch, failure)

    def _recover(self, batch: Batch, failure: PollerError, sink: QuarantineSink) -> Checkpoint | None:
        """After a failed batch: leave it for the next tick, or begin to search for its poison rows."""
        named = isinstance(failure, SerializationError) or isinstance(failure.__cause__, RowsFailed)
        if batch.attempts < self._settings.max_attempts or (batch.is_whole and not named):
            self._remember(batch, batch.before)
            raise failure
        batch.search = Search.through(len(batch.events), named=named)
        if batch.is_whole:
            return self._try_part(batch, batch.search, sink)
        self._note(batch, batch.noting(batch.before, batch.search))
        if not self._has_time(batch.call_seconds):
            raise failure
        return batch.before

    # Isolating: parts of a failed batch go to the handler, until its poison rows are found.

    def _isolate(self, batch: Batch, search: Search, sink: QuarantineSink) -> Checkpoint | None:
        """Take one step of the search for poison rows."""
        current = search.facing(batch.events[0].event_id)
        if current is not search:
            return self._search_on(batch, current)
        return self._try_witness(batch, search) if search.needs_witness else self._try_part(batch, search, sink)

    def _try_part(self, batch: Batch, search: Search, sink: QuarantineSink) -> Checkpoint | None:
        after = batch.after
        batch.after = batch.noting(after, search.passed(len(batch.events), more=batch.more))
        try:
            self._settle(batch)
        except HandlerError as failure:
            culprits = named_rows(failure.__cause__, batch.handled_events)
            if not culprits and not search.convicts:
                return self._refused(batch, search, failure)
            if not culprits:
                culprits = {batch.events[0].event_id: failure.__cause__ or failure}
                batch.after = batch.noting(after, search.convicted(more=batch.more))
            self._put_aside(batch, sink, culprits)
            if self._settings.transactional:
                batch.after = after
                return self._try_part(batch, search, sink)  # All was rolled back: once more, without them.
            self._commit(batch)
        return self._go_on_after(batch)

    def _try_witness(self, batch: Batch, search: Search) -> Checkpoint | None:
        """Try a row behind the suspect; where there is none, the last one that this tick has seen digested."""
        witness = batch.events[search.rows.start :] or self._last_handled
        if not witness:
            self._give_up(batch, search.given_up(), None)
        if witness[0].event_id in batch.undecodable:
            return self._refused(batch, search, None)
        try:
            self._try(batch, witness)
        except HandlerError as failure:
            return self._refused(batch, search, failure)
        return self._search_on(batch, search.witnessed())

    def _try(self, batch: Batch, events: Sequence[RowChange]) -> None:
        """Call the handler; where its writes are transactional, take them back."""
        if not self._settings.transactional:
            self._call(batch, events)
            return
        with suppress(_TakenBack), self._transaction(batch):
            self._call(batch, events)
            raise _TakenBack

    def _refused(self, batch: Batch, search: Search, failure: HandlerError | None) -> Checkpoint | None:
        if batch.is_whole and failure is not None:
            self._remember(batch, batch.before)
            raise failure
        narrowed = search.refused(batch.events[0].event_id)
        if search.needs_witness and not narrowed.needs_witness:
            self._give_up(batch, narrowed, failure)
        return self._search_on(batch, narrowed)

    def _give_up(self, batch: Batch, search: Search, failure: HandlerError | None) -> NoReturn:
        batch.attempts += 1
        self._remember(batch, batch.noting(batch.before, search))
        raise HandlerError(
            "Nothing that was tried could be handled, which looks like an outage: no row was put aside",
            poller_name=self._settings.name,
            batch_id=batch.id,
        ) from failure

    def _search_on(self, batch: Batch, search: Search) -> Checkpoint | None:
        """Keep how far the search has come, so that it goes on from here whatever becomes of this tick."""
        self._note(batch, batch.noting(batch.before, search))
        return batch.before if self._has_time(batch.call_seconds) else None

    # Handling.

    def _call(self, batch: Batch, events: Sequence[RowChange]) -> None:
        """Hand events to the handler; in a search, rows that fit no model fail on their own."""
        began = self._settings.monotonic()
        fitting, misfits = self._given(batch, events)
        try:
            self._stage(Stage.HANDLER, lambda: self._handle(batch, events, fitting, misfits), batch.id, batch.spent)
        except HandlerError:
            batch.attempts += batch.search is None
            raise
        finally:
            batch.call_seconds = self._settings.monotonic() - began

    def _handle(self, batch: Batch, events: Sequence[RowChange], fitting: list[Any], misfits: _Errors) -> None:
        with self.lease.guard():
            if fitting:
                self._handler.call(fitting, self._context(batch, events), self.lease)
            if misfits:
                raise Misfits(misfits)

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
        return PollContext(
            poller_name=self._settings.name,
            invocation_id=self._stages.invocation_id,
            batch_id=batch.id,
            lease_owner=self.lease.owner,
            checkpoint_before=batch.before,
            checkpoint_after_candidate=batch.after,
            tick_started_at=self._started_at,
            source_name=self._stages.source,
            attempt=batch.attempts + 1,
            events=events,
            lease_lost=self.lease.lost,
            deadline=self._deadline(),
        )

    def _deadline(self) -> dt.datetime | None:
        budget = self._settings.time_budget_seconds
        return None if budget is None else self._started_at + dt.timedelta(seconds=budget)

    # Committing.

    def _commit(self, batch: Batch) -> None:
        """Move the checkpoint behind the batch; where only the answer was lost, the store turns out to hold it."""
        try:
            self._write(batch)
        except (CommitError, LostLeaseError) as failure:
            self._raise_unless_committed(batch, failure)

    def _write(self, batch: Batch) -> None:
        """Move the checkpoint behind the batch, in the write that proves the lease."""
        if batch.undecodable:
            self._put_undecodable_aside(batch)
        batch.after = {**batch.after, "updated_at": datetime_text(self._settings.now())}
        batch.is_last = self._is_last(batch)
        # What a source lets go of must not be acknowledged by somebody who holds no lease any more.
        last = batch.is_last and not self._source.needs.acknowledges
        self._stage(Stage.COMMIT, lambda: self.lease.commit(batch.after, last=last), batch.id, batch.spent)

    def _raise_unless_committed(self, batch: Batch, failure: PollerError) -> None:
        try:
            stored = self.lease.load()
        except Exception:  # noqa: BLE001 - not knowing counts as not committed: the batch comes again
            stored = {}
        if stored.get("last_successful_batch_id") != batch.id:
            raise failure

    @contextmanager
    def _transaction(self, batch: Batch) -> Iterator[None]:
        with self._stages.translated(Stage.COMMIT, batch.id), self.lease.transaction():
            yield

    def _note(self, batch: Batch, checkpoint: Checkpoint) -> None:
        """Write notes beside the unmoved position."""
        self._stage(Stage.COMMIT, lambda: self.lease.commit(checkpoint, last=False), batch.id)
        batch.before = checkpoint

    def _remember(self, batch: Batch, checkpoint: Checkpoint) -> None:
        """Write the count of attempts beside the unmoved position; failing at that is told, not raised."""
        counted = with_failed_attempts(checkpoint, batch.attempts)
        with suppress(PollerError):
            self._stage(Stage.COMMIT, lambda: self.lease.commit(counted, last=True), batch.id)

    def _is_last(self, batch: Batch) -> bool:
        if not batch.more:
            return True
        # All steps of a search together count as one batch.
        is_over = self._source.search_after(batch.after) is None
        if is_over and self._batches + 1 >= self._settings.max_batches_per_tick:
            return True
        # The next batch is expected to take as long as this one.
        return not self._has_time(self._settings.monotonic() - batch.began)

    def _has_time(self, seconds: float) -> bool:
        """Tell whether something that takes so long would end within the time budget."""
        budget = self._settings.time_budget_seconds
        return budget is None or self._settings.monotonic() + seconds <= self._began + budget

    def _go_on_after(self, batch: Batch) -> Checkpoint | None:
        """Tell what was done; return the position to go on from, None when the tick is over."""
        self._batches += batch.is_last or self._source.search_after(batch.after) is None
        handled = batch.handled_events
        self._handled += len(handled)
        self._result = TickResult.HANDLED
        self._last_handled = handled[-1:] or self._last_handled
        self._source.acknowledge(batch.after, batch.id)
        self._tell_of(batch, handled)
        return None if batch.is_last else batch.after

    def _tell_of(self, batch: Batch, handled: Sequence[RowChange]) -> None:
        lag, spent = lag_seconds(batch.events[-1].cursor, self._settings.now()), batch.spent
        waiting = None
        if lag is None and batch.is_last:
            waiting = self._source.rows_behind(batch.after) if batch.more else 0
        self._say(
            BatchCommitted,
            batch_id=batch.id,
            batch_size=self._settings.batch_size,
            fetched_count=len(batch.events),
            handled_count=len(handled),
            checkpoint_before=batch.before,
            checkpoint_after=batch.after,
            lease_owner=self.lease.owner,
            fetch_duration_ms=spent.get(Stage.FETCH, 0.0),
            handler_duration_ms=spent.get(Stage.HANDLER, 0.0),
            commit_duration_ms=spent.get(Stage.COMMIT, 0.0),
            lag_seconds=lag,
            lag_rows=waiting,
            events=handled,
        )

    # The quarantine.

    def _take_back(self, batch: Batch, sink: QuarantineSink) -> None:
        """Take back what a batch that was never committed has put aside: its rows are about to come again."""
        unconfirmed = unconfirmed_batch(batch.before)
        if unconfirmed is None:
            return
        self._stage(Stage.QUARANTINE, lambda: _remove(sink, self._settings.name, unconfirmed), batch.id)
        batch.before = with_rows_aside(batch.before, None)

    def _put_undecodable_aside(self, batch: Batch) -> None:
        sink, reasons = self._settings.quarantine, batch.undecodable
        if sink is not None and not reasons.keys() <= batch.quarantined:
            self._put_aside(batch, sink, reasons)

    def _put_aside(self, batch: Batch, sink: QuarantineSink, culprits: Mapping[str, Reason]) -> None:
        rows = batch.rows_aside(self._settings.name, culprits, self._settings.now())
        self._note(batch, with_rows_aside(batch.before, batch.id))
        self._stage(Stage.QUARANTINE, lambda: sink.put(rows), batch.id)
        batch.quarantined.update(row.event_id for row in rows)
        for row in rows:
            self._say(RowQuarantined, row=row)


class _TakenBack(BaseException):
    """Ends a transaction that was only a trial."""


def _remove(sink: QuarantineSink, poller_name: str, batch_id: str) -> None:
    for row in list(sink.entries(poller_name)):
        if row.batch_id == batch_id:
            sink.remove(row.poller_name, row.event_id)
