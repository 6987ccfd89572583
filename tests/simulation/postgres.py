"""PostgreSQL's log, read by the library's own decoder and position keeping.

The server is modelled: a log of real pgoutput messages, a slot with its confirmed position, one reader at a time,
commits that are in the log before they can be seen, a promotion that forgets the end of the log, and a slot that is
given up. What the library says to it (look, start to stream, acknowledge, read a page of a table) is answered at that
point; everything above is the library's.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import FetchError, SourceInUseError
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.sources.postgres.changes import KeyPage, RowType, Session, Shape, TableReader
from azure_functions_db.sources.postgres.log import PostgresLog
from azure_functions_db.sources.postgres.pgoutput import encoded_row, lsn_of, lsn_text
from azure_functions_db.sources.postgres.replication import SlotRefusedError
from azure_functions_db.sources.postgres.server import PLUGIN, ServerState, Slot, Table, TableName
from azure_functions_db.sources.postgres.source import PostgresLogicalSource
from tests.simulation.database import Database, Transaction, Written

if TYPE_CHECKING:
    from tests.simulation.plan import Plan
    from tests.simulation.world import Process, World

_OID = 16500
_TYPES = {"id": 20, "version": 20, "extra": 25}
_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_TABLE = Table(TableName("public", "orders"), _OID, "r", "d", (("id", "bigint"),), True, {}, True)


@dataclass(eq=False)
class Logged:
    """A transaction in the log."""

    xid: int
    timeline: int
    commit_lsn: int
    end_lsn: int
    at: dt.datetime
    writes: list[Written]
    columns: tuple[str, ...]


@dataclass
class SlotState:
    """The slot on the server."""

    confirmed: int
    is_lost: bool = False
    reader: SimulatedFeed | None = None

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it: a server notices that a reader has died, but not that it is stopped."""
        return self.reader is not None and not self.reader.process.is_dead


