"""Rows on their way out: a cursor's rows as dicts or as the user's models."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.binding.values import loader
from azure_functions_db.core.errors import ConfigurationError, QueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel
    from sqlalchemy import Dialect, Table

    from azure_functions_db.binding.values import Converter
    from azure_functions_db.core.types import Row

    M = TypeVar("M", bound=BaseModel)


def names_of(cursor: Any) -> tuple[str, ...]:
    """Return the names of a result's columns, each of which must be there once."""
    return _names(_description(cursor))


def _description(cursor: Any) -> Any:
    description = None if cursor is None else cursor.description  # psycopg makes it anew each time
    if description is None:
        raise QueryError("The statement gives no rows")
    return description


def _names(description: Any) -> tuple[str, ...]:
    return _distinct(tuple([column[0] for column in description]))


@lru_cache(maxsize=512)
def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise QueryError(f"Columns of the result share a name: {', '.join(sorted(twice))}. Name them apart with AS")
    return names


def dicts(names: tuple[str, ...], rows: Iterable[Any]) -> list[Row]:
    """Return the rows as dicts."""
    return [dict(zip(names, row, strict=True)) for row in rows]


def loaded(
    cursor: Any, rows: Iterable[Any], table: Table, dialect: Dialect, refreshed: Callable[[], Table] | None = None
) -> list[Row]:
    """Return rows of a table as dicts of Python values; ``refreshed`` describes a table that has changed."""
    description = _description(cursor)
    names = _names(description)
    found = dicts(names, rows)
    current = table if refreshed is None or _covers(table, names) else refreshed()
    # psycopg gives the natural types by itself, whatever their codes.
    codes = None if dialect.driver == "psycopg" else tuple([column[1] for column in description])
    for name, load in _loaders(dialect, current, names, codes):
        for row in found:
            if row[name] is not None:
                row[name] = load(row[name])
    return found


@lru_cache(maxsize=512)
def _covers(table: Table, names: tuple[str, ...]) -> bool:
    """Tell whether the table's description knows all columns of a result."""
    return all(name in table.columns for name in names)


@lru_cache(maxsize=512)
def _loaders(
    dialect: Dialect, table: Table, names: tuple[str, ...], codes: tuple[Any, ...] | None
) -> list[tuple[str, Converter]]:
    columns = zip(names, codes or (None,) * len(names), strict=True)
    known = [(name, loader(table.columns[name].type, dialect, code)) for name, code in columns if name in table.columns]
    return [(name, load) for name, load in known if load is not None]


def as_model(model: type[M] | None) -> Callable[[Row], Any]:
    """Return what makes a row into the user's model; without one the row stays as it is."""
    if model is None:
        return _unchanged
    validate = getattr(model, "model_validate", None)
    if validate is None:
        raise ConfigurationError(f"model= must be a Pydantic model class, not {model!r}")
    return lambda row: _validated(model, row)


def _unchanged(row: Row) -> Row:
    return row


def _validated(model: type[M], row: Row) -> M:
    from pydantic import ValidationError

    try:
        return model.model_validate(row)
    except ValidationError as invalid:
        # Its own text would repeat the row's values.
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'row'}: {fault['msg']}"
            for fault in invalid.errors(include_input=False, include_url=False, include_context=False)
        )
    raise QueryError(f"A row does not fit {model.__name__}: {faults}")
