"""The tick: fetches changes, calls the handler and commits the checkpoint under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db._lazy import lazy_names

if TYPE_CHECKING:
    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.trigger.errors import (
        CommitError,
        FetchError,
        HandlerError,
        LeaseAcquireError,
        LostLeaseError,
        PollerError,
        SerializationError,
        SourceConfigurationError,
    )
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import PollContext
    from azure_functions_db.trigger.normalizers import EventNormalizer, default_normalizer, make_normalizer
    from azure_functions_db.trigger.poll import PollTrigger
    from azure_functions_db.trigger.retry import RetryPolicy
    from azure_functions_db.trigger.runner import PollRunner, SourceAdapter, StateStore

__all__ = [
    "CommitError",
    "EventNormalizer",
    "FetchError",
    "HandlerError",
    "LeaseAcquireError",
    "LostLeaseError",
    "PollContext",
    "PollRunner",
    "PollTrigger",
    "PollerError",
    "RawRecord",
    "RetryPolicy",
    "RowChange",
    "SerializationError",
    "SourceAdapter",
    "SourceConfigurationError",
    "StateStore",
    "default_normalizer",
    "make_normalizer",
]

if not TYPE_CHECKING:  # so that a checker notices a name that does not exist
    __getattr__ = lazy_names(
        __name__,
        {
            "CommitError": "errors",
            "EventNormalizer": "normalizers",
            "FetchError": "errors",
            "HandlerError": "errors",
            "LeaseAcquireError": "errors",
            "LostLeaseError": "errors",
            "PollContext": "handler",
            "PollRunner": "runner",
            "PollTrigger": "poll",
            "PollerError": "errors",
            "RawRecord": ".core.types",
            "RetryPolicy": "retry",
            "RowChange": "events",
            "SerializationError": "errors",
            "SourceAdapter": "runner",
            "SourceConfigurationError": "errors",
            "StateStore": "runner",
            "default_normalizer": "normalizers",
            "make_normalizer": "normalizers",
        },
    )


def __dir__() -> list[str]:
    return __all__
