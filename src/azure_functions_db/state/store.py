"""The state store: leases and checkpoints, written once for every place that can compare and swap."""

from __future__ import annotations

import copy
import datetime as dt
import os
import socket
import threading
import uuid
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError, LostLeaseError, StateStoreError
from azure_functions_db.core.names import encoded_app, encoded_name
from azure_functions_db.core.types import Glance
from azure_functions_db.state.backend import DocumentName, Stored, document_name, is_encoded, poller_of
from azure_functions_db.state.codec import decoded, encoded
from azure_functions_db.state.document import (
    Document,
    acquired,
    committed,
    identified,
    is_abandoned,
    is_free,
    is_held,
    lease_id_of,
    lost_lease,
    lost_race,
    released,
    renewed,
)
from azure_functions_db.state.reset import Resets

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.types import Checkpoint
    from azure_functions_db.state.backend import Backend, Version

# A conflict is answered by one more look; a holder's own lost write never needs a third.
_TRIES = 3


def utc_now() -> dt.datetime:
    """Return the present time."""
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Seen:
    """A document as it was last read or written; no version means that there is none here yet."""

    document: Document
    version: Version | None


@dataclass(slots=True)
class Poller:
    """What a store remembers of one poller; the lock makes a heartbeat and a commit take turns."""

    name: DocumentName
    lock: threading.Lock = field(default_factory=threading.Lock)
    lease_id: str | None = None
    seen: Seen | None = None
    """The document of the held lease, so that no read precedes a write; None while it is uncertain."""
    has_position: bool = False
    """Whether a checkpoint was ever seen: its document may not just vanish."""

    def keep(self, lease_id: str, seen: Seen) -> str:
        """Remember a lease that is held, and the document that says so; return its id."""
        self.lease_id, self.seen = lease_id, seen
        return lease_id

    def drop(self, lease_id: str) -> None:
        """Forget this lease; another one stays."""
        if self.lease_id == lease_id:
            self.lease_id = self.seen = None


