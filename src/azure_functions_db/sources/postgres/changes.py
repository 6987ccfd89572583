"""Makes changes of the messages of a slot."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import ConfigurationError, FetchError, SerializationError, SourceConfigurationError
from azure_functions_db.core.types import Change, OpenChange
from azure_functions_db.sources.postgres.pgoutput import (
    UNCHANGED,
    begun,
    committed,
    decoded,
    inserted,
    lsn_of,
    lsn_text,
)
from azure_functions_db.sql.reflection import refreshed, table_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.types import Operation, RawRecord
    from azure_functions_db.sources.postgres.pgoutput import Delete, Message, Relation, Truncate, Update, Value
    from azure_functions_db.sources.postgres.replication import Feed, Received
    from azure_functions_db.sources.postgres.server import Server, Table
    from azure_functions_db.sources.stream import LogPosition

    Processor = Callable[[Any], Any]
    Rows = list[list[bytes | None]]

# After so much silence the server is asked how far it has come.
_SILENCE_SECONDS = 1.0
_ROWS = frozenset(b"IUDT")
_COMMIT = ord("C")
_INSERT = ord("I")
_BEGIN = ord("B")


class Place(NamedTuple):
    """A place in the log: behind a transaction, and perhaps behind some messages of the next one."""

    lsn: int
    commit_lsn: int = 0
    """The commit of the transaction that was left in the middle; 0 for none."""
    messages: int = 0
    """How many messages about rows were handed out of it."""
    parts: int = 0
    """How many changes of the message after those."""

    @classmethod
    def of(cls, position: LogPosition) -> Place:
        """Return the place that a position tells."""
        commit, messages, parts = position.get("transaction") or ("0/0", 0, 0)
        return cls(lsn_of(position["value"]), lsn_of(commit), messages, parts)

    def written(self) -> dict[str, Any]:
        """Return the place as a position tells it."""
        inside = [lsn_text(self.commit_lsn), self.messages, self.parts]
        return {"value": lsn_text(self.lsn), **({"transaction": inside} if self.commit_lsn else {})}


@dataclass(frozen=True)
class SeenTransactions:
    """The transactions that the rows of a snapshot show, and that the stream must not tell again."""

    xmax: int
    """All that began later do not show, nor do those that were running."""
    running: frozenset[int]
    until: int
    """All of them have committed before this place in the log."""

    @classmethod
    def of(cls, position: LogPosition) -> SeenTransactions | None:
        """Return those that a position tells of, None where there was no snapshot or it lies behind."""
        written = position.get("seen")
        if written is None:
            return None
        _, xmax, running = written.split(":")
        return cls(int(xmax), frozenset(map(int, filter(None, running.split(",")))), lsn_of(position["until"]))

    def show(self, transaction: Transaction) -> bool:
        """Tell whether the rows show a transaction."""
        return transaction.commit_lsn < self.until and self.had_ended(transaction.xid)

    def had_ended(self, xid: int) -> bool:
        """Tell whether a transaction had ended when the rows were read."""
        wide = self._widened(xid)
        return wide < self.xmax and wide not in self.running

    def _widened(self, xid: int) -> int:
        """Return an id of 32 bits with those before them: the nearest to the snapshot's own."""
        distance = (xid - self.xmax) & 0xFFFFFFFF
        return self.xmax + (distance if distance < 2**31 else distance - 2**32)


class Timelines(NamedTuple):
    """The history of a server: a promoted one may come to places in the log that an undone transaction had."""

    current: int = 1
    left: Mapping[int, int] = {}
    """Where each earlier timeline was left, oldest first."""

    def name_of(self, transaction: Transaction) -> str:
        """Return what no other transaction is called, and this one by every server that has it."""
        lsn = transaction.commit_lsn
        line = next((line for line, left in self.left.items() if lsn < left), self.current)
        return transaction.commit_text if line == 1 else f"{transaction.commit_text}@{line}"


UNPROMOTED = Timelines()


class TableRows(NamedTuple):
    """A table of the source in the form that it had when it was changed."""

    label: str
    rows: RowType
    key: tuple[str, ...]
    key_places: tuple[int, ...]


