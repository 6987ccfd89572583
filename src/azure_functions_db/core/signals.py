"""What happened, as frozen facts in the past tense, and who listens: the log and the metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from azure_functions_db.core.errors import LeaseConflictError, code_behind, masked_error
from azure_functions_db.core.secrets import masked_words

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from azure_functions_db.core.ports import Fact, MetricsCollector, Observer
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

    delay_seconds: float | None = None
    """After which pause the step is tried again; None where it is not."""


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


_logger = logging.getLogger("azure_functions_db")

METRIC_BATCHES_TOTAL = "azfdb_batches_total"
METRIC_EVENTS_TOTAL = "azfdb_events_total"
METRIC_FAILURES_TOTAL = "azfdb_failures_total"
METRIC_QUARANTINED_TOTAL = "azfdb_quarantined_total"
METRIC_BATCH_SIZE = "azfdb_batch_size"
METRIC_FETCH_DURATION_MS = "azfdb_fetch_duration_ms"
METRIC_HANDLER_DURATION_MS = "azfdb_handler_duration_ms"
METRIC_COMMIT_DURATION_MS = "azfdb_commit_duration_ms"
METRIC_LAG_SECONDS = "azfdb_lag_seconds"
METRIC_LAG_ROWS = "azfdb_lag_rows"
METRIC_LAST_SUCCESS_TIMESTAMP = "azfdb_last_success_timestamp"
METRIC_LEASE_STALENESS_SECONDS = "azfdb_lease_staleness_seconds"
METRIC_CONSECUTIVE_FAILURES = "azfdb_consecutive_failures"


class Observers:
    """Tells every observer; one that raises is reported, once for each kind of error, and does no harm."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.all = tuple(observers)
        self._reported: set[tuple[int, type[Exception]]] = set()
        self._listeners: dict[type[Signal], tuple[Observer, ...]] = {}
        self.trace_stages = bool(self._listeners_of(StageStarted) or self._listeners_of(StageEnded))
        """Whether anybody wants to know of stages that end well."""

    def tell(self, kind: type[Signal], facts: Mapping[str, Any]) -> None:
        """Make the signal and pass it on; where nobody listens, it is not even made."""
        listeners = self._listeners[kind] if kind in self._listeners else self._listeners_of(kind)
        if not listeners:
            return
        signal = kind(**facts)
        for observer in listeners:
            try:
                observer.notice(signal)
            except Exception as error:  # noqa: BLE001 - telemetry must not break what it tells of
                self._report(observer, error)

    def are_heard(self, kind: type[Signal]) -> bool:
        """Tell whether anybody makes use of such signals now, so that their facts are worth asking for."""
        return any(not isinstance(each, LogObserver) or each.is_on for each in self._listeners_of(kind))

    def _listeners_of(self, kind: type[Signal]) -> tuple[Observer, ...]:
        listeners = tuple(each for each in self.all if kind not in getattr(each, "ignores", ()))
        self._listeners[kind] = listeners
        return listeners

    def _report(self, observer: Observer, error: Exception) -> None:
        failure = (id(observer), type(error))
        if failure not in self._reported:
            self._reported.add(failure)
            names = (type(observer).__name__, type(error).__name__, masked_words(error))
            _logger.warning("%s failed with %s: %s; it is not reported again", *names, exc_info=masked_error(error))


def standard_observers(metrics: MetricsCollector | None) -> list[Observer]:
    """Return the observers that every poller has."""
    return [LogObserver()] if metrics is None else [LogObserver(), MetricsObserver(metrics)]


class LogObserver:
    """Writes structured log records: the message names the event, ``extra`` fields tell the rest."""

    ignores = frozenset({StageStarted, StageEnded})

    def __init__(self, logger: logging.Logger = _logger) -> None:
        self._logger = logger

    @property
    def is_on(self) -> bool:
        """Whether the log takes what is told of a tick that goes well."""
        return self._logger.isEnabledFor(logging.INFO)

    def notice(self, signal: Signal) -> None:
        """Log the fact, if it is one for the log."""
        entry = _log_entry(signal)
        if entry is None or not self._logger.isEnabledFor(entry[0]):
            return
        level, event, fields = entry
        extra = {"event": event, "poller_name": signal.poller_name, **_whereabouts(signal), **fields(signal)}
        self._logger.log(level, event, extra=extra, exc_info=_failure_of(signal))


_Entry = tuple[int, str, "Callable[[Any], dict[str, Any]]"]


