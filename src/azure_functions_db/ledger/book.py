"""A table that rows are only ever added to, and pruned from."""

from __future__ import annotations

import datetime as dt
import threading
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import WriteConnectionError, WriteError
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.sql.engine import default_provider
from azure_functions_db.sql.failures import code_of, is_connection_failure
from azure_functions_db.sql.transactions import begun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, Connection, Engine, Executable, Table
    from sqlalchemy.sql.ddl import ExecutableDDLElement

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.sql.engine import EngineProvider

NOTED_AT = "noted_at"
# Oracle allows 1000 values in a list, SQL Server 2100 parameters.
_LIST = 500


def utc_now() -> dt.datetime:
    """Return the time by the machine's clock."""
    return dt.datetime.now(dt.UTC)


class Book:
    """One ledger's table; made when it is first needed and missing."""

    def __init__(
        self,
        columns: Callable[[], list[Column[Any]]],
        *,
        url: str | None,
        db_config: DbConfig | None,
        table: str,
        schema: str | None,
        engine_provider: EngineProvider | None,
        clock: Callable[[], dt.datetime],
    ) -> None:
        self._columns = columns
        self._config = config_of(url, db_config)
        self._name = table
        self._schema = schema
        self._provider = engine_provider
        self._clock = clock
        self._lock = threading.Lock()
        self._is_there = False

    @property
    def engine(self) -> Engine:
        """The engine of the table's database."""
        return (self._provider or default_provider()).get_engine(self._config)

    @cached_property
    def table(self) -> Table:
        """The table's definition."""
        from sqlalchemy import Column, Index, MetaData, String, Table

        columns = [*self._columns(), Column(NOTED_AT, String(32), nullable=False)]
        table = Table(self._name, MetaData(), *columns, schema=self._schema)
        Index(f"ix_{self._name}_{NOTED_AT}", table.c[NOTED_AT])
        return table

    def ddl(self) -> str:
        """Return the statements that make the table, for a database in which the app may not."""
        from sqlalchemy.schema import CreateIndex, CreateTable

        parts: list[ExecutableDDLElement] = [
            CreateTable(self.table),
            *(CreateIndex(index) for index in self.table.indexes),
        ]
        return "\n".join(f"{str(part.compile(dialect=self.engine.dialect)).strip()};" for part in parts)

    def add(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows; one whose key is there already is left as it is."""
        noted = datetime_text(self._clock())
        connection.execute(_insert_new(self.table, connection.dialect.name), [{**row, NOTED_AT: noted} for row in rows])

    def found(self, connection: Connection, column: str, values: Sequence[str], **same: str) -> set[str]:
        """Return those of the values that rows with these other values hold in a column."""
        from sqlalchemy import select

        wanted = self.table.c[column]
        conditions = [self.table.c[name] == value for name, value in same.items()]
        seen: set[str] = set()
        for start in range(0, len(values), _LIST):
            part = wanted.in_(values[start : start + _LIST])
            seen.update(connection.scalars(select(wanted).where(part, *conditions)))
        return seen

    def prune(self, older_than: dt.timedelta) -> int:
        """Delete the rows that were noted longer ago than this; return how many."""
        from sqlalchemy import delete

        limit = datetime_text(self._clock() - older_than)
        with self.failures(), begun(self.engine) as connection:
            self.make_table()
            return int(connection.execute(delete(self.table).where(self.table.c[NOTED_AT] < limit)).rowcount)

    def make_table(self) -> None:
        """Make the table where it is missing."""
        from sqlalchemy import inspect
        from sqlalchemy.exc import DBAPIError

        with self._lock:
            if self._is_there:
                return
            try:
                self.table.create(self.engine, checkfirst=True)
            except DBAPIError:
                # Another instance may have been faster by a moment.
                if not inspect(self.engine).has_table(self._name, schema=self._schema):
                    raise
            self._is_there = True

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Raise the library's errors for the driver's."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            kind = WriteConnectionError if is_connection_failure(error) else WriteError
            raise kind(f"The ledger {self._name} failed: {code_of(error)}", table=self._name) from error


def _insert_new(table: Table, dialect: str) -> Executable:
    """Return an insert that passes over rows whose key is there already."""
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    match dialect:
        case "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        case "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing()
        case "mysql" | "mariadb":
            # IGNORE would also cut a text that is too long, and the event it stands for would never be found again.
            as_it_is = {NOTED_AT: table.c[NOTED_AT]}
            return mysql.insert(table).on_duplicate_key_update(as_it_is)
        case _:
            raise WriteError(f"A ledger cannot be kept in a {dialect} database")