class PostgresServer(Database):
    """One table, its log and its slot."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.every_change = plan.snapshot == "never"
        self.lsn = 0x1000
        self.timeline = 1
        self.switches: dict[int, int] = {}
        """Where each earlier timeline was left."""
        self.log: list[Logged] = []
        self.visible: dict[int, Written] = {}
        self.slot: SlotState | None = None
        self.gap_end = 0
        """Up to where it is not told that rows are gone: there the last gap ends, or its rows were read anew."""
        self._orders: dict[tuple[int, int], Any] = {}
        self._by_order: dict[tuple[int, int], Written] = {}
        self._ends: dict[int, int] = {}
        """By transaction, where it ends in the log."""

    def source(self, process: Process, fingerprint: str) -> Any:
        return SimulatedPostgres(self, process, fingerprint)

    # Writing.

    def place(self, written: Written, transaction: Transaction) -> Any:
        earlier = [each for each in transaction.writes if each.key == written.key and each is not written]
        last = earlier[-1] if earlier else self.visible.get(written.key)
        is_there = last is not None and last.op != "delete"
        random = self.world.nature.chance.random
        written.op = ("delete" if random.random() < 0.3 else "update") if is_there else "insert"
        self.lsn += 64
        return ()

    def land(self, transaction: Transaction) -> None:
        world = self.world
        logged = self._logged(transaction)
        # What was committed before there was a slot is nobody's; that one may be made anew later on.
        if self.slot is not None or not self.every_change or self.judge.cursor is not None:
            super().land(transaction)
        world.wait(world.nature.chance.seconds(2.0))
        if logged in self.log:  # a promotion may have come in between
            self.visible |= {written.key: written for written in transaction.writes}

    def _logged(self, transaction: Transaction) -> Logged:
        commit, self.lsn = self.lsn + 16, self.lsn + 64
        at = self.world.nature.wall()
        logged = Logged(transaction.xid, self.timeline, commit, self.lsn, at, list(transaction.writes), self.columns)
        for place, written in enumerate(logged.writes, 1):
            written.order = (self.timeline, commit, place)
            self._orders[written.key, written.version] = written.order
            self._by_order[transaction.xid, place] = written
        self._ends[transaction.xid] = logged.end_lsn
        self.log.append(logged)
        return logged

    def happen(self) -> None:
        chance = self.world.nature.chance
        if chance.strikes("migration"):
            self.world.tell("database", "the table gets another column")
            self.columns = (*self.columns, "extra")
        if chance.strikes("failover"):
            self.world.wait(chance.seconds(self.plan.ttl))
            self._fail_over()
        if chance.strikes("retention") and self.slot is not None and self.judge.cursor is not None:
            self.world.tell("database", "the slot's log is given up")
            self.slot.is_lost = self.has_given_up = True
            self.slot.reader = None

    def _fail_over(self) -> None:
        """Promote a server that has the log up to some earlier place only."""
        ends = [0x1000, *(logged.end_lsn for logged in self.log)][-4:]
        left = self.world.nature.chance.random.choice(ends)
        gone = [logged for logged in self.log if logged.end_lsn > left]
        self.world.tell("database", f"a server is promoted that has the log up to {lsn_text(left)}")
        self.log = [logged for logged in self.log if logged.end_lsn <= left]
        self.switches = {line: min(left, at) for line, at in (self.switches | {self.timeline: left}).items()}
        self.timeline, self.lsn = self.timeline + 1, left
        undone = {id(written) for logged in gone for written in logged.writes}
        self.judge.undone |= {(written.key, written.version) for logged in gone for written in logged.writes}
        for key, history in self.committed.items():
            self.committed[key] = [written for written in history if id(written) not in undone]
        self.visible = {}
        for logged in self.log:
            self.visible |= {written.key: written for written in logged.writes}
        if self.slot is not None:
            self.slot.confirmed = min(self.slot.confirmed, left)
            self.slot.reader = None

    # Judging.

    @property
    def is_lost(self) -> bool:
        """Whether what follows the checkpoint is gone."""
        cursor = self.judge.cursor
        if cursor is None:
            return False
        if self.slot is None or self.slot.is_lost or self.slot.confirmed > lsn_of(cursor["value"]):
            return True
        inside = (cursor.get("transaction") or ["0/0"])[0]
        shown = (cursor.get(name, "0/0") for name in ("until", "shown"))
        read = max(map(lsn_of, (cursor["value"], *shown, inside)))
        return cursor["timeline"] != self.timeline and read > self.switches[cursor["timeline"]]

    @is_lost.setter
    def is_lost(self, _: bool) -> None:
        """Do nothing: it follows from the checkpoint."""

    def go_past(self) -> None:
        self.every_change = self.has_given_up = False  # the rows are read anew: from now on their newest states count

    def went_to(self, cursor: Mapping[str, Any]) -> None:
        if gap := cursor.get("gap"):
            self.gap_end = max(self.gap_end, lsn_of(gap["to"]), lsn_of(cursor.get("until", "0/0")))

    def order_of(self, cursor: Mapping[str, Any] | None) -> Any:
        if cursor is None:
            return (0,)
        place = (cursor["timeline"], lsn_of(cursor["value"]))
        if snapshot := cursor.get("snapshot"):
            return (*place, 0, int((snapshot["after"] or ["0"])[0]))
        commit, *inside = cursor.get("transaction") or ("0/0", 0, 0)
        return (*place, 1, lsn_of(commit), *inside)

    def passed_by(self, cursor: Mapping[str, Any] | None) -> Iterable[Written]:
        if cursor is None or "snapshot" in cursor:
            return []
        lsn, (commit, messages, _) = lsn_of(cursor["value"]), cursor.get("transaction") or ("0/0", 0, 0)
        passed: list[Written] = []
        for logged in self.log:
            if logged.timeline <= cursor["timeline"] and logged.end_lsn <= lsn:
                passed += logged.writes
            elif logged.commit_lsn == lsn_of(commit) and logged.timeline <= cursor["timeline"]:
                passed += logged.writes[:messages]
        known = [each for each in passed if any(each is one for one in self.committed.get(each.key, ()))]
        if self.every_change:
            return known
        # A row may change again before its page is read: then only what follows tells of it.
        return [each for each in known if each is self.committed[each.key][-1] and self._matters(each)]

    def told_of(self, history: list[Written]) -> list[Written]:
        return history if self.every_change else [each for each in history[-1:] if self._matters(each)]

    def _matters(self, written: Written) -> bool:
        """Tell whether a newest state has to be told: that a row is gone, only to who has been told of it.

        Where that lies in a gap, the rows that are there when they are read anew are all that is told.
        """
        if written.op != "delete":
            return True
        return bool(self.judge.lasting(written.key)) and self._ends[written.xid] > self.gap_end

    def in_order(self, rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return rows if not self.every_change else sorted(rows, key=lambda row: self._orders[row])

    def identity(self, after: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> tuple[int, int] | None:
        if "snapshot" in metadata and after is not None:
            return after["id"], after["version"]
        written = self._by_order.get((metadata["transaction"], metadata["order"]))
        if written is None:
            return None
        if after is not None and (after["id"], after["version"]) != (written.key, written.version):
            return None
        if after is not None and after.get("extra", _extra(written)) != _extra(written):
            return None
        return written.key, written.version

    def let_go_up_to(self, lsn: int) -> None:
        """Let the slot move; what lies before it cannot be read again."""
        slot, cursor = self.slot, self.judge.cursor
        if slot is None or lsn <= slot.confirmed:
            return
        if cursor is None or lsn > lsn_of(cursor["value"]):
            self.judge.complain("acknowledged", f"the slot moves to {lsn_text(lsn)}, past the checkpoint")
        slot.confirmed = min(lsn, self.lsn)


def _extra(written: Written) -> str:
    return f"x{written.version}"


def _values(written: Written, columns: Sequence[str]) -> list[bytes | None]:
    row = {"id": str(written.key), "version": str(written.version), "extra": _extra(written)}
    return [row[name].encode() for name in columns]


# The messages.


def _messages(logged: Logged) -> Iterable[bytes]:
    """Return a transaction as the server sends it."""
    micros = (logged.at - _EPOCH) // dt.timedelta(microseconds=1)
    yield struct.pack(">cQqI", b"B", logged.commit_lsn, micros, logged.xid)
    yield _relation(logged.columns)
    for written in logged.writes:
        yield _change(written, logged.columns)
    yield struct.pack(">cBQQq", b"C", 0, logged.commit_lsn, logged.end_lsn, micros)


def _relation(columns: Sequence[str]) -> bytes:
    told = [
        struct.pack(">B", name == "id") + name.encode() + b"\0" + struct.pack(">Ii", _TYPES[name], -1)
        for name in columns
    ]
    return struct.pack(">cI", b"R", _OID) + b"public\0orders\0d" + struct.pack(">H", len(columns)) + b"".join(told)


def _change(written: Written, columns: Sequence[str]) -> bytes:
    values = _values(written, columns)
    match written.op:
        case "delete":
            key = [value if name == "id" else None for name, value in zip(columns, values, strict=True)]
            return struct.pack(">cIc", b"D", _OID, b"K") + encoded_row(key)
        case op:
            return struct.pack(">cIc", op[:1].upper().encode(), _OID, b"N") + encoded_row(values)


class SimulatedFeed:
    """Streams from the slot, as a replication connection does."""

    is_let_go = True
    connection = None

    def __init__(self, server: PostgresServer, process: Process) -> None:
        server.statement(process, "start replication")
        slot = server.slot
        if slot is None or slot.is_lost:
            raise SlotRefusedError("the slot cannot be read", sqlstate="55000")
        if slot.is_read:
            raise SourceInUseError("the slot has another reader")
        slot.reader = self
        self.process = process
        self.is_ended = False
        self._server = server
        self._slot = slot
        self._from = slot.confirmed
        self._sent: set[int] = set()
        self._waiting: deque[bytes] = deque()
        self._is_asked = False

    def follow(self, target: int) -> None:
        """Do nothing: the server sends what there is."""

    def next(self, wait: float) -> bytes | int | None:
        self.process.step(0.001)
        if self._slot.reader is not self or self.process.chance.strikes("connection lost"):
            self.close()
            raise FetchError("the stream has ended", transient=True)
        if not self._waiting:
            self._waiting.extend(self._following())
        if self._waiting:
            return self._waiting.popleft()
        if self._is_asked:
            self._is_asked = False
            return self._server.lsn
        self.process.step(wait)
        return None

    def ask(self) -> None:
        self._is_asked = True

    def acknowledge(self, lsn: int) -> None:
        self.process.step(0.001)
        if self._slot.reader is self:
            self._server.let_go_up_to(lsn)

    def close(self) -> None:
        if not self.process.is_dead:
            self.is_ended = True
            if self._slot.reader is self:
                self._slot.reader = None

    def _following(self) -> Iterable[bytes]:
        for logged in self._server.log:
            if logged.commit_lsn >= self._from and logged.xid not in self._sent:
                self._sent.add(logged.xid)
                return _messages(logged)
        return ()


class SimulatedServer:
    """Answers the questions that a source asks its server."""

    def __init__(self, server: PostgresServer, process: Process) -> None:
        self.engine = server
        self._process = process

    def look(self) -> ServerState:
        server, process = self.engine, self._process
        server.statement(process, "look at the slot")
        slot = server.slot
        state = ServerState(
            None if slot is None else _shown(slot),
            server.lsn,
            server.timeline,
            "1",
            server.world.nature.wall(),
            150000,
            "logical",
            "shop",
            True,
            "everything",
            (),
        )
        process.step(process.chance.seconds(0.02))
        return state

    def tables(self) -> list[Table]:
        return [_TABLE]

    def running_xids(self) -> list[int]:
        self.engine.statement(self._process, "who is running")
        return list(self.engine.running)

    def creation(self, state: ServerState, tables: Sequence[Table]) -> list[str]:
        return ["create"] if state.slot is None else []

    def removal(self, state: ServerState) -> list[str]:
        return ["drop"]

    def execute(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.engine.statement(self._process, f"{statement} the slot")
            if statement == "drop":
                self.engine.slot = None
            elif self.engine.slot is None:
                self._create()

    def beat(self) -> None:
        self.engine.statement(self._process, "write a message into the log")
        self.engine.lsn += 64

    def _create(self) -> None:
        """Make the slot where every transaction that was running has ended: later ones can be decoded whole."""
        server = self.engine
        running = set(server.running)
        while running & set(server.running):
            self._process.step(0.2)
        if server.slot is None:
            server.slot = SlotState(server.lsn)


def _shown(slot: SlotState) -> Slot:
    return Slot(
        PLUGIN,
        "shop",
        slot.is_read,
        1 if slot.is_read else None,
        "lost" if slot.is_lost else "reserved",
        None,
        slot.confirmed,
        slot.confirmed,
        None,
        False,
    )


def _session() -> Session:
    import psycopg

    return Session(psycopg.adapters, None)


class SimulatedTableReader(TableReader):
    """Reads the table as it is at one moment."""

    def __init__(self, server: PostgresServer, process: Process, row_type: Any) -> None:
        server.statement(process, "begin to read the table")
        self._source = "orders"
        self._row_type = row_type
        self._process = process
        self._rows = dict(server.visible)
        self._columns = server.columns
        ended = [xid for xid in server.started if xid not in server.running]
        xmax = max(ended, default=0) + 1
        running = sorted(xid for xid in server.running if xid < xmax)
        self.joint = {
            "seen": f"{min(running, default=xmax)}:{xmax}:{','.join(map(str, running))}",
            "until": lsn_text(server.lsn),
        }

    def page(self, table: Table, after: Sequence[str] | None, limit: int, position: Mapping[str, Any]) -> KeyPage:
        self._process.step(self._process.chance.seconds(0.05))
        first = int(after[0]) if after else 0
        shape = Shape(self._columns, tuple(_TYPES[name] for name in self._columns))
        rows = [self._rows[key] for key in sorted(self._rows) if key > first and self._rows[key].op != "delete"]
        return self._page(table, shape, [_values(row, self._columns) for row in rows[:limit]], limit, dict(position))

    def close(self) -> None:
        """Do nothing: the transaction of the model holds nothing."""

    @cached_property
    def _raw(self) -> Any:
        import psycopg

        return SimpleNamespace(adapters=psycopg.adapters)


class SimulatedLog(PostgresLog):
    """The library's reading of a slot, with the model's feed and table reader."""

    def __init__(self, server: PostgresServer, process: Process, source: SimulatedPostgres) -> None:
        told: Any = SimulatedServer(server, process)
        super().__init__(told, source._config, source._definition, "orders", *source._known())
        self._model = server
        self._process = process

    def hold(self) -> None:
        self._refusal = None
        try:
            self._feed: Any = SimulatedFeed(self._model, self._process)
            self._is_fresh = True
        except SlotRefusedError as refusal:
            self._refusal = refusal

    def _session(self) -> Session:
        return _session()

    def _row_type(self, session: Session, table: Table, shape: Shape) -> RowType:
        return RowType(shape, _session(), {})

    def _reader(self) -> TableReader:
        if self._table_reader is None:
            self._table_reader = SimulatedTableReader(self._model, self._process, self._row_type)
        return self._table_reader


class SimulatedPostgres(PostgresLogicalSource):
    """The library's source over the modelled server."""

    def __init__(self, server: PostgresServer, process: Process, fingerprint: str) -> None:
        super().__init__(
            url="postgresql+psycopg://nowhere/shop",
            tables="orders",
            slot="orders",
            snapshot=server.plan.snapshot,  # type: ignore[arg-type]
            on_position_lost=server.plan.on_position_lost,  # type: ignore[arg-type]
            heartbeat_seconds=server.plan.ttl,
        )
        self.__dict__["source_descriptor"] = SourceDescriptor("orders", "postgres-logical", fingerprint)
        self._model = server
        self._process = process

    def _log(self) -> PostgresLog:
        return SimulatedLog(self._model, self._process, self)

    def _server(self) -> Any:
        return SimulatedServer(self._model, self._process)
