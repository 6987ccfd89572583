"""A table that rows are only ever added to, and pruned from."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import WriteConnectionError, WriteError
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.sql.failures import code_of, is_connection_failure
from azure_functions_db.sql.own_tables import OwnTable
from azure_functions_db.sql.transactions import begun

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, Connection, Engine, Executable, Table
    from sqlalchemy.schema import SchemaItem

NOTED_AT = "noted_at"
# Oracle allows 1000 values in a list, SQL Server 2100 parameters.
_LIST = 500


class LedgerTable(OwnTable):
    """One ledger's table: its own columns, and when each row was noted."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        name: str,
        schema: str | None,
        columns: Callable[[], list[Column[Any]]],
        clock: Callable[[], dt.datetime],
    ) -> None:
        def items() -> list[SchemaItem]:
            from sqlalchemy import Column, Index, String

            noted_at = Column(NOTED_AT, String(32), nullable=False)
            return [*columns(), noted_at, Index(f"ix_{name}_{NOTED_AT}", noted_at)]

        super().__init__(engine, name, schema, items)
        self._clock = clock

    def add(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows; one whose key is there already is left as it is."""
        noted = datetime_text(self._clock())
        connection.execute(_insert_new(self.table, connection.dialect.name), [{**row, NOTED_AT: noted} for row in rows])

    def matching(self, connection: Connection, column: str, values: Sequence[str], **same: str) -> set[str]:
        """Return those of the values that rows with these other values hold in a column."""
        from sqlalchemy import select

        searched = self.table.c[column]
        conditions = [self.table.c[name] == value for name, value in same.items()]
        seen: set[str] = set()
        for start in range(0, len(values), _LIST):
            part = searched.in_(values[start : start + _LIST])
            seen.update(connection.scalars(select(searched).where(part, *conditions)))
        return seen

    def prune(self, older_than: dt.timedelta) -> int:
        """Delete the rows that were noted longer ago than this; return how many."""
        from sqlalchemy import delete

        limit = datetime_text(self._clock() - older_than)
        with self.failures(), begun(self.engine) as connection:
            self.ensure()
            pruned = connection.execute(delete(self.table).where(self.table.c[NOTED_AT] < limit)).rowcount
            return max(0, int(pruned))  # mssql-python says -1 for none

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Raise the library's errors for the driver's."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            kind = WriteConnectionError if is_connection_failure(error) else WriteError
            raise kind(f"The ledger {self.name} failed: {code_of(error)}", table=self.name) from error


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
        case "mssql":
            return _insert_unless_there(table)
        case _:
            raise WriteError(f"A ledger cannot be kept in a {dialect} database")


def _insert_unless_there(table: Table) -> Executable:
    """Return the insert of SQL Server: the row is looked for under a lock that keeps others from adding it."""
    from sqlalchemy import bindparam, exists, insert, select

    given = {column.name: bindparam(column.name, type_=column.type) for column in table.columns}
    same = [column == given[column.name] for column in table.primary_key.columns]
    there = select(table).with_hint(table, "WITH (UPDLOCK, HOLDLOCK)", "mssql").where(*same)
    return insert(table).from_select(list(given), select(*given.values()).where(~exists(there)))
