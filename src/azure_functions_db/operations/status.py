"""The status of a poller: how far it has come, how far behind it is, who is at work, what holds it back."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.errors import DbError, StateStoreError
from azure_functions_db.core.ports import CountsBacklog, LookingStateStore, NamesColumns, ReportsFacts, TellsPositions
from azure_functions_db.core.types import Backlog
from azure_functions_db.state.document import decoded, is_free
from azure_functions_db.trigger.adapters import reading
from azure_functions_db.trigger.batch import RATE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from azure_functions_db.core.ports import ChangeSource, Fact
    from azure_functions_db.core.types import CheckpointJson, FetchResult, Horizon, LeaseView
    from azure_functions_db.operations.pollers import Poller
    from azure_functions_db.state.document import Document

# How much of a source that cannot count is read to count it.
_READ = 1_000


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The lease as the state document has it."""

    owner: str
    token: int
    alive: bool
    age_seconds: float
    heartbeat_age_seconds: float
    expires_in_seconds: float


@dataclass(slots=True, kw_only=True)
class PollerStatus:
    """One poller's line in `azfdb status`; what is not known is None."""

    poller: str
    cursor: Any = None
    key: Mapping[str, Any] = field(default_factory=dict)
    last_success: dt.datetime | None = None
    last_success_age_seconds: float | None = None
    rows_per_second: float | None = None
    failed_attempts: int = 0
    lag_seconds: float | None = None
    waiting_rows: int | None = None
    waiting_unit: str = "rows"
    """What is counted: rows, changes or bytes."""
    waiting_is_more: bool = False
    lease: LeaseStatus | None = None
    quarantined: int | None = None
    horizon: Horizon | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What the source reports of itself."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Status:
    """Where all pollers stand."""

    pollers: list[PollerStatus]
    at: dt.datetime

    @property
    def has_problems(self) -> bool:
        """Whether something needs a look."""
        return any(status.problems for status in self.pollers)


def status_of(pollers: Iterable[Poller], now: dt.datetime) -> Status:
    """Return where pollers stand; what cannot be reached is a problem of that poller alone."""
    return Status([poller_status(poller, now) for poller in pollers], now)


def poller_status(poller: Poller, now: dt.datetime) -> PollerStatus:
    """Return where one poller stands."""
    status = PollerStatus(poller=poller.name)
    try:
        checkpoint = _read_state(poller, status, now)
        if checkpoint is not None and poller.definition is not None:
            _read_source(poller, checkpoint, status, now)
    except DbError as error:
        status.problems.append(str(error))
    try:
        status.quarantined = poller.quarantined()
    except DbError as error:
        status.problems.append(str(error))
    return status


def _read_state(poller: Poller, status: PollerStatus, now: dt.datetime) -> dict[str, Any] | None:
    if not poller.shows_documents:
        checkpoint = _read_other_store(poller, status, now)
        _note_checkpoint(status, checkpoint, now)
        return checkpoint
    content = poller.documents.raw_document(poller.name)
    if content is None:
        return {}
    document = decoded(content, poller.name)
    _note_checkpoint(status, document.checkpoint, now)
    if document.lease is not None:
        status.lease = _lease_status(document.lease, now, alive=not is_free(document, now))
    if poller.definition is not None:
        _note_fingerprint(poller, status, document)
    return document.checkpoint


def _read_other_store(poller: Poller, status: PollerStatus, now: dt.datetime) -> CheckpointJson:
    """Read a store of somebody else's own: the lease where it lets look at one, else the checkpoint alone."""
    if not isinstance(poller.store, LookingStateStore):
        return poller.store.load_checkpoint(poller.name)
    state = poller.store.look(poller.name)
    if (lease := state.lease or state.abandoned) is not None:
        status.lease = _lease_status(lease, now, alive=state.lease is not None)
    return state.checkpoint


