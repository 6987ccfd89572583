"""Takes the library's guards away, one at a time: the simulator has to find out."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

from azure_functions_db.core.bridge import LoopCall
from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.sources import stream
from azure_functions_db.sources.outbox.source import Removal
from azure_functions_db.sources.postgres import log
from azure_functions_db.sources.postgres.changes import ChangeStream, SeenTransactions, Timelines
from azure_functions_db.sources.postgres.log import PostgresLog
from azure_functions_db.sources.stream import StreamReader
from azure_functions_db.state import document, store
from azure_functions_db.state.backend import Stored
from azure_functions_db.state.sql import SqlBackend, SqlStateStore
from azure_functions_db.state.store import DocumentLease, DocumentStateStore, StoredDocument
from azure_functions_db.trigger import handler, poll
from azure_functions_db.trigger.batch import Checkpoint, Search
from azure_functions_db.trigger.isolation import IsolatingTick
from azure_functions_db.trigger.lease import Expiry, Heartbeat, Lease, TickCancelled
from azure_functions_db.trigger.pace import PageAhead
from azure_functions_db.trigger.tick import Tick
from tests.simulation.storage import Service

# The lease.


def fencing() -> None:
    """A holder's writes are no longer held against the owner and token in the document."""
    checked = document.released
    patch(document, "_held_lease", lambda held, *_: held.lease)
    patch(store, "released", lambda held, _lease_id, now: checked(held, document.lease_id_of(held.lease), now))


def conditional_writes() -> None:
    """The storage is told no condition: whoever writes last wins."""
    patch(Service, "replace", lambda self, name, content, _version: self.overwrite(name, content))
    patch(Service, "create", Service.overwrite)


def takers_margin() -> None:
    """A lease is taken at its expiry, however the clocks differ."""
    patch(document, "margin_of", lambda lease: dt.timedelta(0))


def holders_margin() -> None:
    """A holder goes on until the very expiry by its own clock."""
    made = Expiry.__init__

    def without_margin(self: Any, ttl_seconds: float, *rest: Any) -> None:
        made(self, ttl_seconds, *rest)
        self._length = ttl_seconds

    patch(Expiry, "__init__", without_margin)


def own_clock() -> None:
    """A holder that cannot renew goes on until somebody tells it that the lease is lost."""
    patch(Expiry, "is_set", lambda self: self._lost.is_set())


def heartbeat() -> None:
    """A lease is not renewed while the handler runs."""
    patch(Heartbeat, "start", lambda _: None)


def check() -> None:
    """A tick that has lost its lease goes on to the next step."""

    def only_cancelled(self: Any) -> None:
        if self._cancelled:
            raise TickCancelled

    patch(Lease, "check", only_cancelled)


def release_of_own() -> None:
    """Whoever gives a lease back gives back the one that is there."""
    checked = document.released
    patch(store, "released", lambda held, _lease_id, now: checked(held, document.lease_id_of(held.lease), now))


def take_of_the_looked_at() -> None:
    """The lease is taken from whatever is stored by then, not from what was looked at."""
    take = DocumentStateStore.take

    def take_anything(self: Any, state: Any, ttl_seconds: float) -> Any:
        return take(self, self.look(state.poller_name), ttl_seconds)

    patch(DocumentStateStore, "take", take_anything)


def ghosts() -> None:
    """A store takes every lease of its own for one that it has lost sight of, also that of a tick beside this one."""

    def is_own(self: Any, _stored: Any, held: Any) -> bool:
        return held.lease is not None and held.lease.owner_id == self._owner_id

    patch(DocumentStateStore, "_is_ghost", is_own)


def fingerprints() -> None:
    """A checkpoint is used by whatever source comes."""
    patch(store, "identified", lambda held, _fingerprint: held)


def noted_beside_the_looked_at() -> None:
    """What is noted beside a checkpoint is written over whatever is stored by then."""

    def load(self: Any) -> Any:
        if self._state is not None and self._held is None:
            return self._state.checkpoint
        return self._store.load_checkpoint(self._poller)

    patch(Lease, "load", load)


def lost_answers() -> None:
    """A write without an answer is taken for done."""
    stored_after = StoredDocument._stored_after

    def believed(self: Any, content: bytes, version: Any) -> Any:
        try:
            return stored_after(self, content, version)
        except StateStoreError:
            return Stored(content, version)

    patch(StoredDocument, "_stored_after", believed)


def late_commits() -> None:
    """A holder writes its checkpoint over that of a commit which it had given up."""
    patch(DocumentLease, "_moved", lambda self, *what: self._committed(*what))


# The tick.


def ambiguous_commits() -> None:
    """A commit that failed is taken for done, without a look."""
    patch(Tick, "_raise_unless_committed", lambda *_: None)


def acknowledge_last() -> None:
    """A source is told of a commit before it is made."""
    write = Tick._write

    def told_first(self: Any, batch: Any) -> None:
        self._acknowledge(batch.after, batch.id)
        write(self, batch)

    patch(Tick, "_write", told_first)


