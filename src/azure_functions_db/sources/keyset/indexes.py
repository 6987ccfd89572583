"""Tells whether an index serves a poll, and which one would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure_functions_db.sources.keyset.horizon import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine, Inspector

    from azure_functions_db.sources.keyset.plan import Plan

_WITH_RANGES = {"postgresql", "sqlite", "mysql", "mariadb", "mssql", "oracle"}
# Their secondary indexes end with the primary key without saying so.
_WITH_KEY_APPENDED = {"sqlite", "mysql", "mariadb"}


def warn_without_index(name: str, engine: Engine, plan: Plan) -> None:
    """Say once, with the statement that helps, that each page has to search the table."""
    statement = missing_index(engine, plan)
    if statement is not None:
        logger.warning("No index serves source %r: each page searches the table. It wants %s", name, statement)


def missing_index(engine: Engine, plan: Plan) -> str | None:
    """Return the DDL of the index that the source's pages want, None if they are served."""
    from sqlalchemy import inspect

    table = plan.definition.table
    if table is None or engine.dialect.name not in _WITH_RANGES:
        return None
    inspector = inspect(engine)
    if _is_served(inspector, plan) or table in inspector.get_view_names(plan.definition.schema):
        return None
    return _ddl(engine, plan)


def _is_served(inspector: Inspector, plan: Plan) -> bool:
    definition = plan.definition
    wanted = list(definition.order_columns)
    key = inspector.get_pk_constraint(definition.table or "", definition.schema)["constrained_columns"]
    if key and _covers(key, wanted, unique=True):
        return True
    appended = key if plan.dialect.name in _WITH_KEY_APPENDED else []
    indexes = inspector.get_indexes(definition.table or "", definition.schema)
    return any(_serves(index, wanted, appended, filtered=definition.where is not None) for index in indexes)


def _serves(index: Any, wanted: Sequence[str], appended: Sequence[str], *, filtered: bool) -> bool:
    options = index.get("dialect_options", {})
    if not filtered and any(name.endswith("_where") and value is not None for name, value in options.items()):
        return False  # a partial index
    columns = list(index["column_names"])
    unique = bool(index.get("unique"))
    return _covers(columns, wanted, unique=unique) or _covers([*columns, *appended], wanted, unique=unique)


def _covers(columns: Sequence[str | None], wanted: Sequence[str], *, unique: bool) -> bool:
    """Tell whether an index gives the wanted order; behind a unique prefix there is nothing left to order."""
    if unique and len(columns) <= len(wanted):
        return list(columns) == list(wanted[: len(columns)])
    return list(columns[: len(wanted)]) == list(wanted)


def _ddl(engine: Engine, plan: Plan) -> str:
    from sqlalchemy import Column, Index, MetaData, Table
    from sqlalchemy.schema import CreateIndex

    definition = plan.definition
    columns = [Column(name, plan.shape.types[name]) for name in definition.order_columns]
    Table(str(definition.table), MetaData(), *columns, schema=definition.schema)
    index = Index("_".join(["ix", str(definition.table), *definition.order_columns])[:60], *columns)
    return " ".join(str(CreateIndex(index).compile(dialect=engine.dialect)).split())
