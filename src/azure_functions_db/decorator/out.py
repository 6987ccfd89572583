"""The ``output`` binding: a handle that writes what it is set to."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, assert_never

from azure_functions_db.core.bridge import must_be_awaited
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence

    from azure_functions_db.binding.aio import AsyncDbWriter
    from azure_functions_db.binding.writer import DbWriter
    from azure_functions_db.decorator.injection import BindingTarget, Kind


@dataclass(frozen=True, slots=True)
class Insert:
    """Every row is new."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """A row replaces the one with the same values in the conflict columns."""

    conflict_columns: tuple[str, ...]


class DbOut:
    """Writes rows to its table; the handler's return value stays its own.

    Each `set` is written at once, in a transaction of its own.
    """

    def __init__(self, writer: DbWriter, action: Insert | Upsert) -> None:
        self._writer = writer
        self._action = action

    def set(self, value: Any) -> None:
        """Write a dict, a Pydantic model, or a list of them; None and an empty list write nothing."""
        if has_rows(value):
            _written(self._writer, self._action, value)


class AsyncDbOut:
    """`DbOut` for async handlers: ``await out.set(...)``."""

    def __init__(self, writer: AsyncDbWriter, action: Insert | Upsert) -> None:
        self._writer = writer
        self._action = action

    @must_be_awaited
    async def set(self, value: Any) -> None:
        """Write a dict, a Pydantic model, or a list of them; None and an empty list write nothing."""
        if has_rows(value):
            await _written(self._writer, self._action, value)


def _written(writer: DbWriter | AsyncDbWriter, action: Insert | Upsert, value: Any) -> Any:
    """Call the writer's method that fits; an async writer returns an awaitable."""
    match action, value:
        case Insert(), list():
            return writer.insert_many(rows=value)
        case Insert(), _:
            return writer.insert(data=value)
        case Upsert(columns), list():
            return writer.upsert_many(rows=value, conflict_columns=columns)
        case Upsert(columns), _:
            return writer.upsert(data=value, conflict_columns=columns)


@dataclass(frozen=True, slots=True)
class OutputInjection:
    """Hands the handler a `DbOut`, or an `AsyncDbOut` when it is async."""

    arg_name: str
    target: BindingTarget
    action: Insert | Upsert
    kind: Kind = "output"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    @contextmanager
    def opened(self, _given: Mapping[str, Any]) -> Iterator[DbOut]:
        """Open the handle for one call."""
        from azure_functions_db.binding.writer import DbWriter

        with DbWriter(**self.target.client_options()) as writer:
            yield DbOut(writer, self.action)

    @asynccontextmanager
    async def opened_async(self, _given: Mapping[str, Any]) -> AsyncIterator[AsyncDbOut]:
        """Open the awaitable handle for one call."""
        from azure_functions_db.binding.aio import AsyncDbWriter

        async with AsyncDbWriter(**self.target.client_options()) as writer:
            yield AsyncDbOut(writer, self.action)

    def described(self) -> dict[str, Any]:
        """Return the place it writes to and how."""
        description = {"type": self.kind, "arg_name": self.arg_name, **self.target.described()}
        match self.action:
            case Insert():
                return description | {"action": "insert"}
            case Upsert(columns):
                return description | {"action": "upsert", "conflict_columns": list(columns)}
            case _:
                assert_never(self.action)


def action_of(
    action: Literal["insert", "upsert"] | str,  # noqa: PYI051 - tells a checker's user the two values
    conflict_columns: Sequence[str] | None,
) -> Insert | Upsert:
    """Return how an output writes, from the options it was given."""
    match action:
        case "insert":
            if conflict_columns is not None:
                raise ConfigurationError("conflict_columns= belong to action='upsert'; an insert has none")
            return Insert()
        case "upsert":
            if not conflict_columns or isinstance(conflict_columns, str):
                raise ConfigurationError(
                    "action='upsert' needs conflict_columns=, the list of columns that identify a row"
                )
            return Upsert(tuple(conflict_columns))
        case _:
            raise ConfigurationError(f"action= is 'insert' or 'upsert', not {action!r}")


def has_rows(value: Any) -> bool:
    """Tell whether there is anything to write, refusing what is no row by its place."""
    if value is None:
        return False
    if not isinstance(value, list):
        _check_row("the value", value)
        return True
    for position, row in enumerate(value):
        _check_row(f"element {position} of the list", row)
    return bool(value)


def _check_row(what: str, value: Any) -> None:
    # Whoever has a model has imported Pydantic; nobody else needs to.
    pydantic = sys.modules.get("pydantic")
    if isinstance(value, dict) or (pydantic is not None and isinstance(value, pydantic.BaseModel)):
        return
    raise ConfigurationError(
        f"DbOut.set takes a dict, a Pydantic model, a list of them, or None; {what} is a {type(value).__name__}"
    )
