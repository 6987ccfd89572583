"""Quarantined rows as an operator picks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from azure_functions_db.cli.errors import UnknownPollerError
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows are meant: all, or those of ids (or their first characters), or of a kind of error."""

    ids: tuple[str, ...] = ()
    error: str | None = None

    def takes(self, row: QuarantinedRow) -> bool:
        """Tell whether the row is meant."""
        by_id = not self.ids or any(row.event_id.startswith(chosen) for chosen in self.ids)
        return by_id and self.error in {None, row.error_type}

    def check(self, found: Sequence[Entry]) -> None:
        """Refuse an id that means no row, or more than one."""
        for chosen in self.ids:
            meant = {entry.row.event_id for entry in found if entry.row.event_id.startswith(chosen)}
            if not meant:
                raise UnknownPollerError(f"No quarantined row has an id that begins with {chosen!r}")
            if len(meant) > 1:
                raise ConfigurationError(f"{len(meant)} quarantined rows have an id that begins with {chosen!r}")


def entries_of(targets: Sequence[Target], choice: Choice) -> list[Entry]:
    """Return the chosen rows of these pollers, oldest first."""
    every = [entry for target in targets for entry in _kept(target)]
    choice.check(every)
    return sorted((entry for entry in every if choice.takes(entry.row)), key=lambda entry: entry.row.quarantined_at)


def entries_in(sink: QuarantineSink, poller: str | None, choice: Choice) -> list[Entry]:
    """Return the chosen rows of a sink."""
    every = [Entry(row, sink) for row in sink.entries(poller)]
    choice.check(every)
    return [entry for entry in every if choice.takes(entry.row)]


def _kept(target: Target) -> Iterator[Entry]:
    if target.sink is not None:
        yield from (Entry(row, target.sink, target.poller) for row in target.sink.entries(target.name))
