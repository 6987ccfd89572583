"""Examines pollers: their source, their store, their schedule."""

from __future__ import annotations

import datetime as dt
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import clock_finding
from azure_functions_db.core.errors import DbError, with_code
from azure_functions_db.core.ports import ExaminesItself
from azure_functions_db.core.types import Finding
from azure_functions_db.operations.run import LATE_OUTPUT, handler_function, is_timer, schedule_of
from azure_functions_db.operations.status import PollerStatus, read_ticks
from azure_functions_db.relay.handler import RelayHandler
from azure_functions_db.trigger.tick import SIGN_OF_LIFE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from azure_functions_db.operations.pollers import Definition, Poller
    from azure_functions_db.operations.run import Schedule

_MONTH = dt.timedelta(days=30)
# Enough to know the pace of a schedule.
_SAMPLE = 1000
_IDLE_REQUESTS, _BATCH_REQUESTS = 1, 3
# What the host lets a function run for on the Consumption plan, unless host.json says more.
_FUNCTION_TIMEOUT = 300.0
# What a plan counts at least: Consumption 0.1 s with 128 MB for an execution, Flex 1 s with the memory of an instance.
_CONSUMPTION_GB, _CONSUMPTION_SECONDS = 0.125, 0.1
_FLEX_GB, _FLEX_SECONDS = 2.0, 1.0


@dataclass(frozen=True, slots=True)
class PollerHealth:
    """What was found about one poller."""

    poller: str
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Health:
    """What was found about all pollers."""

    pollers: list[PollerHealth]

    @property
    def grades(self) -> set[str]:
        """The grades that occur."""
        return {finding.grade for poller in self.pollers for finding in poller.findings}


def examine(pollers: Iterable[Poller]) -> Health:
    """Examine pollers; what cannot be reached is an error of that poller alone."""
    return Health([PollerHealth(poller.name, list(_findings(poller))) for poller in pollers])


def _findings(poller: Poller) -> Iterator[Finding]:
    definition = poller.definition
    if definition is not None:
        yield from _checked("source", lambda: _source(definition))
    yield from _checked("state", lambda: _state(poller))
    yield from _checked("storage clock", lambda: [_storage_clock(poller)])
    yield from _checked("quarantine", lambda: [_quarantine(poller)])
    if definition is not None:
        yield from _outputs(definition)
        yield from _checked("relay", lambda: _relays(definition))
        yield from _checked("requests", lambda: [_requests(definition)])
        yield from _checked("linger", lambda: _linger(definition))