class Transaction:
    """The transaction that is being read; there may be one for every row, so making one has to be quick."""

    messages = 0
    skips_all = False
    skipped = 0
    """How many messages were handed out before."""
    parts_done = 0

    def __init__(self, commit_lsn: int, committed_at: dt.datetime, xid: int) -> None:
        self.commit_lsn = commit_lsn
        self.name = self.commit_text = lsn_text(commit_lsn)
        self.committed_at = committed_at
        self.xid = xid

    def metadata_of(self, table: TableRows) -> dict[str, Any]:
        """Return what the change of a row tells beside the row."""
        return {
            "table": table.label,
            "transaction": self.xid,
            "lsn": self.commit_text,
            "order": self.messages,
            "committed_at": self.committed_at,
        }


class ChangeStream:
    """Reads on from a place; knows at any time where it stands."""

    def __init__(
        self,
        feed: Feed,
        place: Place,
        target: int,
        tables: Callable[[Relation], TableRows | None],
        *,
        source: str,
        seen: SeenTransactions | None = None,
        timelines: Timelines = UNPROMOTED,
        patience_seconds: float = 20.0,
    ) -> None:
        self._feed = feed
        self._resumed = place
        self._target = target
        self._tables_of = tables
        self._source = source
        self._seen = seen
        self._timelines = timelines
        self._patience = patience_seconds
        self._lsn = place.lsn
        self._tables: dict[int, TableRows | None] = {}
        self._transaction: Transaction | None = None
        self._pending: list[Change] = []
        self._unread: Received = None
        self.failures: dict[str, Exception] = {}
        """What is wrong with changes, by their positions."""
        self.is_caught_up = False
        self.last_commit_at: dt.datetime | None = None

    @property
    def place(self) -> Place:
        """The place behind all that was handed out."""
        transaction = self._transaction
        if transaction is None or transaction.skips_all or transaction.messages <= transaction.skipped:
            # Nothing new of it was handed out, and what was before may not have come by yet.
            is_before = self._lsn <= self._resumed.commit_lsn
            return self._resumed._replace(lsn=self._lsn) if is_before else Place(self._lsn)
        whole = transaction.messages - bool(self._pending)
        parts = self._last_parts - len(self._pending) if self._pending else 0
        return Place(self._lsn, transaction.commit_lsn, whole, parts)

    def take(self, limit: int) -> list[Change]:
        """Return at most so many changes; fewer where nothing more is there."""
        taken, self._pending = self._pending[:limit], self._pending[limit:]
        if self._pending:
            return taken
        deadline = time.monotonic() + self._patience
        receive = self._receive
        while len(taken) < limit and not self.is_caught_up:
            received = self._next() if self._unread is not None else self._feed.next(_SILENCE_SECONDS)
            if isinstance(received, bytes):
                receive(received, taken)
            elif received is None and taken:
                break
            else:
                self._wait_on(received, deadline)
        taken, self._pending = taken[:limit], taken[limit:]
        self._look_for_commit()
        return taken

    _last_parts = 0
    _heard: int | None = None
    _has_asked = False

    def _next(self) -> Received:
        if self._unread is not None:
            unread, self._unread = self._unread, None
            return unread
        return self._feed.next(_SILENCE_SECONDS)

    def _wait_on(self, received: int | None, deadline: float) -> None:
        """Take note of how far the server has come, and have it told where it is silent."""
        if received is None:
            if time.monotonic() > deadline:
                raise FetchError(
                    f"Source {self._source!r}: for {self._patience:g} s the server has told nothing new. It may be "
                    "busy with a large transaction of other tables, passed at once: raise patience_seconds=",
                    source=self._source,
                )
            self._has_asked = True
            self._feed.ask()
        elif self._transaction is None:  # inside of one, the server has not come past its commit
            self._lsn = max(self._lsn, received)
            # The log may end with a part of a record, which is no place to arrive at.
            self.is_caught_up = received >= self._target or (self._has_asked and received == self._heard)
            self._heard = received

    def _look_for_commit(self) -> None:
        """Read the end of a transaction right behind its last change: it is then done with."""
        if self._transaction is None or self._pending:
            return
        received = self._next()
        if isinstance(received, bytes) and received.startswith(b"C"):
            self._receive(received, [])
        else:
            self._unread = received

    def _receive(self, data: bytes, taken: list[Change]) -> None:
        """Take a message; what a log is full of, small transactions of inserts, goes the shortest way."""
        kind = data[0] if data else 0
        if kind == _INSERT:
            if not self._is_skipped():
                oid, values = inserted(data)
                if (table := self._table(oid)) is not None:
                    taken.append(self._written("insert", table, values))
        elif kind == _COMMIT:
            self._committed(*committed(data))
        elif kind == _BEGIN:
            self._begun(Transaction(*begun(data)))
        elif kind not in _ROWS or not self._is_skipped():
            message = decoded(data)
            self._HANDLERS[kind](self, message, taken)

    def _is_skipped(self) -> bool:
        """Count a message about rows; tell whether it was handed out before, or shown by a snapshot."""
        transaction = self._transaction
        if transaction is None:
            raise FetchError(f"Source {self._source!r}: a row came outside of a transaction")
        transaction.messages += 1
        return transaction.skips_all or transaction.messages <= transaction.skipped

    def _begun(self, transaction: Transaction) -> None:
        self._transaction = transaction
        resumed = self._resumed
        if transaction.commit_lsn < self._lsn or (self._seen is not None and self._seen.show(transaction)):
            transaction.skips_all = True
            return
        self.last_commit_at = transaction.committed_at
        if self._timelines.current > 1:
            transaction.name = self._timelines.name_of(transaction)
        if transaction.commit_lsn == resumed.commit_lsn:
            transaction.skipped, transaction.parts_done = resumed.messages, resumed.parts

    def _committed(self, _lsn: int, end_lsn: int) -> None:
        self._transaction = None
        self._lsn = max(self._lsn, end_lsn)

    def _related(self, relation: Relation, _taken: list[Change]) -> None:
        self._tables[relation.oid] = self._tables_of(relation)

    def _updated(self, message: Update, taken: list[Change]) -> None:
        table = self._table(message.oid)
        if table is None:
            return
        if message.old is not None:
            self._add(taken, self._update(table, message, message.old))
            return
        if UNCHANGED in message.new:
            read = table.rows.read(message.new)
            self._add(taken, [self._change("update", table, _key_of(table, read.values), read, None)])
        else:
            taken.append(self._written("update", table, message.new))

    def _written(self, op: Operation, table: TableRows, values: Sequence[Value]) -> Change:
        """Return the change of a row that has nothing before it; a quick way for rows with nothing odd about them."""
        row = table.rows.plain(values)
        if row is None:
            read = table.rows.read(values)
            return self._change(op, table, _key_of(table, read.values), read, None)
        transaction: Any = self._transaction
        change: Any = OpenChange()
        change.op = op
        change.position = f"{transaction.name}:{transaction.messages}"
        change.key = _key_of(table, row)
        change.after = row
        change.before = None
        change.cursor = transaction.committed_at
        change.metadata = transaction.metadata_of(table)
        change.__class__ = Change
        return change  # type: ignore[no-any-return]  # it is one by now

    def _update(self, table: TableRows, message: Update, before: Sequence[Value]) -> list[Change]:
        """Return an update with a row before, or the two halves of one that has moved the key."""
        new = table.rows.read(_completed(message))
        old = table.rows.read(before)
        if message.old_kind == "K":
            old = old._replace(values=_key_of(table, old.values))
        elif _key_values(table, before) == _key_values(table, _completed(message)):
            return [self._change("update", table, _key_of(table, new.values), new, old)]
        gone = self._change("delete", table, _key_of(table, old.values), None, old)
        return [gone, self._change("insert", table, _key_of(table, new.values), new, None, part=1)]

    def _deleted(self, message: Delete, taken: list[Change]) -> None:
        table = self._table(message.oid)
        if table is not None:
            old = table.rows.read(message.old)
            if message.old_kind == "K":
                old = old._replace(values=_key_of(table, old.values))
            self._add(taken, [self._change("delete", table, _key_of(table, old.values), None, old)])

    def _truncated(self, message: Truncate, taken: list[Change]) -> None:
        tables = [table for table in map(self._table, message.oids) if table is not None]
        self._add(
            taken, [self._change("truncate", table, {}, None, None, part=part) for part, table in enumerate(tables)]
        )

    def _ignored(self, message: Message, taken: list[Change]) -> None:
        """Do nothing: origins, types and logical messages tell nothing about rows."""

    def _add(self, taken: list[Change], changes: list[Change]) -> None:
        transaction: Any = self._transaction
        self._last_parts = len(changes)
        if transaction.messages == transaction.skipped + 1:
            changes = changes[transaction.parts_done :]
        taken += changes

    def _table(self, oid: int) -> TableRows | None:
        try:
            return self._tables[oid]
        except KeyError:
            raise FetchError(f"Source {self._source!r}: a row came before its table was told") from None

    def _change(
        self,
        op: Operation,
        table: TableRows,
        key: dict[str, Any],
        new: ReadRow | None,
        old: ReadRow | None,
        part: int = 0,
    ) -> Change:
        transaction: Any = self._transaction
        order = transaction.messages
        place = f"{transaction.name}:{order}.{part}" if part else f"{transaction.name}:{order}"
        metadata: dict[str, Any] = transaction.metadata_of(table)
        after = before = None
        if new is not None:
            after, unchanged, failures = new
            if unchanged:
                metadata["unchanged"] = list(unchanged)
            if failures:
                self.failures[place] = failure_of(failures, self._source)
        if old is not None:
            before = old.values
            if old.failures:
                self.failures[place] = failure_of(old.failures, self._source)
        return Change(op, place, key, after, before, transaction.committed_at, metadata)

    _HANDLERS: dict[int, Callable[[ChangeStream, Any, list[Change]], None]] = {  # noqa: RUF012 - read only
        ord("R"): _related,
        ord("U"): _updated,
        ord("D"): _deleted,
        ord("T"): _truncated,
        ord("O"): _ignored,
        ord("Y"): _ignored,
        ord("M"): _ignored,
    }


