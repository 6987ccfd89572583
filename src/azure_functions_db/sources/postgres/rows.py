"""The rows of the log and of the tables, with the values that SQLAlchemy gives for the same columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import ConfigurationError, SerializationError, SourceConfigurationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.postgres.pgoutput import UNCHANGED
from azure_functions_db.sql.reflection import refreshed, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Engine

    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.sources.postgres.pgoutput import Value

    Processor = Callable[[Any], Any]
    from collections.abc import Callable

    from sqlalchemy import Connection

    from azure_functions_db.sources.postgres.server import Server, Table
    from azure_functions_db.sources.stream import LogPosition

    Rows = list[list[bytes | None]]


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
        from azure_functions_db.sql.autocommit import driver_errors

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
