"""The errors of state stores, under the path where users look for them."""

from __future__ import annotations

from azure_functions_db.core.errors import FingerprintMismatchError, LeaseConflictError, LostLeaseError, StateStoreError

__all__ = ["FingerprintMismatchError", "LeaseConflictError", "LostLeaseError", "StateStoreError"]
