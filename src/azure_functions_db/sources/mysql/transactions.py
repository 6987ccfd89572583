"""Transactions out of events: changes in commit order, and where the log stands after each of them."""

from __future__ import annotations

import datetime as dt
import logging
import re
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from azure_functions_db.core.errors import FetchError, PositionLostError, SerializationError, SourceConfigurationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.mysql.decoding import COMPRESSED, ROWS, EventKind, Statement
from azure_functions_db.sources.mysql.position import BinlogPosition, MariaDbGtids, MySqlGtids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure_functions_db.core.types import Operation
    from azure_functions_db.sources.mysql.decoding import Table, TableMaps, Values
    from azure_functions_db.sources.mysql.log import Event, Replica

_logger = logging.getLogger("azure_functions_db")
_NO_TABLE = 0xFFFFFF
_FIRST_EVENT = 4
_COMPRESSED_TEXT = (
    "The log is compressed, or holds JSON columns in part only, and cannot be read: SET GLOBAL log_bin_compress = OFF "
    "(MariaDB), SET GLOBAL binlog_transaction_compression = OFF and SET GLOBAL binlog_row_value_options = '' (MySQL). "
    "What was written before cannot be read; reset the poller (azfdb reset --to-beginning)"
)
_LOSES_ROWS = re.compile(
    r"^(?:ALTER\s+TABLE\b.*\b(?:TRUNCATE|DROP|EXCHANGE)\s+PARTITION|RENAME\s+TABLE)\b", re.IGNORECASE | re.DOTALL
)
_STANDALONE, _PREPARED_XA = 1, 64
_ARTIFICIAL = frozenset(
    {
        EventKind.ROTATE,
        EventKind.FORMAT,
        EventKind.HEARTBEAT,
        EventKind.HEARTBEAT_V2,
        EventKind.PREVIOUS_GTIDS,
        EventKind.MARIADB_GTID_LIST,
        EventKind.START_ENCRYPTION,
    }
)
"""What a server may send before the first event that was asked for."""


@dataclass(slots=True)
class _Transaction:
    """The transaction that is being read."""

    file: str
    begin: Event
    gtid: str | None
    time: int
    is_standalone: bool = False
    """Whether one statement is all of it."""
    is_prepared: bool = False
    """Whether it is the first half of an XA transaction."""
    rows_events: int = 0
    """How many events with rows of watched tables have come so far."""

    @property
    def name(self) -> str:
        """What tells it from every other transaction, even after the server has begun to count anew."""
        return f"{self.gtid or f'{self.file}:{self.begin.start}'}@{self.time}"


