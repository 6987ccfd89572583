"""How a batch gets through the handler: at once, after retries, or past its poison rows."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import (
    CommitError,
    HandlerError,
    LostLeaseError,
    PollerError,
    RowsFailed,
    SerializationError,
)
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.signals import HandlerRetried, RowQuarantined, Stage
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.trigger.batch import with_failed_attempts
from azure_functions_db.trigger.context import PollContext
from azure_functions_db.trigger.mapping import mapped, misfit_text
from azure_functions_db.trigger.poison import Search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.trigger.batch import Batch
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.poison import Reason
    from azure_functions_db.trigger.tick import Tick

# How many rows in a row may fail on their own before an outage is suspected. It grows with every
# further attempt, so that a long run of poison rows is got over in the end.
_PATIENCE = 10


class Delivery:
    """Sees one batch through the handler and its commit."""

    def __init__(self, tick: Tick, batch: Batch) -> None:
        self._tick = tick
        self._batch = batch
        self._settings = tick.settings

    def run(self) -> None:
        """Handle and commit the batch, or raise and leave the checkpoint where it is."""
        sink = self._settings.quarantine
        if sink is not None and len(self._batch.events) > self._settings.batch_size:
            # More than a batch was read, to tell poison from an outage.
            self._isolate(sink, None)
            return
        try:
            self._settle_with_retries()
        except (HandlerError, SerializationError) as failure:
            self._recover(failure)

    def _settle_with_retries(self) -> None:
        pauses = self._settings.retry_policy.pauses()
        while True:
            try:
                self._settle(self._batch.events)
            except HandlerError as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                self._retry_after(pause, error)
            else:
                return

    def _retry_after(self, pause: float, error: HandlerError) -> None:
        batch = self._batch
        self._tick.say(HandlerRetried, batch_id=batch.id, attempt=batch.attempts + 1, delay_seconds=pause, error=error)
        self._tick.pause(pause)
        batch.events = [_with_attempt(event, batch.attempts + 1) for event in batch.events]

    def _settle(self, events: Sequence[RowChange]) -> None:
        """Call the handler and commit; in one transaction where that is wanted."""
        with self._unless_committed(), self._transaction():
            self._call(events)
            self._tick.commit(self._batch)

    def _recover(self, failure: PollerError) -> None:
        """After a failed batch: leave it for the next tick, or get past its poison rows."""
        if self._settings.quarantine is None:
            raise failure
        if self._batch.attempts < self._settings.max_attempts:
            self._remember_attempts()
            raise failure
        self._isolate(self._settings.quarantine, failure)

    def _isolate(self, sink: QuarantineSink, failure: PollerError | None) -> None:
        """Find the rows that fail, put them aside, commit the rest."""
        search = self._search(failure)
        while (part := search.next_part()) is not None:
            self._try(search, [self._batch.events[row] for row in part], part.start)
        if search.is_outage:
            self._remember_attempts()
            raise HandlerError(
                "Nothing that was tried could be handled, which looks like an outage: no row was put aside",
                poller_name=self._settings.name,
                batch_id=self._batch.id,
            ) from failure
        self._put_aside(sink, {self._batch.events[row]: reason for row, reason in search.culprits.items()})
        self._settle_the_rest()

    def _search(self, failure: PollerError | None) -> Search:
        if failure is None:
            self._batch.attempts += 1
        named = failure is None or isinstance(failure, SerializationError) or isinstance(failure.__cause__, RowsFailed)
        return Search(
            len(self._batch.events),
            chunk=self._settings.batch_size,
            patience=_PATIENCE * (self._batch.attempts - self._settings.max_attempts + 1),
            whole_failed=not named,
        )

    def _try(self, search: Search, events: Sequence[RowChange], first_row: int) -> None:
        try:
            with self._trial():
                self._call(events, isolating=True)
        except HandlerError as error:
            named = _rows_named(error.__cause__, events, first_row)
            if named:
                search.named(named)
            else:
                search.refused(error.__cause__ or error)
        else:
            search.digested()

    def _put_aside(self, sink: QuarantineSink, culprits: dict[RowChange, Reason]) -> None:
        if not culprits:
            return
        rows = [self._quarantined(event, reason) for event, reason in culprits.items()]
        with self._tick.stage(Stage.QUARANTINE, self._batch.id):
            sink.put(rows)
        self._batch.quarantined.update(row.event_id for row in rows)
        for row in rows:
            self._tick.say(RowQuarantined, row=row)

    def _settle_the_rest(self) -> None:
        if self._settings.transactional:
            # The search rolled back all it tried: now it counts.
            self._settle([event for event in self._batch.events if event.event_id not in self._batch.quarantined])
        else:
            with self._unless_committed():
                self._tick.commit(self._batch)

    def _quarantined(self, event: RowChange, reason: Reason) -> QuarantinedRow:
        return QuarantinedRow(
            poller_name=self._settings.name,
            event_id=event.event_id,
            event=event.to_json(),
            error_type="RowsFailed" if isinstance(reason, str) else type(reason).__name__,
            error=masked_words(reason),
            attempts=self._batch.attempts,
            batch_id=self._batch.id,
            quarantined_at=self._settings.now(),
        )

    def _call(self, events: Sequence[RowChange], *, isolating: bool = False) -> None:
        """Hand events to the handler; while isolating, rows that fit no model fail on their own."""
        batch = self._batch
        fitting, misfits = self._mapped(events, isolating=isolating)
        try:
            with self._tick.stage(Stage.HANDLER, batch.id, batch.handling), self._tick.lease.guard():
                if fitting:
                    self._tick.handler.call(fitting, self._context(events), self._tick.lease)
                if misfits:
                    raise RowsFailed(misfits)
        except HandlerError:
            batch.attempts += not isolating
            raise

    def _mapped(self, events: Sequence[RowChange], *, isolating: bool) -> tuple[list[Any], dict[str, Exception]]:
        given = self._given(events)
        if self._settings.model is None:
            return given, {}
        with self._tick.stage(Stage.NORMALIZE, self._batch.id):
            fitting, misfits = mapped(given, self._settings.model)
            if misfits and not isolating:
                self._batch.attempts += 1
                first = misfit_text(next(iter(misfits.values())))
                raise SerializationError(f"{len(misfits)} row(s) do not fit the model: {first}")
        return fitting, misfits

    def _given(self, events: Sequence[RowChange]) -> list[RowChange]:
        """Return the events to hand out: copies where they may be needed again, as a handler may change its rows."""
        if self._settings.quarantine is None and self._settings.retry_policy.max_attempts == 1:
            return list(events)
        return [event.with_own_rows() for event in events]

    def _context(self, events: Sequence[RowChange]) -> PollContext:
        tick, batch = self._tick, self._batch
        return PollContext(
            poller_name=self._settings.name,
            invocation_id=tick.stages.invocation_id,
            batch_id=batch.id,
            lease_owner=tick.lease.owner,
            checkpoint_before=batch.before,
            checkpoint_after_candidate=batch.after,
            tick_started_at=tick.started_at,
            source_name=tick.descriptor.name,
            attempt=batch.attempts + 1,
            events=events,
            lease_lost=tick.lease.lost,
        )

    def _remember_attempts(self) -> None:
        """Write the count beside the unmoved position; failing at that is told, not raised."""
        counted = with_failed_attempts(self._batch.before, self._batch.attempts)
        with suppress(PollerError), self._tick.stage(Stage.COMMIT, self._batch.id):
            self._tick.lease.commit(counted, last=True)

    @contextmanager
    def _unless_committed(self) -> Iterator[None]:
        """Let a failed commit pass when the store turns out to hold it: only its answer was lost."""
        try:
            yield
        except (CommitError, LostLeaseError):
            if not self._is_committed():
                raise

    def _is_committed(self) -> bool:
        try:
            stored = self._tick.lease.load()
        except Exception:  # noqa: BLE001 - not knowing counts as not committed: the batch comes again
            return False
        return stored.get("last_successful_batch_id") == self._batch.id

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._tick.stages.translated(Stage.COMMIT, self._batch.id), self._tick.lease.transaction():
            yield

    @contextmanager
    def _trial(self) -> Iterator[None]:
        """Where writes are transactional, take back what is only tried."""
        with suppress(_TakenBack), self._transaction():
            yield
            if self._settings.transactional:
                raise _TakenBack


class _TakenBack(BaseException):
    """Ends a transaction that was only a trial."""


def _with_attempt(event: RowChange, attempt: int) -> RowChange:
    return event.with_metadata(MappingProxyType({**event.metadata, "attempt": attempt}))


def _rows_named(cause: BaseException | None, events: Sequence[RowChange], first_row: int) -> dict[int, Any]:
    """Return the rows that a handler has named, none when it did not or named strangers."""
    if not isinstance(cause, RowsFailed):
        return {}
    rows = {event.event_id: first_row + offset for offset, event in enumerate(events)}
    if not cause.failures.keys() <= rows.keys():
        return {}
    return {rows[event_id]: reason for event_id, reason in cause.failures.items()}
