"""Takes the library's guards away, one at a time, in the process of a poller that is asked to do without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azure_functions_db.adapter import sqlalchemy as source
from azure_functions_db.state import document, store
from azure_functions_db.state.blob import BlobBackend
from azure_functions_db.trigger.delivery import Delivery
from azure_functions_db.trigger.lease import Expiry, Heartbeat


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
    put_aside, settle_the_rest = Delivery._put_aside, Delivery._settle_the_rest

    def settle_then_put_aside(self: Any) -> None:
        settle_the_rest(self)
        put_aside(self, *self._later)

    patch(Delivery, "_put_aside", lambda self, *later: setattr(self, "_later", later))
    patch(Delivery, "_settle_the_rest", settle_then_put_aside)


def heartbeat() -> None:
    """A lease is not renewed while the handler runs."""
    patch(Heartbeat, "start", lambda _: None)


def own_clock() -> None:
    """A holder that cannot renew goes on until somebody tells it that the lease is lost."""
    patch(Expiry, "is_set", lambda self: self._lost.is_set())


def patch(owner: object, name: str, replacement: Callable[..., object]) -> None:
    """Replace what must be there: a guard that has moved may not go unnoticed."""
    assert hasattr(owner, name), f"{owner} has no {name}: the guard has to be taken away in another manner"
    setattr(owner, name, replacement)


GUARDS = {guard.__name__: guard for guard in (fencing, etag, horizon, quarantine_first, heartbeat, own_clock)}
