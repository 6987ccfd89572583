"""State stores: where the checkpoint and the lease of a poller live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db._lazy import lazy_names

if TYPE_CHECKING:
    from azure_functions_db.state.blob import BlobCheckpointStore
    from azure_functions_db.state.errors import FingerprintMismatchError, LeaseConflictError, StateStoreError

__all__ = ["BlobCheckpointStore", "FingerprintMismatchError", "LeaseConflictError", "StateStoreError"]

if not TYPE_CHECKING:  # so that a checker notices a name that does not exist
    __getattr__ = lazy_names(
        __name__,
        {
            "BlobCheckpointStore": "blob",
            "FingerprintMismatchError": "errors",
            "LeaseConflictError": "errors",
            "StateStoreError": "errors",
        },
    )


def __dir__() -> list[str]:
    return __all__
