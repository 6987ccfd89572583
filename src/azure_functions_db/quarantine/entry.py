"""A quarantined row as JSON and back."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import fields
from typing import Any

from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.names import encoded_name
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.core.types import QuarantinedRow

_NAMES = [entry.name for entry in fields(QuarantinedRow)]


def encoded(row: QuarantinedRow) -> str:
    """Return the row as JSON."""
    written = {name: getattr(row, name) for name in _NAMES}
    return json.dumps(written | {"quarantined_at": datetime_text(row.quarantined_at)}, indent=2, allow_nan=False)


def decoded(text: str | bytes, where: str) -> QuarantinedRow:
    """Return the row that was written; what is none is an error that says where it lies."""
    try:
        written: dict[str, Any] = json.loads(text)
        moment = dt.datetime.fromisoformat(written["quarantined_at"])
        return QuarantinedRow(**{**{name: written[name] for name in _NAMES}, "quarantined_at": moment})
    except (ValueError, KeyError, TypeError):
        raise StateStoreError(f"{where} is no quarantined row; look at it, then remove it by hand") from None


def path_of(poller_name: str, event_id: str) -> str:
    """Return where a row lies below a sink's root; any name is safe in it."""
    return f"{folder_of(poller_name)}{encoded_name('event id', event_id)}.json"


def folder_of(poller_name: str) -> str:
    """Return where the rows of one poller lie."""
    return f"{encoded_name('poller name', poller_name)}/"


def oldest_first(rows: list[QuarantinedRow]) -> list[QuarantinedRow]:
    """Return the rows in the order in which they were put aside."""
    return sorted(rows, key=lambda row: (row.quarantined_at, row.poller_name, row.event_id))
