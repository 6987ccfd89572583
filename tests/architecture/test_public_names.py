"""The names that users import from the package: adding or losing one is a decision, and shows up here."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import azure_functions_db

PUBLIC_NAMES = [
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

HEAVY = ["azure", "opentelemetry", "pydantic", "rich", "sqlalchemy", "typer"]


def test_the_public_names_are_these() -> None:
    assert sorted(azure_functions_db.__all__) == sorted(PUBLIC_NAMES)
    assert sorted(dir(azure_functions_db)) == sorted(PUBLIC_NAMES)


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_public_name_can_be_imported(name: str) -> None:
    assert getattr(azure_functions_db, name) is not None


MODULES = {
    "adapter.sqlalchemy": "SqlAlchemySource",
    "binding.reader": "DbReader",
    "binding.writer": "DbWriter",
    "core.config": "DbConfig",
    "core.engine": "EngineProvider",
    "core.errors": "DbError",
    "core.serializers": "serialize_cursor_part",
    "core.types": "SourceDescriptor",
    "decorator": "DbBindings",
    "observability": "OpenTelemetryMetrics",
    "quarantine": "BlobQuarantine",
    "relay": "EventHubRelay",
    "state.backend": "Version",
    "state.blob": "BlobCheckpointStore",
    "state.errors": "StateStoreError",
    "testing.drills": "run_drills",
    "testing.faults": "FaultyStateStore",
    "testing.memory": "MemorySource",
    "testing.sources": "SourceContract",
    "testing.stores": "StateStoreContract",
    "trigger.context": "PollContext",
    "trigger.errors": "PollerError",
    "trigger.events": "RowChange",
    "trigger.normalizers": "RecordNormalizer",
    "trigger.poll": "PollTrigger",
    "trigger.retry": "RetryPolicy",
    "trigger.runner": "PollRunner",
}


@pytest.mark.parametrize(("module", "name"), MODULES.items())
def test_a_module_that_users_import_by_its_path_stays_there(module: str, name: str) -> None:
    assert hasattr(import_module(f"azure_functions_db.{module}"), name)


ERRORS = [name for name in PUBLIC_NAMES if name.endswith("Error") or name == "RowsFailed"]


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_prints_as_its_public_name(name: str) -> None:
    error = getattr(azure_functions_db, name)
    assert f"{error.__module__}.{error.__qualname__}" == f"azure_functions_db.{name}"
    assert pickle.loads(pickle.dumps(error)) is error


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(azure_functions_db.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    seen = {alias.asname or alias.name for node in imports for alias in node.names}
    assert seen >= set(PUBLIC_NAMES)


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = f"import sys, azure_functions_db; print([name for name in {HEAVY} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"