def _note_checkpoint(status: PollerStatus, checkpoint: Mapping[str, Any], now: dt.datetime) -> None:
    metadata = checkpoint.get("metadata") or {}
    match checkpoint.get("cursor"):
        case {"value": value, "tiebreaker": dict() as key}:
            status.cursor = value
            status.key = {name: part.get("value") if isinstance(part, dict) else part for name, part in key.items()}
        case list() as parts if parts:
            status.cursor, status.key = parts[0], {str(place): part for place, part in enumerate(parts[1:], 1)}
        case other:
            status.cursor = other
    status.failed_attempts = int(metadata.get("failed_attempts", 0))
    if isinstance(updated := checkpoint.get("updated_at"), str):
        status.last_success = dt.datetime.fromisoformat(updated)
        age = max(0.0, (now - status.last_success).total_seconds())
        status.last_success_age_seconds = age
        rate = metadata.get("rows_per_second")
        # Nothing has come since: the average fades.
        status.rows_per_second = None if rate is None else round(rate * math.exp(-age / RATE_SECONDS), 3)
    if status.failed_attempts:
        status.problems.append(f"the next batch has failed {status.failed_attempts} time(s)")


def _lease_status(lease: LeaseView, now: dt.datetime, *, alive: bool) -> LeaseStatus:
    return LeaseStatus(
        owner=lease.owner_id,
        token=lease.fencing_token,
        alive=alive,
        age_seconds=(now - lease.acquired_at).total_seconds(),
        heartbeat_age_seconds=(now - lease.heartbeat_at).total_seconds(),
        expires_in_seconds=(lease.expires_at - now).total_seconds(),
    )


def _note_fingerprint(poller: Poller, status: PollerStatus, document: Document) -> None:
    if document.source_fingerprint not in poller.fingerprints:
        status.problems.append(
            "its state was written for another definition of the source: "
            f"azfdb reset {poller.name} --adopt-fingerprint or --to-beginning"
        )


def _read_source(poller: Poller, checkpoint: dict[str, Any], status: PollerStatus, now: dt.datetime) -> None:
    source = poller.defined.settings.source
    if isinstance(source, TellsPositions) and checkpoint.get("cursor") is not None:
        status.cursor = source.describe(checkpoint)
    waiting = look_behind(source, checkpoint, now)
    if waiting.backlog is not None:
        status.lag_seconds = waiting.backlog.lag_seconds
        status.waiting_rows = waiting.backlog.amount
        status.waiting_unit = waiting.backlog.unit
        status.waiting_is_more = waiting.backlog.is_more
    status.horizon = waiting.horizon
    if isinstance(source, ReportsFacts):
        _note_facts(status, source.report(checkpoint))


def _note_facts(status: PollerStatus, facts: Iterable[Fact]) -> None:
    for fact in facts:
        fields = dict(fact.log_fields())
        if fact.log_level >= logging.WARNING:
            status.problems.append(str(fields.pop("warning", fact.log_event)))
        status.facts |= fields


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits behind a checkpoint, where that can be told, and what keeps it from being read."""

    backlog: Backlog | None
    horizon: Horizon | None = None


def look_behind(source: ChangeSource, checkpoint: CheckpointJson, now: dt.datetime) -> Waiting:
    """Look at what waits behind a checkpoint: by asking, or by reading where that is all a source can."""
    if isinstance(source, CountsBacklog):
        backlog = source.backlog(checkpoint)
        return Waiting(backlog, backlog.horizon)
    if has_one_reader(source):
        return Waiting(None)
    with reading(source) as reader:
        result = reader.fetch_changes(checkpoint, _READ)
    rows = len(result.records)
    return Waiting(Backlog(rows, "rows", bool(result.more), _lag(source, result, rows, now)), result.horizon)


def has_one_reader(source: ChangeSource) -> bool:
    """Tell whether only the holder of the lease may read the source."""
    return source.capability().needs_lease


def _lag(source: Any, result: FetchResult, rows: int, now: dt.datetime) -> float | None:
    if not rows:
        return 0.0
    if not result.records:
        return None  # rows are there, and held back
    first = result.records[0]
    return lag_seconds(first.get(source.cursor_column), now) if isinstance(source, NamesColumns) else None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A poller's document, or what is there in its place and what is wrong with it."""

    poller: str
    document: dict[str, Any] | None
    problem: str | None = None
    raw: str | None = None


def inspect(poller: Poller) -> Inspection:
    """Return a poller's document; where it cannot be read, what is there and why not."""
    try:
        return Inspection(poller.name, poller.existing())
    except StateStoreError as error:
        content = poller.documents.raw_document(poller.name)
        if content is None:
            raise
        return Inspection(poller.name, None, str(error), content.decode(errors="replace"))


def exported(poller: Poller) -> str:
    """Return a poller's document as the text that `reset --to-checkpoint` reads."""
    return json.dumps(poller.existing(), indent=2)
