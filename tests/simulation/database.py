"""Databases that are written to while they are polled: transactions that commit late, roll back or are undone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.types import FetchResult, SourceDescriptor
from azure_functions_db.trigger.normalizers import SmallSource, normalizer_for

if TYPE_CHECKING:
    from tests.simulation.judge import Judge
    from tests.simulation.plan import Plan
    from tests.simulation.world import Process, World

_KEYS = 5


@dataclass(slots=True)
class Written:
    """One change of a row; of each key a later change has a higher version."""

    key: int
    version: int
    op: str = "upsert"
    order: Any = None
    """Its place in the order of delivery, in the form of its database."""
    xid: int = 0


@dataclass(slots=True)
class Transaction:
    """A transaction while it runs."""

    xid: int
    writes: list[Written] = field(default_factory=list)
    floor: int = 0
    """The next number of the database's sequence when it first wrote."""


class Database:
    """What all databases share: writers with row locks, and the record of what was committed."""

    every_change = True
    """Whether every change is delivered; else the newest state of each row."""

    newest_only = False
    """Whether an older state is never told after a newer one; a log may, when it catches up with its snapshot."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.committed: dict[int, list[Written]] = {}
        """By key, what was committed, in order."""
        self.running: dict[int, Transaction] = {}
        self.started: list[int] = []
        """The ids of all transactions, ended or not."""
        self.is_lost = False
        """Whether what a poller has not read yet is gone: then a tick has to say so."""
        self.has_given_up = False
        """Whether it has let go of what follows a checkpoint, be it nothing, since a poller has last gone past that."""
        self.judge: Judge
        self.columns: tuple[str, ...] = ("id", "version")
        self._xids = itertools.count(100)
        self._versions = itertools.count(1)
        self._sequence = itertools.count(1)
        self._locked: set[int] = set()

    # What a kind of database adds.

    def source(self, process: Process, fingerprint: str) -> Any:
        """Return the source as one process reads it."""
        raise NotImplementedError

    def place(self, written: Written, transaction: Transaction) -> Any:
        """Give a write its place in the order of delivery."""
        raise NotImplementedError

    def land(self, transaction: Transaction) -> None:
        """Commit a transaction, which takes no time unless said otherwise."""
        for written in transaction.writes:
            self.committed.setdefault(written.key, []).append(written)

    def order_of(self, cursor: Mapping[str, Any] | None) -> Any:
        """Return a position in a form that can be compared."""
        raise NotImplementedError

    def passed_by(self, cursor: Mapping[str, Any] | None) -> Iterable[Written]:
        """Return what must have been handled or put aside when a checkpoint stands here."""
        raise NotImplementedError

    def go_past(self) -> None:
        """Take note that changes were lost, and that a poller goes on all the same as it was told to."""
        raise NotImplementedError

    def went_to(self, cursor: Mapping[str, Any]) -> None:
        """Take note of where the checkpoint stands."""

    def wanted(self) -> Iterable[Written]:
        """Return all that must have been handled or put aside in the end."""
        return [written for history in self.committed.values() for written in self.told_of(history)]

    def told_of(self, history: list[Written]) -> list[Written]:
        """Return what is delivered of a key's history."""
        return history if self.every_change else history[-1:]

    def identity(self, after: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return key and version of the change that an event tells of; None where there was no such change."""
        return None if after is None else (after["id"], after["version"])

    def before(self, key: int, version: int) -> list[Written]:
        """Return what must have been handled before a change: all earlier ones of its key, where each is delivered."""
        if not self.every_change:
            return []
        return [each for each in self.committed.get(key, ()) if each.version < version]

    def in_order(self, rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return changes as they must stand in a batch."""
        places = {(each.key, each.version): each.order for history in self.committed.values() for each in history}
        return sorted(rows, key=lambda row: places.get(row, ()))

    def is_tidy(self) -> bool:
        """Tell whether what was delivered has been let go of."""
        return True

    def happen(self) -> None:
        """Have its own misfortunes, at some moment of the storm."""

    # Writers.

    def write_for_a_while(self, seconds: float) -> None:
        """Begin transactions over a time, as a task of their own each; some of them before anybody looks."""
        chance = self.world.nature.chance
        for number in range(self.plan.transactions):
            self.world.later(chance.seconds(seconds if number % 3 else 1.0), self._transact)

    def write_well(self) -> None:
        """Write a row that any handler digests: a row that fails is told from an outage by one that does not."""
        transaction = self._begun()
        self._write(transaction)
        while not transaction.writes:  # every row is locked by others
            self.world.wait(1.0)
            self._write(transaction)
        while self.is_poison(transaction.writes[0].version):
            self._undo(transaction, list(transaction.writes))
            self._write(transaction)
        self._commit(transaction)

    def is_poison(self, version: int) -> bool:
        """Tell whether a change is one that no handler digests."""
        return self.plan.has_poison and version % 5 == 0

    def statement(self, process: Process, what: str) -> None:
        """Let a statement of a poller travel; the database may be out of reach."""
        process.step(process.chance.seconds(0.05))
        if process.chance.strikes("connection lost") is not None:
            self.world.tell(process.name, f"{what}: the connection is lost")
            raise ConnectionError(f"{what}: the connection is lost")

    def _transact(self) -> None:
        world, chance = self.world, self.world.nature.chance
        transaction = self._begun()
        longest = world.longest_freeze if chance.strikes("late commit") else 1.0
        for _ in range(chance.random.randint(1, self.plan.writes_at_once)):
            self._write(transaction)
            world.wait(chance.seconds(longest))
        if chance.strikes("savepoint") and transaction.writes:
            self._undo(transaction, transaction.writes[chance.random.randrange(len(transaction.writes)) :])
        if chance.strikes("rollback"):
            self._undo(transaction, list(transaction.writes))
        self._commit(transaction)

    def _begun(self) -> Transaction:
        transaction = Transaction(next(self._xids))
        self.started.append(transaction.xid)
        self.running[transaction.xid] = transaction
        return transaction

    def _commit(self, transaction: Transaction) -> None:
        if transaction.writes:
            told = ", ".join(f"{each.key}v{each.version}" for each in transaction.writes)
            self.world.tell("writer", f"commits transaction {transaction.xid}: {told}")
            self.land(transaction)
        self._locked -= {written.key for written in transaction.writes}
        del self.running[transaction.xid]

    def _write(self, transaction: Transaction) -> None:
        random = self.world.nature.chance.random
        free = [key for key in range(1, _KEYS + 1) if key not in self._locked] or None
        own = [written.key for written in transaction.writes]
        if free is None and not own:
            return
        key = random.choice(own if free is None else [*free, *own])
        self._locked.add(key)
        written = Written(key, next(self._versions), xid=transaction.xid)
        transaction.writes.append(written)
        written.order = self.place(written, transaction)

    def _undo(self, transaction: Transaction, writes: list[Written]) -> None:
        for written in writes:
            transaction.writes.remove(written)
        self._locked -= {written.key for written in writes} - {written.key for written in transaction.writes}


class KeysetTable(Database):
    """A table with a growing cursor column; a reader waits for running transactions as ``in_flight="wait"`` does."""

    every_change = False
    newest_only = True

    def source(self, process: Process, fingerprint: str) -> Any:
        small = KeysetSource(self, process, fingerprint)
        return ReadAheadSource(small) if self.plan.reads_ahead else small

    def place(self, written: Written, transaction: Transaction) -> Any:
        number = next(self._sequence)
        transaction.floor = transaction.floor or number
        return (number, written.key)

    def rows(self) -> list[Written]:
        """Return the rows that may be read: below what a running transaction might still write."""
        bound = min((each.floor for each in self.running.values() if each.floor), default=float("inf"))
        newest = (history[-1] for history in self.committed.values())
        return sorted((row for row in newest if row.order[0] < bound), key=lambda row: row.order)

    def order_of(self, cursor: Mapping[str, Any] | None) -> Any:
        return (0, 0) if cursor is None else (cursor["value"], cursor["tiebreaker"]["id"])

    def passed_by(self, cursor: Mapping[str, Any] | None) -> Iterable[Written]:
        place = self.order_of(cursor)
        return [history[-1] for history in self.committed.values() if history[-1].order <= place]


class KeysetSource:
    """The small port over that table, so that the library's own adapter makes positions of its rows."""

    cursor_column = "changed"
    pk_columns = ("id",)

    def __init__(self, table: KeysetTable, process: Process, fingerprint: str) -> None:
        self.source_descriptor = SourceDescriptor("rows", "keyset", fingerprint)
        self.table = table
        self.process = process

    def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
        table, process = self.table, self.process
        table.statement(process, "select")
        rows = [row for row in table.rows() if cursor is None or row.order > cursor][:batch_size]
        found = [{"id": row.key, "version": row.version, "changed": row.order[0]} for row in rows]
        process.step(process.chance.seconds(0.05))
        return found


class ReadAheadSource(SmallSource):
    """The same table as a source with readers, which may be asked for the next page while the handler has one."""

    cursor_column, pk_columns = KeysetSource.cursor_column, KeysetSource.pk_columns

    def __init__(self, small: KeysetSource) -> None:
        super().__init__(small, normalizer_for(small, None))
        self.table = small.table
        self.process = small.process

    def open(self) -> ReadAheadReader:  # type: ignore[override]  # a small source has no readers
        return ReadAheadReader(self)


class ReadAheadReader:
    """One tick's reader: it notes who asks, for what, and what else it is asked meanwhile."""

    reads_ahead = True

    def __init__(self, source: ReadAheadSource) -> None:
        self._source = source
        self._judge = source.table.judge
        self._process = source.process
        self._tick = source.table.world.current
        self._began: dict[Any, Any] = {}
        """By the end of each page, where it began."""
        self._is_asked = self._is_closed = False

    def fetch_changes(self, checkpoint: dict[str, Any], limit: int) -> FetchResult:
        table, process = self._source.table, self._process
        begin = table.order_of(checkpoint.get("cursor"))
        if table.world.current is not self._tick:
            self._judge.read_ahead(process, self._began.get(begin, begin), begin)
        with self._asked("for a page"):
            page = self._source.fetch_changes(checkpoint, limit)
            process.step(process.chance.seconds(table.plan.read_seconds))
        self._began[table.order_of(page.next_checkpoint.get("cursor"))] = begin
        return page if table.plan.tells_cuts else replace(page, cut=None)

    def acknowledge(self, checkpoint: Mapping[str, Any]) -> None:
        with self._asked("to acknowledge"):
            pass

    def close(self) -> None:
        with self._asked("to close"):
            self._is_closed = True

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        if (self._is_asked or self._is_closed) and not self._process.is_dead:
            state = "is closed" if self._is_closed else "is being read"
            self._judge.complain("turns", f"a reader of {self._process.name} is asked {what}, and {state}")
        self._is_asked = True
        try:
            yield
        finally:
            self._is_asked = False
