"""The errors of a poll, importable from beside it."""

from azure_functions_db.core.errors import (
    CommitError,
    FetchError,
    HandlerError,
    LeaseAcquireError,
    LostLeaseError,
    PollerError,
    PositionLostError,
    RowsFailed,
    SerializationError,
    SourceConfigurationError,
    SourceInUseError,
)

__all__ = [
    "CommitError",
    "FetchError",
    "HandlerError",
    "LeaseAcquireError",
    "LostLeaseError",
    "PollerError",
    "PositionLostError",
    "RowsFailed",
    "SerializationError",
    "SourceConfigurationError",
    "SourceInUseError",
]
