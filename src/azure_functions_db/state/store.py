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
from urllib.parse import quote

from azure_functions_db.core.errors import ConfigurationError, LostLeaseError, StateStoreError
from azure_functions_db.core.names import encoded_app, encoded_name
from azure_functions_db.core.types import PollerState
from azure_functions_db.state.backend import DocumentName, Stored, TimedBackend, document_name, is_encoded, poller_of
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
    released,
    renewed,
)
from azure_functions_db.state.reset import DryRunBackend, Resets

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

    poller_name: str
    name: DocumentName
    lock: threading.Lock = field(default_factory=threading.Lock)
    lease_id: str | None = None
    seen: Seen | None = None
    """The document of the held lease, so that no read precedes a write; None while it is uncertain."""
    has_position: bool = False
    """Whether a checkpoint was ever seen: its document may not just vanish."""
    last: tuple[bytes, Document] | None = None
    """What was last read or written, and the document that it says: most often the next one is the same."""

    def read(self, stored: Stored, written: Document | None = None) -> Seen:
        """Return the document that is stored; ``written`` is the one that was encoded as just this."""
        content, document = (stored.content, written) if written else self.last or (None, None)
        if document is None or content != stored.content:
            document = decoded(stored.content, self.poller_name)
        self.last = (stored.content, document)
        self.has_position |= bool(document.checkpoint)
        if stored.version is None:
            # Versions before 1.0 computed fingerprints in another way: theirs says nothing here.
            document = replace(document, source_fingerprint=None)
        return Seen(document, stored.version)

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

    def look(self, poller_name: str, source_fingerprint: str | None = None) -> PollerState:
        """Read the state without taking anything.

        `FingerprintMismatchError` when the stored checkpoint belongs to another definition.
        """
        poller = self._poller(poller_name)
        seen = self._read(poller)
        document = identified(seen.document, source_fingerprint or self._source_fingerprint)
        with poller.lock:
            ghost = self._is_ghost(poller, document)
            free = ghost or is_free(document, self._clock())
        return PollerState(
            poller_name,
            copy.deepcopy(document.checkpoint),
            lease=None if free else document.lease,
            version=Seen(document, seen.version),
            abandoned=document.lease if free and not ghost and is_abandoned(document) else None,
        )

    def take_lease(self, state: PollerState, ttl_seconds: float) -> str:
        """Take the lease if the state is still the one looked at; else `LeaseConflictError`."""
        looked = state.version
        if not isinstance(looked, Seen):
            raise ConfigurationError("take_lease needs what look() of this store returned")
        poller = self._poller(state.poller_name)
        with poller.lock:
            ghost = self._is_ghost(poller, looked.document)
            taken = acquired(looked.document, self._owner_id, self._clock(), ttl_seconds, take_over=ghost)
            won, seen = self._swap(poller, taken, looked.version)
            if not won or taken.lease is None:
                raise lost_race(state.poller_name)
            poller.lease_id, poller.seen = lease_id_of(taken.lease), seen
            return poller.lease_id

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

    def _advance(
        self, poller_name: str, lease_id: str, transition: Callable[[Document], Document], *, ends: bool = False
    ) -> None:
        """Write what the transition makes of the held document; ``ends`` says that it gives the lease back."""
        poller = self._poller(poller_name)
        with poller.lock:
            try:
                remembered = poller.seen if poller.lease_id == lease_id else None
                seen = self._advanced(poller, remembered or self._current(poller), transition)
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
                poller.lease_id, poller.seen = lease_id, seen

    def _advanced(self, poller: Poller, seen: Seen, transition: Callable[[Document], Document]) -> Seen:
        """Apply the transition; where the document differs from the one remembered, to that one.

        Only its holder writes a document that names the holder's lease. One that differs and still
        names it is thus a write of our own whose answer was lost; any other ends in `LostLeaseError`.
        """
        for _ in range(_TRIES):
            won, stored = self._swap(poller, transition(seen.document), seen.version)
            if stored is None:
                raise lost_lease(poller.poller_name, "its document has vanished")
            if won:
                return stored
            seen = stored
        name = poller.poller_name
        raise StateStoreError(f"The state of poller {name!r} keeps changing", poller_name=name)

    def _swap(self, poller: Poller, document: Document, version: Version | None) -> tuple[bool, Seen | None]:
        """Try a conditional write; tell whether it took effect, and what is stored now."""
        content = encoded(document)
        stored = self._stored_after(poller.name, content, version)
        if stored is None:
            return False, None
        won = stored.content == content
        return won, poller.read(stored, written=document if won else None)

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

    def _read(self, poller: Poller) -> Seen:
        """Return the poller's document, a fresh one where it has none yet."""
        stored = self._backend.read(poller.name)
        if stored is not None:
            return poller.read(stored)
        name = poller.poller_name
        if poller.has_position:
            raise StateStoreError(
                f"The state document of poller {name!r} has vanished. Restore it, or say where to start with "
                f"`azfdb reset {name}`; it will not silently start from the beginning.",
                poller_name=name,
            )
        return Seen(Document(name), None)

    def _current(self, poller: Poller) -> Seen:
        """Return the document that must be there because a lease on it is in use."""
        stored = self._backend.read(poller.name)
        if stored is None or stored.version is None:
            raise lost_lease(poller.poller_name, "its document has vanished")
        return poller.read(stored)

    def _is_ghost(self, poller: Poller, document: Document) -> bool:
        """Tell whether the lease is this store's own but unknown to it: the answer to its writing got lost."""
        lease = document.lease
        if lease is None or lease.owner_id != self._owner_id:
            return False
        return poller.lease_id is None or lease_id_of(lease) != poller.lease_id

    def _poller(self, poller_name: str) -> Poller:
        poller = self._pollers.get(poller_name)
        if poller is None:
            with self._lock:
                made = Poller(poller_name, document_name(self._app_name, poller_name))
                poller = self._pollers.setdefault(poller_name, made)
        return poller

    def _doubt_all(self) -> None:
        """Note that no remembered document is certain."""
        with self._lock:
            pollers = list(self._pollers.values())
        for poller in pollers:
            poller.seen = None

    def _begin_life(self) -> None:
        # Quoted: an owner whose name could not be shown would make a document that nobody can read.
        host = quote(socket.gethostname(), errors="replace")
        self._owner_id = f"{host}/{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._pollers: dict[str, Poller] = {}
        self._lock = threading.Lock()


# A forked child is somebody else: it holds none of its parent's leases and may not retake them.
_stores: weakref.WeakSet[DocumentStateStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._begin_life()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
