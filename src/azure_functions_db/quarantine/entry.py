"""A quarantined row as JSON and back."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.config import encoded_name
from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.core.serializers import datetime_text, is_count, parsed_json, timestamp
from azure_functions_db.core.types import QuarantinedRow

if TYPE_CHECKING:
    from collections.abc import Callable

# A row may hold a document of its own: as deep as could be written.
_DEEPEST_ROW = 1_000
_LABELS = ("poller_name", "event_id", "error_type", "batch_id")
# Older entries have neither a traceback nor types.
_NAMES = [entry.name for entry in fields(QuarantinedRow) if entry.name not in {"traceback", "types"}]


def row_of(written: Any, where: str) -> QuarantinedRow:
    """Return the row of a JSON object, such as one in a file of dropped rows."""
    return decoded(json.dumps(written), where, lambda _row: True)


def encoded(row: QuarantinedRow) -> str:
    """Return the row as JSON."""
    written = {name: getattr(row, name) for name in _NAMES}
    written |= {"quarantined_at": datetime_text(row.quarantined_at), "traceback": row.traceback, "types": row.types}
    return json.dumps(written, indent=2, allow_nan=False)


def decoded(text: str | bytes, where: str, belongs: Callable[[QuarantinedRow], bool]) -> QuarantinedRow:
    """Return the row that was written; what is none, or does not belong there, is an error that says where it lies."""
    try:
        written: dict[str, Any] = parsed_json(text, _DEEPEST_ROW)
        _check(written)
        row = QuarantinedRow(
            **{**{name: written[name] for name in _NAMES}, "quarantined_at": timestamp(written["quarantined_at"])},
            traceback=written.get("traceback"),
            types=written.get("types"),
        )
        if not belongs(row):
            raise _refusal(where, "is the entry of another poller or event than its place says")
    except (ValueError, KeyError, TypeError, ConfigurationError):
        raise _refusal(where, "is no quarantined row") from None
    return row


def _check(written: dict[str, Any]) -> None:
    texts = (written["error"], *(written[name] for name in _LABELS))
    if not (all(isinstance(text, str) for text in texts) and is_count(written["attempts"])):
        raise TypeError
    if not isinstance(written["event"], dict):
        raise TypeError
    if not (isinstance(written.get("traceback"), str | None) and isinstance(written.get("types"), dict | None)):
        raise TypeError


def _refusal(where: str, what: str) -> StateStoreError:
    return StateStoreError(f"{where} {what}; look at it, then remove it by hand")


def path_of(poller_name: str, event_id: str) -> str:
    """Return where a row lies below a sink's root; any name is safe in it."""
    return f"{folder_of(poller_name)}{encoded_name('event id', event_id)}.json"


def folder_of(poller_name: str) -> str:
    """Return where the rows of one poller lie."""
    return f"{encoded_name('poller name', poller_name)}/"


def is_at(path: str) -> Callable[[QuarantinedRow], bool]:
    """Return what tells whether a row belongs at a path below a sink's root."""
    return lambda row: path_of(row.poller_name, row.event_id) == path


def oldest_first(rows: list[QuarantinedRow]) -> list[QuarantinedRow]:
    """Return the rows in the order in which they were put aside."""
    return sorted(rows, key=lambda row: (row.quarantined_at, row.poller_name, row.event_id))
