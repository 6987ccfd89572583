"""Statements as a driver takes them: their text in each dialect, and what each value goes through."""

from __future__ import annotations

import threading
import weakref
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from azure_functions_db.binding.conversion import binder, plain_binder, unique_keys
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Dialect, Engine, Table

    from azure_functions_db.binding.conversion import Converter, Names


@dataclass(frozen=True, slots=True)
class Statement:
    """A text in the driver's own form, with a converter for each of its values."""

    sql: str
    converters: tuple[Converter | None, ...]
    names: tuple[str, ...] | None = None
    """The names of the values, where the driver binds by name."""

    def bound(self, values: Sequence[Any]) -> Any:
        """Return the values as the driver takes them."""
        ready = tuple(
            value if convert is None or value is None else convert(value)
            for convert, value in zip(self.converters, values, strict=True)
        )
        return self.arranged(ready)

    def arranged(self, ready: Sequence[Any]) -> Any:
        """Return converted values by position or by name, whichever the driver wants."""
        return ready if self.names is None else dict(zip(self.names, ready, strict=True))


class unfit_values:  # noqa: N801 - used as a statement
    """Turns the refusal of a Python value, by a driver or a converter, into an error of the statement."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TypeError | ValueError | OverflowError | AttributeError):
            from sqlalchemy.exc import StatementError

            raise StatementError("a value does not fit", None, None, error, hide_parameters=True) from error


class Words:
    """Writes pieces of SQL in one dialect: quoted names and placeholders."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._preparer = dialect.identifier_preparer

    def name(self, name: str) -> str:
        """Return the quoted name."""
        return self._preparer.quote(name)

    def names(self, names: Sequence[str]) -> str:
        """Return the quoted names as a list."""
        return ", ".join(self.name(name) for name in names)

    def table(self, table: Table) -> str:
        """Return the quoted name of the table with its schema."""
        return self._preparer.format_table(table)

    def placeholder(self, index: int) -> str:
        """Return what stands for the value of this index."""
        # Of its two styles, this driver takes values by their place in the one that it does not name.
        match "qmark" if self.dialect.driver == "mssqlpython" else self.dialect.paramstyle:
            case "qmark":
                return "?"
            case "format" | "pyformat":
                return "%s"
            case "numeric":
                return f":{index + 1}"
            case "numeric_dollar":
                return f"${index + 1}"
            case "named":
                return f":p{index}"
            case other:
                raise ConfigurationError(f"Bindings do not know the parameter style {other!r}")

    def placeholders(self, count: int, start: int = 0) -> str:
        """Return a list of placeholders."""
        return ", ".join(self.placeholder(start + index) for index in range(count))

    def assignments(self, names: Sequence[str], joint: str = ", ", start: int = 0) -> str:
        """Return ``name = placeholder`` for each name."""
        return joint.join(f"{self.name(name)} = {self.placeholder(start + index)}" for index, name in enumerate(names))

    def statement(self, sql: str, table: Table, names: Sequence[str]) -> Statement:
        """Return the text as a statement whose values belong to these columns."""
        converters = tuple(binder(table.columns[name].type, self.dialect) for name in names)
        by_name = tuple(f"p{index}" for index in range(len(names))) if self.dialect.paramstyle == "named" else None
        return Statement(sql, converters, by_name)


@lru_cache(maxsize=512)
def select_by_key(dialect: Dialect, table: Table, key: tuple[str, ...]) -> Statement:
    """Return the statement that reads the row of a key; all columns, also those that came later."""
    words = Words(dialect)
    return words.statement(f"SELECT * FROM {words.table(table)} WHERE {words.assignments(key, ' AND ')}", table, key)


@lru_cache(maxsize=512)
def insert(dialect: Dialect, table: Table, names: tuple[str, ...], returning: tuple[str, ...]) -> Statement:
    """Return the statement that inserts one row; without columns, a row of defaults."""
    words = Words(dialect)
    return words.statement(f"{insertion(words, table, names)}{returned(words, returning)}", table, names)