def _key_of(table: TableRows, row: RawRecord) -> dict[str, Any]:
    key = table.key
    return {key[0]: row[key[0]]} if len(key) == 1 else {name: row[name] for name in key}


def _key_values(table: TableRows, values: Sequence[Value]) -> list[Value]:
    return [values[place] for place in table.key_places]


def _completed(update: Update) -> list[Value]:
    """Return the new row with what did not change taken from the full row before, where there is one."""
    if update.old_kind != "O" or update.old is None or UNCHANGED not in update.new:
        return update.new
    return [old if new is UNCHANGED else new for new, old in zip(update.new, update.old, strict=True)]


WRITTEN_FORMS = {"datestyle": "ISO", "intervalstyle": "postgres", "bytea_output": "hex", "extra_float_digits": "3"}
"""The settings under which values are written as psycopg reads them, whatever the database's own are."""

# Numbers below belong to PostgreSQL itself: none of them is a domain.
_FIRST_OF_USERS = 16384


_NONE: Mapping[str, Exception] = {}


class Shape(NamedTuple):
    """The columns of a row: each with the type of its values, domains looked through."""

    names: tuple[str, ...]
    type_oids: tuple[int, ...]


class ReadRow(NamedTuple):
    """A row with Python's values, and what could not be read as such."""

    values: RawRecord
    unchanged: tuple[str, ...]
    """The columns that the log does not have, because the update did not touch them."""
    failures: Mapping[str, Exception]
    """The columns that are texts in it, and why."""


