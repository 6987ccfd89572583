"""Changes as messages: CloudEvents 1.0, in structured or in binary mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange

Mode = Literal["structured", "binary"]
"""Where the attributes of a CloudEvent go: beside its data into the body, or into the message's properties."""

KeyOf = Callable[["RowChange"], str]
CloudEventOf = Callable[["RowChange"], Mapping[str, Any]]

_STRUCTURED = "application/cloudevents+json"
_JSON = "application/json"
# Made once: json.dumps makes an encoder for each call that is told how to write.
_json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_key_text = json.JSONEncoder(separators=(",", ":"), default=str).encode


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One change as it is sent."""

    id: str
    """The id of the event: the same whenever the same change is sent again."""
    key: str
    """What has to stay in order has the same key: the row, unless said otherwise."""
    body: bytes = field(repr=False)
    content_type: str = _STRUCTURED
    attributes: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The attributes of the CloudEvent in binary mode, without ``datacontenttype``."""


class Messages:
    """Makes a message of each change."""

    def __init__(self, mode: Mode = "structured", key: KeyOf | None = None, event: CloudEventOf | None = None) -> None:
        if mode not in get_args(Mode):
            raise ConfigurationError(f"mode= is structured or binary, not {mode!r}")
        self._encoded = _structured if mode == "structured" else _binary
        self._key_of = key or _row_of
        self._event_of = event or _cloudevent_of

    def of(self, change: RowChange) -> Message:
        """Return the message of a change."""
        return self._encoded(change.event_id, str(self._key_of(change)), self._event_of(change))


def _row_of(change: RowChange) -> str:
    """Return a text that all changes of a row share, and no other row of its source has."""
    return _key_text([*change.pk.values()]) if change.pk else change.source.name


def _cloudevent_of(change: RowChange) -> Mapping[str, Any]:
    return change.to_cloudevent()


def _structured(event_id: str, key: str, event: Mapping[str, Any]) -> Message:
    return Message(event_id, key, json_bytes(event))


def _binary(event_id: str, key: str, event: Mapping[str, Any]) -> Message:
    attributes = {
        name: str(value) for name, value in event.items() if name not in {"data", "data_base64", "datacontenttype"}
    }
    content_type = str(event.get("datacontenttype", _JSON))
    return Message(event_id, key, json_bytes(event.get("data")), content_type, attributes)


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON in UTF-8; half a surrogate pair, which UTF-8 cannot hold, stays an escape."""
    return _json_text(value).encode(errors="backslashreplace")
