"""The tables that the library keeps for itself in a user's database: state, quarantine, ledgers."""

from __future__ import annotations

import threading
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine, Table
    from sqlalchemy.schema import SchemaItem
    from sqlalchemy.sql.ddl import ExecutableDDLElement


class OwnTable:
    """One such table: how it is defined, the DDL that makes it, and making it where it is missing."""

    def __init__(
        self, engine: Callable[[], Engine], name: str, schema: str | None, items: Callable[[str], Sequence[SchemaItem]]
    ) -> None:
        """Take the columns as what gives them for a dialect, by its name."""
        self._engine = engine
        self.name = name
        self._schema = schema
        self._items = items
        self._lock = threading.Lock()
        self._is_there = False

    @property
    def engine(self) -> Engine:
        """The engine of the table's database; made when it is first wanted."""
        return self._engine()

    @cached_property
    def table(self) -> Table:
        """The table's definition."""
        from sqlalchemy import MetaData, Table

        return Table(self.name, MetaData(), *self._items(self.engine.dialect.name), schema=self._schema)

    def ddl(self) -> str:
        """Return the statements that make the table in this database's dialect."""
        from sqlalchemy.schema import CreateIndex, CreateTable

        parts: list[ExecutableDDLElement] = [CreateTable(self.table), *map(CreateIndex, self.table.indexes)]
        return "\n".join(f"{str(part.compile(dialect=self.engine.dialect)).strip()};" for part in parts)

    def exists(self) -> bool:
        """Ask the database whether the table is there."""
        from sqlalchemy import inspect

        return bool(inspect(self.engine).has_table(self.name, schema=self._schema))

    def create_if_missing(self) -> None:
        """Make the table unless it is there; that another process makes it in the same moment is no error."""
        from sqlalchemy.exc import DBAPIError

        try:
            self.table.create(self.engine, checkfirst=True)
        except DBAPIError:
            if not self.exists():
                raise

    def ensure(self) -> None:
        """Make the table unless it is there, and ask only once."""
        with self._lock:
            if not self._is_there:
                self.create_if_missing()
                self._is_there = True


def own_types(dialect: str) -> Any:
    """Return SQLAlchemy's module of a dialect; others are not loaded, as each takes longer than to connect."""
    return import_module(f"sqlalchemy.dialects.{'mysql' if dialect == 'mariadb' else dialect}")


def exact_text(length: int, dialect: str, *, charset: str = "utf8mb4") -> Any:
    """Return the type of a name or id; MySQL and SQL Server would take ``a`` and ``A`` for the same."""
    from sqlalchemy import NVARCHAR, String

    match dialect:
        case "mysql" | "mariadb":
            return own_types(dialect).VARCHAR(length, charset=charset, collation=f"{charset}_bin")
        case "mssql":
            return NVARCHAR(length, collation="Latin1_General_100_BIN2")
        case _:
            return String(length)


def long_text(dialect: str) -> Any:
    """Return the type of a text of any length and any language; MySQL keeps little in a TEXT."""
    from sqlalchemy import NVARCHAR, Text

    match dialect:
        case "mysql" | "mariadb":
            return own_types(dialect).LONGTEXT()
        case "mssql":
            return NVARCHAR(None)
        case _:
            return Text()