class Session(NamedTuple):
    """What psycopg has to know to read values: its adapters, and the connection on which they were written."""

    adapters: Any
    connection: Any


class RowType:
    """Reads the rows of one shape."""

    def __init__(self, shape: Shape, session: Session, processors: Mapping[str, Processor]) -> None:
        from psycopg.adapt import Transformer
        from psycopg.pq import Format

        self.names = shape.names
        self._loaders = Transformer(session)
        self._loaders.set_loader_types(shape.type_oids, Format.TEXT)
        self._load: Callable[[Sequence[Any]], Sequence[Any]] = self._loaders.load_sequence
        self._single = [self._loaders.get_loader(oid, Format.TEXT).load for oid in shape.type_oids]
        self._processed = list(processors.items())
        self._processors = processors
        self._unreadable = _unreadable()
        self._record = record_builder(shape.names)

    def plain(self, values: Sequence[Value]) -> RawRecord | None:
        """Return a row all of whose values are there, if they can be read, as most can; None where they cannot."""
        try:
            row: RawRecord = self._record(*self._load(values))
            for name, process in self._processed:
                row[name] = process(row[name])
        except self._unreadable:
            return None
        return row

    def read(self, values: Sequence[Value]) -> ReadRow:
        """Return a row; what Python has no value for stays a text, and is told."""
        if UNCHANGED in values:
            return self._read_changed(values)
        row = self.plain(values)
        return self._read_singly(values) if row is None else ReadRow(row, (), _NONE)

    def _read_changed(self, values: Sequence[Value]) -> ReadRow:
        unchanged = tuple(name for name, value in zip(self.names, values, strict=True) if value is UNCHANGED)
        row, _, failures = self.read([None if value is UNCHANGED else value for value in values])
        return ReadRow({name: row[name] for name in self.names if name not in unchanged}, unchanged, failures)

    def _read_singly(self, values: Sequence[Any]) -> ReadRow:
        row: RawRecord = {}
        failures: dict[str, Exception] = {}
        for name, load, value in zip(self.names, self._single, values, strict=True):
            try:
                row[name] = self._processed_value(name, None if value is None else load(value))
            except self._unreadable as error:
                row[name] = value.decode(errors="backslashreplace")
                failures[name] = error
        return ReadRow(row, (), failures)

    def _processed_value(self, name: str, value: Any) -> Any:
        return self._processors[name](value) if name in self._processors else value


