"""The upsert of each dialect: pure functions from names to SQL."""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING

from azure_functions_db.binding.rows import unique_keys
from azure_functions_db.binding.statements import Statement, Words, insertion, returned
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Dialect, Table

    from azure_functions_db.binding.rows import Names


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
