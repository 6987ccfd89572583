"""What happened, as frozen facts in the past tense; observers listen to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import CheckpointJson, Event, LeaseView, Pause, QuarantinedRow


class Stage(StrEnum):
    """The steps that a tick is made of."""

    DESCRIPTOR = "source_descriptor"
    ACQUIRE = "lease_acquire"
    LOAD = "checkpoint_load"
    FETCH = "fetch"
    NORMALIZE = "normalize"
    HANDLER = "handler"
    QUARANTINE = "quarantine"
    COMMIT = "commit"
    ACKNOWLEDGE = "acknowledge"
    RENEW = "lease_renew"
    RELEASE = "lease_release"
    CLOSE = "source_close"


class TickResult(StrEnum):
    """How a tick ended."""

    HANDLED = "handled"
    EMPTY = "empty"
    SKIPPED = "skipped"
    PAUSED = "paused"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A fact about one poller."""

    poller_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TickSignal(Signal):
    """A fact about one tick."""

    invocation_id: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TickStarted(TickSignal):
    """A tick began."""

    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSkipped(TickSignal):
    """Another instance held the lease; ``lease`` is None where the store does not show it."""

    lease: LeaseView | None
    staleness_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollerPaused(TickSignal):
    """An operator does not want the poller to run; nothing was read."""

    pause: Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(TickSignal):
    """A step of the tick began; what follows on this thread runs inside it."""

    stage: Stage
    batch_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnded(TickSignal):
    """A step of the tick ended, well or with an error."""

    stage: Stage
    duration_ms: float
    batch_id: str | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed(StageEnded):
    """A step of the tick ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewFailed(TickSignal):
    """A heartbeat failed; the lease is lost when ``lost`` says so."""

    lease_owner: str
    error: BaseException
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedNothing(TickSignal):
    """There was no change to read."""

    fetch_duration_ms: float
    checkpoint_before: CheckpointJson


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReported(TickSignal):
    """The source told a fact of its own beside what it read."""

    fact: Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRetried(TickSignal):
    """The handler failed and is about to be called again."""

    batch_id: str
    attempt: int
    delay_seconds: float
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuarantined(TickSignal):
    """A row that the handler could not digest was put aside."""

    row: QuarantinedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted(TickSignal):
    """A batch was handled and its checkpoint is written."""

    batch_id: str
    batch_size: int
    fetched_count: int
    handled_count: int
    checkpoint_before: CheckpointJson
    checkpoint_after: CheckpointJson
    lease_owner: str
    fetch_duration_ms: float
    handler_duration_ms: float
    commit_duration_ms: float
    lag_seconds: float | None
    """The age of the last event, where the cursor is a time."""
    lag_rows: int | None = None
    """How many rows still wait, where the cursor is none and this was the tick's last batch."""
    events: Sequence[Event] = field(default=(), repr=False)
    """The events that were handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickCompleted(TickSignal):
    """A tick ended."""

    result: TickResult
    fetched_count: int
    handled_count: int
    batches: int
    duration_ms: float
    ended_at: dt.datetime
    error: BaseException | None = None
    consecutive_failures: int | None = None
    """How many ticks in a row have failed, this one included; None where this tick cannot tell."""
