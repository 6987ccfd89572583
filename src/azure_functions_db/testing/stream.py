"""A change log in memory with one reader, as replication slots are, and the source that reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import PositionLostError, SourceInUseError
from azure_functions_db.core.types import Backlog, Change, FetchResult, SourceDescriptor
from azure_functions_db.sources.stream import LOG_CAPABILITY, LogSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from azure_functions_db.core.types import AdapterCapability, CheckpointJson, Operation, RawRecord

_Place = tuple[int, int]
"""The number of a transaction, and the number of a change inside it."""
_START: _Place = (0, 0)


class MemoryLog:
    """Transactions in the order of their commits; it forgets what its reader has acknowledged.

    ``rows`` is the table behind it, by key.
    """

    def __init__(self) -> None:
        self.rows: dict[int, RawRecord] = {}
        self.reader: object | None = None
        self.acknowledged: _Place = _START
        self._transactions: dict[int, list[Change]] = {}
        self._last = 0

    def commit(self, *writes: tuple[int, RawRecord | None]) -> None:
        """Write rows by key in one transaction; None deletes a row."""
        self._last += 1
        self._transactions[self._last] = [
            self._written(index, key, row) for index, (key, row) in enumerate(writes, start=1)
        ]

    def forget(self, place: _Place | None = None) -> None:
        """Forget all transactions up to a place, the newest one included where none is given."""
        through = self._last if place is None else place[0] - (place[1] < self._length(place[0]))
        self._transactions = {number: held for number, held in self._transactions.items() if number > through}

    def after(self, place: _Place) -> Iterator[tuple[_Place, bool, Change]]:
        """Return what follows a place: where each change stands, whether its transaction ends with it, and itself."""
        if place[0] and place[0] not in self._transactions and place < self._oldest():
            raise PositionLostError(f"The log begins at transaction {self._oldest()[0]}, not at {place[0]}")
        for number, changes in sorted(self._transactions.items()):
            for index, change in enumerate(changes, start=1):
                if (number, index) > place:
                    yield (number, index), index == len(changes), change

    def _oldest(self) -> _Place:
        """Return the last place that is complete: whoever stands before it has lost something."""
        return (min(self._transactions, default=self._last + 1) - 1, 0)

    def _length(self, number: int) -> int:
        return len(self._transactions.get(number, ()))

    def _written(self, index: int, key: int, row: RawRecord | None) -> Change:
        before = self.rows.pop(key, None)
        if row is not None:
            self.rows[key] = row
        op: Operation = "delete" if row is None else "insert" if before is None else "update"
        metadata = {"transaction": self._last}
        return Change(op, f"{self._last}:{index}", {"id": key}, row, before, metadata=metadata)


class MemoryStreamSource(LogSource):
    """Reads a `MemoryLog`; ``whole_transactions`` hands out each transaction at once, however long it is."""

    def __init__(self, log: MemoryLog, *, name: str = "stream", whole_transactions: bool = False) -> None:
        self.source_descriptor = SourceDescriptor(name, "memory-stream", f"sha256:{name}")
        self._log = log
        self._whole = whole_transactions

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""
        return replace(LOG_CAPABILITY, acknowledges=True, whole_transactions=self._whole)

    def validate(self) -> None:
        """Do nothing: there is nothing to check."""

    def open(self) -> MemoryStreamReader:
        """Become the log's only reader."""
        return MemoryStreamReader(self._log, whole=self._whole)

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many changes wait behind the checkpoint."""
        return Backlog(sum(1 for _ in self._log.after(_place(checkpoint))), "changes")


class MemoryStreamReader:
    """The only reader of a log, until it is closed."""

    def __init__(self, log: MemoryLog, *, whole: bool) -> None:
        if log.reader is not None:
            raise SourceInUseError("The log has another reader")
        log.reader = self
        self._log = log
        self._whole = whole

    def close(self) -> None:
        """Let others read."""
        if self._log.reader is self:
            self._log.reader = None

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return the changes after the checkpoint."""
        taken: list[Change] = []
        place, is_end = _place(checkpoint), True
        for following, ends, change in self._log.after(place):
            if len(taken) >= limit and (is_end or not self._whole):
                return FetchResult(taken, _checkpoint(place), more=True)
            taken.append(change)
            place, is_end = following, ends
        return FetchResult(taken, _checkpoint(place) if taken else checkpoint, more=False)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Let the log forget what lies before the checkpoint."""
        self._log.acknowledged = max(self._log.acknowledged, _place(checkpoint))
        self._log.forget(_place(checkpoint))


def _place(checkpoint: CheckpointJson) -> _Place:
    written: Any = checkpoint.get("cursor")
    if written is None:
        return _START
    transaction, _, index = written["value"].partition(":")
    return int(transaction), int(index)


def _checkpoint(place: Sequence[int]) -> CheckpointJson:
    return {"cursor": {"kind": "stream", "value": f"{place[0]}:{place[1]}"}}
