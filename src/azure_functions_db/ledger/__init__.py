"""Ledgers in a user's own database: what was delivered, and what was processed."""

from __future__ import annotations

from azure_functions_db.ledger.delivered import DeliveredLedger
from azure_functions_db.ledger.processed import ProcessedLedger, processed_once

__all__ = ["DeliveredLedger", "ProcessedLedger", "processed_once"]
