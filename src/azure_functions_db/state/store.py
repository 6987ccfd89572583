"""The state store: leases and checkpoints, written once for every place that can compare and swap."""

from __future__ import annotations

import copy
import datetime as dt
import json
import logging
import os
import socket
import threading
import uuid
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.config import encoded_app, encoded_name
from azure_functions_db.core.errors import ConfigurationError, LostLeaseError, StateStoreError
from azure_functions_db.core.types import PollerState
from azure_functions_db.state.backend import (
    CarryingBackend,
    DocumentName,
    Stored,
    TimedBackend,
    document_name,
    is_encoded,
    poller_of,
)
from azure_functions_db.state.document import (
    Document,
    acquired,
    committed,
    decoded,
    encoded,
    identified,
    is_abandoned,
    is_free,
    is_held,
    lease_id_of,
    lost_lease,
    lost_race,
    noted,
    released,
    renewed,
)
from azure_functions_db.state.reset import DryRunBackend, Resets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from azure_functions_db.core.ports import HeldLease
    from azure_functions_db.core.types import CheckpointJson, Pause
    from azure_functions_db.state.backend import Backend, Version

_logger = logging.getLogger("azure_functions_db")

# A conflict is answered by one more look; a holder's own lost write never needs a third.
_TRIES = 3


Transition = Callable[[Document, dt.datetime], Document]
"""A change of a held document at a moment."""


@dataclass(frozen=True, slots=True)
class VersionedDocument:
    """A document as it was last read or written; no version means that there is none here yet."""

    document: Document
    version: Version | None
    origin: Version | None = None
    """The version of the older document that it is carried over from."""


class StoredDocument:
    """One poller's document in its place, changed by compare and swap only."""

    def __init__(self, backend: Backend, poller_name: str, name: DocumentName) -> None:
        self.poller_name = poller_name
        self.name = name
        self.lock = threading.Lock()
        """Makes a heartbeat and a commit take turns."""
        self.lease: DocumentLease | None = None
        """The lease that this store holds on it."""
        self._backend = backend
        self._last: tuple[bytes, Document] | None = None  # what was read or written last
        self._has_warned = False

    def read(self, *fingerprints: str) -> VersionedDocument:
        """Return the document, a fresh one where there is none yet; one with a position may not just vanish.

        An older one that only its fingerprint can tell from other apps' must have one of these.
        """
        stored = self._backend.read(self.name)
        if stored is not None and self._is_ours(stored, fingerprints):
            return self._decoded(stored)
        name = self.poller_name
        if self._last and self._last[1].checkpoint:
            raise StateStoreError(
                f"The state document of poller {name!r} has vanished. Restore it, or say where to start with "
                f"`azfdb reset {name} --to-cursor VALUE` or `--to-beginning`; it will not silently begin anew.",
                poller_name=name,
            )
        return VersionedDocument(Document(name), None)

    def read_leased(self) -> VersionedDocument:
        """Return the document that must be there because a lease on it is in use."""
        stored = self._backend.read(self.name)
        if stored is None or stored.version is None:
            raise lost_lease(self.poller_name, "its document has vanished")
        return self._decoded(stored)

    def forgotten(self) -> None:
        """Take note that the document was removed on purpose."""
        self._last = None

    def swap(
        self, document: Document, version: Version | None, origin: Version | None = None
    ) -> tuple[bool, VersionedDocument | None]:
        """Try a conditional write; tell whether it took effect, and what is stored now.

        What has an ``origin`` is claimed there first: nobody else can carry it over then.
        """
        if origin is not None and not self._claims(origin):
            return False, None
        content = encoded(document)
        stored = self._stored_after(content, version)
        if stored is None:
            return False, None
        if stored.content != content:
            return False, self._decoded(stored)
        self._last = (content, document)
        return True, VersionedDocument(document, stored.version)

    def _stored_after(self, content: bytes, version: Version | None) -> Stored | None:
        """Write if nobody else has, and return what is stored then.

        An answer can get lost, and a client that tries again is then refused by its own first
        write: so neither an error nor a refusal is believed before the document was read.
        """
        try:
            written = (
                self._backend.create(self.name, content)
                if version is None
                else self._backend.replace(self.name, content, version)
            )
        except StateStoreError as failure:
            stored = self._read_after(failure)
            if (stored.version if stored else None) == version:
                raise  # nothing has changed: the write did not arrive
            return stored
        return self._backend.read(self.name) if written is None else Stored(content, written)

    def _read_after(self, failure: StateStoreError) -> Stored | None:
        try:
            return self._backend.read(self.name)
        except StateStoreError:
            raise failure from failure.__cause__

    def _claims(self, origin: Version) -> bool:
        return not isinstance(self._backend, CarryingBackend) or self._backend.claim(self.name, origin)

    def _is_ours(self, stored: Stored, fingerprints: Sequence[str]) -> bool:
        """Tell whether a document is this poller's; one of release 0.8 may be that of another app's poller."""
        if not stored.told_by_fingerprint or not fingerprints:
            return True
        if decoded(stored.content, self.poller_name).source_fingerprint in fingerprints:
            return True
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "The state that release 0.8 has left of poller %r is of another source: this app begins anew. If it is "
                "this app's own, stop it and run `azfdb migrate`, or give its store carry_over=True",
                self.poller_name,
            )
        return False

    def _decoded(self, stored: Stored) -> VersionedDocument:
        if stored.version is None:
            # Earlier releases computed fingerprints in another way: the next write binds the document anew.
            older = replace(decoded(stored.content, self.poller_name), source_fingerprint=None)
            return VersionedDocument(older, None, stored.origin)
        # Most often it is still the last one.
        content, document = self._last or (None, None)
        if document is None or content != stored.content:
            document = decoded(stored.content, self.poller_name)
            self._last = (stored.content, document)
        return VersionedDocument(document, stored.version)


