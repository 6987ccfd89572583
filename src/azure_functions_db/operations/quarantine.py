"""Quarantined rows: which are there, and how they are replayed or dropped."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.ports import NamesColumns, ReadsRows, RevivesRows
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import parsed_json, retyped
from azure_functions_db.operations.pollers import UnknownPollerError
from azure_functions_db.operations.reset import backups_in, saved
from azure_functions_db.operations.run import deliver
from azure_functions_db.quarantine import oldest_first, row_of
from azure_functions_db.trigger.events import RowChange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.core.types import QuarantinedRow
    from azure_functions_db.operations.pollers import Definition, Poller, Pollers


# How long dropped rows can be restored.
_RESTORABLE = dt.timedelta(days=7)
# A row may hold a document of its own.
_DEEPEST = 1_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One quarantined row, the sink that keeps it, and the poller that would take it again."""

    row: QuarantinedRow
    sink: QuarantineSink = field(repr=False)
    definition: Definition | None = field(default=None, repr=False)

    def remove(self) -> None:
        """Forget the row."""
        self.sink.remove(self.row.poller_name, self.row.event_id)

    def check_removable(self) -> None:
        """Raise what forgetting the row would raise where the sink may only be read; forget nothing."""
        self.sink.remove(self.row.poller_name, f"nobody-{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are meant: all, or those of a poller, of ids (or their first characters), of a kind of error."""

    poller: str | None = None
    ids: tuple[str, ...] = ()
    error: str | None = None

    def takes(self, row: QuarantinedRow) -> bool:
        """Tell whether the row is meant."""
        by_id = not self.ids or any(row.event_id.startswith(prefix) for prefix in self.ids)
        return by_id and self.error in {None, row.error_type} and self.poller in {None, row.poller_name}

    def check(self, rows: Iterable[QuarantinedRow]) -> None:
        """Refuse an id that means no row, or more than one."""
        ids = {row.event_id for row in rows}
        for prefix in self.ids:
            meant = {event_id for event_id in ids if event_id.startswith(prefix)}
            if not meant:
                raise UnknownPollerError(f"No quarantined row has an id that begins with {prefix!r}")
            if len(meant) > 1:
                raise ConfigurationError(f"{len(meant)} quarantined rows have an id that begins with {prefix!r}")


def entries_in(sink: QuarantineSink, poller: str | None) -> list[Entry]:
    """Return the rows of a sink; of one poller where it is named, whatever the others' look like."""
    return [Entry(row, sink) for row in sink.entries(poller)]


def entries_of(pollers: Sequence[Poller], name: str | None) -> list[Entry]:
    """Return the rows in the quarantines of these pollers, oldest first; those of their backfills, too.

    Of one poller where it is named, whatever the others' look like.
    """
    entries = {
        (row.poller_name, row.event_id): Entry(row, poller.sink, _taker(row, pollers))
        for poller in pollers
        if poller.sink is not None
        for row in poller.sink.entries(name)
    }
    return sorted(entries.values(), key=lambda entry: entry.row.quarantined_at)


def selected(entries: Sequence[Entry], selection: Selection) -> list[Entry]:
    """Return those of the rows that are meant."""
    selection.check(entry.row for entry in entries)
    return [entry for entry in entries if selection.takes(entry.row)]


def app_entries(pollers: Pollers, name: str | None) -> list[Entry]:
    """Return the rows in the quarantines of an app, of one poller where it is named, which must be there."""
    entries = entries_of(pollers.all(), name)
    if name is not None and all(entry.row.poller_name != name for entry in entries):
        _ = pollers.one(name).quarantine  # a poller that is not there, or has none, is refused
    return entries


def drop(entries: Sequence[Entry], backups: Path) -> str | None:
    """Forget rows; return the file that still has them, None where there were none."""
    if not entries:
        return None
    backup = saved(backups, "quarantine", [entry.row for entry in entries])
    for entry in entries:
        entry.remove()
    return backup


@dataclass(slots=True)
class ReplayReport:
    """What became of each row: handled and removed, or failed again and still there."""

    handled: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def replay(entries: Sequence[Entry], *, refetch: bool = False) -> ReplayReport:
    """Give each row to its handler; one that is handled leaves the quarantine, which is tried first.

    With ``refetch`` the handler gets the row as it is now, not as it was put aside.
    """
    for entry in {(id(entry.sink), entry.row.poller_name): entry for entry in entries}.values():
        entry.check_removable()
    report = ReplayReport()
    for entry in entries:
        try:
            deliver(_definition(entry), [_present(entry) if refetch else event_of(entry)])
        except Exception as error:  # noqa: BLE001 - whatever the handler raises; it is reported
            report.failed[entry.row.event_id] = f"{type(error).__name__}: {masked_words(error)}"
        else:
            entry.remove()
            report.handled.append(entry.row.event_id)
    return report


def event_of(entry: Entry) -> RowChange:
    """Return the event of a quarantined row, with the id that it had and values of the types that they had."""
    settings = _definition(entry).settings
    written = _retyped(entry.row, settings.source)
    return RowChange(
        entry.row.event_id,
        written["op"],
        settings.source.source_descriptor,
        written["cursor"],
        written["pk"],
        written["before"],
        written["after"],
        {"consumer": settings.consumer, **written["metadata"], "attempt": entry.row.attempts + 1, "replayed": True},
    )


def _retyped(row: QuarantinedRow, source: Any) -> Mapping[str, Any]:
    """Return the event as it was delivered: by the types that were noted with it, else by those of the columns."""
    tells_types_itself = isinstance(source, RevivesRows) and not isinstance(source, NamesColumns)
    if row.types is not None and not tells_types_itself:
        return dict(retyped(row.event, row.types))
    column = source.cursor_column if isinstance(source, NamesColumns) else "cursor"
    rows = {part: row.event[part] and _revived(source, row.event[part]) for part in ("pk", "before", "after")}
    return {**row.event, **rows, "cursor": _revived(source, {column: row.event["cursor"]})[column]}


def _present(entry: Entry) -> RowChange:
    """Return the event with the row as it is now."""
    event, source = event_of(entry), _definition(entry).settings.source
    if not isinstance(source, ReadsRows):
        raise ConfigurationError(f"A {type(source).__name__} cannot look up a single row")
    row = source.current_row(event.pk)
    if row is None:
        raise ConfigurationError("the row is not there any more, or no longer one of the source: drop it")
    cursor = row[source.cursor_column] if isinstance(source, NamesColumns) else event.cursor
    return RowChange(event.event_id, event.op, event.source, cursor, event.pk, event.before, row, event.metadata)


def restorable(folder: Path, selection: Selection) -> list[QuarantinedRow]:
    """Return the rows that were dropped within the last week and are meant, as their files have them."""
    rows: dict[tuple[str, str], QuarantinedRow] = {}
    for path in backups_in(folder, "quarantine", _RESTORABLE):
        for row in _rows_in(path):
            rows.setdefault((row.poller_name, row.event_id), row)  # the newest file comes first
    selection.check(rows.values())
    return oldest_first([row for row in rows.values() if selection.takes(row)])


def restore(rows: Sequence[QuarantinedRow], pollers: Pollers) -> None:
    """Put dropped rows back into the quarantines of the pollers that would take them again."""
    every = pollers.all()
    sinks = [_sink_for(row, every) for row in rows]
    for row, sink in zip(rows, sinks, strict=True):
        sink.put([row])


def _sink_for(row: QuarantinedRow, pollers: Sequence[Poller]) -> QuarantineSink:
    taker = _taker(row, pollers)
    if taker is None or taker.settings.quarantine is None:
        raise ConfigurationError(f"No quarantine of the app is for rows of {row.poller_name!r}: give --quarantine URL")
    return taker.settings.quarantine


def _rows_in(path: Path) -> list[QuarantinedRow]:
    try:
        written = parsed_json(path.read_bytes(), _DEEPEST)
        return [row_of(row, str(path)) for row in written] if isinstance(written, list) else []
    except (OSError, ValueError, TypeError) as failure:
        raise ConfigurationError(f"The dropped rows in {path} cannot be read: {failure}") from None


def _revived(source: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(source.revived(row) if isinstance(source, RevivesRows) else row)


def _definition(entry: Entry) -> Definition:
    if entry.definition is None:
        raise ConfigurationError(f"No poller of the app reads the source of this row of {entry.row.poller_name!r}")
    return entry.definition


def _taker(row: QuarantinedRow, pollers: Sequence[Poller]) -> Definition | None:
    """Return the poller that would take a row again: its own, or for a backfill's row the one of the same source."""
    by_name = {poller.name: poller.defined for poller in pollers}
    if row.poller_name in by_name:
        return by_name[row.poller_name]
    source = row.event.get("source")
    fingerprint = source.get("fingerprint") if isinstance(source, dict) else None
    same = (each for each in by_name.values() if each.settings.source.source_descriptor.fingerprint == fingerprint)
    return next(same, None)
