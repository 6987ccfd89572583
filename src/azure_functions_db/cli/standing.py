"""Where a poller stands: how far it has come, how far behind it is, who is at work, what holds it back."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.backlog import Backlog, backlog_of
from azure_functions_db.core.errors import DbError
from azure_functions_db.state.document import decoded, is_free
from azure_functions_db.trigger.batch import RATE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from azure_functions_db.cli.targets import Target
    from azure_functions_db.core.types import Horizon, LeaseView
    from azure_functions_db.state.document import Document


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """The lease as the state document has it."""

    owner: str
    token: int
    alive: bool
    age_seconds: float
    heartbeat_age_seconds: float
    expires_in_seconds: float


@dataclass(slots=True, kw_only=True)
class Standing:
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
    waiting_is_more: bool = False
    lease: LeaseStanding | None = None
    quarantined: int | None = None
    horizon: Horizon | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Status:
    """Where all pollers stand."""

    pollers: list[Standing]
    at: dt.datetime

    @property
    def has_problems(self) -> bool:
        """Whether something needs a look."""
        return any(standing.problems for standing in self.pollers)


def status_of(targets: Iterable[Target], now: dt.datetime) -> Status:
    """Return where pollers stand; what cannot be reached is a problem of that poller alone."""
    return Status([standing_of(target, now) for target in targets], now)


def standing_of(target: Target, now: dt.datetime) -> Standing:
    """Return where one poller stands."""
    standing = Standing(poller=target.name)
    try:
        checkpoint = _read_state(target, standing, now)
        if checkpoint is not None and target.poller is not None:
            _read_source(target, checkpoint, standing, now)
    except DbError as error:
        standing.problems.append(str(error))
    try:
        standing.quarantined = None if target.sink is None else sum(1 for _ in target.sink.entries(target.name))
    except DbError as error:
        standing.problems.append(str(error))
    return standing


def _read_state(target: Target, standing: Standing, now: dt.datetime) -> dict[str, Any] | None:
    if not target.shows_documents:
        checkpoint = target.store.load_checkpoint(target.name)
        _note_checkpoint(standing, checkpoint, now)
        return checkpoint
    content = target.documents.raw_document(target.name)
    if content is None:
        return {}
    document = decoded(content, target.name)
    _note_checkpoint(standing, document.checkpoint, now)
    if document.lease is not None:
        standing.lease = _lease_standing(document, document.lease, now)
    if target.poller is not None:
        _note_fingerprint(target, standing, document)
    return document.checkpoint


def _note_checkpoint(standing: Standing, checkpoint: Mapping[str, Any], now: dt.datetime) -> None:
    metadata = checkpoint.get("metadata") or {}
    match checkpoint.get("cursor"):
        case {"value": value, "tiebreaker": dict() as key}:
            standing.cursor = value
            standing.key = {name: part.get("value") if isinstance(part, dict) else part for name, part in key.items()}
        case list() as parts if parts:
            standing.cursor, standing.key = parts[0], {str(place): part for place, part in enumerate(parts[1:], 1)}
        case other:
            standing.cursor = other
    standing.failed_attempts = int(metadata.get("failed_attempts", 0))
    if isinstance(updated := checkpoint.get("updated_at"), str):
        standing.last_success = dt.datetime.fromisoformat(updated)
        age = max(0.0, (now - standing.last_success).total_seconds())
        standing.last_success_age_seconds = age
        rate = metadata.get("rows_per_second")
        # Nothing has come since: the average fades.
        standing.rows_per_second = None if rate is None else round(rate * math.exp(-age / RATE_SECONDS), 3)
    if standing.failed_attempts:
        standing.problems.append(f"the next batch has failed {standing.failed_attempts} time(s)")


def _lease_standing(document: Document, lease: LeaseView, now: dt.datetime) -> LeaseStanding:
    return LeaseStanding(
        owner=lease.owner_id,
        token=lease.fencing_token,
        alive=not is_free(document, now),
        age_seconds=(now - lease.acquired_at).total_seconds(),
        heartbeat_age_seconds=(now - lease.heartbeat_at).total_seconds(),
        expires_in_seconds=(lease.expires_at - now).total_seconds(),
    )


def _note_fingerprint(target: Target, standing: Standing, document: Document) -> None:
    current = target.defined.settings.source.source_descriptor.fingerprint
    if document.source_fingerprint not in {None, current}:
        standing.problems.append(
            "its state was written for another definition of the source: "
            f"azfdb reset {target.name} --adopt-fingerprint or --to-beginning"
        )


def _read_source(target: Target, checkpoint: dict[str, Any], standing: Standing, now: dt.datetime) -> None:
    backlog: Backlog = backlog_of(target.defined.settings.source, checkpoint, now)
    standing.lag_seconds = backlog.lag_seconds
    standing.waiting_rows = backlog.rows
    standing.waiting_is_more = backlog.is_more
    standing.horizon = backlog.horizon
