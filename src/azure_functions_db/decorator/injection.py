"""What a decorator puts into one parameter of the handler: opened for a call, closed after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from azure_functions_db.binding.aio import AsyncDbReader, AsyncDbWriter
    from azure_functions_db.binding.reader import DbReader
    from azure_functions_db.binding.writer import DbWriter
    from azure_functions_db.decorator.database import Database

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
    database: Database
    kind: Kind = "inject_reader"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> DbReader:
        """Return a reader for one call."""
        from azure_functions_db.binding.reader import DbReader

        return DbReader(**self.database.client_options())

    def opened_async(self, _given: Mapping[str, Any]) -> AsyncDbReader:
        """Return an async reader for one call."""
        from azure_functions_db.binding.aio import AsyncDbReader

        return AsyncDbReader(**self.database.client_options())

    def described(self) -> dict[str, Any]:
        """Return the place it reads from."""
        return {"type": self.kind, "arg_name": self.arg_name, **self.database.described()}


@dataclass(frozen=True, slots=True)
class WriterInjection:
    """Hands the handler a writer."""

    arg_name: str
    database: Database
    kind: Kind = "inject_writer"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> DbWriter:
        """Return a writer for one call."""
        from azure_functions_db.binding.writer import DbWriter

        return DbWriter(**self.database.client_options())

    def opened_async(self, _given: Mapping[str, Any]) -> AsyncDbWriter:
        """Return an async writer for one call."""
        from azure_functions_db.binding.aio import AsyncDbWriter

        return AsyncDbWriter(**self.database.client_options())

    def described(self) -> dict[str, Any]:
        """Return the place it writes to."""
        return {"type": self.kind, "arg_name": self.arg_name, **self.database.described()}
