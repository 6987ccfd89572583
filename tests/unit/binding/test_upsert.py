"""The upsert of each dialect, as text: SQL Server and Oracle are tested by it alone, no server being at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Unicode,
    UniqueConstraint,
)
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite
from sqlalchemy.engine.default import DefaultDialect

from azure_functions_db import ConfigurationError
from azure_functions_db.binding.conversion import unique_keys
from azure_functions_db.binding.statements import upsert

if TYPE_CHECKING:
    from sqlalchemy import Dialect

ORDERS = Table(
    "orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("Customer Name", Unicode(50, collation="Latin1_General_CI_AS")),
    Column("total", Numeric(10, 2)),
    schema="sales",
)


def made(module: Any, **options: Any) -> Dialect:
    dialect: Dialect = module.dialect(**options)
    return dialect


MSSQL, ORACLE, POSTGRESQL = made(mssql, paramstyle="qmark"), made(oracle), made(postgresql)
MYSQL, SQLITE = made(mysql), made(sqlite)
NAMES, KEY = ("id", "Customer Name", "total"), ("id",)


def text(dialect: Dialect, names: tuple[str, ...] = NAMES, table: Table = ORDERS) -> str:
    return upsert(dialect, table, names, KEY, ()).sql


def test_sql_server_merges_typed_values_under_a_lock() -> None:
    assert text(MSSQL) == (
        "MERGE INTO sales.orders WITH (HOLDLOCK) target USING "
        "(SELECT CAST(? AS INTEGER) AS id, CAST(? AS NVARCHAR(50)) AS [Customer Name], "
        "CAST(? AS NUMERIC(10, 2)) AS total) source "
        "ON (target.id = source.id) "
        "WHEN MATCHED THEN UPDATE SET target.[Customer Name] = source.[Customer Name], target.total = source.total "
        "WHEN NOT MATCHED THEN INSERT (id, [Customer Name], total) "
        "VALUES (source.id, source.[Customer Name], source.total);"
    )


def test_oracle_merges_from_dual() -> None:
    assert text(ORACLE) == (
        "MERGE INTO sales.orders target USING "
        '(SELECT :p0 AS id, :p1 AS "Customer Name", :p2 AS total FROM DUAL) source '
        "ON (target.id = source.id) "
        'WHEN MATCHED THEN UPDATE SET target."Customer Name" = source."Customer Name", target.total = source.total '
        'WHEN NOT MATCHED THEN INSERT (id, "Customer Name", total) '
        'VALUES (source.id, source."Customer Name", source.total)'
    )
    bound = upsert(ORACLE, ORDERS, NAMES, KEY, ()).bound([1, "a", 2])
    assert bound == {"p0": 1, "p1": "a", "p2": 2}


def test_postgresql_and_sqlite_name_the_conflict() -> None:
    clause = 'ON CONFLICT (id) DO UPDATE SET "Customer Name" = excluded."Customer Name", total = excluded.total'
    assert text(POSTGRESQL).endswith(clause)
    assert text(SQLITE).endswith(clause)


def test_mysql_changes_on_a_duplicate_key() -> None:
    assert text(MYSQL).endswith(
        "ON DUPLICATE KEY UPDATE `Customer Name` = VALUES(`Customer Name`), total = VALUES(total)"
    )


def test_a_row_of_its_key_alone_changes_nothing() -> None:
    assert text(POSTGRESQL, ("id",)).endswith("ON CONFLICT (id) DO NOTHING")
    assert text(MYSQL, ("id",)).endswith("ON DUPLICATE KEY UPDATE id = VALUES(id)")
    assert "WHEN MATCHED" not in text(MSSQL, ("id",))
    touched = upsert(POSTGRESQL, ORDERS, ("id",), KEY, ("total",)).sql
    assert touched.endswith("DO UPDATE SET id = excluded.id RETURNING total")


def test_another_dialect_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="does not work with the dialect 'default'"):
        text(DefaultDialect())


def test_a_partial_or_computed_index_is_no_key_for_an_upsert() -> None:
    table = Table("t", MetaData(), Column("id", Integer, primary_key=True), Column("a", String), Column("b", DateTime))
    table.append_constraint(UniqueConstraint("a", "b"))
    Index("whole", table.c.b, unique=True)
    Index("plain", table.c.a)
    Index("partial", table.c.a, unique=True, postgresql_where=table.c.b.is_(None))

    assert sorted(unique_keys(table)) == [("a", "b"), ("b",), ("id",)]
