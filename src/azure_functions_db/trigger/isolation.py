"""A tick with a quarantine: what keeps failing is searched for its poison rows, and those are put aside."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import HandlerError, PollerError, RowsFailed, SerializationError
from azure_functions_db.core.ports import TakesBack
from azure_functions_db.core.signals import RowQuarantined, Stage
from azure_functions_db.trigger.batch import Search
from azure_functions_db.trigger.handler import named_rows
from azure_functions_db.trigger.tick import HandledPartly, Tick

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.core.types import FetchResult, Position, QuarantinedRow
    from azure_functions_db.trigger.batch import Batch, Checkpoint, Reason
    from azure_functions_db.trigger.events import RowChange

# A row that shows the handler to work may lie behind many rows of other partitions.
_PAGES_TO_WITNESS = 100


class IsolatingTick(Tick):
    """Delivers as any tick does; a batch that keeps failing is tried in parts until its poison rows are found."""

    _last_handled: Sequence[RowChange] = ()

    @property
    def _sink(self) -> QuarantineSink:
        sink = self._settings.quarantine
        if sink is None:
            raise AssertionError("a poller without a quarantine has nowhere to put rows")
        return sink

    def _handled(self, batch: Batch) -> Checkpoint | None:
        self._take_back(batch)
        if batch.search is None or batch.is_whole:
            batch.search = None
            return self._deliver(batch)
        return self._isolate(batch, batch.search)

    def _deliver(self, batch: Batch) -> Checkpoint | None:
        try:
            self._settle_with_retries(batch)
        except HandledPartly as partly:
            return self._keep_first(batch, partly.count)
        except (HandlerError, SerializationError) as failure:
            return self._recover(batch, failure)
        return self._go_on_after(batch)

    def _search_after(self, checkpoint: Checkpoint) -> Search | None:
        return checkpoint.search(self._settings.batch_size)

    def _page(self, position: Position, limit: int, search: Search | None) -> FetchResult:
        """Read a page; where a row behind the suspect is wanted, on over pages that bring few rows or none."""
        page = super()._page(position, limit, search)
        for _ in range(_PAGES_TO_WITNESS if search is not None and search.needs_witness else 0):
            if len(page.records) >= limit or page.more is False:
                break
            further = super()._page(page.next_checkpoint, limit - len(page.records), search)
            is_held_back = further.next_checkpoint == page.next_checkpoint
            page = _joined(page, further)
            if is_held_back:
                break
        return page

    def _recover(self, batch: Batch, failure: PollerError) -> Checkpoint | None:
        """After a failed batch: leave it for the next tick, or begin to search for its poison rows."""
        named = isinstance(failure, SerializationError) or isinstance(failure.__cause__, RowsFailed)
        if batch.attempts < self._settings.max_attempts or (batch.is_whole and not named):
            self._remember(batch, batch.before)
            raise failure
        batch.search = Search.through(len(batch.events), named=named)
        if batch.is_whole:
            return self._try_part(batch, batch.search)
        self._note(batch, batch.noting(batch.before, batch.search))
        if not self._has_time(batch.call_seconds):
            raise failure
        return batch.before

    # The search.

    def _isolate(self, batch: Batch, search: Search) -> Checkpoint | None:
        """Take one step of the search for poison rows."""
        current = search.facing(batch.events[0].event_id)
        if current is not search:
            return self._search_on(batch, current)
        return self._try_witness(batch, search) if search.needs_witness else self._try_part(batch, search)

    def _try_part(self, batch: Batch, search: Search) -> Checkpoint | None:
        after = batch.after
        batch.after = batch.noting(after, search.passed(len(batch.events), more=batch.more))
        try:
            self._settle(batch)
        except HandledPartly as partly:
            return self._keep_first(batch, partly.count)
        except HandlerError as failure:
            culprits = named_rows(failure.__cause__, batch.handled_events)
            if not culprits and not search.convicts:
                return self._refused(batch, search, failure)
            if not culprits:
                culprits = {batch.events[0].event_id: failure.__cause__ or failure}
                batch.after = batch.noting(after, search.convicted(more=batch.more))
            self._put_aside(batch, culprits)
            if self._settings.transactional:
                return self._try_part(batch, search)  # All was rolled back: once more, without them.
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

    def _note(self, batch: Batch, checkpoint: Checkpoint) -> None:
        """Write notes beside the unmoved position."""
        self._stage(Stage.COMMIT, lambda: self.lease.commit(checkpoint.stored, last=False), batch.id)
        batch.before = checkpoint

    def _remember(self, batch: Batch, checkpoint: Checkpoint) -> None:
        """Have the count of attempts written with the failure that is about to be raised."""
        self._unmoved = checkpoint.noting(failed_attempts=batch.attempts)

    def _go_on_after(self, batch: Batch) -> Checkpoint | None:
        """Remember what was digested: it may be the witness that is wanted."""
        self._last_handled = batch.handled_events[-1:] or self._last_handled
        return super()._go_on_after(batch)

    # The quarantine.

    def _take_back(self, batch: Batch) -> None:
        """Take back what a batch that was never committed has put aside: its rows are about to come again."""
        unconfirmed = batch.before.unconfirmed_batch
        if unconfirmed is None:
            return
        sink = self._sink
        if isinstance(sink, TakesBack):
            self._stage(Stage.QUARANTINE, lambda: sink.take_back(self._settings.name, unconfirmed), batch.id)
        else:
            self._remove_each(batch, unconfirmed)
        batch.before = batch.before.noting(aside=None)

    def _remove_each(self, batch: Batch, unconfirmed: str) -> None:
        for row in self._stage(Stage.QUARANTINE, lambda: self._put_aside_by(unconfirmed), batch.id):
            # Such a sink knows no token: by now the row may have been put aside anew by the next holder.
            self.lease.check()
            self._stage(Stage.QUARANTINE, partial(self._sink.remove, row.poller_name, row.event_id), batch.id)

    def _put_aside_by(self, batch_id: str) -> list[QuarantinedRow]:
        return [row for row in self._sink.entries(self._settings.name) if row.batch_id == batch_id]

    def _put_undecodable_aside(self, batch: Batch) -> None:
        if not batch.undecodable.keys() <= batch.quarantined:
            self._put_aside(batch, batch.undecodable)

    def _put_aside(self, batch: Batch, culprits: Mapping[str, Reason]) -> None:
        rows = batch.rows_aside(self._settings.name, culprits, self._settings.now())
        self._note(batch, batch.before.noting(aside=batch.id))
        self._stage(Stage.QUARANTINE, lambda: self._sink.put(rows), batch.id)
        batch.quarantined.update(row.event_id for row in rows)
        for row in rows:
            self._say(RowQuarantined, row=row)


class _TakenBack(BaseException):
    """Ends a transaction that was only a trial."""


def _joined(found: FetchResult, further: FetchResult) -> FetchResult:
    """Return what two reads in a row have found."""
    first = len(found.records)
    return replace(
        further,
        records=[*found.records, *further.records],
        revisions={**found.revisions, **{first + place: label for place, label in further.revisions.items()}},
        undecodable={**found.undecodable, **{first + place: why for place, why in further.undecodable.items()}},
        cut=None,
    )
