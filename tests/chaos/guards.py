"""Takes the library's guards away, one at a time, in the process of a poller that is asked to do without."""

from __future__ import annotations

from typing import Any

from azure_functions_db.adapter import sqlalchemy as source
from azure_functions_db.state import document, store
from azure_functions_db.state.blob import BlobBackend
from azure_functions_db.trigger.delivery import Delivery
from azure_functions_db.trigger.heartbeat import Heartbeat
from azure_functions_db.trigger.tenure import Tenure


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
    patch(source, "watch_for", lambda *_: None)


def quarantine_first() -> None:
    """The checkpoint passes a poison row before the row is in the sink."""
    commit = Delivery._commit

    def commit_then_put_aside(self: Any) -> None:
        commit(self)
        sink, culprits = self._later
        events = [event for event in self._batch.events if event.event_id in culprits]
        sink.put([self._quarantined(event, culprits[event.event_id]) for event in events])

    patch(Delivery, "_put_aside", lambda self, *later: setattr(self, "_later", later))
    patch(Delivery, "_commit", commit_then_put_aside)


def heartbeat() -> None:
    """A lease is not renewed while the handler runs."""
    patch(Heartbeat, "start", lambda _: None)


def own_clock() -> None:
    """A holder that cannot renew goes on until somebody tells it that the lease is lost."""
    patch(Tenure, "is_set", lambda self: self._lost.is_set())


# The guards of rows that are late, come again or have no share. Each stub says what to patch once its guard is there.


def boundary() -> None:
    """Rows at a bound that has not grown are passed without a new list of who is running."""
    # Where rows of one value are counted (`Generations.see(…, ties=)`): leave ``ties`` out, and let
    # `Generations._join` do nothing. A cursor that is read again must not be: `Plan.reads_again` false as well.
    raise NotImplementedError


def same_value() -> None:
    """The boundary value is not read again: the next page begins after the last row delivered."""
    # `adapter.plan.Plan.reads_again` false.
    raise NotImplementedError


def settling() -> None:
    """A watch that cannot see reads without any bound."""
    # `adapter.settled._page_below`: `read_page` without a bound where `watch.is_blind`.
    raise NotImplementedError


def utc() -> None:
    """TIMESTAMP cursors of MariaDB are kept as the session's local time."""
    # `adapter.plan.Plan.utc_columns` empty.
    raise NotImplementedError


def statements() -> None:
    """MariaDB statements that run and are in no list of transactions are not waited for."""
    # `adapter.horizon_mysql._is_executing` false for every row of the process list.
    raise NotImplementedError


def standby() -> None:
    """What was once seen to be a standby is taken for one for ever."""
    # `adapter.horizon_postgres.PostgresWatch._see_again` does nothing.
    raise NotImplementedError


def grade() -> None:
    """A draining watch is called exact whatever the relation is."""
    # `adapter.horizon_postgres.PostgresWatch._suspect` does nothing.
    raise NotImplementedError


def null_share() -> None:
    """A NULL key belongs to no share."""
    # `adapter.partition.Partition.condition`: a bare modulo of the key.
    raise NotImplementedError


def versions() -> None:
    """The version of a new state row is always the same."""
    # `state.sql._new_version` always 1.
    raise NotImplementedError


def patch(owner: object, name: str, replacement: object) -> None:
    """Replace what must be there: a guard that has moved may not go unnoticed."""
    assert hasattr(owner, name), f"{owner} has no {name}: the guard has to be taken away in another manner"
    setattr(owner, name, replacement)


GUARDS = {
    guard.__name__: guard
    for guard in (
        *(fencing, etag, horizon, quarantine_first, heartbeat, own_clock),
        *(boundary, same_value, settling, utc, statements, standby, grade, null_share, versions),
    )
}