class DocumentLease:
    """A lease that was taken: it is renewed, committed under and given back.

    It remembers the document and version that it stands on, so that no read precedes a write.
    """

    def __init__(
        self, store: DocumentStateStore, stored: StoredDocument, lease_id: str, current: VersionedDocument | None = None
    ) -> None:
        self.lease_id = lease_id
        self._store = store
        self._stored = stored
        self._clock = store._clock  # noqa: SLF001 - same module
        self._current = current
        self._known = None if current is None else current.document.checkpoint
        """The checkpoint that the next one is built upon: as it was last written here, or shown."""
        self._has_given_up = False
        """Whether a commit has failed that may still take effect."""

    def renew(self, ttl_seconds: float) -> None:
        """Push the expiry to now + ttl; `LostLeaseError` when the lease is no longer ours."""
        self._advance(lambda held, now: renewed(held, self.lease_id, now, ttl_seconds))

    def commit(self, checkpoint: CheckpointJson, *, release: bool = False) -> bool:
        """Write the checkpoint in the write that proves the lease; with ``release`` it gives the lease back, too."""
        if release:
            self._advance(
                lambda held, now: released(self._moved(held, now, checkpoint), self.lease_id, now),
                moves=True,
                ends=True,
            )
        else:
            self._advance(lambda held, now: self._moved(held, now, checkpoint), moves=True)
        return release

    def release(self) -> None:
        """Free the lease at once; `LostLeaseError` when it has passed to somebody else."""
        try:
            self._advance(lambda held, now: released(held, self.lease_id, now))
        finally:
            # After a failure too: a lease that its store does not remember it may retake at once.
            with self._stored.lock:
                self._end()

    def transaction(self) -> AbstractContextManager[object]:
        """Open the transaction that the handler and the next commit share; a place that shares none opens none."""
        return nullcontext()

    def checkpoint(self) -> CheckpointJson | None:
        """Return the checkpoint as it was last written under this lease; None where that is not certain."""
        with self._stored.lock:
            current = self._current
        if current and is_held(current.document, self.lease_id, self._clock()):
            self._known = current.document.checkpoint
            return copy.deepcopy(self._known)
        return None

    @property
    def paused(self) -> Pause | None:
        """An operator's mark that the poller is to stop, as of the last write under this lease."""
        current = self._current
        return None if current is None else current.document.paused

    def show(self, checkpoint: CheckpointJson) -> None:
        """Take note of the checkpoint that was read while it was not certain."""
        self._known = copy.deepcopy(checkpoint)

    def doubt(self) -> None:
        """Note that what was written last may not be there: it is read before the next write."""
        self._current = None

    def _moved(self, held: Document, now: dt.datetime, checkpoint: CheckpointJson) -> Document:
        """Put a checkpoint in the place of the one it is built upon, and of no other.

        A commit that was given up may take effect later: what it has passed must not be gone back behind.
        """
        moved = self._committed(held, now, checkpoint)
        if self._has_given_up and self._known is not None and _differ(held.checkpoint, self._known):
            raise StateStoreError(
                f"The checkpoint of poller {held.poller_name!r} has moved: a commit that was given up has taken effect",
                poller_name=held.poller_name,
            )
        return moved

    def _committed(self, held: Document, now: dt.datetime, checkpoint: CheckpointJson) -> Document:
        return committed(held, self.lease_id, now, checkpoint)

    def _advance(self, transition: Transition, *, moves: bool = False, ends: bool = False) -> None:
        """Write what the transition makes of the document; it ``moves`` the checkpoint, and ``ends`` the lease."""
        with self._stored.lock:
            try:
                self._current = self._advanced(transition)
                if moves:
                    self._known = self._current.document.checkpoint
            except LostLeaseError:
                self._end()
                raise
            except BaseException:
                # The write may have taken effect: read before anything is built upon it.
                self._has_given_up |= moves
                self.doubt()
                raise
            if ends:
                self._end()
            else:
                self._stored.lease = self

    def _advanced(self, transition: Transition) -> VersionedDocument:
        """Apply the transition; where the document differs from the one remembered, to that one.

        Only its holder writes a document that names the holder's lease, but for an operator who pauses it. One
        that differs and still names it is thus such a mark, or a write of our own whose answer was lost; any other
        ends in `LostLeaseError`.
        """
        current, name = self._current or self._stored.read_leased(), self._stored.poller_name
        for _ in range(_TRIES):
            won, stored = self._stored.swap(transition(current.document, self._clock()), current.version)
            if stored is None:
                raise lost_lease(name, "its document has vanished")
            if won:
                return stored
            current = stored
        raise StateStoreError(f"The state of poller {name!r} keeps changing", poller_name=name)

    def _end(self) -> None:
        self._current = None
        if self._stored.lease is self:
            self._stored.lease = None


