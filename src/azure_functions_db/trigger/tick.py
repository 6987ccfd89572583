"""One poll, from the lease to the last commit."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.errors import (
    FetchError,
    LeaseConflictError,
    PollerError,
    SerializationError,
    SourceInUseError,
)
from azure_functions_db.core.ports import CountsChanges
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.core.signals import (
    BatchCommitted,
    FetchedNothing,
    LateCommitAwaited,
    LeaseRenewFailed,
    LeaseSkipped,
    NullCursorsCounted,
    Stage,
    TickCompleted,
    TickResult,
    TickStarted,
)
from azure_functions_db.trigger.batch import (
    Batch,
    Timing,
    committed_checkpoint,
    failed_attempts,
    has_news,
    joined,
    search_after,
)
from azure_functions_db.trigger.delivery import Delivery
from azure_functions_db.trigger.lease import Lease, TickCancelled, stored_lease
from azure_functions_db.trigger.normalizers import normalized
from azure_functions_db.trigger.retry import FETCH_RETRIES
from azure_functions_db.trigger.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from azure_functions_db.core.types import Checkpoint, FetchResult
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import Handler
    from azure_functions_db.trigger.poison import Search
    from azure_functions_db.trigger.poll import PollSettings

# Further behind than this is far behind; counting on would cost more than it tells.
_MOST_ROWS = 10_000
# A row that shows the handler to work may lie behind many rows of other partitions.
_PAGES_TO_WITNESS = 100


class Tick:
    """One run of a poller: whoever gets the lease handles what has changed and moves the checkpoint."""

    def __init__(self, settings: PollSettings, handler: Handler, invocation_id: str | None = None) -> None:
        self.settings = settings
        self.handler = handler
        self.stages = Stages(
            poller_name=settings.name,
            invocation_id=invocation_id or settings.new_id(),
            clock=settings.monotonic,
            observers=settings.observers,
        )
        self.stage = self.stages.stage
        self.say = self.stages.say
        self.lease = self._new_lease()
        self.started_at = settings.now()
        self._began = settings.monotonic()
        self._result = TickResult.EMPTY
        self._source_is_open = False
        self._batches = self._fetched = self._handled = 0
        self.digested: Sequence[RowChange] = ()
        """The last event that the handler has digested in this tick, if any."""

    def run(self) -> int:
        """Return the number of events handled; 0 when there were none or somebody else is at it."""
        with self._told(), self._cleared_up():
            position = self._approach()
            try:
                while position is not None:
                    position = self._step(position)
            except SourceInUseError:
                self._skip()
        return self._handled

    def _step(self, position: Checkpoint) -> Checkpoint | None:
        """Take one batch from the source to its commit; a batch is let go of before the next one is read."""
        batch = self._fetch(position)
        if batch is None or not self._hold():
            return None
        return Delivery(self, batch).run()

    def _approach(self) -> Checkpoint | None:
        """Return the checkpoint, None when another instance holds the lease."""
        with self.stage(Stage.ACQUIRE):
            try:
                self.lease.approach(self.descriptor.fingerprint)
            except LeaseConflictError:
                self._skip()
                return None
        with self.stage(Stage.LOAD):
            position = self.lease.load()
        self._loaded = position
        if self._needs.needs_lease and not self._hold():
            return None
        return position

    def _fetch(self, position: Checkpoint) -> Batch | None:
        """Return the next batch, None when nothing has changed."""
        self.lease.check()
        began, timing = self.settings.monotonic(), Timing()
        result = self._read(position, timing)
        if result.horizon is not None:
            self.say(LateCommitAwaited, horizon=result.horizon)
        if result.null_cursor_rows is not None:
            self.say(NullCursorsCounted, rows=result.null_cursor_rows)
        if not result.records:
            self.say(FetchedNothing, fetch_duration_ms=timing.ms, checkpoint_before=position)
            self._keep(result.next_checkpoint, position)
            return None
        self._fetched += len(result.records)
        return self._normalized(result, position, began, timing)

    def _keep(self, reached: Checkpoint, position: Checkpoint) -> None:
        """Commit what a source has to remember with nothing to hand out: where "now" is, whom it waits for."""
        if not has_news(reached, position) or not self._hold():
            return
        with self.stage(Stage.COMMIT):
            kept = {**position, **reached, "updated_at": datetime_text(self.settings.now())}
            self.lease.commit(kept, last=not self._needs.acknowledges)
        self._acknowledge(reached)

    def _hold(self) -> bool:
        """Hold the lease from now on; False when another instance was faster."""
        self.lease.check()
        if self.lease.is_held:
            return True
        with self.stage(Stage.ACQUIRE):
            try:
                self.lease.hold()
            except LeaseConflictError:
                self._skip()
                return False
        if self._needs.acknowledges and self._loaded.get("cursor") is not None:
            # A crash may have come between the last commit and its acknowledgement.
            self._acknowledge(self._loaded)
        return True

    def commit(self, batch: Batch) -> None:
        """Move the checkpoint behind the batch, in the write that proves the lease."""
        batch.after = {**batch.after, "updated_at": datetime_text(self.settings.now())}
        batch.is_last = self._is_last(batch)
        with self.stage(Stage.COMMIT, batch.id, batch.committing):
            # What a source lets go of must not be acknowledged by somebody who holds no lease any more.
            self.lease.commit(batch.after, last=batch.is_last and not self._needs.acknowledges)

    def go_on_after(self, batch: Batch) -> Checkpoint | None:
        """Tell what was done; return the position to go on from, None when the tick is over."""
        self._batches += batch.is_last or self._search_after(batch.after) is None
        self._handled += batch.handled
        self._result = TickResult.HANDLED
        self.digested = batch.handled_events[-1:] or self.digested
        self._acknowledge(batch.after, batch.id)
        self._tell_of(batch)
        return None if batch.is_last else batch.after

    def _acknowledge(self, checkpoint: Checkpoint, batch_id: str | None = None) -> None:
        """Tell the source of a commit; failing at that is told, not raised."""
        with suppress(PollerError), self.stage(Stage.ACKNOWLEDGE, batch_id):
            self._open_source()
            self.settings.source.acknowledge(checkpoint)

    def _is_last(self, batch: Batch) -> bool:
        if not batch.more:
            return True
        # All steps of a search together count as one batch.
        is_over = self._search_after(batch.after) is None
        if is_over and self._batches + 1 >= self.settings.max_batches_per_tick:
            return True
        # The next batch is expected to take as long as this one.
        return not self.has_time(self.settings.monotonic() - batch.began)

    def has_time(self, seconds: float) -> bool:
        """Tell whether something that takes so long would end within the time budget."""
        budget = self.settings.time_budget_seconds
        return budget is None or self.settings.monotonic() + seconds <= self._began + budget

    def _search_after(self, position: Checkpoint) -> Search | None:
        return search_after(position, self.settings.batch_size) if self.settings.quarantine is not None else None

    def _read(self, position: Checkpoint, timing: Timing) -> FetchResult:
        pauses = FETCH_RETRIES.pauses()
        while True:
            try:
                with self.stage(Stage.FETCH, timing=timing):
                    self._open_source()
                    return self._found(position)
            except FetchError as error:
                pause = next(pauses, None)
                if pause is None or not error.transient:
                    raise
                self.pause(pause)

    def _found(self, position: Checkpoint) -> FetchResult:
        """Fetch; where a search needs a row further on, over pages that bring few rows or none."""
        fetch, limit = self.settings.source.fetch_changes, self._limit(position)
        found, search = fetch(position, limit), self._search_after(position)
        if search is not None and search.needs_witness:
            for _ in range(_PAGES_TO_WITNESS):
                if len(found.records) >= limit or not found.more:
                    break
                found = joined(found, fetch(found.next_checkpoint, limit - len(found.records)))
        return found

    def _limit(self, position: Checkpoint) -> int:
        search = self._search_after(position)
        return self.settings.batch_size if search is None else search.rows.stop

    def _normalized(self, result: FetchResult, position: Checkpoint, began: float, fetching: Timing) -> Batch:
        batch_id = f"batch_{self.settings.new_id()}"
        attempts = failed_attempts(position)
        fetched_at = self.settings.now()
        metadata = {
            "batch_id": batch_id,
            "attempt": attempts + 1,
            "fetched_at": fetched_at,
            "consumer": self.settings.consumer,
        }
        with self.stage(Stage.NORMALIZE, batch_id):
            events = normalized(self.settings.normalizer, result.records, self.descriptor, metadata, result.revisions)
            undecodable = {events[place].event_id: reason for place, reason in result.undecodable.items()}
            if undecodable and self.settings.quarantine is None:
                raise _undeliverable(events, undecodable)
        after = committed_checkpoint(
            result.next_checkpoint,
            before=position,
            batch_id=batch_id,
            updated_at=datetime_text(fetched_at),
            row_count=len(events),
        )
        more = bool(result.more) if result.more is not None else len(events) >= self._limit(position)
        return Batch(
            id=batch_id,
            events=events,
            before=position,
            after=after,
            more=more,
            began=began,
            attempts=attempts,
            search=self._search_after(position),
            undecodable=undecodable,
            fetching=fetching,
        )

    def pause(self, seconds: float) -> None:
        """Wait before another try, but not through an interruption."""
        (self.settings.sleep or self.lease.pause)(seconds)
        self.lease.check()

    def _skip(self) -> None:
        self._result = TickResult.SKIPPED
        rival = self.lease.rival
        staleness = (self.settings.now() - rival.heartbeat_at).total_seconds() if rival else None
        self.say(LeaseSkipped, lease=rival, staleness_seconds=staleness)

    def _open_source(self) -> None:
        if not self._source_is_open:
            self.settings.source.open()
            self._source_is_open = True

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell of the tick's beginning and of its end, however it comes."""
        with self.stage(Stage.DESCRIPTOR):
            self.descriptor = self.settings.source.source_descriptor
            self._needs = self.settings.source.capability()
        self.stages.source = self.descriptor.name
        self.say(TickStarted, batch_size=self.settings.batch_size)
        failure: BaseException | None = None
        try:
            yield
        except TickCancelled as cancelled:
            self._result, failure = TickResult.CANCELLED, cancelled
            raise
        except BaseException as error:
            self._result, failure = TickResult.FAILED, error
            raise
        finally:
            self.say(
                TickCompleted,
                result=self._result,
                fetched_count=self._fetched,
                handled_count=self._handled,
                batches=self._batches,
                duration_ms=(self.settings.monotonic() - self._began) * 1000,
                ended_at=self.settings.now(),
                error=failure,
            )

    @contextmanager
    def _cleared_up(self) -> Iterator[None]:
        """Give back the lease and the source at the end; failing at that is told, not raised."""
        try:
            yield
        finally:
            self.lease.stop()
            if self.lease.is_to_release:
                with suppress(PollerError), self.stage(Stage.RELEASE):
                    self.lease.release()
            if self._source_is_open:
                with suppress(PollerError), self.stage(Stage.CLOSE):
                    self.settings.source.close()

    def _new_lease(self) -> Lease:
        settings = self.settings
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
            tell=lambda error, lost: self.say(LeaseRenewFailed, lease_owner=self.lease.owner, error=error, lost=lost),
        )

    def _tell_of(self, batch: Batch) -> None:
        lag = lag_seconds(batch.events[-1].cursor, self.settings.now())
        self.say(
            BatchCommitted,
            batch_id=batch.id,
            batch_size=self.settings.batch_size,
            fetched_count=len(batch.events),
            handled_count=batch.handled,
            checkpoint_before=batch.before,
            checkpoint_after=batch.after,
            lease_owner=self.lease.owner,
            fetch_duration_ms=batch.fetching.ms,
            handler_duration_ms=batch.handling.ms,
            commit_duration_ms=batch.committing.ms,
            lag_seconds=lag,
            lag_rows=self._rows_behind(batch) if lag is None and batch.is_last else None,
            events=batch.handled_events,
        )

    def _rows_behind(self, batch: Batch) -> int | None:
        """Return how many rows wait behind the batch, None where the source cannot count them; counting is bounded."""
        source = self.settings.source
        if not batch.more:
            return 0
        with suppress(Exception):  # a number for a dashboard is not worth a failed tick
            return source.count_changes(batch.after, _MOST_ROWS) if isinstance(source, CountsChanges) else None
        return None


def _undeliverable(events: Sequence[RowChange], reasons: Mapping[str, Exception]) -> SerializationError:
    first = next(event for event in events if event.event_id in reasons)
    key = ", ".join(f"{name}={value!r}" for name, value in first.pk.items())
    return SerializationError(
        f"{reasons[first.event_id]}, in the row with {key} and cursor {first.cursor!r}. Correct the row, give the "
        'poller a quarantine=, or have such values delivered as texts (undecodable="text")'
    )
