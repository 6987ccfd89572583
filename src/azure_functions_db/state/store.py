"""The state store: leases and checkpoints, written once for every place that can compare and swap."""

from __future__ import annotations

import copy
import datetime as dt
import os
import socket
import uuid
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError, LostLeaseError, StateStoreError
from azure_functions_db.core.names import encoded_app, encoded_name
from azure_functions_db.core.types import Glance
from azure_functions_db.state.backend import Stored
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
from azure_functions_db.state.names import DocumentName, document_name, is_encoded, poller_of
from azure_functions_db.state.reset import Resets
from azure_functions_db.state.slots import Sight, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.types import Checkpoint
    from azure_functions_db.state.backend import Backend, Version
    from azure_functions_db.state.slots import Slot

# A conflict is answered by one more look; a holder's own lost write never needs a third.
_TRIES = 3


def utc_now() -> dt.datetime:
    """Return the present time."""
    return dt.datetime.now(dt.UTC)


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
        slot = self._slots[poller_name]
        try:
            with suppress(LostLeaseError):
                self._advance(poller_name, lease_id, lambda held: released(held, lease_id, self._clock()))
        finally:
            # After a failure too: a lease that this store does not remember it may retake at once.
            with slot.lock:
                slot.drop(lease_id)

    def load_checkpoint(self, poller_name: str) -> Checkpoint:
        """Return the checkpoint, or an empty dict for a poller that has none yet."""
        slot = self._slots[poller_name]
        with slot.lock:
            sight, lease_id = slot.sight, slot.lease_id
        if sight and lease_id and is_held(sight.document, lease_id, self._clock()):
            return copy.deepcopy(sight.document.checkpoint)
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
        slot = self._slots[poller_name]
        found = self._read(poller_name)
        document = identified(found.document, source_fingerprint or self._source_fingerprint)
        with slot.lock:
            ghost = self._is_ghost(slot, document)
            free = ghost or is_free(document, self._clock())
        return Glance(
            poller_name,
            copy.deepcopy(document.checkpoint),
            lease=None if free else document.lease,
            version=Sight(document, found.version),
            abandoned=document.lease if free and not ghost and is_abandoned(document) else None,
        )

    def take_lease(self, glance: Glance, ttl_seconds: float) -> str:
        """Take the lease if the state is still the one glanced at; else `LeaseConflictError`."""
        sight = glance.version
        if not isinstance(sight, Sight):
            raise ConfigurationError("take_lease needs what look() of this store returned")
        slot = self._slots[glance.poller_name]
        with slot.lock:
            ghost = self._is_ghost(slot, sight.document)
            taken = acquired(sight.document, self.owner_id, self._clock(), ttl_seconds, take_over=ghost)
            won, seen = self._swap(taken, sight.version)
            if not won or seen is None:
                raise lost_race(glance.poller_name)
            return slot.keep(_lease_id(seen), seen)

    def poller_names(self) -> list[str]:
        """Return the pollers of this app that have a state."""
        return sorted(
            poller_of(name) for name in self._backend.pollers(encoded_app(self._app_name)) if is_encoded(name)
        )

    def _advance(
        self, poller_name: str, lease_id: str, transition: Callable[[Document], Document], *, ends: bool = False
    ) -> None:
        """Write what the transition makes of the held document; ``ends`` says that it gives the lease back."""
        slot = self._slots[poller_name]
        with slot.lock:
            try:
                sight = self._advanced(slot.sight_of(lease_id) or self._current(poller_name), transition)
            except LostLeaseError:
                slot.drop(lease_id)
                raise
            except BaseException:
                # The write may have taken effect: read before anything is built upon it.
                slot.doubt()
                raise
            if ends:
                slot.drop(lease_id)
            else:
                slot.keep(lease_id, sight)

    def _advanced(self, sight: Sight, transition: Callable[[Document], Document]) -> Sight:
        """Apply the transition; where the document differs from the one remembered, to that one.

        Only its holder writes a document that names the holder's lease. One that differs and still
        names it is thus a write of our own whose answer was lost; any other ends in `LostLeaseError`.
        """
        poller_name = sight.document.poller_name
        for _ in range(_TRIES):
            won, seen = self._swap(transition(sight.document), sight.version)
            if seen is None:
                raise lost_lease(poller_name, "its document has vanished")
            if won:
                return seen
            sight = seen
        raise StateStoreError(f"The state of poller {poller_name!r} keeps changing", poller_name=poller_name)

    def _swap(self, wanted: Document, version: Version | None) -> tuple[bool, Sight | None]:
        """Try a conditional write; tell whether it took effect, and what is stored now."""
        poller_name, content = wanted.poller_name, encoded(wanted)
        decoded(content, poller_name)  # nothing is written that could not be read again
        stored = self._stored_after(self._name(poller_name), content, version)
        if stored is None:
            return False, None
        self._slots[poller_name].has_position |= bool(wanted.checkpoint)
        return stored.content == content, _sight(stored, poller_name)

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

    def _read(self, poller_name: str) -> Sight:
        """Return the poller's document, a fresh one where it has none yet."""
        stored = self._backend.read(self._name(poller_name))
        slot = self._slots[poller_name]
        if stored is not None:
            sight = _sight(stored, poller_name)
            slot.has_position |= bool(sight.document.checkpoint)
            return sight
        if slot.has_position:
            raise StateStoreError(
                f"The state document of poller {poller_name!r} has vanished. Restore it, or say where to start with "
                f"`azfdb reset {poller_name}`; it will not silently start from the beginning.",
                poller_name=poller_name,
            )
        return Sight(Document(poller_name), None)

    def _current(self, poller_name: str) -> Sight:
        """Return the document that must be there because a lease on it is in use."""
        stored = self._backend.read(self._name(poller_name))
        if stored is None or stored.version is None:
            raise lost_lease(poller_name, "its document has vanished")
        return _sight(stored, poller_name)

    def _is_ghost(self, slot: Slot, document: Document) -> bool:
        """Tell whether the lease is this store's own but unknown to it: the answer to its writing got lost."""
        lease = document.lease
        return lease is not None and lease.owner_id == self.owner_id and lease_id_of(lease) != slot.lease_id

    def _name(self, poller_name: str) -> DocumentName:
        return document_name(self._app_name, poller_name)

    def _begin_life(self) -> None:
        self._owner_id = f"{socket.gethostname()}/{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._slots = Slots()


def _sight(stored: Stored, poller_name: str) -> Sight:
    document = decoded(stored.content, poller_name)
    if stored.version is None:
        # Versions before 1.0 computed fingerprints in another way: theirs says nothing here.
        document = replace(document, source_fingerprint=None)
    return Sight(document, stored.version)


def _lease_id(sight: Sight) -> str:
    if sight.document.lease is None:
        raise AssertionError("a taken document names its lease")
    return lease_id_of(sight.document.lease)


# A forked child is somebody else: it holds none of its parent's leases and may not retake them.
_stores: weakref.WeakSet[DocumentStateStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._begin_life()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
