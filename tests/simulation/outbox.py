"""An outbox on a modelled PostgreSQL, read by the library's own reader and emptied by its own removal.

The statements are modelled, each by what it answers: the page behind a position below the oldest running
transaction, the same rows without that bound, who holds the horizon, and the deletion of rows by their ids.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.serializers import deserialize_position, serialize_position
from azure_functions_db.core.types import FetchResult, Horizon, SourceDescriptor
from azure_functions_db.sources.outbox.rows import OutboxRows, _require_position
from azure_functions_db.sources.outbox.source import OutboxSource, Removal
from tests.simulation.database import Database, Transaction, Written

if TYPE_CHECKING:
    from tests.simulation.plan import Plan
    from tests.simulation.world import Process, World

_ORDER = ("position", "sequence")
_URL = "sqlite://"
"""Never connected to: a source needs one to be made."""


class OutboxTable(Database):
    """The rows of an outbox, with positions made of transaction ids as PostgreSQL makes them."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.rows: list[Written] = []

    def source(self, process: Process, fingerprint: str) -> Any:
        return SimulatedOutbox(self, process, fingerprint)

    @property
    def following(self) -> int:
        """The id after the highest that has ended: where a snapshot ends."""
        return max((xid for xid in self.started if xid not in self.running), default=0) + 1

    @property
    def oldest_running(self) -> int:
        """The lowest id that may still write."""
        return min(self.running, default=self.following)

    def place(self, written: Written, transaction: Transaction) -> Any:
        return (max(transaction.xid, self.following - 1), next(self._sequence))

    def land(self, transaction: Transaction) -> None:
        super().land(transaction)
        self.rows = sorted([*self.rows, *transaction.writes], key=lambda row: row.order)

    def order_of(self, cursor: Mapping[str, Any] | None) -> Any:
        return (0, 0) if not cursor else deserialize_position(cursor, _ORDER[1:])

    def passed_by(self, cursor: Mapping[str, Any] | None) -> Iterable[Written]:
        place = self.order_of(cursor)
        return [each for history in self.committed.values() for each in history if each.order <= place]

    def is_tidy(self) -> bool:
        return not self.rows

    def identity(self, after: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> tuple[int, int] | None:
        return None if after is None else (int(after["aggregateid"]), after["version"])

    def remove(self, ids: Sequence[int]) -> None:
        """Delete rows by their ids, which are their versions."""
        for row in [row for row in self.rows if row.version in ids]:
            self.rows.remove(row)
            self.judge.let_go(row)


class Rows:
    """One of the keyset sources over the table: all rows, or only those below the oldest running transaction."""

    cursor_column, pk_columns = _ORDER[0], _ORDER[1:]
    name = "outbox"

    def __init__(self, table: OutboxTable, process: Process, *, is_bounded: bool) -> None:
        self._table = table
        self._process = process
        self._is_bounded = is_bounded

    def fetch_changes(self, checkpoint: Mapping[str, Any], limit: int) -> FetchResult:
        table, process = self._table, self._process
        table.statement(process, "select")
        after = table.order_of(checkpoint.get("cursor"))
        bound = (table.oldest_running,) if self._is_bounded else (float("inf"),)
        found = [row for row in table.rows if row.order > after and row.order < bound]
        page = [_record(row) for row in found[:limit]]
        following = {**checkpoint, "cursor": _cursor_at(found[len(page) - 1])} if page else dict(checkpoint)
        process.step(process.chance.seconds(0.05))
        return FetchResult(page, following, more=len(found) > limit)

    look = fetch_changes  # in this model every page is one statement

    def open(self) -> Rows:
        return self

    def close(self) -> None:
        """Do nothing: the model holds nothing."""

    def count_changes(self, checkpoint: Mapping[str, Any], most: int | None = None) -> int:
        return len(self.fetch_changes(checkpoint, most or 1000).records)

    def describe(self, checkpoint: Mapping[str, Any]) -> str:
        return str(checkpoint.get("cursor"))

    def revived(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row as it is: its values go through JSON unchanged."""
        return row


def _cursor_at(row: Written) -> dict[str, Any]:
    return serialize_position(row.order[0], {"sequence": row.order[1]})


def _record(row: Written) -> dict[str, Any]:
    position, sequence = row.order
    return {
        "id": row.version,
        "aggregateid": str(row.key),
        "version": row.version,
        "position": position,
        "sequence": sequence,
        "payload": {},
    }


class SimulatedRows(OutboxRows):
    """The rows of the outbox as the library's reader asks for them."""

    by_position = True
    is_safe = True
    _holds_json = True

    def __init__(self, table: OutboxTable, process: Process, outbox: Any) -> None:
        self.name = "outbox"
        self.partition = None
        self.events = Rows(table, process, is_bounded=True)  # type: ignore[assignment]
        self.thin = Rows(table, process, is_bounded=False)  # type: ignore[assignment]
        self._outbox = outbox
        self._range = None
        self._table = table
        self._process = process

    def horizon(self, checkpoint: Mapping[str, Any]) -> Horizon | None:
        table = self._table
        table.statement(self._process, "who is running")
        _require_position(self.events, dict(checkpoint), table.following - 1)
        after = table.order_of(checkpoint.get("cursor"))
        waits = any(row.order > after for row in table.rows)
        return Horizon(table.oldest_running, 0.0) if waits else None


class SimulatedRemoval(Removal):
    """Deletes by a modelled statement."""

    def __init__(self, table: OutboxTable, process: Process, outbox: Any, rows: OutboxRows) -> None:
        super().__init__(outbox, rows, dt.timedelta(0))
        self._table = table
        self._process = process

    def _delete(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._table.statement(self._process, "delete")
            self._table.remove([row["version"] for row in rows])
            self._process.step(self._process.chance.seconds(0.05))


class SimulatedOutbox(OutboxSource):
    """The library's outbox source over the modelled table."""

    def __init__(self, table: OutboxTable, process: Process, fingerprint: str) -> None:
        super().__init__(url=_URL, clock=process.monotonic, sleep=process.world.wait, horizon_wait_seconds=0.2)
        self.__dict__["source_descriptor"] = SourceDescriptor("outbox", "outbox", fingerprint)
        self._rows = SimulatedRows(table, process, self.outbox)
        self._table = table
        self._process = process

    def _removal(self, retention: dt.timedelta) -> Removal:
        return SimulatedRemoval(self._table, self._process, self.outbox, self._rows)
