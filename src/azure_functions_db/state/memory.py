"""State in memory, for tests and trials."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.state.backend import Stored
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from azure_functions_db.state.backend import DocumentName, Version


class MemoryBackend:
    """Documents in a dict; their versions are numbers that are handed out once."""

    def __init__(self) -> None:
        self._documents: dict[DocumentName, tuple[bytes, int]] = {}
        self._versions = itertools.count(1)
        self._lock = threading.Lock()

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""
        found = self._documents.get(name)
        return None if found is None else Stored(*found)

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""
        with self._lock:
            if name in self._documents:
                return None
            version = next(self._versions)
            self._documents[name] = (content, version)
            return version

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""
        with self._lock:
            found = self._documents.get(name)
            if found is None or found[1] != version:
                return None
            following = next(self._versions)
            self._documents[name] = (content, following)
            return following

    def delete(self, name: DocumentName, version: Version) -> bool:
        """Remove the version that was read; False when it is no longer the current one."""
        with self._lock:
            found = self._documents.get(name)
            if found is None or found[1] != version:
                return False
            del self._documents[name]
            return True

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
        return [name.poller for name in list(self._documents) if name.app == app]


class MemoryStateStore(DocumentStateStore):
    """Keeps state as long as the process lives; ``shared_with`` makes a second store on the same state."""

    def __init__(
        self,
        *,
        shared_with: MemoryStateStore | None = None,
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        backend = shared_with._backend if shared_with else MemoryBackend()  # noqa: SLF001 - same class
        super().__init__(backend, source_fingerprint=source_fingerprint, app_name=app_name, clock=clock)
