"""What pollers really send: to Application Insights by Microsoft's own exporter, and to Prometheus."""

from __future__ import annotations

import gzip
import json
import logging
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import prometheus_client
import psycopg
import pytest
import sqlalchemy
from azure.monitor.opentelemetry.exporter import AzureMonitorLogExporter, AzureMonitorMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.instrumentation.logging.handler import LoggingHandler
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from azure_functions_db import MemoryStateStore, OpenTelemetryMetrics, PollTrigger, RetryPolicy, SqlAlchemySource
from azure_functions_db.testing.memory import MemoryQuarantine

# The tables of a workspace by the kind of what the exporter sends.
_TABLES = {"MessageData": "AppTraces", "ExceptionData": "AppExceptions", "MetricData": "AppMetrics"}
# What the exporter would tell about itself, to others.
_TELEMETRY_OF_TELEMETRY = (
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED",
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL",
)
_SHOP = """
CREATE TABLE orders (id integer PRIMARY KEY, updated_at timestamptz);
CREATE INDEX orders_by_time ON orders (updated_at, id);
INSERT INTO orders SELECT n, now() - interval '1 minute' FROM generate_series(1, 3) AS n;
INSERT INTO orders VALUES (4, NULL);
"""

Fields = dict[str, set[str]]


@dataclass
class Sent:
    """The names that were sent, each with the fields that came along."""

    tables: dict[str, Fields] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    prometheus: Fields = field(default_factory=lambda: defaultdict(set))

    def note(self, envelope: dict[str, Any]) -> None:
        kind, data = envelope["data"]["baseType"], envelope["data"]["baseData"]
        for name in _names(data):
            self.tables[_TABLES[kind]][name] |= set(data["properties"])

    def scrape(self) -> None:
        for family in prometheus_client.REGISTRY.collect():
            for sample in family.samples:
                self.prometheus[sample.name] |= set(sample.labels)


def _names(data: dict[str, Any]) -> list[str]:
    if "metrics" in data:
        return [metric["name"] for metric in data["metrics"]]
    return [data["properties"].get("event") or data["message"]]


class _Ingestion(ThreadingHTTPServer):
    """Stands where Application Insights takes telemetry in."""

    def __init__(self, sent: Sent) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.sent = sent

    @property
    def connection_string(self) -> str:
        key = "InstrumentationKey=00000000-0000-0000-0000-000000000001"
        return f"{key};IngestionEndpoint=http://127.0.0.1:{self.server_port}/"


class _Request(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        zipped = self.headers.get("Content-Encoding") == "gzip"
        items = json.loads(gzip.decompress(body) if zipped else body)
        for item in items:
            cast(_Ingestion, self.server).sent.note(item)
        answer = json.dumps({"itemsReceived": len(items), "itemsAccepted": len(items), "errors": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None: ...


def everything_sent(database: str) -> Sent:
    """Let pollers live through all that has a metric or a line in the log, and return what was sent."""
    sent = Sent()
    with pytest.MonkeyPatch.context() as patch:
        for name in _TELEMETRY_OF_TELEMETRY:
            patch.setenv(name, "true")
        _live(database, sent)
    return sent


def _live(database: str, sent: Sent) -> None:
    with _listening(sent) as ingestion, _telemetry(ingestion.connection_string, sent) as metrics:
        _good_and_bad_rows(database, metrics)
        _late_commit(database, metrics)
        _held_lease(database, metrics)


@contextmanager
def _listening(sent: Sent) -> Iterator[_Ingestion]:
    with _Ingestion(sent) as ingestion:
        thread = threading.Thread(target=ingestion.serve_forever)
        thread.start()
        try:
            yield ingestion
        finally:
            ingestion.shutdown()
            thread.join()


@contextmanager
def _telemetry(connection_string: str, sent: Sent) -> Iterator[OpenTelemetryMetrics]:
    to_azure = {"connection_string": connection_string, "disable_offline_storage": True}
    meters = MeterProvider(
        [PeriodicExportingMetricReader(AzureMonitorMetricExporter(**to_azure), float("inf")), PrometheusMetricReader()],
        shutdown_on_exit=False,
    )
    logs = LoggerProvider(shutdown_on_exit=False)
    logs.add_log_record_processor(SimpleLogRecordProcessor(AzureMonitorLogExporter(**to_azure)))
    logger, handler = logging.getLogger("azure_functions_db"), LoggingHandler(logger_provider=logs)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield OpenTelemetryMetrics(meters)
        sent.scrape()
        meters.force_flush()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        meters.shutdown()
        logs.shutdown()


def _good_and_bad_rows(database: str, metrics: OpenTelemetryMetrics) -> None:
    with psycopg.connect(_plain(database)) as shop:
        shop.execute(_SHOP)
    poller = PollTrigger(
        name="orders",
        source=_orders(database),
        checkpoint_store=MemoryStateStore(),
        quarantine=MemoryQuarantine(),
        max_attempts=1,
        max_batches_per_tick=5,
        retry_policy=RetryPolicy(max_attempts=2, delay_seconds=0),
        metrics=metrics,
    )
    with suppress(Exception):
        poller.run(timer=None, handler=_refuse_the_second)
    poller.run(timer=None, handler=_refuse_the_second)


def _refuse_the_second(events: list[Any]) -> None:
    if any(event.pk["id"] == 2 for event in events):
        raise ValueError("cannot digest 2")


def _late_commit(database: str, metrics: OpenTelemetryMetrics) -> None:
    with closing(psycopg.connect(_plain(database))) as late:
        late.execute("INSERT INTO orders VALUES (5, now())")
        poller = PollTrigger(
            name="held", source=_orders(database), checkpoint_store=MemoryStateStore(), metrics=metrics
        )
        poller.run(timer=None, handler=lambda events: None)


def _held_lease(database: str, metrics: OpenTelemetryMetrics) -> None:
    store = MemoryStateStore()
    source = SqlAlchemySource(url=database, table="orders", cursor_column="id", pk_columns=["id"])
    poller = PollTrigger(name="numbers", source=source, checkpoint_store=store, metrics=metrics, batch_size=1)
    poller.run(timer=None, handler=lambda events: None)
    store.acquire_lease("numbers", 60)
    poller.run(timer=None, handler=lambda events: None)


def _orders(database: str) -> SqlAlchemySource:
    return SqlAlchemySource(url=database, table="orders", cursor_column="updated_at", pk_columns=["id"])


def _plain(database: str) -> str:
    return sqlalchemy.make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
