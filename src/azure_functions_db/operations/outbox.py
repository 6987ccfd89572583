"""What an operator can do with an outbox: make its table, see what is in it, remove what was delivered."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.operations.pollers import database_at
from azure_functions_db.sources.outbox.source import OutboxSource
from azure_functions_db.sources.outbox.table import Outbox

if TYPE_CHECKING:
    from azure_functions_db.operations.pollers import Poller, Pollers

# Counting stops here: an operator needs no exact number beyond it.
_COUNTED = 1_000_000


@dataclass(frozen=True, slots=True)
class CreateReport:
    """The statements that make an outbox, or complete it; none where nothing is missing."""

    table: str
    statements: list[str]
    done: bool


@dataclass(frozen=True, slots=True)
class CreateReports:
    """What making the outboxes of an app took."""

    outboxes: list[CreateReport]


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """What is in an outbox, as one poller sees it."""

    poller: str
    table: str
    rows: int
    waiting: int
    """How many are not delivered yet."""
    left: int
    """How many lie before the checkpoint: delivered, and kept or left behind."""
    lag_seconds: float | None
    is_more: bool
    """Whether counting stopped before the end."""


@dataclass(frozen=True, slots=True)
class OutboxStatuses:
    """What is in the outboxes of an app."""

    outboxes: list[OutboxStatus]


@dataclass(frozen=True, slots=True)
class PruneReport:
    """How many delivered rows were removed, or would be."""

    poller: str
    table: str
    rows: int
    done: bool


def outbox_source(poller: Poller) -> OutboxSource:
    """Return the outbox that a poller reads."""
    source = poller.defined.settings.source
    if not isinstance(source, OutboxSource):
        raise ConfigurationError(f"Poller {poller.name!r} reads no outbox: its source is a {type(source).__name__}")
    return source


def outbox_pollers(pollers: Pollers, name: str | None) -> list[Poller]:
    """Return the poller of a name, or all that read an outbox."""
    if name is not None:
        return [pollers.one(name)]
    found = [one for one in pollers.all() if isinstance(one.defined.settings.source, OutboxSource)]
    if not found:
        raise ConfigurationError("No poller of this app reads an outbox: give --url DATABASE[#TABLE]")
    return found


def source_at(url: str) -> OutboxSource:
    """Return the outbox in a database, in the table after ``#``; its columns have their usual names."""
    place = database_at(url)
    outbox = Outbox(place.pop("table", "outbox"), place.pop("schema", None))
    return OutboxSource(outbox=outbox, **place)


def create(source: OutboxSource, *, dry_run: bool) -> CreateReport:
    """Make the table, or what it lacks; say what was done, or would be."""
    outbox, engine = source.outbox, source.engine()
    statements = outbox.pending(engine) if dry_run else outbox.create(engine)
    return CreateReport(outbox.label, statements, done=not dry_run)


def status(poller: Poller) -> OutboxStatus:
    """Count what waits and what was left; nothing is consumed."""
    source = outbox_source(poller)
    checkpoint = poller.store.load_checkpoint(poller.name)
    rows, waiting = source.count_rows({}, _COUNTED), source.count_rows(checkpoint, _COUNTED)
    lag = source.backlog(checkpoint).lag_seconds
    return OutboxStatus(
        poller.name, source.outbox.label, rows, waiting, max(0, rows - waiting), lag, is_more=rows >= _COUNTED
    )


def prune(poller: Poller, older_than: dt.timedelta, *, dry_run: bool) -> PruneReport:
    """Remove rows that the poller has delivered and that are older than this."""
    source = outbox_source(poller)
    rows = source.prune(poller.store.load_checkpoint(poller.name), older_than, dry_run=dry_run)
    return PruneReport(poller.name, source.outbox.label, rows, done=not dry_run)