class DocumentStateStore(Resets):
    """Keeps each poller's checkpoint and lease in one document that only changes by compare and swap.

    A new store is a backend of four small methods given to this class. ``source_fingerprint``
    is checked wherever a lease or a checkpoint is asked for; the trigger supplies its source's
    own through `look`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        if app_name:
            encoded_name("app_name", app_name)
        self._backend = backend
        self._source_fingerprint = source_fingerprint
        self._app_name = app_name
        self._clock = clock
        self._begin_life()
        _stores.add(self)

    @property
    def owner_id(self) -> str:
        """Who this store is in a lease; no other instance in any process is called the same."""
        return self._owner_id

    def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:
        """Take the lease and return its id; `LeaseConflictError` when somebody else holds it."""
        return self.take_lease(self.look(poller_name), ttl_seconds)

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: float) -> None:
        """Push the expiry to now + ttl; `LostLeaseError` when the lease is no longer ours."""
        self._advance(poller_name, lease_id, lambda held: renewed(held, lease_id, self._clock(), ttl_seconds))

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        """Free the lease at once; a lease already lost is no error."""
        poller = self._poller(poller_name)
        try:
            with suppress(LostLeaseError):
                self._advance(poller_name, lease_id, lambda held: released(held, lease_id, self._clock()))
        finally:
            # After a failure too: a lease that this store does not remember it may retake at once.
            with poller.lock:
                poller.drop(lease_id)

    def load_checkpoint(self, poller_name: str) -> Checkpoint:
        """Return the checkpoint, or an empty dict for a poller that has none yet."""
        poller = self._poller(poller_name)
        with poller.lock:
            seen, lease_id = poller.seen, poller.lease_id
        if seen and lease_id and is_held(seen.document, lease_id, self._clock()):
            return copy.deepcopy(seen.document.checkpoint)
        return self.look(poller_name).checkpoint

    def commit_checkpoint(self, poller_name: str, checkpoint: Checkpoint, lease_id: str) -> None:
        """Write the checkpoint in the write that proves the lease; `LostLeaseError` otherwise."""
        self._advance(poller_name, lease_id, lambda held: committed(held, lease_id, self._clock(), checkpoint))

    def commit_and_release(self, poller_name: str, checkpoint: Checkpoint, lease_id: str) -> None:
        """Write the checkpoint and free the lease in one write."""

        def last_step(held: Document) -> Document:
            now = self._clock()
            return released(committed(held, lease_id, now, checkpoint), lease_id, now)

        self._advance(poller_name, lease_id, last_step, ends=True)

    def look(self, poller_name: str, source_fingerprint: str | None = None) -> Glance:
        """Read the state without taking anything.

        `FingerprintMismatchError` when the stored checkpoint belongs to another definition.
        """
        poller = self._poller(poller_name)
        found = self._read(poller_name)
        document = identified(found.document, source_fingerprint or self._source_fingerprint)
        with poller.lock:
            ghost = self._is_ghost(poller, document)
            free = ghost or is_free(document, self._clock())
        return Glance(
            poller_name,
            copy.deepcopy(document.checkpoint),
            lease=None if free else document.lease,
            version=Seen(document, found.version),
            abandoned=document.lease if free and not ghost and is_abandoned(document) else None,
        )

    def take_lease(self, glance: Glance, ttl_seconds: float) -> str:
        """Take the lease if the state is still the one glanced at; else `LeaseConflictError`."""
        looked = glance.version
        if not isinstance(looked, Seen):
            raise ConfigurationError("take_lease needs what look() of this store returned")
        poller = self._poller(glance.poller_name)
        with poller.lock:
            ghost = self._is_ghost(poller, looked.document)
            taken = acquired(looked.document, self.owner_id, self._clock(), ttl_seconds, take_over=ghost)
            won, seen = self._swap(taken, looked.version)
            if not won or seen is None:
                raise lost_race(glance.poller_name)
            return poller.keep(_lease_id(seen), seen)

    def poller_names(self) -> list[str]:
        """Return the pollers of this app that have a state."""
        return sorted(
            poller_of(name) for name in self._backend.pollers(encoded_app(self._app_name)) if is_encoded(name)
        )

    def _advance(
        self, poller_name: str, lease_id: str, transition: Callable[[Document], Document], *, ends: bool = False
    ) -> None:
        """Write what the transition makes of the held document; ``ends`` says that it gives the lease back."""
        poller = self._poller(poller_name)
        with poller.lock:
            try:
                remembered = poller.seen if poller.lease_id == lease_id else None
                seen = self._advanced(remembered or self._current(poller_name), transition)
            except LostLeaseError:
                poller.drop(lease_id)
                raise
            except BaseException:
                # The write may have taken effect: read before anything is built upon it.
                poller.seen = None
                raise
            if ends:
                poller.drop(lease_id)
            else:
                poller.keep(lease_id, seen)

    def _advanced(self, seen: Seen, transition: Callable[[Document], Document]) -> Seen:
        """Apply the transition; where the document differs from the one remembered, to that one.

        Only its holder writes a document that names the holder's lease. One that differs and still
        names it is thus a write of our own whose answer was lost; any other ends in `LostLeaseError`.
        """
        poller_name = seen.document.poller_name
        for _ in range(_TRIES):
            won, stored = self._swap(transition(seen.document), seen.version)
            if stored is None:
                raise lost_lease(poller_name, "its document has vanished")
            if won:
                return stored
            seen = stored
        raise StateStoreError(f"The state of poller {poller_name!r} keeps changing", poller_name=poller_name)

    def _swap(self, document: Document, version: Version | None) -> tuple[bool, Seen | None]:
        """Try a conditional write; tell whether it took effect, and what is stored now."""
        poller, content = self._poller(document.poller_name), encoded(document)
        readable = decoded(content, document.poller_name)  # nothing is written that could not be read again
        stored = self._stored_after(poller.name, content, version)
        if stored is None:
            return False, None
        poller.has_position |= bool(document.checkpoint)
        if stored.content != content:
            return False, _seen(stored, document.poller_name)
        return True, Seen(readable, stored.version)

    def _stored_after(self, name: DocumentName, content: bytes, version: Version | None) -> Stored | None:
        """Write if nobody else has, and return what is stored then.

        An answer can get lost, and a client that tries again is then refused by its own first
        write: so neither an error nor a refusal is believed before the document was read.
        """
        try:
            written = (
                self._backend.create(name, content)
                if version is None
                else self._backend.replace(name, content, version)
            )
        except StateStoreError as failure:
            stored = self._read_after(failure, name)
            if (stored.version if stored else None) == version:
                raise  # nothing has changed: the write did not arrive
            return stored
        return self._backend.read(name) if written is None else Stored(content, written)

    def _read_after(self, failure: StateStoreError, name: DocumentName) -> Stored | None:
        try:
            return self._backend.read(name)
        except StateStoreError:
            raise failure from failure.__cause__

    def _read(self, poller_name: str) -> Seen:
        """Return the poller's document, a fresh one where it has none yet."""
        poller = self._poller(poller_name)
        stored = self._backend.read(poller.name)
        if stored is not None:
            seen = _seen(stored, poller_name)
            poller.has_position |= bool(seen.document.checkpoint)
            return seen
        if poller.has_position:
            raise StateStoreError(
                f"The state document of poller {poller_name!r} has vanished. Restore it, or say where to start with "
                f"`azfdb reset {poller_name}`; it will not silently start from the beginning.",
                poller_name=poller_name,
            )
        return Seen(Document(poller_name), None)

    def _current(self, poller_name: str) -> Seen:
        """Return the document that must be there because a lease on it is in use."""
        stored = self._backend.read(self._name(poller_name))
        if stored is None or stored.version is None:
            raise lost_lease(poller_name, "its document has vanished")
        return _seen(stored, poller_name)

    def _is_ghost(self, poller: Poller, document: Document) -> bool:
        """Tell whether the lease is this store's own but unknown to it: the answer to its writing got lost."""
        lease = document.lease
        return lease is not None and lease.owner_id == self.owner_id and lease_id_of(lease) != poller.lease_id

    def _name(self, poller_name: str) -> DocumentName:
        return self._poller(poller_name).name

    def _poller(self, poller_name: str) -> Poller:
        poller = self._pollers.get(poller_name)
        if poller is None:
            with self._lock:
                poller = self._pollers.setdefault(poller_name, Poller(document_name(self._app_name, poller_name)))
        return poller

    def _doubt_all(self) -> None:
        """Note that no remembered document is certain."""
        with self._lock:
            pollers = list(self._pollers.values())
        for poller in pollers:
            poller.seen = None

    def _begin_life(self) -> None:
        self._owner_id = f"{socket.gethostname()}/{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._pollers: dict[str, Poller] = {}
        self._lock = threading.Lock()


def _seen(stored: Stored, poller_name: str) -> Seen:
    document = decoded(stored.content, poller_name)
    if stored.version is None:
        # Versions before 1.0 computed fingerprints in another way: theirs says nothing here.
        document = replace(document, source_fingerprint=None)
    return Seen(document, stored.version)


def _lease_id(seen: Seen) -> str:
    if seen.document.lease is None:
        raise AssertionError("a taken document names its lease")
    return lease_id_of(seen.document.lease)


# A forked child is somebody else: it holds none of its parent's leases and may not retake them.
_stores: weakref.WeakSet[DocumentStateStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._begin_life()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
