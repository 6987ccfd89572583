"""The index that the pages of a source want, and whether its table has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure_functions_db.sources.keyset.horizon import logger
from azure_functions_db.sources.keyset.shape import is_partial
from azure_functions_db.sql.reflection import is_view, table_now, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Engine, Table

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
    definition = plan.definition
    if definition.table is None or engine.dialect.name not in _WITH_RANGES:
        return None
    table = table_of(engine, definition.table, definition.schema)
    # An index may be younger than what is remembered of the table.
    if _is_served(table, plan) or is_view(engine, table) or _is_served(table_now(engine, table), plan):
        return None
    return _ddl(engine, plan)


def _is_served(table: Table, plan: Plan) -> bool:
    from sqlalchemy import UniqueConstraint

    order, key = list(plan.definition.order_columns), _names(table.primary_key.columns)
    if key and _covers(key, order, unique=True):
        return True
    appended = key if plan.dialect.name in _WITH_KEY_APPENDED else []
    # A partial index serves those who want a part.
    whole = [index for index in table.indexes if plan.definition.where is not None or not is_partial(index)]
    rules = [rule for rule in table.constraints if isinstance(rule, UniqueConstraint)]
    columns = [(_names(index.expressions), bool(index.unique)) for index in whole]
    columns += [(_names(rule.columns), True) for rule in rules]
    return any(
        _covers(names, order, unique=unique) or _covers([*names, *appended], order, unique=unique)
        for names, unique in columns
    )


def _names(elements: Iterable[Any]) -> list[str | None]:
    """Return the columns of a key or an index, None for a part that is computed."""
    from sqlalchemy import Column

    columns = [getattr(element, "element", element) for element in elements]  # one that descends is wrapped
    return [column.name if isinstance(column, Column) else None for column in columns]


def _covers(columns: Sequence[str | None], order: Sequence[str], *, unique: bool) -> bool:
    """Tell whether an index gives the wanted order; behind a unique prefix there is nothing left to order."""
    if unique and len(columns) <= len(order):
        return list(columns) == list(order[: len(columns)])
    return list(columns[: len(order)]) == list(order)


def _ddl(engine: Engine, plan: Plan) -> str:
    from sqlalchemy import Column, Index, MetaData, Table
    from sqlalchemy.schema import CreateIndex

    definition = plan.definition
    columns = [Column(name, plan.shape.types[name]) for name in definition.order_columns]
    Table(str(definition.table), MetaData(), *columns, schema=definition.schema)
    index = Index("_".join(["ix", str(definition.table), *definition.order_columns])[:60], *columns)
    statement = " ".join(str(CreateIndex(index).compile(dialect=engine.dialect)).split())
    # Drivers that bind by percent signs want others doubled; whoever types the statement does not.
    return statement.replace("%%", "%") if "format" in engine.dialect.paramstyle else statement