def idle_commits() -> None:
    """A tick that lingers tells its source of a position that is not written yet."""

    def told_only(self: Any, reached: Checkpoint, checkpoint: Checkpoint) -> Checkpoint:
        if not checkpoint.has_news(reached):
            return checkpoint
        kept, self._is_unwritten = checkpoint.kept(reached, self._settings.now()), True
        self._acknowledge(kept)
        return kept

    patch(Tick, "_remembered", told_only)


def start() -> None:
    """Where a snapshot begins is committed with its first rows, not before they are handled."""
    patch(Tick, "_fix_start", lambda *_: None)


def start_once_joined() -> None:
    """Where a snapshot begins is fixed only by the tick that has begun it, not by the one that can read it."""
    read = StreamReader._read

    def read_unfixed(self: Any, place: Any, limit: int, *, begins: bool) -> Any:
        result = read(self, place, limit, begins=begins)
        return result if begins else replace(result, start=None)

    patch(StreamReader, "_read", read_unfixed)


def losses_of_the_holder() -> None:
    """A tick that has lost its lease takes what others have read meanwhile for lost."""
    read = Tick._read

    def told(self: Any, *where: Any) -> Any:
        checked, self.lease.check = self.lease.check, lambda: None
        try:
            return read(self, *where)
        finally:
            self.lease.check = checked

    patch(Tick, "_read", told)


def parts() -> None:
    """A handler that got through a part of its batch is taken to have got through all of it."""
    patch(handler, "handled_count", lambda _outcome, given: given)


# Reading ahead.


def pages_of_their_position() -> None:
    """A page that was read ahead is handed out wherever the tick has gone meanwhile."""

    def due(self: Any, *_: Any) -> Any:
        ahead, self._ahead = self._ahead, None
        return ahead and ahead.at(ahead._position)

    patch(Tick, "_due", due)


def turns_at_a_reader() -> None:
    """A reader is read once more, or closed, while a page is read ahead."""
    patch(PageAhead, "wait", lambda _: None)


def acknowledged_in_turn() -> None:
    """A reader is told of a commit while a page is read ahead."""
    acknowledge = Tick._acknowledge

    def at_once(self: Any, *what: Any) -> None:
        ahead, self._ahead = self._ahead, None
        try:
            acknowledge(self, *what)
        finally:
            self._ahead = ahead

    patch(Tick, "_acknowledge", at_once)


def one_page_ahead() -> None:
    """Whoever reads ahead goes on to the page after that."""
    page = Tick._page

    def two_pages(self: Any, position: Any, limit: int, search: Any) -> Any:
        found = page(self, position, limit, search)
        if self._ahead is not None and found.records:
            page(self, found.next_checkpoint, limit, search)
        return found

    patch(Tick, "_page", two_pages)


def check_before_the_call() -> None:
    """A handler is called though the lease was lost while its page was waited for."""
    guard = Lease.guard

    @contextmanager
    def unchecked(self: Any) -> Iterator[None]:
        checked, self.check = self.check, lambda: setattr(self, "check", checked)
        with guard(self):
            yield

    patch(Lease, "guard", unchecked)


# Async handlers.


def cancellation() -> None:
    """An async handler is not cancelled."""
    patch(LoopCall, "cancel", lambda _: None)


def watched_clock() -> None:
    """Whoever waits for an async handler does not look at the clock: a renewal that hangs tells nobody."""
    patch(Lease, "_wait_for", lambda _, call: call.result())


def end_of_the_cancelled() -> None:
    """A handler that was cancelled is not waited for: it may go on for a while, or not heed it at all."""
    cancel, tell = LoopCall.cancel, LoopCall._tell

    def given_up(self: Any) -> None:
        cancel(self)
        if not self.done():
            self._outcome.set_exception(asyncio.CancelledError())

    patch(LoopCall, "cancel", given_up)
    patch(LoopCall, "_tell", lambda self, task: None if self.done() else tell(self, task))


def end_of_the_tick() -> None:
    """A call that was cancelled returns before its tick has given the lease back."""

    async def at_once(_work: Any) -> None:
        pass

    patch(poll, "finished", at_once)


# Transactions.


def one_transaction() -> None:
    """The checkpoint is committed by itself, beside the transaction of the handler's writes."""
    patch(SqlBackend, "_joined", lambda _: None)


def doubt() -> None:
    """What was written in a transaction that came to nothing is taken to be there."""
    patch(SqlStateStore, "_doubted", lambda _: nullcontext())


# Poison.


def quarantine_first() -> None:
    """The checkpoint passes a poison row before the row is in the sink."""
    commit = Tick._commit

    def commit_then_put_aside(self: Any, batch: Any) -> None:
        commit(self, batch)
        culprits = vars(self).pop("_later", {})
        if culprits:
            self._sink.put(batch.rows_aside(self._settings.name, culprits, self._settings.now()))

    patch(IsolatingTick, "_put_aside", lambda self, _batch, culprits: setattr(self, "_later", culprits))
    patch(Tick, "_commit", commit_then_put_aside)


