"""Logs, metrics and traces of the change trigger."""

from azure_functions_db.core.observers import LogObserver, MetricsObserver, Observers
from azure_functions_db.core.ports import MetricsCollector, Observer
from azure_functions_db.core.telemetry import OpenTelemetryMetrics, OpenTelemetryObserver

__all__ = [
    "LogObserver",
    "MetricsCollector",
    "MetricsObserver",
    "Observer",
    "Observers",
    "OpenTelemetryMetrics",
    "OpenTelemetryObserver",
]
