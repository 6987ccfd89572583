"""A change in the shape of CloudEvents 1.0."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from azure_functions_db.core.serializers import json_safe

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange


def cloudevent_of(change: RowChange) -> dict[str, Any]:
    """Return the change as a CloudEvents JSON object; ``schemas/cloudevent.json`` describes it.

    The event's time is when the change happened where the cursor tells it, else when it was read.
    """
    event = {
        "specversion": "1.0",
        "id": change.event_id,
        "source": f"azure-functions-db/{quote(change.source.kind)}/{quote(change.source.name)}",
        "type": f"azure-functions-db.row.{change.op}",
        "subject": ",".join(f"{quote(name)}={quote(str(json_safe(value)))}" for name, value in change.pk.items()),
        "time": _time_of(change),
        "datacontenttype": "application/json",
        "data": change.to_json(),
    }
    return {name: value for name, value in event.items() if value}


def _time_of(change: RowChange) -> str | None:
    for moment in (change.cursor, change.metadata.get("fetched_at")):
        # RFC 3339 wants an offset; a naive time would claim one that nobody knows.
        if isinstance(moment, dt.datetime) and moment.tzinfo is not None:
            return str(json_safe(moment))
    return None
