"""Plans of sources on databases that need not be there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Column, MetaData, Table, types
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite

from azure_functions_db import SqlAlchemySource
from azure_functions_db.sources.keyset.plan import Plan
from azure_functions_db.sources.keyset.shape import described_shape

NEW: dict[str, Any] = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "mssql": mssql.dialect,
    "oracle": oracle.dialect,
    "sqlite": sqlite.dialect,
}
ID: Any = types.BigInteger


def table(cursor: Any, *more: Any, key: Any = ID) -> Table:
    return Table("orders", MetaData(), Column("id", key, primary_key=True), Column("c", cursor, nullable=False), *more)


def plan_of(described: Table, dialect: str = "postgresql", *, reflected: bool = True, **options: Any) -> Plan:
    place: dict[str, Any] = {"url": "sqlite://", "cursor_column": "c", "pk_columns": ["id"]}
    source = SqlAlchemySource(**{**place, "table": described, **options})
    shape = replace(described_shape(described), is_reflected=reflected)
    return Plan(source._definition, shape, NEW[dialect]())


def sql(statement: Any, plan: Plan) -> str:
    return " ".join(str(statement.compile(dialect=plan.dialect)).split())