class TransactionReader:
    """Reads the changes of some tables from the events of a log."""

    def __init__(
        self,
        replica: Replica,
        events: Iterator[Event],
        position: BinlogPosition,
        maps: TableMaps,
        *,
        is_mariadb: bool,
        is_wanted: Callable[[str, str], bool],
        is_mentioned: Callable[[str], bool],
        undecodable_as_text: bool = False,
    ) -> None:
        self._replica = replica
        self._events = events
        self._maps = maps
        self._is_mariadb = is_mariadb
        self._is_wanted = is_wanted
        self._is_mentioned = is_mentioned
        self._undecodable_as_text = undecodable_as_text
        self._tables: dict[int, Table | None] = {}
        self._started = position
        self._last: tuple[str, Event, int] | None = None
        """The end of the last whole transaction: its file, its event, and when it was committed."""
        self._handlers = self._all_handlers()
        self._resumed = position.done
        self._gtids = self._gtid_set(position.gtids)
        self._transaction: _Transaction | None = None
        self._pending: list[Change] = []
        self._taken = 0
        self._ending: Event | None = None
        """The end of a transaction whose changes are not all taken."""
        self.is_over = False
        """Whether the log has ended."""
        self.read_bytes = 0
        self.undecodable: dict[str, Exception] = {}
        """By the position of a change, why it cannot be handed out."""
        if position.crc is not None:
            self._find_again(position)

    @property
    def position(self) -> BinlogPosition:
        """Where the log stands after the changes that were taken."""
        transaction = self._transaction
        done = self._taken_of(transaction)
        if transaction is None or done is None:
            return self._settled
        begin = transaction.begin
        return replace(
            self._settled,
            file=transaction.file,
            offset=begin.start,
            end=begin.start,
            crc=begin.crc,
            done=done,
            time=transaction.time,
        )

    @property
    def _settled(self) -> BinlogPosition:
        """The position after the last whole transaction, or that from which reading began."""
        if self._last is None:
            return self._started
        file, event, time = self._last
        return BinlogPosition(
            file=file,
            offset=event.start,
            end=event.end,
            crc=event.crc,
            gtids=None if self._gtids is None else str(self._gtids),
            server=self._started.server,
            time=time,
        )

    def take(self, limit: int, is_time_up: Callable[[], bool]) -> list[Change]:
        """Return the next changes; fewer where the log ends, or between two transactions when time is up."""
        taken: list[Change] = []
        while not self.is_over:
            if self._taken < len(self._pending):
                if len(taken) >= limit:
                    break
                following = self._pending[self._taken : self._taken + limit - len(taken)]
                self._taken += len(following)
                taken += following
            elif self._ending is not None:
                self._end(self._ending)
            elif self._transaction is None and (len(taken) >= limit or is_time_up()):
                break
            else:
                self._read_one()
        return taken

    def _taken_of(self, transaction: _Transaction | None) -> tuple[int, int] | None:
        """Return how much of a transaction is done; None where nothing is."""
        if transaction is None or not transaction.rows_events:
            return None
        if self._resumed is not None:
            return self._resumed
        if self._taken < len(self._pending):
            return transaction.rows_events - 1, self._taken
        return transaction.rows_events, 0

    def _find_again(self, position: BinlogPosition) -> None:
        """Read the event at the position once more: it has to be the one that was read before."""
        event = next((event for event in self._events if event.kind not in _ARTIFICIAL), None)
        if event is None or (event.start, event.crc) != (position.offset, position.crc):
            raise PositionLostError(
                f"Another event than before stands at {position.file}:{position.offset}: the log was reset, or the "
                "server was restored or replaced by another one"
            )
        if position.done is not None:
            self._handle(event)

    def _read_one(self) -> None:
        event = next(self._events, None)
        if event is None:
            self.is_over = True
        else:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        self.read_bytes += len(event.body)
        handler = self._handlers.get(event.kind)
        if handler is not None:
            handler(event)

    def _all_handlers(self) -> dict[int, Callable[[Event], None]]:
        return {
            **dict.fromkeys(ROWS, self._read_rows),
            **dict.fromkeys(_BEGINNINGS, self._begin),
            **dict.fromkeys((EventKind.XID, EventKind.XA_PREPARE), self._end),
            **dict.fromkeys((EventKind.MARIADB_GTID_LIST, EventKind.PREVIOUS_GTIDS), self._learn_gtids),
            **dict.fromkeys((*COMPRESSED, EventKind.PARTIAL_UPDATE_ROWS), _refuse_compressed),
            EventKind.TABLE_MAP: self._read_table_map,
            EventKind.QUERY: self._read_statement,
        }

    def _read_table_map(self, event: Event) -> None:
        self._tables[int.from_bytes(event.body[:6], "little")] = self._maps.table(event.body)

    def _begin(self, event: Event) -> None:
        gtid, time, flags = _begun(event)
        self._transaction = _Transaction(
            self._replica.file, event, gtid, time, bool(flags & _STANDALONE), bool(flags & _PREPARED_XA)
        )

    def _end(self, event: Event) -> None:
        """Settle after the last event of a transaction."""
        transaction = self._transaction
        if transaction is None:
            return
        if self._gtids is not None and transaction.gtid is not None:
            self._gtids.add(transaction.gtid)
        self._last = (self._replica.file, event, transaction.time)
        self._transaction = self._resumed = self._ending = None
        self._pending, self._taken = [], 0

    def _read_rows(self, event: Event) -> None:
        number = int.from_bytes(event.body[:6], "little")
        if number == _NO_TABLE:
            return
        if number not in self._tables:
            raise FetchError(f"Rows come without their table map before {self._replica.file}:{event.end}")
        table = self._tables[number]
        if table is None:
            return
        transaction = self._open_transaction(event)
        if transaction.is_prepared:
            raise SourceConfigurationError(
                f"An XA transaction has changed {table.full_name}: the log has its rows before anybody knows whether "
                "it is committed. Let no XA transaction write to tables that are watched"
            )
        if not self._is_done(transaction):
            self._offer(self._changes(table, event, transaction))

    def _is_done(self, transaction: _Transaction) -> bool:
        """Count an event with changes; tell whether all of them were taken before."""
        transaction.rows_events += 1
        return self._resumed is not None and transaction.rows_events <= self._resumed[0]

    def _offer(self, changes: list[Change]) -> None:
        """Have the changes of an event taken, but for those that were before."""
        self._pending, self._taken = changes, 0 if self._resumed is None else self._resumed[1]
        self._resumed = None

    def _open_transaction(self, event: Event) -> _Transaction:
        if self._transaction is None:
            raise FetchError(f"Rows come without a transaction before {self._replica.file}:{event.end}")
        return self._transaction

    def _changes(self, table: Table, event: Event, transaction: _Transaction) -> list[Change]:
        rows = table.rows(event.kind, event.body)
        columns, prefix = table.columns, f"{transaction.name}:{transaction.rows_events}."
        metadata = self._metadata(table.full_name, transaction)
        places = [columns.index(name) for name in table.key]
        changes: list[Change] = []
        for before, after in rows:
            for op, old, new in _operations(before, after, places):
                values: Any = old if new is None else new
                position = f"{prefix}{len(changes)}"
                changes.append(
                    Change(
                        op,
                        position,
                        {columns[place]: values[place] for place in places},
                        None if new is None else dict(zip(columns, new, strict=True)),
                        None if old is None else dict(zip(columns, old, strict=True)),
                        None,
                        metadata,
                    )
                )
                if not self._undecodable_as_text and (bad := table.undecodable(values)):
                    self.undecodable[position] = SerializationError(
                        f"A value cannot be decoded: {', '.join(f'column {name!r}' for name in bad)}"
                    )
        return changes

    @staticmethod
    def _metadata(table: str, transaction: _Transaction) -> dict[str, Any]:
        return {
            "table": table,
            "transaction": transaction.gtid or transaction.name,
            "order": transaction.rows_events,
            "committed_at": dt.datetime.fromtimestamp(transaction.time, dt.UTC),
        }

    def _read_statement(self, event: Event) -> None:
        statement = Statement.of(event.body)
        word = statement.text[:12].upper()
        if word == "BEGIN":
            if self._transaction is None:  # a server that writes no GTIDs at all
                self._transaction = _Transaction(self._replica.file, event, None, event.timestamp)
            self._transaction.is_standalone = False
        elif word in {"COMMIT", "ROLLBACK"}:
            self._end(event)
        elif word.startswith("XA START"):
            if self._transaction is not None:
                self._transaction.is_prepared, self._transaction.is_standalone = True, False
        else:
            self._read_other_statement(event, statement)

    def _read_other_statement(self, event: Event, statement: Statement) -> None:
        """Read DDL, or what a transaction says beside its rows; it is one of its own unless it stands inside one."""
        transaction = self._transaction
        if transaction is None:
            transaction = self._transaction = _Transaction(self._replica.file, event, None, event.timestamp, True)
        emptied = statement.emptied_table
        if emptied is not None and self._is_wanted(*emptied):
            self._truncate(".".join(emptied), transaction, statement)
        elif statement.is_change and self._is_mentioned(statement.text):
            raise SourceConfigurationError(
                "A change was logged as a statement, by a session with binlog_format=STATEMENT: its rows are not in "
                f"the log ({self._replica.file}:{event.start}). SET GLOBAL binlog_format = 'ROW', let no session "
                "change it, and read the tables anew (azfdb reset --to-beginning)"
            )
        elif _LOSES_ROWS.search(statement.bare) and self._is_mentioned(statement.text):
            _logger.warning("rows_lost_by_ddl", extra={"event": "rows_lost_by_ddl", "statement": statement.bare[:200]})
        if transaction.is_standalone:
            self._ending = event

    def _truncate(self, table: str, transaction: _Transaction, statement: Statement) -> None:
        if self._is_done(transaction):
            return
        metadata = {**self._metadata(table, transaction), "statement": statement.bare.split(None, 1)[0].upper()}
        position = f"{transaction.name}:{transaction.rows_events}.0"
        self._offer([Change("truncate", position, {}, None, metadata=metadata)])

    def _learn_gtids(self, event: Event) -> None:
        """Find out at the beginning of the oldest file what lies before it."""
        if self._gtids is None and self._last is None and self._started.offset <= _FIRST_EVENT:
            self._gtids = (_mariadb_list if self._is_mariadb else _mysql_list)(event.body)

    def _gtid_set(self, text: str | None) -> MariaDbGtids | MySqlGtids | None:
        if text is None:
            return None
        return MariaDbGtids(text) if self._is_mariadb else MySqlGtids(text)