def taken_back_first() -> None:
    """What a batch that was never committed has put aside stays there when its rows come again."""
    patch(IsolatingTick, "_take_back", lambda _self, _batch: None)


def aside_is_noted() -> None:
    """Rows are put aside without a note of the batch that they belong to."""

    def put_aside(self: Any, batch: Any, culprits: Any) -> None:
        rows = batch.rows_aside(self._settings.name, culprits, self._settings.now())
        self._sink.put(rows)
        batch.quarantined.update(row.event_id for row in rows)

    patch(IsolatingTick, "_put_aside", put_aside)


def taken_back_as_listed() -> None:
    """A row that was listed to be taken back is removed, whatever lies there by then."""
    patch(Service, "remove_listed", lambda self, path, _text: self.remove(path))


def attempts() -> None:
    """How often a batch has failed is forgotten between ticks."""
    patch(Checkpoint, "failed_attempts", property(lambda _: 0))


def witnesses() -> None:
    """A row that fails alone is put aside, though nothing else can be handled either."""
    patch(Search, "convicts", property(lambda self: self.parts[0] == 1))


# Sources.


def removal_of_delivered() -> None:
    """Rows of an outbox are removed past the checkpoint."""
    patch(Removal, "_place", lambda *_: (float("inf"), 0))


def rows_anew() -> None:
    """After a loss the log goes on, and the rows that it told of meanwhile are not read."""
    recover = StreamReader._recover

    def go_on(self: Any, *what: Any) -> Any:
        self._on_position_lost = "continue"
        try:
            return recover(self, *what)
        finally:
            self._on_position_lost = "snapshot"

    patch(StreamReader, "_recover", go_on)


def gaps_told() -> None:
    """The checkpoint does not tell of the changes that were lost before it."""
    told = stream.Place.checkpoint
    patch(stream.Place, "checkpoint", lambda self, kind: told(replace(self, gap=None), kind))


def lost_positions() -> None:
    """A slot is read from where it stands, whether the checkpoint is there or not."""
    patch(PostgresLog, "check", lambda *_: None)


def looks_of_their_holding() -> None:
    """A slot that is held anew is judged by an older look at it where the new one fails."""
    hold = PostgresLog._held

    def held(self: Any) -> Any:
        earlier = self._state
        try:
            return hold(self)
        except BaseException:
            self._state = earlier
            raise

    patch(PostgresLog, "_held", held)


def timelines() -> None:
    """A promoted server is taken to have all that the old one had."""
    patch(PostgresLog, "_is_in_history", lambda *_: True)


def later_pages() -> None:
    """Pages of a snapshot that are read later are taken to show no more than its first one."""
    patch(log, "_showing", lambda position, *_: position)


def invisible_commits() -> None:
    """A snapshot is read though a transaction in the log cannot be seen yet."""
    had_ended = SeenTransactions.had_ended

    def ended(self: Any, xid: int) -> bool:
        return had_ended(self, xid) or xid in self.running

    patch(SeenTransactions, "had_ended", ended)


def names_by_timeline() -> None:
    """A transaction is named by its place in the log alone, which another one may have had before a promotion."""
    patch(Timelines, "name_of", lambda _, transaction: transaction.commit_text)


def resumption() -> None:
    """A transaction that was left in the middle is told from its beginning."""
    begun = ChangeStream._begun

    def from_the_beginning(self: Any, transaction: Any) -> None:
        begun(self, transaction)
        transaction.skipped = transaction.parts_done = 0

    patch(ChangeStream, "_begun", from_the_beginning)


def patch(owner: object, name: str, replacement: object) -> None:
    """Replace what must be there: a guard that has moved may not go unnoticed."""
    assert hasattr(owner, name), f"{owner} has no {name}: the guard has to be taken away in another manner"
    mock.patch.object(owner, name, replacement).start()


@contextmanager
def taken_away(guard: str) -> Iterator[None]:
    """Do without a guard for a while."""
    try:
        GUARDS[guard]()
        yield
    finally:
        mock.patch.stopall()


GUARDS: dict[str, Callable[[], None]] = {
    guard.__name__: guard
    for guard in (
        *(fencing, conditional_writes, takers_margin, holders_margin, own_clock, heartbeat, check, release_of_own),
        *(take_of_the_looked_at, ghosts, fingerprints, noted_beside_the_looked_at, lost_answers, late_commits),
        *(ambiguous_commits, acknowledge_last, idle_commits, start, start_once_joined, losses_of_the_holder, parts),
        *(pages_of_their_position, turns_at_a_reader, acknowledged_in_turn, one_page_ahead, check_before_the_call),
        *(cancellation, watched_clock, end_of_the_cancelled, end_of_the_tick),
        *(one_transaction, doubt),
        *(quarantine_first, taken_back_first, aside_is_noted, taken_back_as_listed, attempts, witnesses),
        *(
            removal_of_delivered,
            rows_anew,
            gaps_told,
            lost_positions,
            looks_of_their_holding,
            timelines,
            later_pages,
            names_by_timeline,
            invisible_commits,
            resumption,
        ),
    )
}
