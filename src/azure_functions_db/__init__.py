"""A database change trigger and database bindings for Azure Functions Python v2.

This is a Python library on top of the host's own triggers, not a native host extension. The
change trigger delivers at least once: handlers must be idempotent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db._lazy import lazy_names
from azure_functions_db._version import __version__

if TYPE_CHECKING:
    from azure_functions_db.binding.aio import AsyncDbReader, AsyncDbSession, AsyncDbWriter
    from azure_functions_db.binding.reader import DbReader
    from azure_functions_db.binding.session import DbSession
    from azure_functions_db.binding.writer import DbWriter
    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.errors import (
        BrokerUnavailableError,
        CommitError,
        ConfigurationError,
        CursorSerializationError,
        DbConnectionError,
        DbError,
        FetchError,
        FingerprintMismatchError,
        HandlerError,
        LeaseAcquireError,
        LeaseConflictError,
        LostLeaseError,
        NotFoundError,
        PollerError,
        PositionLostError,
        QueryError,
        RelayError,
        RowsFailed,
        SerializationError,
        SourceConfigurationError,
        SourceInUseError,
        StateStoreError,
        WriteError,
    )
    from azure_functions_db.core.ports import MetricsCollector
    from azure_functions_db.core.types import (
        AdapterCapability,
        Change,
        CursorPart,
        CursorValue,
        FetchResult,
        HandledFirst,
        SourceDescriptor,
    )
    from azure_functions_db.dashboard.blueprint import dashboard_blueprint
    from azure_functions_db.decorator.bindings import DbBindings
    from azure_functions_db.decorator.composition import get_db_metadata
    from azure_functions_db.decorator.injection import AsyncDbOut, DbOut
    from azure_functions_db.ledger import DeliveredLedger, ProcessedLedger, processed_once
    from azure_functions_db.observability import OpenTelemetryMetrics, OpenTelemetryObserver
    from azure_functions_db.quarantine import BlobQuarantine, FileQuarantine, SqlQuarantine
    from azure_functions_db.sources.hashdiff.snapshots import BlobSnapshots, SqlSnapshots
    from azure_functions_db.sources.hashdiff.source import HashDiffSource
    from azure_functions_db.sources.keyset.source import SqlAlchemySource
    from azure_functions_db.sources.mongo.source import MongoChangeStreamSource
    from azure_functions_db.sources.mysql.source import MySqlBinlogSource
    from azure_functions_db.sources.outbox.source import OutboxSource
    from azure_functions_db.sources.outbox.table import Outbox
    from azure_functions_db.sources.postgres.source import PostgresLogicalSource
    from azure_functions_db.sources.sqlserver.source import SqlServerChangeTrackingSource
    from azure_functions_db.sql.engine import EngineProvider
    from azure_functions_db.state.backend import Backend, DocumentName, Stored
    from azure_functions_db.state.blob import BlobCheckpointStore
    from azure_functions_db.state.cosmos import CosmosStateStore
    from azure_functions_db.state.file import FileStateStore
    from azure_functions_db.state.memory import MemoryStateStore
    from azure_functions_db.state.sql import SqlStateStore
    from azure_functions_db.state.store import DocumentStateStore
    from azure_functions_db.state.table import TableStateStore
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import PollContext
    from azure_functions_db.trigger.normalizers import RecordNormalizer
    from azure_functions_db.trigger.poll import PollTrigger
    from azure_functions_db.trigger.retry import RetryPolicy

_HOMES = {
    "binding.aio": ["AsyncDbReader", "AsyncDbSession", "AsyncDbWriter"],
    "binding.reader": ["DbReader"],
    "binding.session": ["DbSession"],
    "binding.writer": ["DbWriter"],
    "sources.hashdiff.snapshots": ["BlobSnapshots", "SqlSnapshots"],
    "sources.hashdiff.source": ["HashDiffSource"],
    "sources.keyset.source": ["SqlAlchemySource"],
    "sources.mongo.source": ["MongoChangeStreamSource"],
    "sources.mysql.source": ["MySqlBinlogSource"],
    "sources.outbox.source": ["OutboxSource"],
    "sources.outbox.table": ["Outbox"],
    "sources.postgres.source": ["PostgresLogicalSource"],
    "sources.sqlserver.source": ["SqlServerChangeTrackingSource"],
    "core.config": ["DbConfig"],
    "sql.engine": ["EngineProvider"],
    "core.errors": [
        "BrokerUnavailableError",
        "CommitError",
        "ConfigurationError",
        "CursorSerializationError",
        "DbConnectionError",
        "DbError",
        "FetchError",
        "FingerprintMismatchError",
        "HandlerError",
        "LeaseAcquireError",
        "LeaseConflictError",
        "LostLeaseError",
        "NotFoundError",
        "PollerError",
        "PositionLostError",
        "QueryError",
        "RelayError",
        "RowsFailed",
        "SerializationError",
        "SourceConfigurationError",
        "SourceInUseError",
        "StateStoreError",
        "WriteError",
    ],
    "core.ports": ["MetricsCollector"],
    "core.types": [
        "AdapterCapability",
        "Change",
        "CursorPart",
        "CursorValue",
        "FetchResult",
        "HandledFirst",
        "SourceDescriptor",
    ],
    "state.backend": ["Backend", "DocumentName", "Stored"],
    "state.blob": ["BlobCheckpointStore"],
    "state.cosmos": ["CosmosStateStore"],
    "state.file": ["FileStateStore"],
    "state.memory": ["MemoryStateStore"],
    "state.sql": ["SqlStateStore"],
    "state.store": ["DocumentStateStore"],
    "state.table": ["TableStateStore"],
    "dashboard.blueprint": ["dashboard_blueprint"],
    "decorator.bindings": ["DbBindings"],
    "decorator.composition": ["get_db_metadata"],
    "decorator.injection": ["AsyncDbOut", "DbOut"],
    "ledger": ["DeliveredLedger", "ProcessedLedger", "processed_once"],
    "observability": ["OpenTelemetryMetrics", "OpenTelemetryObserver"],
    "quarantine": ["BlobQuarantine", "FileQuarantine", "SqlQuarantine"],
    "trigger.events": ["RowChange"],
    "trigger.handler": ["PollContext"],
    "trigger.normalizers": ["RecordNormalizer"],
    "trigger.poll": ["PollTrigger"],
    "trigger.retry": ["RetryPolicy"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdapterCapability",
    "AsyncDbOut",
    "AsyncDbReader",
    "AsyncDbSession",
    "AsyncDbWriter",
    "Backend",
    "BlobCheckpointStore",
    "BlobQuarantine",
    "BlobSnapshots",
    "BrokerUnavailableError",
    "Change",
    "CommitError",
    "ConfigurationError",
    "CosmosStateStore",
    "CursorPart",
    "CursorSerializationError",
    "CursorValue",
    "DbBindings",
    "DbConfig",
    "DbConnectionError",
    "DbError",
    "DbOut",
    "DbReader",
    "DbSession",
    "DbWriter",
    "DeliveredLedger",
    "DocumentName",
    "DocumentStateStore",
    "EngineProvider",
    "FetchError",
    "FetchResult",
    "FileQuarantine",
    "FileStateStore",
    "FingerprintMismatchError",
    "HandledFirst",
    "HandlerError",
    "HashDiffSource",
    "LeaseAcquireError",
    "LeaseConflictError",
    "LostLeaseError",
    "MemoryStateStore",
    "MetricsCollector",
    "MongoChangeStreamSource",
    "MySqlBinlogSource",
    "NotFoundError",
    "OpenTelemetryMetrics",
    "OpenTelemetryObserver",
    "Outbox",
    "OutboxSource",
    "PollContext",
    "PollTrigger",
    "PollerError",
    "PositionLostError",
    "PostgresLogicalSource",
    "ProcessedLedger",
    "QueryError",
    "RecordNormalizer",
    "RelayError",
    "RetryPolicy",
    "RowChange",
    "RowsFailed",
    "SerializationError",
    "SourceConfigurationError",
    "SourceDescriptor",
    "SourceInUseError",
    "SqlAlchemySource",
    "SqlQuarantine",
    "SqlServerChangeTrackingSource",
    "SqlSnapshots",
    "SqlStateStore",
    "StateStoreError",
    "Stored",
    "TableStateStore",
    "WriteError",
    "__version__",
    "dashboard_blueprint",
    "get_db_metadata",
    "processed_once",
]


if not TYPE_CHECKING:  # so that a checker notices a name that does not exist
    __getattr__ = lazy_names(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return __all__
