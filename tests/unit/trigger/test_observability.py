from __future__ import annotations

import asyncio
import datetime as dt
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from azure_functions_db.core.errors import FetchError, HandlerError
from azure_functions_db.core.types import AdapterCapability, FetchResult, Horizon, HorizonHolder
from azure_functions_db.observability import OpenTelemetryMetrics, OpenTelemetryObserver
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.stream import MemoryLog, MemoryStreamReader, MemoryStreamSource
from azure_functions_db.trigger.retry import RetryPolicy
from tests.unit.trigger.poller import Collected, ListSource, poller, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.trigger.events import RowChange


class Metrics:
    """Remembers the last value of each metric, and the sum of each counter."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.labels: dict[str, Mapping[str, str]] = {}

    def increment(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        self.values[name] = self.values.get(name, 0) + value
        self.labels[name] = labels or {}

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self.values[name] = value

    def set_gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self.values[name] = value


def told(caplog: pytest.LogCaptureFixture, event: str) -> Any:
    [record] = [record for record in caplog.records if record.getMessage() == event]
    return record


def fail(_events: list[RowChange]) -> None:
    raise ValueError("no stock")


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="azure_functions_db")


def test_a_good_tick_is_logged_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    trigger = poller(ListSource(3))
    trigger.run(timer=None, handler=Collected(), invocation_id="inv-1")
    assert told(caplog, "tick_start").invocation_id == "inv-1"
    batch = told(caplog, "batch_complete")
    assert (batch.poller_name, batch.source, batch.fetched_count, batch.batch_size) == ("orders", "orders", 3, 100)
    assert batch.committed
    assert batch.checkpoint_before == {}
    assert batch.checkpoint_after["cursor"]["value"] == 0
    for field in ("batch_id", "lease_owner", "fetch_duration_ms", "handler_duration_ms", "commit_duration_ms"):
        assert getattr(batch, field) is not None
    assert told(caplog, "tick_complete").result == "handled"
    caplog.clear()
    run(trigger, Collected())
    assert told(caplog, "fetch_empty").fetch_duration_ms >= 0
    assert told(caplog, "tick_complete").result == "empty"


def test_a_skipped_tick_is_logged_quietly(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStateStore()
    other = MemoryStateStore(shared_with=store)
    other.acquire_lease("orders", 60)
    run(poller(ListSource(3), store), Collected())
    record = told(caplog, "lease_acquire_skipped")
    assert record.levelno == logging.INFO
    assert record.lease_owner == other.owner_id
    assert max(record.levelno for record in caplog.records) == logging.INFO


def test_failures_are_logged_as_errors_with_their_type(caplog: pytest.LogCaptureFixture) -> None:
    source = ListSource(3)
    with pytest.raises(HandlerError):
        run(poller(source, retry_policy=RetryPolicy(max_attempts=2)), fail)
    assert told(caplog, "handler_retry").error_type == "ValueError"
    failures = [record for record in caplog.records if record.getMessage() == "handler_failed"]
    assert [record.error_type for record in failures] == ["ValueError", "ValueError"]  # type: ignore[attr-defined]
    assert failures[0].levelno == logging.ERROR
    assert told(caplog, "tick_complete").error_type == "HandlerError"
    source.failures = [FetchError("no such table")]
    with pytest.raises(FetchError):
        run(poller(source), Collected())
    assert told(caplog, "fetch_failed").error_type == "FetchError"


def test_a_read_that_is_tried_again_says_so_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    source = ListSource(3)
    source.failures = [ConnectionResetError(), FetchError("deadlock", transient=True)]
    pauses: list[float] = []
    run(poller(source, sleep=pauses.append), Collected())
    failures = [record for record in caplog.records if record.getMessage() == "fetch_failed"]
    assert [(record.levelno, record.delay_seconds) for record in failures] == [  # type: ignore[attr-defined]
        (logging.WARNING, pauses[0]),
        (logging.WARNING, pauses[1]),
    ]
    assert told(caplog, "tick_complete").result == "handled"


def test_the_last_try_of_a_read_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    source = ListSource(3)
    source.failures = [ConnectionResetError() for _ in range(3)]
    with pytest.raises(FetchError):
        run(poller(source, sleep=lambda _: None), Collected())
    *others, last = [record for record in caplog.records if record.getMessage() == "fetch_failed"]
    assert {record.levelno for record in others} == {logging.WARNING}
    assert last.levelno == logging.ERROR
    assert not hasattr(last, "delay_seconds")


class Waiting(ListSource):
    """Held back by a running transaction."""

    def fetch_changes(self, checkpoint: Any, _limit: int) -> FetchResult:
        holder = HorizonHolder("4711", "app", 12.0)
        return FetchResult([], checkpoint, more=False, facts=[Horizon(5, 12.0, (holder,))])

    def validate(self) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def capability(self) -> AdapterCapability:
        return AdapterCapability()

    def acknowledge(self, checkpoint: Any) -> None: ...


def test_a_late_commit_that_holds_the_source_back_is_visible(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    run(poller(Waiting(), metrics=metrics), Collected())
    assert told(caplog, "late_commit_wait").holders == [{"session": "4711", "user": "app", "age_seconds": 12.0}]
    assert metrics.values["azfdb_horizon_age_seconds"] == 12.0


class HeldLog:
    """A fact of a source that this library has never heard of."""

    log_event = "log_held"
    log_level = logging.WARNING

    def log_fields(self) -> dict[str, Any]:
        return {"held_bytes": 7}

    def gauges(self) -> dict[str, float]:
        return {"shop_held_bytes": 7}


class Reporting(MemoryStreamSource):
    def open(self) -> ReportingReader:
        return ReportingReader(self._log, whole=False)


class ReportingReader(MemoryStreamReader):
    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        return replace(super().fetch_changes(checkpoint, limit), facts=[HeldLog()])


def test_a_fact_that_only_its_source_knows_is_logged_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    run(poller(Reporting(MemoryLog()), metrics=metrics), Collected())
    assert (told(caplog, "log_held").levelname, told(caplog, "log_held").held_bytes) == ("WARNING", 7)
    assert metrics.values["shop_held_bytes"] == 7


def test_a_source_that_has_another_reader_is_skipped_quietly(caplog: pytest.LogCaptureFixture) -> None:
    log, store = MemoryLog(), MemoryStateStore()
    log.commit((1, {"id": 1}))
    assert run(poller(MemoryStreamSource(log), store), Collected()) == 1
    reader = MemoryStreamSource(log)
    reader.open()
    caplog.clear()
    assert run(poller(MemoryStreamSource(log), store), Collected()) == 0
    assert told(caplog, "tick_complete").result == "skipped"
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


def test_metrics_count_what_happened() -> None:
    class Timed(ListSource):
        def fetch(self, cursor: Any, batch_size: int) -> Any:
            return [] if cursor else [{"id": n, "version": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)} for n in range(3)]

    metrics, store = Metrics(), MemoryStateStore()
    trigger = poller(Timed(), store, metrics=metrics)
    with pytest.raises(HandlerError):
        run(trigger, fail)
    assert metrics.labels["azfdb_failures_total"] == {
        "poller_name": "orders",
        "source": "orders",
        "stage": "handler",
        "error_type": "ValueError",
    }
    assert metrics.labels["azfdb_batches_total"]["result"] == "failure"
    run(trigger, Collected())
    assert metrics.values["azfdb_batches_total"] == 2
    assert metrics.labels["azfdb_batches_total"] == {"poller_name": "orders", "source": "orders", "result": "success"}
    assert metrics.values["azfdb_events_total"] == 3
    assert metrics.values["azfdb_lag_seconds"] > 0
    assert {
        "azfdb_batch_size",
        "azfdb_fetch_duration_ms",
        "azfdb_handler_duration_ms",
        "azfdb_commit_duration_ms",
        "azfdb_last_success_timestamp",
    } <= set(metrics.values)
    MemoryStateStore(shared_with=store).acquire_lease("orders", 60)
    run(trigger, Collected())
    assert metrics.values["azfdb_lease_staleness_seconds"] >= 0


def test_an_observer_that_raises_is_reported_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def notice(self, signal: Any) -> None:
            raise RuntimeError("observer down")

    class BrokenMetrics(Metrics):
        def increment(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("collector down")

    handler = Collected()
    trigger = poller(ListSource(30), batch_size=10, observers=[Broken()], metrics=BrokenMetrics())
    for _ in range(3):
        run(trigger, handler)
    assert handler.ids == list(range(30))
    reports = [record.getMessage() for record in caplog.records if "it is not reported again" in record.msg]
    assert sorted(reports) == [
        "Broken failed with RuntimeError: observer down; it is not reported again",
        "MetricsObserver failed with RuntimeError: collector down; it is not reported again",
    ]


@pytest.fixture
def spans() -> tuple[InMemorySpanExporter, OpenTelemetryObserver]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, OpenTelemetryObserver(tracer_provider=provider)


def names_and_parents(exporter: InMemorySpanExporter) -> dict[str, str | None]:
    finished = exporter.get_finished_spans()
    by_id = {span.context.span_id: span.name for span in finished if span.context}
    return {span.name: by_id.get(span.parent.span_id) if span.parent else None for span in finished}


def test_the_handler_runs_inside_its_span(spans: tuple[InMemorySpanExporter, OpenTelemetryObserver]) -> None:
    exporter, observer = spans
    current: list[Any] = []

    def handler(_events: list[RowChange]) -> None:
        current.append(trace.get_current_span())

    before = trace.get_current_span()
    run(poller(ListSource(3), observers=[observer]), handler)
    assert names_and_parents(exporter) == {
        "azfdb.tick": None,
        "azfdb.fetch": "azfdb.tick",
        "azfdb.handler": "azfdb.tick",
        "azfdb.commit": "azfdb.tick",
    }
    assert current[0].name == "azfdb.handler"
    assert trace.get_current_span() is before


def test_an_async_handler_runs_inside_its_span_too(
    spans: tuple[InMemorySpanExporter, OpenTelemetryObserver],
) -> None:
    exporter, observer = spans
    current: list[Any] = []

    async def handler(_events: list[RowChange]) -> None:
        await asyncio.sleep(0)
        current.append(trace.get_current_span())

    asyncio.run(poller(ListSource(3), observers=[observer]).run_async(timer=None, handler=handler))
    assert current[0].name == "azfdb.handler"
    assert names_and_parents(exporter)["azfdb.handler"] == "azfdb.tick"


def test_a_failed_handler_marks_its_span(spans: tuple[InMemorySpanExporter, OpenTelemetryObserver]) -> None:
    exporter, observer = spans
    with pytest.raises(HandlerError):
        run(poller(ListSource(3), observers=[observer]), fail)
    by_name = {span.name: span for span in exporter.get_finished_spans()}
    assert not by_name["azfdb.handler"].status.is_ok
    assert not by_name["azfdb.tick"].status.is_ok
    assert by_name["azfdb.fetch"].status.is_ok


def test_the_same_metrics_go_to_opentelemetry() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    run(poller(ListSource(3), metrics=OpenTelemetryMetrics(meter_provider=provider)), Collected())
    data = reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    names = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert {"azfdb_events_total", "azfdb_batch_size", "azfdb_last_success_timestamp"} <= names
    provider.shutdown()


SECRET = "hunter-2"
ROW_VALUE = "Key (email)=(ann@example.org)"


def fail_to_connect() -> None:
    raise ConnectionError("could not reach mysql://ann:" + SECRET + "@host/db")


def leak(_events: list[RowChange]) -> None:
    """Fail as handlers do: with a password two errors away, a row's value beside it."""
    try:
        fail_to_connect()
    except ConnectionError as error:
        error.add_note("sent Authorization: Bearer " + SECRET)
        raise ValueError(f"no stock\nDETAIL:  {ROW_VALUE} already exists.") from error


