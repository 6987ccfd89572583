"""Logs, metrics and traces of the change trigger; OpenTelemetry needs the ``otel`` extra."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, masked_error
from azure_functions_db.core.ports import MetricsCollector, Observer
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.signals import (
    METRIC_BATCH_SIZE,
    METRIC_BATCHES_TOTAL,
    METRIC_COMMIT_DURATION_MS,
    METRIC_CONSECUTIVE_FAILURES,
    METRIC_EVENTS_TOTAL,
    METRIC_FAILURES_TOTAL,
    METRIC_FETCH_DURATION_MS,
    METRIC_HANDLER_DURATION_MS,
    METRIC_LAG_ROWS,
    METRIC_LAG_SECONDS,
    METRIC_LAST_SUCCESS_TIMESTAMP,
    METRIC_LEASE_STALENESS_SECONDS,
    METRIC_QUARANTINED_TOTAL,
    LogObserver,
    MetricsObserver,
    Observers,
    Stage,
    StageEnded,
    StageStarted,
    TickCompleted,
    TickStarted,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from azure_functions_db.core.signals import Signal

__all__ = [
    "METRIC_BATCHES_TOTAL",
    "METRIC_BATCH_SIZE",
    "METRIC_COMMIT_DURATION_MS",
    "METRIC_CONSECUTIVE_FAILURES",
    "METRIC_EVENTS_TOTAL",
    "METRIC_FAILURES_TOTAL",
    "METRIC_FETCH_DURATION_MS",
    "METRIC_HANDLER_DURATION_MS",
    "METRIC_LAG_ROWS",
    "METRIC_LAG_SECONDS",
    "METRIC_LAST_SUCCESS_TIMESTAMP",
    "METRIC_LEASE_STALENESS_SECONDS",
    "METRIC_QUARANTINED_TOTAL",
    "LogObserver",
    "MetricsCollector",
    "MetricsObserver",
    "NoOpCollector",
    "Observer",
    "Observers",
    "OpenTelemetryMetrics",
    "OpenTelemetryObserver",
]

_SCOPE = "azure_functions_db"
_SPANS = {Stage.FETCH: "azfdb.fetch", Stage.HANDLER: "azfdb.handler", Stage.COMMIT: "azfdb.commit"}
_open_spans: ContextVar[tuple[tuple[Any, Any], ...]] = ContextVar("azfdb_open_spans", default=())


class NoOpCollector:
    """A `MetricsCollector` that keeps nothing."""

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None:
        """Do nothing."""

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Do nothing."""

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Do nothing."""


class OpenTelemetryObserver:
    """Makes spans: a tick, and inside it fetch, handler and commit.

    A span is the current one while its work runs, so what the handler traces is its child, also
    across threads and the host's loop.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = _imported("trace").get_tracer(_SCOPE, tracer_provider=tracer_provider)

    def notice(self, signal: Signal) -> None:
        """Open or close the span that the fact is about."""
        match signal:
            case TickStarted():
                facts = {"azfdb.invocation_id": signal.invocation_id, "azfdb.batch_size": signal.batch_size}
                self._begin("azfdb.tick", {**_attributes(signal), **facts})
            case TickCompleted():
                facts = {"azfdb.result": signal.result.value, "azfdb.handled_count": signal.handled_count}
                self._end(signal.error, facts)
            case StageStarted(stage=stage) if stage in _SPANS:
                batch = {"azfdb.batch_id": signal.batch_id} if signal.batch_id else {}
                self._begin(_SPANS[stage], {**_attributes(signal), **batch})
            case StageEnded(stage=stage) if stage in _SPANS:
                self._end(signal.error, {})
            case _:
                pass

    def _begin(self, name: str, attributes: Mapping[str, Any]) -> None:
        trace, context = _imported("trace"), _imported("context")
        span = self._tracer.start_span(name, attributes=dict(attributes))
        token = context.attach(trace.set_span_in_context(span))
        _open_spans.set((*_open_spans.get(), (span, token)))

    def _end(self, error: BaseException | None, attributes: Mapping[str, Any]) -> None:
        *outer, (span, token) = _open_spans.get()
        _open_spans.set(tuple(outer))
        _imported("context").detach(token)
        span.set_attributes(dict(attributes))
        if error is not None:
            span.record_exception(masked_error(error))
            span.set_status(_imported("trace").StatusCode.ERROR, masked_words(error))
        span.end()


class OpenTelemetryMetrics:
    """A `MetricsCollector` that passes everything on to OpenTelemetry."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        self._meter = _imported("metrics").get_meter(_SCOPE, meter_provider=meter_provider)
        self._instruments: dict[str, Any] = {}
        self._lock = threading.Lock()

    def increment(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        self._instrument(name, self._meter.create_counter).add(value, labels)

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Record one measurement of a distribution."""
        self._instrument(name, self._meter.create_histogram).record(value, labels)

    def set_gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Set the present value of a gauge."""
        self._instrument(name, self._meter.create_gauge).set(value, labels)

    def _instrument(self, name: str, create: Any) -> Any:
        with self._lock:
            if name not in self._instruments:
                self._instruments[name] = create(name)
            return self._instruments[name]


def _attributes(signal: Any) -> dict[str, Any]:
    return {"azfdb.poller_name": signal.poller_name, "azfdb.source": signal.source}


def _imported(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"opentelemetry.{module}")
    except ModuleNotFoundError:
        raise ConfigurationError("OpenTelemetry is not installed: pip install azure-functions-db[otel]") from None
