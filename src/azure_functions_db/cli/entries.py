"""Quarantined rows as an operator picks them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from azure_functions_db.cli.errors import UnknownPollerError
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure_functions_db.cli.targets import AppPoller, Target
    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.core.types import QuarantinedRow


@dataclass(frozen=True, slots=True)
class Entry:
    """One quarantined row, the sink that keeps it, and the poller that would take it again."""

    row: QuarantinedRow
    sink: QuarantineSink = field(repr=False)
    poller: AppPoller | None = field(default=None, repr=False)

    def remove(self) -> None:
        """Forget the row."""
        self.sink.remove(self.row.poller_name, self.row.event_id)

    def check_removable(self) -> None:
        """Raise what forgetting the row would raise where the sink may only be read; forget nothing."""
        self.sink.remove(self.row.poller_name, f"nobody-{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows are meant: all, or those of a poller, of ids (or their first characters), of a kind of error."""

    poller: str | None = None
    ids: tuple[str, ...] = ()
    error: str | None = None

    def takes(self, row: QuarantinedRow) -> bool:
        """Tell whether the row is meant."""
        by_id = not self.ids or any(row.event_id.startswith(chosen) for chosen in self.ids)
        return by_id and self.error in {None, row.error_type} and self.poller in {None, row.poller_name}

    def check(self, found: Sequence[Entry]) -> None:
        """Refuse an id that means no row, or more than one."""
        for chosen in self.ids:
            meant = {entry.row.event_id for entry in found if entry.row.event_id.startswith(chosen)}
            if not meant:
                raise UnknownPollerError(f"No quarantined row has an id that begins with {chosen!r}")
            if len(meant) > 1:
                raise ConfigurationError(f"{len(meant)} quarantined rows have an id that begins with {chosen!r}")


def entries_in(sink: QuarantineSink, poller: str | None) -> list[Entry]:
    """Return the rows of a sink; of one poller where it is named, whatever the others' look like."""
    return [Entry(row, sink) for row in sink.entries(poller)]


def entries_of(targets: Sequence[Target], poller: str | None) -> list[Entry]:
    """Return the rows in the quarantines of these pollers, oldest first; those of their backfills, too.

    Of one poller where it is named, whatever the others' look like.
    """
    found = {
        (row.poller_name, row.event_id): Entry(row, target.sink, _taker(row, targets))
        for target in targets
        if target.sink is not None
        for row in target.sink.entries(poller)
    }
    return sorted(found.values(), key=lambda entry: entry.row.quarantined_at)


def chosen(entries: Sequence[Entry], choice: Choice) -> list[Entry]:
    """Return those of the rows that are meant."""
    choice.check(entries)
    return [entry for entry in entries if choice.takes(entry.row)]


def _taker(row: QuarantinedRow, targets: Sequence[Target]) -> AppPoller | None:
    """Return the poller that would take a row again: its own, or for a backfill's row the one of the same source."""
    by_name = {target.name: target.defined for target in targets}
    if row.poller_name in by_name:
        return by_name[row.poller_name]
    source = row.event.get("source")
    fingerprint = source.get("fingerprint") if isinstance(source, dict) else None
    same = (
        poller for poller in by_name.values() if poller.settings.source.source_descriptor.fingerprint == fingerprint
    )
    return next(same, None)
