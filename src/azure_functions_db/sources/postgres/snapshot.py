"""Reads tables in the order of their keys, page by page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.postgres.rows import RowType, Session, Shape, failure_of, set_forms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from azure_functions_db.sources.postgres.server import Server, Table
    from azure_functions_db.sources.stream import LogPosition

    Rows = list[list[bytes | None]]


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
        self._connection.exec_driver_sql(f"SELECT {set_forms()}")

    def joint(self) -> LogPosition:
        """Return what joins a stream to the rows that this tick sees: whose changes they show, and up to where."""
        [row] = self._connection.exec_driver_sql(
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
        ).all()
        return {"seen": row[0], "until": row[1]}

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
