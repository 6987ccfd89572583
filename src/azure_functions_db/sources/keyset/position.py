"""Where a source stands: read from a checkpoint, written into the next one."""

from __future__ import annotations

import datetime as dt
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_position, json_safe, serialize_position
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.boundary import BOUNDARY, boundary_in
from azure_functions_db.sources.keyset.values import aware_utc, naive_utc

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sqlalchemy import Connection

    from azure_functions_db.core.types import Checkpoint, CursorValue
    from azure_functions_db.sources.keyset.boundary import Boundary
    from azure_functions_db.sources.keyset.definition import Definition
    from azure_functions_db.sources.keyset.plan import Plan


@dataclass(frozen=True)
class Position:
    """The driver's values of cursor and key; nothing means the beginning.

    ``inclusive`` is the wish to start *at* a cursor instead of after it. ``boundary`` is what was delivered at
    the cursor, None where it is not read again.
    """

    values: tuple[Any, ...] = ()
    inclusive: bool = False
    boundary: Boundary | None = None

    @property
    def at_value(self) -> Position:
        """The position from which the rows still to be delivered are to be looked for."""
        return self if self.boundary is None else Position(self.values[:1], inclusive=True)

    @property
    def form(self) -> Hashable:
        """What the statement for such a position depends on."""
        return (self.inclusive, *(value is None for value in self.values))


BEGINNING = Position()
_BEGINNING_TEXT = "beginning"


class Bound(NamedTuple):
    """The cursor value where a page ends; ``inclusive`` says whether rows of that value still belong to it."""

    value: Any
    inclusive: bool = True


def checkpoint_after(plan: Plan, position: Position) -> Checkpoint:
    """Return the checkpoint of a position; the beginning has one too, for an empty table."""
    definition = plan.definition
    parts = position.values or (None,) * len(definition.order_columns)
    by_name = dict(zip(definition.order_columns, parts, strict=True))
    by_name |= {name: aware_utc(by_name[name]) for name in plan.utc_columns if name in by_name}
    key = {name: by_name[name] for name in definition.pk_columns}
    written: Checkpoint = {"cursor": serialize_position(by_name[definition.cursor_column], key)}
    if plan.reads_again:
        written[BOUNDARY] = None if position.boundary is None else position.boundary.written(parts[0])
    return written


def position_in(plan: Plan, checkpoint: Checkpoint, connection: Connection) -> Position | None:
    """Return the position that a checkpoint holds, None if it holds none."""
    written = checkpoint.get("cursor")
    if written is None:
        return None
    cursor, *key = deserialize_position(written, plan.definition.pk_columns)
    if cursor is None:
        return BEGINNING
    by_name = {**dict(zip(plan.definition.pk_columns, key, strict=True)), plan.definition.cursor_column: cursor}
    if isinstance(written, list):
        by_name = {name: values.coerced(value, plan.shape.types[name]) for name, value in by_name.items()}
    driver_values = _as_driver_values(plan, [by_name[name] for name in plan.definition.order_columns], connection)
    boundary = boundary_in(checkpoint.get(BOUNDARY), driver_values[0]) if plan.reads_again else None
    return Position(driver_values, boundary=boundary)


def position_after(plan: Plan, cursor: CursorValue, connection: Connection, *, inclusive: bool = False) -> Position:
    """Return the position of a cursor alone, or of a cursor followed by its key."""
    if cursor is None:
        return BEGINNING
    parts = list(cursor) if isinstance(cursor, tuple | list) else [cursor]
    names = [plan.definition.cursor_column, *plan.definition.pk_columns]
    if len(parts) == len(names):
        by_name = dict(zip(names, parts, strict=True))
        parts = [by_name[name] for name in plan.definition.order_columns]
    elif len(parts) != 1:
        raise SourceConfigurationError(f"A position is a cursor, or (cursor, key...) of {len(names)} values")
    return Position(_as_driver_values(plan, parts, connection), inclusive=inclusive and len(parts) == 1)


def described(definition: Definition, checkpoint: Checkpoint) -> str:
    """Return a checkpoint's position as people read it, and as `parsed` takes it."""
    written = checkpoint.get("cursor")
    cursor, *key = (None,) if written is None else deserialize_position(written, definition.pk_columns)
    if cursor is None:
        return _BEGINNING_TEXT
    by_name = {definition.cursor_column: cursor, **dict(zip(definition.pk_columns, key, strict=True))}
    return shlex.join(f"{name}={json_safe(value)}" for name, value in by_name.items())


def parsed(plan: Plan, text: str) -> Checkpoint:
    """Return the checkpoint of a position that somebody has typed, with values of its columns' types."""
    if text.strip() == _BEGINNING_TEXT:
        return {}
    definition = plan.definition
    try:
        by_name = {name: value for name, _, value in (pair.partition("=") for pair in shlex.split(text))}
    except ValueError:
        by_name = {}  # a quote that never ends
    if set(by_name) != {*definition.order_columns, *definition.pk_columns}:
        form = " ".join(f"{name}=..." for name in definition.order_columns)
        raise SourceConfigurationError(f"A position is written {form}, or {_BEGINNING_TEXT!r}, not {text!r}")
    typed = values.revived_row(by_name, plan.shape.types, strict=True)
    key = {name: typed[name] for name in definition.pk_columns}
    return {"cursor": serialize_position(typed[definition.cursor_column], key)}


def _as_driver_values(plan: Plan, parts: list[Any], connection: Connection) -> tuple[Any, ...]:
    names = plan.definition.order_columns
    sample = None
    if plan.dialect.name == "sqlite" and any(isinstance(part, dt.datetime) for part in parts):
        sample = connection.execute(plan.newest(BEGINNING)).scalar()
    return tuple(
        part
        if type(part) in values.SAME_IN_DRIVERS
        else naive_utc(part, connection)
        if name in plan.utc_columns
        else values.driver_value(part, plan.shape.types[name], plan.dialect, sample)
        for name, part in zip(names, parts, strict=False)
    )