def test_no_log_handler_can_write_a_secret_of_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(HandlerError):
        run(poller(ListSource(3), retry_policy=RetryPolicy(max_attempts=2)), leak)
    for record in caplog.records:
        # Some render the exception themselves, others every field.
        shown = logging.Formatter().format(record) + repr(vars(record))
        assert SECRET not in shown
        assert ROW_VALUE not in shown
    assert "ConnectionError: could not reach mysql://ann:***@host/db" in caplog.text
    assert "ValueError: no stock" in caplog.text


def test_an_observer_that_fails_shows_no_secret_either(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def notice(self, signal: Any) -> None:
            leak([])

    run(poller(ListSource(3), observers=[Broken()]), Collected())
    assert "Broken failed" in caplog.text
    assert SECRET not in caplog.text


def test_no_span_shows_a_secret_of_a_failure(spans: tuple[InMemorySpanExporter, OpenTelemetryObserver]) -> None:
    exporter, observer = spans
    with pytest.raises(HandlerError):
        run(poller(ListSource(3), observers=[observer]), leak)
    shown = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert SECRET not in shown
    assert "ann@example.org" not in shown
    [event] = {span.name: span for span in exporter.get_finished_spans()}["azfdb.handler"].events
    told_of = dict(event.attributes or {})
    assert str(told_of["exception.type"]).endswith("HandlerError")
    assert "ConnectionError: could not reach mysql://ann:***@host/db" in str(told_of["exception.stacktrace"])