def record_builder(names: Sequence[str]) -> Callable[..., RawRecord]:
    """Return a function that makes a record of its arguments, in half the time of ``dict(zip(names, values))``."""
    places = [f"v{place}" for place in range(len(names))]
    items = ", ".join(f"{name!r}: {place}" for name, place in zip(names, places, strict=True))
    # Column names enter the code as string literals only.
    return eval(f"lambda {', '.join(places)}: {{{items}}}")  # type: ignore[no-any-return]  # noqa: S307


def failure_of(failures: Mapping[str, Exception], source: str) -> SerializationError:
    """Say what is wrong with a row; its values do not belong into messages."""
    columns = ", ".join(f"column {name!r} ({type(error).__name__})" for name, error in failures.items())
    return SerializationError(f"A value cannot be decoded: {columns}", source=source)


def processors_of(engine: Engine, schema: str, table: str, shape: Shape) -> dict[str, Processor]:
    """Return what SQLAlchemy does to the driver's values of these columns, where it does something.

    Of a column that the table no longer has in this form nothing is known but its type.
    """
    from sqlalchemy import Enum

    try:
        current = refreshed(engine, table_of(engine, table, schema))
    except ConfigurationError:
        return {}
    present = _present_types(engine, schema, table)
    found: dict[str, Processor] = {}
    for name, oid in zip(*shape, strict=True):
        # A label of an enum is a text, and may be one that has been renamed since.
        is_as_then = name in current.columns and present.get(name) == oid
        if is_as_then and not isinstance(current.columns[name].type, Enum):
            kind = current.columns[name].type.dialect_impl(engine.dialect)
            if (process := kind.result_processor(engine.dialect, oid)) is not None:
                found[name] = process
    return found


def base_types(engine: Engine, oids: Iterable[int]) -> dict[int, int]:
    """Return the type that each type's values have: its own, or that behind a domain."""
    from sqlalchemy import bindparam, text

    found = {oid: oid for oid in oids}
    unknown = [oid for oid in found if oid >= _FIRST_OF_USERS]
    query = text("SELECT oid, typbasetype FROM pg_type WHERE oid IN :oids AND typtype = 'd'")
    query = query.bindparams(bindparam("oids", expanding=True))
    while unknown:
        with engine.connect() as connection:
            rows = connection.execute(query, {"oids": unknown}).all()
        bases = {row.oid: row.typbasetype for row in rows}
        found = {oid: bases.get(base, base) for oid, base in found.items()}
        unknown = [base for base in bases.values() if base >= _FIRST_OF_USERS]
    return found


def _present_types(engine: Engine, schema: str, table: str) -> dict[str, int]:
    from sqlalchemy import text

    query = text(
        "SELECT a.attname, a.atttypid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = :schema AND c.relname = :table AND a.attnum > 0 AND NOT a.attisdropped"
    )
    with engine.connect() as connection:
        declared = {row.attname: row.atttypid for row in connection.execute(query, {"schema": schema, "table": table})}
    bases = base_types(engine, declared.values())
    return {name: bases[oid] for name, oid in declared.items()}


