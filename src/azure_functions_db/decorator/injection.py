"""What a decorator puts into one parameter of the handler: opened for a call, closed after it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

from azure_functions_db.core.config import DbConfig, config_of
from azure_functions_db.core.secrets import MASK

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from azure_functions_db.binding.aio import AsyncDbReader, AsyncDbWriter
    from azure_functions_db.binding.reader import DbReader
    from azure_functions_db.binding.writer import DbWriter
    from azure_functions_db.sql.engine import EngineProvider

_SHOWABLE = re.compile(r"%\w+%|[\w+.-]+://.*", re.DOTALL)
# Greedy, because a password that somebody forgot to encode may hold any character.
_USER_INFO = re.compile(r"(?<=://).*@", re.DOTALL)
_PARAMETERS = re.compile(r"[?#;].*", re.DOTALL)


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
    table: str | None
    schema: str | None
    provider: EngineProvider | None

    def client_options(self) -> ClientOptions:
        """Return the arguments that open a reader or writer here."""
        return {
            "db_config": self.config,
            "table": self.table,
            "schema": self.schema,
            "engine_provider": self.provider,
        }

    def described(self) -> dict[str, Any]:
        """Return the place without anybody's credentials."""
        place = {"url": without_credentials(self.config.connection_url), "table": self.table, "schema": self.schema}
        return {name: value for name, value in place.items() if value is not None}


def target_of(
    url: str | None,
    db_config: DbConfig | None,
    table: str | None,
    schema: str | None,
    provider: EngineProvider | None,
) -> BindingTarget:
    """Return the database that a decorator was given."""
    return BindingTarget(config_of(url, db_config), table, schema, provider)


def without_credentials(url: str) -> str:
    """Return a URL without user, password and parameters; ``%NAME%`` settings stay as they are written."""
    return _PARAMETERS.sub("", _USER_INFO.sub("", url)) if _SHOWABLE.fullmatch(url) else MASK


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
        """Return what tools may know about it; no credentials."""


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
        return {"type": self.kind, "arg_name": self.arg_name, **self.target.described()}


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
        return {"type": self.kind, "arg_name": self.arg_name, **self.target.described()}