def _operations(
    before: Values | None, after: Values | None, key: list[int]
) -> tuple[tuple[Operation, Values | None, Values | None], ...]:
    """Return what a row tells: a change that moves the key is a delete and an insert."""
    if before is None:
        return (("insert", None, after),)
    if after is None:
        return (("delete", before, None),)
    for place in key:
        if before[place] != after[place]:
            return ("delete", before, None), ("insert", None, after)
    return (("update", before, after),)


_BEGINNINGS = frozenset({EventKind.MARIADB_GTID, EventKind.GTID, EventKind.ANONYMOUS_GTID, EventKind.TAGGED_GTID})
_MICROSECONDS = 10**6


def _refuse_compressed(_event: Event) -> None:
    raise SourceConfigurationError(_COMPRESSED_TEXT)


def _begun(event: Event) -> tuple[str | None, int, int]:
    """Return the GTID of a transaction that begins, when it was committed, and MariaDB's flags."""
    try:
        if event.kind == EventKind.MARIADB_GTID:
            number, domain, flags = struct.unpack_from("<QIB", event.body)
            return f"{domain}-{event.server_id}-{number}", event.timestamp, flags
        if event.kind == EventKind.TAGGED_GTID:
            return None, event.timestamp, _STANDALONE
        server, number = struct.unpack_from("<16sQ", event.body, 1)
    except struct.error as broken:
        raise FetchError("A GTID event cannot be decoded") from broken
    gtid = f"{UUID(bytes=server)}:{number}" if event.kind == EventKind.GTID else None
    committed = int.from_bytes(event.body[42:49], "little") & ~(1 << 55)
    # In MySQL a statement alone is a transaction, unless a BEGIN comes.
    return gtid, committed // _MICROSECONDS or event.timestamp, _STANDALONE


def _mariadb_list(body: bytes) -> MariaDbGtids:
    """Return the last transaction of each domain before a file; of several in a domain the last counts."""
    count = int.from_bytes(body[:4], "little") & 0x0FFFFFFF
    gtids, listed = MariaDbGtids(""), body[4 : 4 + 16 * count]
    if len(listed) != 16 * count:
        raise FetchError("A list of GTIDs cannot be decoded: it is cut short")
    for domain, server, number in struct.iter_unpack("<IIQ", listed):
        gtids.add(f"{domain}-{server}-{number}")
    return gtids


def _mysql_list(body: bytes) -> MySqlGtids | None:
    """Return the transactions before a file; None where they have tags."""
    gtids, at = MySqlGtids(""), 8
    try:
        for _ in range(int.from_bytes(body[:8], "little")):
            server, count = struct.unpack_from("<16sQ", body, at)
            at += 24
            for first, end in struct.iter_unpack("<QQ", body[at : at + 16 * count]):
                gtids.insert(str(UUID(bytes=server)), first, end - 1)
            at += 16 * count
    except (struct.error, ValueError, OverflowError):
        return None
    return gtids if at == len(body) else None
