"""Documents as handlers get them, and as JSON holds them: Extended JSON, from which every type comes back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from bson import Binary, json_util
from bson.binary import UUID_SUBTYPE, UuidRepresentation
from bson.codec_options import DatetimeConversion

_FORM: Final = json_util.RELAXED_JSON_OPTIONS.with_options(
    tz_aware=True, uuid_representation=UuidRepresentation.STANDARD, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_READ: Final = _FORM.with_options(uuid_representation=UuidRepresentation.UNSPECIFIED)
_AS_THEY_ARE: Final = frozenset({str, int, bool, type(None)})
# A document may have fields with the names that Extended JSON gives to types: then this stands around it.
_LITERAL: Final = "$literal"


class Document(dict[str, Any]):
    """A document with values of MongoDB's types; in the JSON form of an event it is Extended JSON."""

    __slots__ = ()

    def json_form(self) -> dict[str, Any]:
        """Return the document as JSON can hold it."""
        return extended(self)  # type: ignore[no-any-return]  # of a document, one

    def copy(self) -> Document:
        """Return a document of its own with the same fields."""
        return Document(self)


def extended(value: Any) -> Any:
    """Return a value as Extended JSON: an ObjectId is ``{"$oid": …}``, plain texts and numbers stay what they are."""
    if type(value) in _AS_THEY_ARE:
        return value
    match value:
        case Mapping():
            written = {name: extended(inner) for name, inner in value.items()}
            return {_LITERAL: written} if any(name.startswith("$") for name in value) else written
        case list() | tuple():
            return [extended(inner) for inner in value]
        case int():
            return int(value)
        case float() if math.isfinite(value):
            return value
        case float():
            return {"$numberDouble": {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")}
        case _:
            return json_util.default(value, _FORM)


def revived(written: Any) -> Any:
    """Return the value that `extended` wrote."""
    match written:
        case {"$literal": dict() as document}:
            return {name: revived(inner) for name, inner in document.items()}
        case dict():
            value = json_util.object_hook({name: revived(inner) for name, inner in written.items()}, _READ)
            # Bytes in the older form of a UUID have stayed bytes, too.
            return value.as_uuid() if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE else value
        case list():
            return [revived(inner) for inner in written]
        case _:
            return written
