"""What time it is where state is kept."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azure_functions_db.state.store import DocumentStateStore


def storage_now(store: DocumentStateStore) -> dt.datetime | None:
    """Return the clock of the service that keeps the state; None where that is this machine's own."""
    from azure_functions_db.state.blob import BlobBackend
    from azure_functions_db.state.sql import SqlBackend

    match store._backend:  # noqa: SLF001 - same package
        case BlobBackend() as blobs:
            return _dated(blobs)
        case SqlBackend() as table:
            return _database_clock(table)
        case _:
            return None


def _dated(blobs: Any) -> dt.datetime | None:
    from azure.core.exceptions import HttpResponseError

    from azure_functions_db.state.azure import asked

    dates: list[str] = []

    def note(response: Any) -> None:
        dates.append(response.http_response.headers.get("Date", ""))

    def look() -> None:
        # Any answer has a date: a signature that lets read blobs may not let look at their container.
        with suppress(HttpResponseError):
            blobs._container.exists(raw_response_hook=note)  # noqa: SLF001 - same package

    asked(None, look)
    return parsedate_to_datetime(dates[-1]) if dates and dates[-1] else None


def _database_clock(table: Any) -> dt.datetime | None:
    from azure_functions_db.sql.database_clock import database_now

    with table._failures(None), table.engine.connect() as connection:  # noqa: SLF001 - same package
        return database_now(connection)
