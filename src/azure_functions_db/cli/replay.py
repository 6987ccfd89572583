"""Delivers single events to an app's handler outside a tick."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.aside import printed_aside
from azure_functions_db.cli.handling import handling_of
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.trigger.context import PollContext
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.handler import mapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from azure_functions_db.cli.entries import Entry
    from azure_functions_db.cli.targets import AppPoller


@dataclass(slots=True)
class Replayed:
    """What became of each row: handled and removed, or failed again and still there."""

    handled: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def replayed(entries: Sequence[Entry]) -> Replayed:
    """Give each row to its handler; one that is handled leaves the quarantine, which is tried first."""
    for entry in {(id(entry.sink), entry.row.poller_name): entry for entry in entries}.values():
        entry.check_removable()
    report = Replayed()
    for entry in entries:
        try:
            deliver(_poller(entry), [event_of(entry)])
        except Exception as error:  # noqa: BLE001 - whatever the handler raises; it is told
            report.failed[entry.row.event_id] = f"{type(error).__name__}: {masked_words(error)}"
        else:
            entry.remove()
            report.handled.append(entry.row.event_id)
    return report


def event_of(entry: Entry) -> RowChange:
    """Return the event of a quarantined row, with the id that it had and values of its columns' types."""
    written, settings = entry.row.event, _poller(entry).settings
    source = settings.source
    column = getattr(source, "cursor_column", "cursor")
    return RowChange(
        entry.row.event_id,
        written["op"],
        source.source_descriptor,
        _revived(source, {column: written["cursor"]})[column],
        _revived(source, written["pk"]),
        written["before"] and _revived(source, written["before"]),
        written["after"] and _revived(source, written["after"]),
        {"consumer": settings.consumer, **written["metadata"], "attempt": entry.row.attempts + 1, "replayed": True},
    )


def deliver(poller: AppPoller, events: Sequence[RowChange]) -> None:
    """Call the app's handler with events, as a tick would."""
    handling = handling_of(poller)
    with printed_aside():
        outcome = handling.call(_given(poller, events), _context(poller, events))
        if handling.is_async:
            asyncio.run(outcome)


def _given(poller: AppPoller, events: Sequence[RowChange]) -> list[Any]:
    """Return the events, or the models that the handler is given in their place."""
    model = poller.settings.model
    if model is None:
        return list(events)
    fitting, misfits = mapped(events, model)
    for misfit in misfits.values():
        raise misfit
    return fitting


def _poller(entry: Entry) -> AppPoller:
    if entry.poller is None:
        raise ConfigurationError(f"No poller of the app reads the source of this row of {entry.row.poller_name!r}")
    return entry.poller


def _revived(source: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    revive = getattr(source, "revived", dict)
    return dict(revive(row))


def _context(poller: AppPoller, events: Sequence[RowChange]) -> PollContext:
    return PollContext(
        poller_name=poller.settings.name,
        invocation_id=str(uuid.uuid4()),
        batch_id=f"replay_{uuid.uuid4().hex}",
        lease_owner="azfdb",
        checkpoint_before={},
        checkpoint_after_candidate={},
        tick_started_at=dt.datetime.now(dt.UTC),
        source_name=poller.settings.source.source_descriptor.name,
        attempt=1,
        events=events,
        lease_lost=threading.Event(),
    )
