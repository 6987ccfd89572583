"""Stores that fail on demand, in the ways in which storage really fails."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Literal, TypeVar, assert_never

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.state.memory import MemoryBackend
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from azure_functions_db.state.backend import Backend, DocumentName, Stored, Version

T = TypeVar("T")

Operation = Literal["read", "create", "replace", "pollers"]


class Fault(Enum):
    """A way to fail."""

    UNREACHABLE = auto()
    """Nothing happened, and the caller gets an error."""
    LOST_REPLY = auto()
    """It took effect, and the caller gets an error."""
    REFUSED_RETRY = auto()
    """It took effect, the answer got lost, and the client's own second try is refused."""


class FaultyBackend:
    """Passes everything on to another backend, except where a fault is planned; counts the operations."""

    def __init__(self, backend: Backend) -> None:
        self.calls: Counter[str] = Counter()
        self._backend = backend
        self._planned: defaultdict[str, deque[Fault]] = defaultdict(deque)

    def plan(self, operation: Operation, *faults: Fault) -> None:
        """Let the next calls of an operation fail, one after the other."""
        self._planned[operation].extend(faults)

    def clear(self) -> None:
        """Forget what is planned."""
        self._planned.clear()

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""
        return self._do("read", lambda: self._backend.read(name))

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""
        return self._do("create", lambda: self._backend.create(name, content))

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""
        return self._do("replace", lambda: self._backend.replace(name, content, version))

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
        return self._do("pollers", lambda: self._backend.pollers(app)) or []

    def _do(self, operation: Operation, work: Callable[[], T]) -> T | None:
        self.calls[operation] += 1
        planned = self._planned[operation]
        if not planned:
            return work()
        match planned.popleft():
            case Fault.UNREACHABLE:
                raise StateStoreError(f"{operation}: the storage cannot be reached", unreachable=True)
            case Fault.LOST_REPLY:
                work()
                raise StateStoreError(f"{operation}: the storage did not answer", unreachable=True)
            case Fault.REFUSED_RETRY:
                work()
                return None
            case other:
                assert_never(other)


class FaultyStateStore(DocumentStateStore):
    """A store in memory whose ``faults`` can be planned; ``shared_with`` makes a second one on the same state."""

    def __init__(
        self,
        *,
        shared_with: FaultyStateStore | None = None,
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._memory: MemoryBackend = shared_with._memory if shared_with else MemoryBackend()  # noqa: SLF001
        self.faults = FaultyBackend(self._memory)
        super().__init__(self.faults, source_fingerprint=source_fingerprint, app_name=app_name, clock=clock)