def _log_entry(signal: Signal) -> _Entry | None:
    """Return level and name of a fact's entry, and what makes its fields: nothing is made for a log that is off."""
    match signal:
        case StageFailed(error=Exception()):
            # The batch comes again after any of these; a commit or a handler that failed is for a human to see, a
            # step that is tried again in a moment is not.
            level = logging.ERROR if signal.delay_seconds is None else logging.WARNING
            return level, f"{signal.stage}_failed", _failed_stage_fields
        case TickStarted():
            return logging.INFO, "tick_start", lambda signal: {"batch_size": signal.batch_size}
        case LeaseSkipped():
            return logging.INFO, "lease_acquire_skipped", _skipped_fields
        case PollerPaused():
            return logging.INFO, "tick_paused", _pause_fields
        case FetchedNothing():
            return (
                logging.DEBUG,
                "fetch_empty",
                lambda signal: _fields(signal, "fetch_duration_ms", "checkpoint_before"),
            )
        case BatchCommitted():
            return logging.INFO, "batch_complete", _batch_fields
        case HandlerRetried():
            return logging.WARNING, "handler_retry", _retry_fields
        case RowQuarantined():
            return logging.WARNING, "row_quarantined", _row_fields
        case LeaseRenewFailed():
            return logging.ERROR if signal.lost else logging.WARNING, "lease_renew_failed", _renewal_fields
        case SourceReported():
            return signal.fact.log_level, signal.fact.log_event, lambda signal: dict(signal.fact.log_fields())
        case TickCompleted():
            return logging.INFO, "tick_complete", _tick_fields
        case _:
            return None


def _failed_stage_fields(signal: Any) -> dict[str, Any]:
    fields = _fields(signal, "batch_id", "duration_ms") | _error_fields(signal.error) | {"committed": False}
    return fields if signal.delay_seconds is None else fields | {"delay_seconds": signal.delay_seconds}


def _skipped_fields(signal: LeaseSkipped) -> dict[str, Any]:
    owner = signal.lease.owner_id if signal.lease else None
    return {"lease_owner": owner, "result": TickResult.SKIPPED.value}


def _pause_fields(signal: PollerPaused) -> dict[str, Any]:
    pause = signal.pause
    fields = {"paused_by": pause.by, "paused_at": pause.at.isoformat(), "paused_why": pause.why}
    return fields | {"result": TickResult.PAUSED.value}


def _retry_fields(signal: HandlerRetried) -> dict[str, Any]:
    return _fields(signal, "batch_id", "attempt", "delay_seconds") | _error_fields(signal.error)


def _renewal_fields(signal: LeaseRenewFailed) -> dict[str, Any]:
    return _fields(signal, "lease_owner", "lost") | _error_fields(signal.error)


def _fields(signal: Signal, *names: str) -> dict[str, Any]:
    return {name: getattr(signal, name) for name in names}


def _whereabouts(signal: Signal) -> dict[str, Any]:
    return {name: getattr(signal, name, None) for name in ("invocation_id", "source")}


def _error_fields(error: BaseException) -> dict[str, Any]:
    return {
        "error_type": _error_type(error),
        "error_code": code_behind(error),
        "error": masked_words(error),
        "result": TickResult.FAILED.value,
    }


def _error_type(error: BaseException) -> str:
    """Return the class of what really happened: the error of a stage tells where it did."""
    return type(error if error.__cause__ is None else error.__cause__).__name__


def _failure_of(signal: Signal) -> BaseException | None:
    # Handlers of the log render what they are given; most know nothing of secrets.
    return masked_error(signal.error) if isinstance(signal, StageFailed) and signal.error is not None else None


def _batch_fields(signal: BatchCommitted) -> dict[str, Any]:
    names = (
        *("batch_id", "batch_size", "fetched_count", "handled_count", "checkpoint_before", "checkpoint_after"),
        *("lease_owner", "fetch_duration_ms", "handler_duration_ms", "commit_duration_ms", "lag_seconds"),
        "lag_rows",
    )
    return _fields(signal, *names) | {"committed": True, "result": TickResult.HANDLED.value}


def _tick_fields(signal: TickCompleted) -> dict[str, Any]:
    fields = _fields(signal, "fetched_count", "handled_count", "batches", "duration_ms")
    error_type = None if signal.error is None else type(signal.error).__name__
    failure = {"error_type": error_type, "error_code": code_behind(signal.error)}
    return fields | failure | {"result": signal.result.value, "consecutive_failures": signal.consecutive_failures}