def insertion(words: Words, table: Table, names: tuple[str, ...]) -> str:
    """Return the text of an insert of one row."""
    if names:
        return f"INSERT INTO {words.table(table)} ({words.names(names)}) VALUES ({words.placeholders(len(names))})"
    defaults = "() VALUES ()" if words.dialect.name in {"mysql", "mariadb"} else "DEFAULT VALUES"
    return f"INSERT INTO {words.table(table)} {defaults}"


@lru_cache(maxsize=512)
def update(
    dialect: Dialect, table: Table, names: tuple[str, ...], key: tuple[str, ...], returning: tuple[str, ...]
) -> Statement:
    """Return the statement that changes the row of a key."""
    words = Words(dialect)
    changes = words.assignments(names)
    condition = words.assignments(key, " AND ", start=len(names))
    sql = f"UPDATE {words.table(table)} SET {changes} WHERE {condition}{returned(words, returning)}"
    return words.statement(sql, table, (*names, *key))


@lru_cache(maxsize=512)
def delete(dialect: Dialect, table: Table, key: tuple[str, ...], returning: tuple[str, ...]) -> Statement:
    """Return the statement that deletes the row of a key."""
    words = Words(dialect)
    condition = words.assignments(key, " AND ")
    return words.statement(
        f"DELETE FROM {words.table(table)} WHERE {condition}{returned(words, returning)}", table, key
    )


def returned(words: Words, returning: tuple[str, ...]) -> str:
    """Return the clause that gives columns of written rows back."""
    return f" RETURNING {words.names(returning)}" if returning else ""


@dataclass(frozen=True, slots=True)
class UserStatement:
    """A statement of the user's, with the names of its parameters in the driver's order."""

    statement: Statement
    parameters: tuple[str, ...]

    def values(self, params: Mapping[str, Any]) -> list[Any]:
        """Return the values of the parameters in that order."""
        try:
            return [params[name] for name in self.parameters]
        except KeyError as missing:
            raise ConfigurationError(f"The statement has a parameter {missing} that params= does not give") from None


@lru_cache(maxsize=512)
def user_statement(dialect: Dialect, sql: str) -> UserStatement:
    """Return the user's SQL, with ``:name`` for its parameters, in the driver's form."""
    from sqlalchemy import text

    compiled = text(sql).compile(dialect=dialect)
    if compiled.positional:
        parameters, names = tuple(compiled.positiontup or ()), None
    else:
        parameters = names = tuple(compiled.binds)
    return UserStatement(Statement(compiled.string, (plain_binder(dialect),) * len(parameters), names), parameters)


