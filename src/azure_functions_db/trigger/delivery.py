"""How a batch gets through the handler: at once, after retries, or past its poison rows."""

from __future__ import annotations

import json
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
from azure_functions_db.core.serializers import json_safe
from azure_functions_db.core.signals import HandlerRetried, RowQuarantined, Stage
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.trigger.batch import unconfirmed_batch, with_failed_attempts, with_rows_aside, with_search
from azure_functions_db.trigger.context import PollContext
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.mapping import mapped, misfit_text
from azure_functions_db.trigger.poison import Search

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.core.types import Checkpoint
    from azure_functions_db.trigger.batch import Batch
    from azure_functions_db.trigger.poison import Reason
    from azure_functions_db.trigger.tick import Tick


class Delivery:
    """Sees one batch through the handler and its commit."""

    def __init__(self, tick: Tick, batch: Batch) -> None:
        self._tick = tick
        self._batch = batch
        self._settings = tick.settings
        self._call_seconds = 0.0

    def run(self) -> Checkpoint | None:
        """Handle and commit the batch, or raise and leave the checkpoint where it is.

        Return the position to go on from, None when the tick is over.
        """
        sink, search = self._settings.quarantine, self._batch.search
        if sink is None:
            self._settle_with_retries()
            return self._tick.go_on_after(self._batch)
        self._take_back(sink)
        if search is not None:
            return self._search_on(sink, search)
        try:
            self._settle_with_retries()
        except (HandlerError, SerializationError) as failure:
            return self._recover(failure)
        return self._tick.go_on_after(self._batch)

    def _settle_with_retries(self) -> None:
        pauses = self._settings.retry_policy.pauses()
        while True:
            try:
                self._settle()
            except HandlerError as error:
                pause = next(pauses, None)
                if pause is None or not self._tick.has_time(pause + self._call_seconds):
                    raise
                self._retry_after(pause, error)
            else:
                return

    def _retry_after(self, pause: float, error: HandlerError) -> None:
        batch = self._batch
        self._tick.say(HandlerRetried, batch_id=batch.id, attempt=batch.attempts + 1, delay_seconds=pause, error=error)
        self._tick.pause(pause)
        batch.events = [_with_attempt(event, batch.attempts + 1) for event in batch.events]

    def _settle(self) -> None:
        """Call the handler and commit; in one transaction where that is wanted."""
        if self._settings.transactional:
            self._put_undecodable_aside()  # before the transaction: a sink in the same database must not wait for it
        with self._unless_committed(), self._transaction():
            self._call(self._batch.readable_events)
            self._put_undecodable_aside()
            self._tick.commit(self._batch)

    def _recover(self, failure: PollerError) -> Checkpoint | None:
        """After a failed batch: leave it for the next tick, or begin to search for its poison rows."""
        batch = self._batch
        if batch.attempts < self._settings.max_attempts:
            self._remember(batch.before)
            raise failure
        named = isinstance(failure, SerializationError) or isinstance(failure.__cause__, RowsFailed)
        self._note(self._noting(batch.before, Search.through(len(batch.events), named=named)))
        if not self._tick.has_time(self._call_seconds):
            raise failure
        return batch.before

    def _search_on(self, sink: QuarantineSink, search: Search) -> Checkpoint | None:
        """Take one step of the search for poison rows."""
        known = search.facing(self._batch.events[0].event_id)
        if known is not search:
            return self._go_on_with(known)
        return self._try_witness(search) if search.needs_witness else self._try_part(sink, search, self._batch.after)

    def _try_part(self, sink: QuarantineSink, search: Search, after: Checkpoint) -> Checkpoint | None:
        batch = self._batch
        batch.after = self._noting(after, search.passed(len(batch.events), more=batch.more))
        try:
            self._settle()
        except HandlerError as failure:
            named = _believed(failure.__cause__, batch.handled_events)
            if not named and not search.convicts:
                return self._refused(search, failure)
            if not named:
                named = {batch.events[0].event_id: failure.__cause__ or failure}
                batch.after = self._noting(after, search.convicted(more=batch.more))
            self._put_aside(sink, named)
            if self._settings.transactional:
                return self._try_part(sink, search, after)  # All was rolled back: once more, without them.
            self._commit()
        return self._tick.go_on_after(batch)

    def _try_witness(self, search: Search) -> Checkpoint | None:
        """Try a row behind the suspect; where there is none, the last one that this tick has seen digested."""
        witness = self._batch.events[search.rows.start :] or self._tick.digested
        if not witness:
            self._give_up(search.given_up(), None)
        if witness[0].event_id in self._batch.undecodable:
            return self._refused(search, None)
        try:
            with self._trial():
                self._call(witness)
        except HandlerError as failure:
            return self._refused(search, failure)
        return self._go_on_with(search.witnessed())

    def _refused(self, search: Search, failure: HandlerError | None) -> Checkpoint | None:
        found = search.refused(self._batch.events[0].event_id)
        if search.needs_witness and not found.needs_witness:
            self._give_up(found, failure)
        return self._go_on_with(found)

    def _give_up(self, search: Search, failure: HandlerError | None) -> NoReturn:
        self._batch.attempts += 1
        self._remember(self._noting(self._batch.before, search))
        raise HandlerError(
            "Nothing that was tried could be handled, which looks like an outage: no row was put aside",
            poller_name=self._settings.name,
            batch_id=self._batch.id,
        ) from failure

    def _go_on_with(self, search: Search) -> Checkpoint | None:
        """Keep how far the search has come, so that it goes on from here whatever becomes of this tick."""
        self._note(self._noting(self._batch.before, search))
        return self._batch.before if self._tick.has_time(self._call_seconds) else None

    def _noting(self, checkpoint: Checkpoint, search: Search | None) -> Checkpoint:
        if search is None:
            return checkpoint
        return with_search(with_failed_attempts(checkpoint, self._batch.attempts), search)

    def _note(self, checkpoint: Checkpoint) -> None:
        """Write notes beside the unmoved position."""
        with self._tick.stage(Stage.COMMIT, self._batch.id):
            self._tick.lease.commit(checkpoint, last=False)
        self._batch.before = checkpoint

    def _take_back(self, sink: QuarantineSink) -> None:
        """Take back what a batch that was never committed has put aside: its rows are about to come again."""
        unconfirmed = unconfirmed_batch(self._batch.before)
        if unconfirmed is None:
            return
        with self._tick.stage(Stage.QUARANTINE, self._batch.id):
            for row in list(sink.entries(self._settings.name)):
                if row.batch_id == unconfirmed:
                    sink.remove(row.poller_name, row.event_id)
        self._batch.before = with_rows_aside(self._batch.before, None)

    def _put_undecodable_aside(self) -> None:
        sink, reasons = self._settings.quarantine, self._batch.undecodable
        if sink is not None and not reasons.keys() <= self._batch.quarantined:
            self._put_aside(sink, reasons)

    def _put_aside(self, sink: QuarantineSink, culprits: Mapping[str, Reason]) -> None:
        batch = self._batch
        rows = [
            self._quarantined(event, culprits[event.event_id]) for event in batch.events if event.event_id in culprits
        ]
        self._note(with_rows_aside(batch.before, batch.id))
        with self._tick.stage(Stage.QUARANTINE, batch.id):
            sink.put(rows)
        batch.quarantined.update(row.event_id for row in rows)
        for row in rows:
            self._tick.say(RowQuarantined, row=row)

    def _commit(self) -> None:
        with self._unless_committed():
            self._put_undecodable_aside()
            self._tick.commit(self._batch)

    def _quarantined(self, event: RowChange, reason: Reason) -> QuarantinedRow:
        return QuarantinedRow(
            poller_name=self._settings.name,
            event_id=event.event_id,
            event=_json_of(event),
            error_type="RowsFailed" if isinstance(reason, str) else type(reason).__name__,
            error=masked_words(reason),
            attempts=self._batch.attempts,
            batch_id=self._batch.id,
            quarantined_at=self._settings.now(),
        )

    def _call(self, events: Sequence[RowChange]) -> None:
        """Hand events to the handler; in a search, rows that fit no model fail on their own."""
        batch, began = self._batch, self._settings.monotonic()
        fitting, misfits = self._mapped(events)
        try:
            with self._tick.stage(Stage.HANDLER, batch.id, batch.handling), self._tick.lease.guard():
                if fitting:
                    self._tick.handler.call(fitting, self._context(events), self._tick.lease)
                if misfits:
                    raise _Misfits(misfits)
        except HandlerError:
            batch.attempts += batch.search is None
            raise
        finally:
            self._call_seconds = self._settings.monotonic() - began

    def _mapped(self, events: Sequence[RowChange]) -> tuple[list[Any], dict[str, Exception]]:
        given = self._given(events)
        if self._settings.model is None:
            return given, {}
        with self._tick.stage(Stage.NORMALIZE, self._batch.id):
            fitting, misfits = mapped(given, self._settings.model)
            if misfits and self._batch.search is None:
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

    def _remember(self, checkpoint: Checkpoint) -> None:
        """Write the count of attempts beside the unmoved position; failing at that is told, not raised."""
        counted = with_failed_attempts(checkpoint, self._batch.attempts)
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


class _Misfits(RowsFailed):
    """The rows that fit no model, as against those that the handler itself has named."""


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


def _with_attempt(event: RowChange, attempt: int) -> RowChange:
    return event.with_metadata(MappingProxyType({**event.metadata, "attempt": attempt}))


def _believed(cause: BaseException | None, events: Sequence[RowChange]) -> Mapping[str, Reason]:
    """Return the rows that a handler has named; none when it did not, or named strangers.

    That no row fits the model says more about the model than about the rows.
    """
    if not isinstance(cause, RowsFailed):
        return {}
    known = {event.event_id for event in events}
    is_wrong_model = isinstance(cause, _Misfits) and cause.failures.keys() == known
    return cause.failures if cause.failures.keys() <= known and not is_wrong_model else {}
