"""Delivers single events to an app's handler outside a tick."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.aside import printed_aside
from azure_functions_db.cli.handling import handler_of
from azure_functions_db.core.secrets import masked
from azure_functions_db.trigger.context import PollContext
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.mapping import mapped

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
    """Give each row to its handler; one that is handled leaves the quarantine."""
    report = Replayed()
    for entry in entries:
        try:
            deliver(_poller(entry), [event_of(entry)])
        except Exception as error:  # noqa: BLE001 - whatever the handler raises; it is told
            report.failed[entry.row.event_id] = masked(f"{type(error).__name__}: {error}")
        else:
            entry.remove()
            report.handled.append(entry.row.event_id)
    return report


def event_of(entry: Entry) -> RowChange:
    """Return the event of a quarantined row, with the id that it had and values of its columns' types."""
    written = entry.row.event
    source = _poller(entry).settings.source
    return RowChange(
        entry.row.event_id,
        written["op"],
        source.source_descriptor,
        _revived(source, {"cursor": written["cursor"]}, names={"cursor": getattr(source, "cursor_column", "cursor")})[
            "cursor"
        ],
        _revived(source, written["pk"]),
        None if written["before"] is None else _revived(source, written["before"]),
        None if written["after"] is None else _revived(source, written["after"]),
        {**written["metadata"], "attempt": entry.row.attempts + 1, "replayed": True},
    )


def deliver(poller: AppPoller, events: Sequence[RowChange]) -> None:
    """Call the app's handler with events, as a tick would."""
    with printed_aside():
        outcome = handler_of(poller)(_given(poller, events), _context(poller, events))
        if inspect.isawaitable(outcome):
            asyncio.run(_finished(outcome))


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
        raise AssertionError("entries of an app know their poller")
    return entry.poller


def _revived(source: Any, row: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    revive = getattr(source, "revived", None)
    if revive is None:
        return dict(row)
    columns = {(names or {}).get(name, name): value for name, value in row.items()}
    return dict(zip(row, revive(columns).values(), strict=True))


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


async def _finished(outcome: Any) -> Any:
    return await outcome
