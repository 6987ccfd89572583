"""What sources stream from: made, removed and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.ports import ManagesStream

if TYPE_CHECKING:
    from azure_functions_db.operations.pollers import Poller


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The statements that have changed what a poller streams from, or would."""

    poller: str
    action: str
    statements: list[str]
    done: bool


@dataclass(frozen=True, slots=True)
class StreamView:
    """What a poller streams from."""

    poller: str
    stream: dict[str, Any]


def create_stream(poller: Poller, *, dry_run: bool = False) -> StreamReport:
    """Make what is missing of it."""
    statements = _managed(poller).create_stream(dry_run=dry_run)
    return StreamReport(poller.name, "create", list(statements), done=not dry_run)


def drop_stream(poller: Poller, *, dry_run: bool = False) -> StreamReport:
    """Remove it; the poller's position is lost with it."""
    statements = _managed(poller).drop_stream(dry_run=dry_run)
    return StreamReport(poller.name, "drop", list(statements), done=not dry_run)


def show_stream(poller: Poller) -> StreamView:
    """Look at it."""
    return StreamView(poller.name, dict(_managed(poller).show_stream()))


def _managed(poller: Poller) -> ManagesStream:
    source = poller.defined.settings.source
    if not isinstance(source, ManagesStream):
        raise ConfigurationError(f"A {type(source).__name__} streams from nothing that could be created or dropped")
    return source