def _row_fields(signal: RowQuarantined) -> dict[str, Any]:
    row = signal.row
    return {
        "batch_id": row.batch_id,
        "event_id": row.event_id,
        "attempts": row.attempts,
        "error_type": row.error_type,
        "error": row.error,
    }


class MetricsObserver:
    """Feeds a `MetricsCollector`; labels are the poller, the source, the result of a batch and the kind of failure."""

    ignores = frozenset({StageStarted, StageEnded, TickStarted, FetchedNothing, HandlerRetried})

    def __init__(self, metrics: MetricsCollector) -> None:
        self._metrics = metrics

    def notice(self, signal: Signal) -> None:
        """Count and measure what the fact tells; a measurement that fails does not keep the others away."""
        failures = [failure for each in _measurements(signal) if (failure := self._failure_of(each)) is not None]
        if failures:
            raise failures[0]

    def _failure_of(self, measurement: _Measurement) -> Exception | None:
        method, name, value, labels = measurement
        try:
            getattr(self._metrics, method)(name, value, labels=labels)
        except Exception as failure:  # noqa: BLE001 - raised again once all have been tried
            return failure
        return None


class _Measurement(NamedTuple):
    method: Literal["increment", "observe", "set_gauge"]
    name: str
    value: float
    labels: Mapping[str, str]


def _measurements(signal: Signal) -> Iterator[_Measurement]:
    """Return what a fact adds to the metrics."""
    poller = {"poller_name": signal.poller_name}
    source = getattr(signal, "source", "")
    labels = {**poller, "source": source} if source else poller
    match signal:
        case BatchCommitted():
            yield from _batch_measurements(signal, labels)
        case StageFailed(error=Exception() as error) if not isinstance(error, LeaseConflictError):
            yield _failure(signal.stage, error, labels)
        case LeaseRenewFailed():
            yield _failure(Stage.RENEW, signal.error, labels)
        case RowQuarantined():
            yield _Measurement("increment", METRIC_QUARANTINED_TOTAL, 1, labels)
        case LeaseSkipped(staleness_seconds=float() as staleness):
            yield _Measurement("set_gauge", METRIC_LEASE_STALENESS_SECONDS, staleness, labels)
        case SourceReported():
            for name, value in signal.fact.gauges().items():
                yield _Measurement("set_gauge", name, value, labels)
        case TickCompleted():
            yield from _tick_measurements(signal, labels)
        case _:
            pass


def _tick_measurements(signal: TickCompleted, labels: Mapping[str, str]) -> Iterator[_Measurement]:
    poller = {"poller_name": signal.poller_name}
    if signal.result is TickResult.FAILED:
        yield _Measurement("increment", METRIC_BATCHES_TOTAL, 1, {**labels, "result": "failure"})
    elif signal.result in {TickResult.HANDLED, TickResult.EMPTY}:
        yield _Measurement("set_gauge", METRIC_LAST_SUCCESS_TIMESTAMP, signal.ended_at.timestamp(), poller)
    if signal.consecutive_failures is not None:
        yield _Measurement("set_gauge", METRIC_CONSECUTIVE_FAILURES, signal.consecutive_failures, poller)


def _batch_measurements(signal: BatchCommitted, labels: Mapping[str, str]) -> Iterator[_Measurement]:
    yield _Measurement("increment", METRIC_BATCHES_TOTAL, 1, {**labels, "result": "success"})
    yield _Measurement("increment", METRIC_EVENTS_TOTAL, signal.handled_count, labels)
    yield _Measurement("observe", METRIC_BATCH_SIZE, signal.fetched_count, labels)
    yield _Measurement("observe", METRIC_FETCH_DURATION_MS, signal.fetch_duration_ms, labels)
    yield _Measurement("observe", METRIC_HANDLER_DURATION_MS, signal.handler_duration_ms, labels)
    yield _Measurement("observe", METRIC_COMMIT_DURATION_MS, signal.commit_duration_ms, labels)
    if signal.lag_seconds is not None:
        yield _Measurement("set_gauge", METRIC_LAG_SECONDS, signal.lag_seconds, labels)
    if signal.lag_rows is not None:
        yield _Measurement("set_gauge", METRIC_LAG_ROWS, signal.lag_rows, labels)


def _failure(stage: Stage, error: BaseException, labels: Mapping[str, str]) -> _Measurement:
    kind = {"stage": stage.value, "error_type": _error_type(error)}
    return _Measurement("increment", METRIC_FAILURES_TOTAL, 1, {**labels, **kind})