class Plans:
    """Tells servers apart from their outdated plans.

    PostgreSQL refuses a prepared ``SELECT *`` once its table has changed. The plans belong to the
    connections of the whole pool; a changed text gets new ones.
    """

    def __init__(self) -> None:
        self._generations: weakref.WeakKeyDictionary[Engine, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def text(self, engine: Engine, sql: str) -> str:
        """Return the text under which the server knows the current plan."""
        generation = self._generations.get(engine) if self._generations else None
        return sql if generation is None else f"{sql} /* plan {generation} */"

    def is_outdated(self, error: Exception) -> bool:
        """Tell whether the statement failed only because its plan is older than its table."""
        diagnosis = getattr(getattr(error, "orig", None), "diag", None)
        return getattr(diagnosis, "source_function", None) == "RevalidateCachedQuery"

    def renew(self, engine: Engine) -> None:
        """Let every statement have a new plan."""
        with self._lock:
            self._generations[engine] = self._generations.get(engine, 0) + 1


plans = Plans()


@lru_cache(maxsize=512)
def upsert(dialect: Dialect, table: Table, names: Names, conflict: Names, returning: Names) -> Statement:
    """Return the statement that inserts one row, or changes the one with the same conflict columns."""
    words = Words(dialect)
    match dialect.name:
        case "postgresql" | "sqlite":
            clause = on_conflict(words, names, conflict, touch=bool(returning))
            sql = f"{insertion(words, table, names)} {clause}{returned(words, returning)}"
        case "mysql" | "mariadb":
            clause = on_duplicate_key(words, table, names, conflict)
            sql = f"{insertion(words, table, names)} {clause}{returned(words, returning)}"
        case "mssql":
            # The server cannot guess the type of a value that stands alone. And without the lock
            # two sessions may both find no row and both insert it.
            values = [f"CAST({words.placeholder(i)} AS {_kind(words, table, name)})" for i, name in enumerate(names)]
            sql = f"{merge(words, table, names, conflict, values, hint=' WITH (HOLDLOCK)')};"
        case "oracle":
            values = [words.placeholder(i) for i in range(len(names))]
            sql = merge(words, table, names, conflict, values, origin=" FROM DUAL")
        case other:
            raise ConfigurationError(f"Upsert does not work with the dialect {other!r}", table=table.name)
    return words.statement(sql, table, names)


def on_conflict(words: Words, names: Names, conflict: Names, *, touch: bool = False) -> str:
    """Return the clause of PostgreSQL and SQLite.

    ``touch`` writes the row even where nothing changes, so that RETURNING has it.
    """
    changed = [name for name in names if name not in conflict] or (list(conflict[:1]) if touch else [])
    if not changed:
        return f"ON CONFLICT ({words.names(conflict)}) DO NOTHING"
    changes = ", ".join(f"{words.name(name)} = excluded.{words.name(name)}" for name in changed)
    return f"ON CONFLICT ({words.names(conflict)}) DO UPDATE SET {changes}"


def on_duplicate_key(words: Words, table: Table, names: Names, conflict: Names) -> str:
    """Return the clause of MySQL and MariaDB.

    There any unique key may be the one that conflicts. Where the table has others, a row that
    meets one of them must not be written over: a subquery with two rows stops the statement.
    """
    changed = [name for name in names if name not in conflict] or list(conflict[:1])
    others = [key for key in unique_keys(table) if set(key) != set(conflict)]
    same = " AND ".join(f"{words.name(name)} = VALUES({words.name(name)})" for name in conflict)

    def change(name: str) -> str:
        value = f"VALUES({words.name(name)})"
        return f"{words.name(name)} = " + (f"IF({same}, {value}, (SELECT 1 UNION ALL SELECT 2))" if others else value)

    changes = ", ".join(change(name) for name in changed)
    return f"ON DUPLICATE KEY UPDATE {changes}"


def merge(
    words: Words, table: Table, names: Names, conflict: Names, values: list[str], *, hint: str = "", origin: str = ""
) -> str:
    """Return the MERGE of SQL Server and Oracle."""
    row = ", ".join(f"{value} AS {words.name(name)}" for name, value in zip(names, values, strict=True))
    source = f"(SELECT {row}{origin})"
    same = " AND ".join(f"target.{words.name(name)} = source.{words.name(name)}" for name in conflict)
    changed = [name for name in names if name not in conflict]
    changes = ", ".join(f"target.{words.name(name)} = source.{words.name(name)}" for name in changed)
    given = ", ".join(f"source.{words.name(name)}" for name in names)
    parts = [
        f"MERGE INTO {words.table(table)}{hint} target USING {source} source ON ({same})",
        f"WHEN MATCHED THEN UPDATE SET {changes}" if changed else "",
        f"WHEN NOT MATCHED THEN INSERT ({words.names(names)}) VALUES ({given})",
    ]
    return " ".join(part for part in parts if part)


def _kind(words: Words, table: Table, name: str) -> str:
    kind = copy(table.columns[name].type)
    if hasattr(kind, "collation"):
        kind.collation = None  # a collation has no place inside a CAST
    return str(words.dialect.type_compiler_instance.process(kind))