def _unreadable() -> tuple[type[Exception], ...]:
    from psycopg import Error

    return (Error, ValueError, ArithmeticError, RecursionError, NotImplementedError)


def set_forms() -> str:
    """Return the expressions that set those forms for a transaction."""
    return ", ".join(f"set_config('{name}', '{value}', true)" for name, value in WRITTEN_FORMS.items())


class KeyPage(NamedTuple):
    """Rows of a table, and the key to go on after."""

    changes: list[Change]
    after: list[str] | None
    undecodable: dict[int, Exception]


class TableReader:
    """Reads tables as they are at one moment: all that one tick reads belongs together."""

    def __init__(self, server: Server, source: str, row_type: Callable[[Session, Table, Shape], RowType]) -> None:
        self._server = server
        self._source = source
        self._row_type = row_type
        self._connection: Connection = server.engine.connect().execution_options(isolation_level="REPEATABLE READ")
        query = f"SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, {set_forms()}"
        [row] = self._connection.exec_driver_sql(query).all()
        self.joint: LogPosition = {"seen": row[0], "until": row[1]}
        """What joins a stream to the rows that this tick sees: whose changes they show, and up to where."""

    def page(self, table: Table, after: Sequence[str] | None, limit: int, position: LogPosition) -> KeyPage:
        """Return the rows after a key; the start of the stream is a part of their positions."""
        columns = table.columns
        listed = "*" if columns is None else ", ".join(map(self._server.quoted, columns))
        names = [self._server.quoted(name) for name in table.key_columns]
        conditions = [] if table.row_filter is None else [f"({table.row_filter})"]
        if after is not None:
            # The values come as texts: the server reads them as values of the key's types.
            given = ", ".join(f"CAST(%s AS {kind})" for _, kind in table.key)
            conditions.append(f"({', '.join(names)}) > ({given})")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        shape, rows = self._read(
            f"SELECT {listed} FROM {self._server.quoted(*table.name)} {where} "
            f"ORDER BY {', '.join(names)} LIMIT {limit}",
            after or (),
            escape=table.row_filter,
        )
        return self._page(table, shape, rows, limit, position)

    def close(self) -> None:
        """End the transaction."""
        self._connection.close()

    @property
    def _raw(self) -> Any:
        return self._connection.connection.driver_connection

    def _read(self, query: str, parameters: Sequence[Any], escape: str | None = None) -> tuple[Shape, Rows]:
        """Return the rows as they came over the wire."""
        from azure_functions_db.sql.transactions import driver_errors

        if escape is not None and parameters:
            query = query.replace(f"({escape})", f"({escape.replace('%', '%%')})")
        with driver_errors(self._connection):
            cursor = self._raw.cursor()
            try:
                cursor.execute(query, tuple(parameters) or None)
                result = cursor.pgresult
            finally:
                cursor.close()
        places = range(result.nfields)
        shape = Shape(
            tuple(result.fname(place).decode() for place in places), tuple(result.ftype(place) for place in places)
        )
        return shape, [[result.get_value(row, place) for place in places] for row in range(result.ntuples)]

    def _page(self, table: Table, shape: Shape, rows: Rows, limit: int, position: LogPosition) -> KeyPage:
        missing = [name for name in table.key_columns if name not in shape.names]
        if missing:
            raise SourceConfigurationError(
                f"{table.name} is published without {', '.join(missing)} of its key", source=self._source
            )
        row_type = self._row_type(Session(self._raw.adapters, self._raw), table, shape)
        places = [shape.names.index(name) for name in table.key_columns]
        changes: list[Change] = []
        undecodable: dict[int, Exception] = {}
        metadata = {"table": str(table.name), "snapshot": True}
        after: list[str] = []
        for row in rows:
            read = row_type.read(row)
            after = [(row[place] or b"").decode() for place in places]
            if read.failures:
                undecodable[len(changes)] = failure_of(read.failures, self._source)
            key = {name: read.values[name] for name in table.key_columns}
            name = f"snapshot:{position['value']}:{table.name}:{json.dumps(after, separators=(',', ':'))}"
            changes.append(Change("upsert", name, key, read.values, metadata=metadata))
        return KeyPage(changes, after if len(rows) == limit else None, undecodable)