def _checked(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except DbError as error:
        yield Finding(check, "error", with_code(error))


def _source(definition: Definition) -> Iterator[Finding]:
    source = definition.settings.source
    source.validate()
    yield Finding("grants", "ok", f"this login may read {source.source_descriptor.name}")
    if isinstance(source, ExaminesItself):
        yield from source.checkup()
    else:
        yield Finding("source", "note", f"a {type(source).__name__} does not examine itself")


def _state(poller: Poller) -> Iterator[Finding]:
    if not poller.shows_documents:
        poller.store.load_checkpoint(poller.name)
        yield Finding("state", "ok", f"readable; leases of a {type(poller.store).__name__} cannot be seen from here")
        return
    if isinstance(poller.store, ExaminesItself):
        yield from poller.store.checkup()
    document = poller.document()
    if document is None:
        yield Finding("state", "note", "never run: it starts where its source says (start_at=)")
        return
    yield Finding("state", "ok", "readable")
    yield from _ticks(poller)
    if poller.definition is not None and document["source_fingerprint"] not in poller.fingerprints:
        yield Finding(
            "fingerprint",
            "error",
            "the state was written for another definition of the source",
            f"azfdb reset {poller.name} --adopt-fingerprint, or --to-beginning",
        )


def _ticks(poller: Poller) -> Iterator[Finding]:
    """Tell whether ticks fail, do not come, or are not wanted."""
    status = PollerStatus(poller=poller.name)
    read_ticks(poller, status, dt.datetime.now(dt.UTC))
    for told in status.problems:
        yield Finding("ticks", "error", told, f"azfdb inspect {poller.name}, then the app's log")
    if status.silent_from is not None and not status.problems:
        told = f"last at {status.last_tick:%H:%M:%S}Z; silent if none comes by {status.silent_from:%H:%M:%S}Z"
        yield Finding("ticks", "ok", told)
    if status.paused is not None:
        why = f": {status.paused.why}" if status.paused.why else ""
        yield Finding("ticks", "warning", f"paused by {status.paused.by}{why}", f"azfdb resume {poller.name}")


def _outputs(definition: Definition) -> Iterator[Finding]:
    for binding in definition.function.late_outputs:
        told = f"the output binding {binding.type} {binding.name!r} below a trigger. {LATE_OUTPUT}"
        yield Finding("output binding", "warning", told)


def _storage_clock(poller: Poller) -> Finding:
    if not poller.shows_documents:
        return clock_finding("storage clock", None)
    there = poller.documents.storage_time()
    if there is None:
        return Finding("storage clock", "ok", "this machine's own")
    return clock_finding("storage clock", there)


def _quarantine(poller: Poller) -> Finding:
    waiting = poller.quarantined()
    if waiting is None:
        return Finding("quarantine", "note", "none: a batch with a poison row is retried for ever")
    if waiting:
        return Finding(
            "quarantine", "warning", f"{waiting} row(s) wait", f"azfdb quarantine list --poller {poller.name}"
        )
    return Finding("quarantine", "ok", "empty")


def _relays(definition: Definition) -> Iterator[Finding]:
    """Ask the brokers of the relays that a handler names; those it finds in other ways are not seen."""
    handler = handler_function(definition)
    if handler is None:
        return
    for used in inspect.getclosurevars(inspect.unwrap(handler)).globals.values():
        if isinstance(used, RelayHandler):
            yield from used.checkup()


def _requests(definition: Definition) -> Finding:
    function: Any = definition.function
    if not is_timer(function):
        return Finding("requests", "note", f"as many as the host's {function.trigger.type} fires")
    ticks = ticks_per_month(schedule_of(function), dt.datetime.now(dt.UTC))
    idle, busy = requests(ticks, definition.settings.linger_seconds, definition.settings.lease_ttl_seconds)
    told = f"{ticks:,} ticks a month: about {idle:,} storage requests when idle, {busy:,} with a batch each"
    return Finding("requests", "ok", told)


def requests(ticks: int, linger_seconds: float | None = None, lease_ttl_seconds: float = 120) -> tuple[int, int]:
    """Return what so many ticks a month ask of the store: when nothing changes, and with a batch each."""
    signs = min(ticks, round(_MONTH / SIGN_OF_LIFE))
    idle, busy = requests_of_tick(linger_seconds, lease_ttl_seconds)
    return round(ticks * idle) + signs, round(ticks * busy)


def requests_of_tick(linger_seconds: float | None, lease_ttl_seconds: float) -> tuple[float, float]:
    """Return the storage requests of an idle tick and of one with a batch; one that lingers always takes the lease."""
    if linger_seconds is None:
        return _IDLE_REQUESTS, _BATCH_REQUESTS
    heartbeats = linger_seconds // (lease_ttl_seconds / 3)
    return _BATCH_REQUESTS + heartbeats, _BATCH_REQUESTS + 1 + heartbeats


def _linger(definition: Definition) -> Iterator[Finding]:
    """Tell where a tick cannot linger as long as it is told to, and what that costs."""
    settings, function = definition.settings, definition.function
    if settings.linger_seconds is None or not is_timer(function):
        return
    schedule, now = schedule_of(function), dt.datetime.now(dt.UTC)
    first = schedule.after(now)
    seconds = min(settings.linger_seconds, settings.time_budget_seconds or settings.linger_seconds)
    yield from _too_long(settings.linger_seconds, seconds, (schedule.after(first) - first).total_seconds())
    cost = cost_of_lingering(ticks_per_month(schedule, now), seconds, settings.poll_interval_seconds)
    yield Finding("linger", "ok", cost)


def _too_long(wanted: float, seconds: float, interval: float) -> Iterator[Finding]:
    if seconds < wanted:
        told = f"time_budget_seconds={seconds:g} ends a tick before linger_seconds={wanted:g}"
        yield Finding("linger", "warning", told)
    if seconds > interval:
        told = f"a tick stays for {seconds:g} s, and the next is due after {interval:g} s: it comes late each time"
        yield Finding("linger", "warning", told, f"linger_seconds= of less than {interval:g}")
    if seconds >= _FUNCTION_TIMEOUT:
        told = f"a tick stays for {seconds:g} s: unless functionTimeout in host.json is longer, the host ends it"
        yield Finding("linger", "warning", told, "a shorter linger_seconds=, or time_budget_seconds=")


def cost_of_lingering(ticks: int, seconds: float, interval: float) -> str:
    """Say what functions take in a month that linger, and what a schedule that is as quick would take instead."""
    pause = max(1.0, interval)
    often = round(_MONTH.total_seconds() / pause)
    consumption, flex = (f"{amount:,.0f}" for amount in gigabyte_seconds(ticks, seconds))
    as_quick, as_quick_flex = (f"{amount:,.0f}" for amount in gigabyte_seconds(often, None))
    return (
        f"{ticks * seconds / 3600:,.0f} hours of execution a month: {consumption} GB-s on Consumption at 128 MB, "
        f"{flex} GB-s on Flex at 2,048 MB. A tick every {pause:g} s instead: {often:,} executions and storage "
        f"requests, {as_quick} and {as_quick_flex} GB-s"
    )


def gigabyte_seconds(ticks: int, seconds: float | None) -> tuple[float, float]:
    """Return what Consumption and Flex count for ticks that linger so long; for others, the least that is counted."""
    consumption = ticks * (seconds or _CONSUMPTION_SECONDS) * _CONSUMPTION_GB
    return consumption, ticks * (seconds or _FLEX_SECONDS) * _FLEX_GB


def ticks_per_month(schedule: Schedule, now: dt.datetime) -> int:
    """Return how often a schedule fires in thirty days."""
    first = moment = schedule.after(now)
    for count in range(1, _SAMPLE):
        moment = schedule.after(moment)
        if moment >= first + _MONTH:
            return count
    return round((_SAMPLE - 1) * (_MONTH / (moment - first)))
