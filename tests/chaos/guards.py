"""Takes the library's guards away, one at a time, in the process of a poller that is asked to do without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from azure_functions_db.sources.keyset import horizon_mysql, reader
from azure_functions_db.sources.keyset.definition import Partition
from azure_functions_db.sources.keyset.horizon import DrainingWatch, PendingBounds
from azure_functions_db.sources.keyset.horizon_postgres import PostgresWatch
from azure_functions_db.sources.keyset.page import read_page
from azure_functions_db.sources.keyset.plan import Plan
from azure_functions_db.sources.postgres.log import PostgresLog
from azure_functions_db.state import document, sql, store
from azure_functions_db.state.blob import BlobBackend
from azure_functions_db.trigger.isolation import IsolatingTick
from azure_functions_db.trigger.lease import Expiry, Heartbeat
from azure_functions_db.trigger.tick import Tick


def fencing() -> None:
    """A holder's writes are no longer held against the owner and token in the document."""
    checked = document.released
    patch(document, "_held_lease", lambda held, *_: held.lease)
    patch(store, "released", lambda held, _lease_id, now: checked(held, document.lease_id_of(held.lease), now))


def etag() -> None:
    """Writes are no longer conditional on the version that was read."""
    patch(BlobBackend, "_create", lambda self, path, content: self._upload(path, content, set(), overwrite=True))
    patch(BlobBackend, "_replace", lambda self, path, content, _: self._upload(path, content, set(), overwrite=True))


def horizon() -> None:
    """Rows are read past what running transactions may still write."""
    patch(reader, "watch_for", lambda *_: None)


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


def heartbeat() -> None:
    """A lease is not renewed while the handler runs."""
    patch(Heartbeat, "start", lambda _: None)


def own_clock() -> None:
    """A holder that cannot renew goes on until somebody tells it that the lease is lost."""
    patch(Expiry, "is_set", lambda self: self._lost.is_set())


# The guards of rows that are late, come again or have no share.


def boundary() -> None:
    """Rows at a bound that has not grown are passed without a new list of who is running."""
    see = PendingBounds.see

    def see_values_only(self: Any, bound: Any, *, at: float, ripe_at: float, **_ties: Any) -> bool:
        return see(self, bound, at=at, ripe_at=ripe_at)

    patch(PendingBounds, "see", see_values_only)
    patch(PendingBounds, "_join", lambda *_: None)


def same_value() -> None:
    """The boundary value is not read again: the next page begins after the last row delivered."""
    patch(Plan, "reads_again", False)


def settling() -> None:
    """A watch that cannot see reads without any bound."""
    page_below = reader._page_below

    def unbounded(watch: Any, *where: Any) -> Any:
        return read_page(*where) if watch.is_blind else page_below(watch, *where)

    patch(reader, "_page_below", unbounded)


def utc() -> None:
    """TIMESTAMP cursors of MariaDB are kept as the session's local time."""
    patch(Plan, "utc_columns", ())


def statements() -> None:
    """MariaDB statements that run and are in no list of transactions are not waited for."""
    patch(horizon_mysql, "_is_executing", lambda _row: False)


def standby() -> None:
    """What was once seen to be a standby or a replica is taken for one for ever."""
    patch(DrainingWatch, "_see_again", lambda _: None)


def replica() -> None:
    """What follows another server is taken for one of its own."""
    patch(horizon_mysql, "_trouble", lambda _rows: None)
    patch(horizon_mysql, "_NOT_WORKING", horizon_mysql._NOT_WORKING | horizon_mysql._APPLIES)
    patch(PostgresWatch, "_give_up", lambda *_: None)


def grade() -> None:
    """A draining watch is called exact whatever the relation is."""
    patch(DrainingWatch, "_suspect", lambda *_: None)


def null_share() -> None:
    """A NULL key belongs to no share."""
    patch(Partition, "condition", lambda self, key: key % self.count == self.index)


def versions() -> None:
    """The version of a new state row is always the same."""
    patch(sql, "_new_version", lambda: 1)


def lost_positions() -> None:
    """A slot is read from where it stands, whether the checkpoint is there or not."""
    patch(PostgresLog, "check", lambda *_: None)


def patch(owner: object, name: str, replacement: object) -> None:
    """Replace what must be there: a guard that has moved may not go unnoticed."""
    assert hasattr(owner, name), f"{owner} has no {name}: the guard has to be taken away in another manner"
    mock.patch.object(owner, name, replacement).start()


@contextmanager
def taken_away(guard: str) -> Iterator[None]:
    """Do without a guard for a while; without a name all stay."""
    try:
        if guard:
            GUARDS[guard]()
        yield
    finally:
        mock.patch.stopall()


GUARDS = {
    guard.__name__: guard
    for guard in (
        *(fencing, etag, horizon, quarantine_first, heartbeat, own_clock),
        *(boundary, same_value, settling, utc, statements, standby, replica, grade, null_share, versions),
        lost_positions,
    )
}
