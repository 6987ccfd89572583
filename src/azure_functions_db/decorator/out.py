"""The ``output`` binding: a handle that writes what it is set to."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, assert_never

from azure_functions_db.core.bridge import finished, must_be_awaited
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.decorator.injection import required_table, target_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from sqlalchemy import Table

    from azure_functions_db.binding.writer import DbWriter
    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.decorator.injection import Kind
    from azure_functions_db.sql.engine import EngineProvider


@dataclass(frozen=True, slots=True)
class Insert:
    """Every row is new."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """A row replaces the one with the same values in the conflict columns."""

    conflict_columns: tuple[str, ...]


class Output:
    """Where an output writes and how; it keeps nothing between two writes, so any number of threads may share it."""

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table,
        schema: str | None = None,
        action: Literal["insert", "upsert"] = "insert",
        conflict_columns: Sequence[str] | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        self._target = target_of(url, db_config, required_table(table), schema, engine_provider)
        self._action = action_of(action, conflict_columns)

    def described(self) -> dict[str, Any]:
        """Return the place it writes to and how."""
        match self._action:
            case Insert():
                return {**self._target.described(), "action": "insert"}
            case Upsert(columns):
                return {**self._target.described(), "action": "upsert", "conflict_columns": list(columns)}
            case _:
                assert_never(self._action)

    def _write(self, value: Any) -> None:
        from azure_functions_db.binding.writer import DbWriter

        with DbWriter(**self._target.client_options()) as writer:
            _write_with(writer, self._action, value)


class DbOut(Output):
    """Writes rows to its table; the handler's return value stays its own.

    Each `set` is written at once, in a transaction of its own. A function has one `DbOut` for all its
    invocations; one that is made by hand, in a test say, is the same.
    """

    def set(self, value: Any) -> None:
        """Write a dict, a Pydantic model, or a list of them; None and an empty list write nothing."""
        if has_rows(value):
            self._write(value)


class AsyncDbOut(Output):
    """`DbOut` for async handlers: ``await out.set(...)``."""

    @must_be_awaited
    async def set(self, value: Any) -> None:
        """Write a dict, a Pydantic model, or a list of them; None and an empty list write nothing."""
        if has_rows(value):
            # What has begun is waited for: a cancelled handler leaves no write behind that is still under way.
            await finished(self._target.threads().run(self._write, value))


def _write_with(writer: DbWriter, action: Insert | Upsert, value: Any) -> None:
    match action, value:
        case Insert(), list():
            writer.insert_many(rows=value)
        case Insert(), _:
            writer.insert(data=value)
        case Upsert(columns), list():
            writer.upsert_many(rows=value, conflict_columns=columns)
        case Upsert(columns), _:
            writer.upsert(data=value, conflict_columns=columns)


@dataclass(frozen=True, slots=True)
class OutputInjection:
    """Hands the handler a `DbOut`, or an `AsyncDbOut` when it is async: the same one at each call."""

    arg_name: str
    out: DbOut
    async_out: AsyncDbOut
    kind: Kind = "output"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> AbstractContextManager[DbOut]:
        """Return the handle."""
        return nullcontext(self.out)

    def opened_async(self, _given: Mapping[str, Any]) -> AbstractAsyncContextManager[AsyncDbOut]:
        """Return the awaitable handle."""
        return nullcontext(self.async_out)

    def described(self) -> dict[str, Any]:
        """Return the place it writes to and how."""
        return self.out.described()


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