class DocumentStateStore(Resets):
    """Keeps each poller's checkpoint and lease in one document that only changes by compare and swap.

    A new store is a backend of four small methods given to this class. ``source_fingerprint``
    is checked wherever a lease or a checkpoint is asked for; without one, the trigger supplies its
    source's own through `look`.
    """

    _lease_type: type[DocumentLease] = DocumentLease

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
    def source_fingerprint(self) -> str | None:
        """The fingerprint that this store was given; it counts before the trigger's."""
        return self._source_fingerprint

    @property
    def owner_id(self) -> str:
        """Who this store is in a lease; no other instance in any process is called the same."""
        return self._owner_id

    def look(self, poller_name: str, source_fingerprint: str | None = None, *former_fingerprints: str) -> PollerState:
        """Read the state without taking anything.

        `FingerprintMismatchError` when the stored checkpoint belongs to another definition. State that an earlier
        release has left is recognised by the former fingerprints, too.
        """
        stored = self._stored(poller_name)
        given = (self._source_fingerprint, source_fingerprint, *former_fingerprints)
        current = stored.read(*filter(None, given))
        with stored.lock:
            ghost = self._is_ghost(stored, current.document)
        document = identified(current.document, self._source_fingerprint or source_fingerprint)
        free = ghost or is_free(document, self._clock())
        return PollerState(
            poller_name,
            copy.deepcopy(document.checkpoint),
            lease=None if free else document.lease,
            version=replace(current, document=document),
            abandoned=document.lease if free and not ghost and is_abandoned(document) else None,
            paused=document.paused,
        )

    def take(self, state: PollerState, ttl_seconds: float) -> HeldLease:
        """Take the lease if the state is still the one looked at; else `LeaseConflictError`."""
        looked, stored = self._looked(state), self._stored(state.poller_name)
        with stored.lock:
            ghost = self._is_ghost(stored, looked.document)
            taken = acquired(looked.document, self._owner_id, self._clock(), ttl_seconds, take_over=ghost)
            lease_id = "" if taken.lease is None else lease_id_of(taken.lease)
            won, current = stored.swap(taken, looked.version, looked.origin)
            if not won:
                raise lost_race(state.poller_name)
            held = stored.lease = self._lease_type(self, stored, lease_id, current)
            return held

    def note(self, state: PollerState, checkpoint: CheckpointJson) -> None:
        """Write the checkpoint, its position unmoved, if the state is still the one looked at and nobody is at work."""
        looked, stored = self._looked(state), self._stored(state.poller_name)
        if looked.origin is not None:
            raise lost_race(state.poller_name)  # what an earlier release has left is carried over by a lease only
        with stored.lock:
            won, _ = stored.swap(noted(looked.document, self._clock(), checkpoint), looked.version)
        if not won:
            raise lost_race(state.poller_name)

    # The methods of the ports, for whoever has only the id of a lease.

    def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:
        """Take the lease and return its id; `LeaseConflictError` when somebody else holds it."""
        return self.take(self.look(poller_name), ttl_seconds).lease_id

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: float) -> None:
        """Push the expiry to now + ttl; `LostLeaseError` when the lease is no longer ours."""
        self._lease(poller_name, lease_id).renew(ttl_seconds)

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        """Free the lease at once; `LostLeaseError` when it has passed to somebody else."""
        self._lease(poller_name, lease_id).release()

    def load_checkpoint(self, poller_name: str) -> CheckpointJson:
        """Return the checkpoint, or an empty dict for a poller that has none yet."""
        lease = self._stored(poller_name).lease
        checkpoint = None if lease is None else lease.checkpoint()
        if checkpoint is not None:
            return checkpoint
        checkpoint = self.look(poller_name).checkpoint
        if lease is not None:
            lease.show(checkpoint)
        return checkpoint

    def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
        """Write the checkpoint in the write that proves the lease; `LostLeaseError` otherwise."""
        self._lease(poller_name, lease_id).commit(checkpoint)

    def poller_names(self) -> list[str]:
        """Return the pollers of this app that have a state."""
        return sorted(
            poller_of(name) for name in self._backend.pollers(encoded_app(self._app_name)) if is_encoded(name)
        )

    def storage_time(self) -> dt.datetime | None:
        """Return the clock of the service that keeps the state; None where that is this machine's own."""
        return self._backend.now() if isinstance(self._backend, TimedBackend) else None

    def dry_run(self) -> DocumentStateStore:
        """Return a store on the same state whose acts are refused and shown as this one's, without effect."""
        return DocumentStateStore(DryRunBackend(self._backend), app_name=self._app_name, clock=self._clock)

    def _looked(self, state: PollerState) -> VersionedDocument:
        if not isinstance(state.version, VersionedDocument):
            raise ConfigurationError("a lease is taken from what look() of this store returned")
        return state.version

    def _lease(self, poller_name: str, lease_id: str) -> DocumentLease:
        stored = self._stored(poller_name)
        lease = stored.lease
        if lease is not None and lease.lease_id == lease_id:
            return lease
        # Taken through another store, or no longer ours: the document will tell.
        return self._lease_type(self, stored, lease_id)

    def _is_ghost(self, stored: StoredDocument, document: Document) -> bool:
        """Tell whether the lease is this store's own but unknown to it: the answer to its writing got lost."""
        if document.lease is None or document.lease.owner_id != self._owner_id:
            return False
        return stored.lease is None or stored.lease.lease_id != lease_id_of(document.lease)

    def _stored(self, poller_name: str) -> StoredDocument:
        stored = self._documents.get(poller_name)
        if stored is None:
            with self._lock:
                made = StoredDocument(self._backend, poller_name, document_name(self._app_name, poller_name))
                stored = self._documents.setdefault(poller_name, made)
        return stored

    def _held_leases(self) -> list[DocumentLease]:
        with self._lock:
            documents = list(self._documents.values())
        return [stored.lease for stored in documents if stored.lease is not None]

    def _begin_life(self) -> None:
        # Quoted: an owner whose name could not be shown would make a document that nobody can read.
        host = quote(socket.gethostname(), errors="replace")
        self._owner_id = f"{host}/{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._documents: dict[str, StoredDocument] = {}
        self._lock = threading.Lock()


def _differ(stored: CheckpointJson, known: CheckpointJson) -> bool:
    """Tell whether two checkpoints are not the same once they are written."""
    return json.dumps(stored, sort_keys=True) != json.dumps(known, sort_keys=True)


# A forked child is somebody else: it holds none of its parent's leases and may not retake them.
_stores: weakref.WeakSet[DocumentStateStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._begin_life()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
