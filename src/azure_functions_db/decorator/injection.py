"""What a decorator puts into one parameter of the handler: opened for a call, closed after it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

from azure_functions_db.core.bridge import threads_of
from azure_functions_db.core.config import DbConfig, config_of
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.secrets import shown_url
from azure_functions_db.sql.reflection import checked_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from sqlalchemy import Table

    from azure_functions_db.binding.aio import AsyncDbReader, AsyncDbWriter
    from azure_functions_db.binding.reader import DbReader, Reader
    from azure_functions_db.binding.writer import DbWriter
    from azure_functions_db.core.bridge import Threads
    from azure_functions_db.sql.engine import EngineProvider


class ClientOptions(TypedDict):
    """What every reader and writer of a table is made with."""

    db_config: DbConfig
    table: Any
    schema: str | None
    engine_provider: EngineProvider | None


@dataclass(frozen=True, slots=True)
class BindingTarget:
    """A database, and the table in it that a binding was given."""

    config: DbConfig
    table: str | Table | None
    schema: str | None
    provider: EngineProvider | None

    @property
    def table_name(self) -> str | None:
        """The table's own name."""
        return self.table if self.table is None or isinstance(self.table, str) else str(self.table.name)

    def client_options(self) -> ClientOptions:
        """Return the arguments that open a reader or writer here."""
        return {
            "db_config": self.config,
            "table": self.table,
            "schema": self.schema,
            "engine_provider": self.provider,
        }

    def reader(self) -> Reader:
        """Return a reader for one call that leaves nothing to close."""
        return _reader_of()(self.config, self.provider, self.table, self.schema)

    def threads(self) -> Threads:
        """Return the threads for calls of this database."""
        return threads_of(self.config)

    def described(self) -> dict[str, Any]:
        """Return the place without anybody's credentials."""
        schema = self.schema if self.table is None or isinstance(self.table, str) else self.table.schema
        return described_place(self.config.connection_url, self.table_name, schema)


@cache
def _reader_of() -> Callable[..., Reader]:
    # Even an import that finds its module loaded takes half as long as making a reader.
    from azure_functions_db.binding.reader import reader_of

    return reader_of


def target_of(
    url: str | None,
    db_config: DbConfig | None,
    table: str | Table | None,
    schema: str | None,
    provider: EngineProvider | None,
) -> BindingTarget:
    """Return the database that a decorator was given."""
    checked = None if table is None else checked_table(table, schema)
    return BindingTarget(config_of(url, db_config), checked, schema, provider)


def required_table(table: str | Table | None) -> str | Table:
    """Return the table that is written to, which cannot be left out."""
    if table is None:
        raise ConfigurationError("table= must name the table to write to")
    return table


def described_place(connection_url: str, table: str | None, schema: str | None) -> dict[str, Any]:
    """Return a place as the metadata tells it; without credentials."""
    place = {"connection_setting": shown_url(connection_url), "resource": {} if table is None else {"table": table}}
    return place if schema is None else {**place, "schema": schema}


Kind = Literal["trigger", "input", "output", "inject_reader", "inject_writer"]


class Injection(Protocol):
    """One parameter's value, for sync and for async handlers."""

    @property
    def kind(self) -> Kind:
        """Which decorator made it."""

    @property
    def arg_name(self) -> str:
        """The parameter that receives the value."""

    def check(self, available: Collection[str]) -> None:
        """Refuse to be made from parameters that are not there."""

    def opened(self, given: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Make the value for one call of a sync handler."""

    def opened_async(self, given: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Make the value for one call of an async handler; nothing here blocks its loop."""

    def described(self) -> dict[str, Any]:
        """Return what tools may know about it besides kind and parameter; no credentials."""


@dataclass(frozen=True, slots=True)
class ReaderInjection:
    """Hands the handler a reader."""

    arg_name: str
    target: BindingTarget
    kind: Kind = "inject_reader"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> DbReader:
        """Return a reader for one call."""
        from azure_functions_db.binding.reader import DbReader

        return DbReader(**self.target.client_options())

    def opened_async(self, _given: Mapping[str, Any]) -> AsyncDbReader:
        """Return an async reader for one call."""
        from azure_functions_db.binding.aio import AsyncDbReader

        return AsyncDbReader(**self.target.client_options())

    def described(self) -> dict[str, Any]:
        """Return the place it reads from."""
        return self.target.described()


@dataclass(frozen=True, slots=True)
class WriterInjection:
    """Hands the handler a writer."""

    arg_name: str
    target: BindingTarget
    kind: Kind = "inject_writer"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> DbWriter:
        """Return a writer for one call."""
        from azure_functions_db.binding.writer import DbWriter

        return DbWriter(**self.target.client_options())

    def opened_async(self, _given: Mapping[str, Any]) -> AsyncDbWriter:
        """Return an async writer for one call."""
        from azure_functions_db.binding.aio import AsyncDbWriter

        return AsyncDbWriter(**self.target.client_options())

    def described(self) -> dict[str, Any]:
        """Return the place it writes to."""
        return self.target.described()
