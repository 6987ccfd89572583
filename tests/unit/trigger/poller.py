"""Sources, a store with just the five methods, and an observer that remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure_functions_db.core.types import AdapterCapability, SourceDescriptor
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.trigger.batch import Checkpoint
from azure_functions_db.trigger.poll import PollTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.core.signals import Signal
    from azure_functions_db.core.types import CheckpointJson, CursorValue, RawRecord


class ListSource:
    """The small port over rows in a list."""

    cursor_column = "version"
    pk_columns = ("id",)
    source_descriptor = SourceDescriptor("orders", "list", "sha256:orders")

    def __init__(self, count: int = 0) -> None:
        self.rows: list[RawRecord] = [{"id": number, "version": number // 3} for number in range(count)]
        self.fetches = 0
        self.failures: list[Exception] = []

    def fetch(self, cursor: CursorValue, batch_size: int) -> Sequence[RawRecord]:
        self.fetches += 1
        if self.failures:
            raise self.failures.pop(0)
        after = (-1, -1) if cursor is None else cursor
        return [row for row in self.rows if (row["version"], row["id"]) > after][:batch_size]  # type: ignore[operator]


class FullSource:
    """What a source with the full port has to have besides its pages."""

    def validate(self) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def acknowledge(self, checkpoint: CheckpointJson) -> None: ...

    def capability(self) -> AdapterCapability:
        return AdapterCapability()


class PlainStore:
    """Only the five methods, as a user's own store has them; each call is counted."""

    def __init__(self, store: MemoryStateStore | None = None) -> None:
        self._store = store or MemoryStateStore()
        self.calls: list[str] = []

    def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:
        self.calls.append("acquire")
        return self._store.acquire_lease(poller_name, ttl_seconds)

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: float) -> None:
        self.calls.append("renew")
        self._store.renew_lease(poller_name, lease_id, ttl_seconds)

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        self.calls.append("release")
        self._store.release_lease(poller_name, lease_id)

    def load_checkpoint(self, poller_name: str) -> CheckpointJson:
        self.calls.append("load")
        return self._store.load_checkpoint(poller_name)

    def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
        self.calls.append("commit")
        self._store.commit_checkpoint(poller_name, checkpoint, lease_id)


class Recorder:
    """Remembers every signal."""

    def __init__(self) -> None:
        self.signals: list[Signal] = []

    def notice(self, signal: Signal) -> None:
        self.signals.append(signal)

    def of(self, kind: type[Any]) -> list[Any]:
        return [signal for signal in self.signals if isinstance(signal, kind)]


class Collected:
    """A handler that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def __call__(self, events: Sequence[Any]) -> None:
        self.batches.append(list(events))

    @property
    def ids(self) -> list[int]:
        return [event.pk["id"] for batch in self.batches for event in batch]


def poller(source: Any, store: Any = None, **options: Any) -> PollTrigger:
    """A trigger named "orders" that does not really sleep."""
    defaults: dict[str, Any] = {"sleep": lambda _seconds: None}
    return PollTrigger(
        name="orders",
        source=source,
        checkpoint_store=MemoryStateStore() if store is None else store,
        **(defaults | options),
    )


def position(store: Any) -> dict[str, Any]:
    """Where the poller stands, whatever is noted beside it."""
    return Checkpoint.of(store.load_checkpoint("orders")).position


def run(trigger: PollTrigger, handler: Callable[..., Any]) -> int:
    return trigger.run(timer=None, handler=handler)
