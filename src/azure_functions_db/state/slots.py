"""What a store remembers of the leases it holds, and one lock per poller."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from azure_functions_db.state.backend import Version
    from azure_functions_db.state.document import Document


@dataclass(frozen=True, slots=True)
class Sight:
    """A document as it was last seen or written; no version means that there is none here yet."""

    document: Document
    version: Version | None


@dataclass(slots=True)
class Slot:
    """The lease that a store holds on one poller; the lock makes a heartbeat and a commit take turns."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    lease_id: str | None = None
    sight: Sight | None = None
    """The document of the held lease, so that no read precedes a write; None while it is uncertain."""
    has_position: bool = False
    """Whether a checkpoint was ever seen: its document may not just vanish."""

    def keep(self, lease_id: str, sight: Sight) -> str:
        """Remember a lease that is held, and the document that says so; return its id."""
        self.lease_id, self.sight = lease_id, sight
        return lease_id

    def sight_of(self, lease_id: str) -> Sight | None:
        """Return the document of this lease, where it is held here and certain."""
        return self.sight if self.lease_id == lease_id else None

    def drop(self, lease_id: str) -> None:
        """Forget this lease; another one stays."""
        if self.lease_id == lease_id:
            self.lease_id = self.sight = None

    def doubt(self) -> None:
        """Note that the document may differ from what is remembered."""
        self.sight = None


class Slots:
    """The slots of all pollers, made when they are first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: defaultdict[str, Slot] = defaultdict(Slot)

    def __getitem__(self, poller_name: str) -> Slot:
        with self._lock:
            return self._slots[poller_name]

    def doubt_all(self) -> None:
        """Note that no remembered document is certain."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            slot.doubt()
