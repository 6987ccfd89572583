"""A change as the handler sees it."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import TYPE_CHECKING, Any, Final, Literal

from azure_functions_db.core.serializers import json_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn, Self

    from azure_functions_db.core.types import CursorPart, SourceDescriptor

Seed = Any
"""The state of a hash to which an event adds what is its own (hashlib names no type for it)."""

Operation = Literal["insert", "update", "upsert", "delete", "unknown"]

_FIELDS: Final = ("event_id", "op", "source", "cursor", "pk", "before", "after", "metadata")
_SEPARATOR: Final = "\x1f"
_PLAIN: Final = frozenset({int, str})
_MICROSECOND: Final = dt.timedelta(microseconds=1)


class _Epochs(dict[dt.tzinfo | None, dt.datetime]):
    """The moment from which times of each zone are counted; for naive times, the naive one."""

    def __missing__(self, zone: dt.tzinfo | None) -> dt.datetime:
        # Two times of one zone are subtracted without asking it for its offset, which costs more
        # than all the rest. Where the offset is always nought that gives the same number.
        is_utc = zone is None or zone is dt.UTC or getattr(zone, "key", None) in {"UTC", "Etc/UTC"}
        epoch = self[zone] = dt.datetime(1970, 1, 1, tzinfo=zone if is_utc else dt.UTC)
        return epoch


_EPOCHS: Final = _Epochs()


class OpenRowChange:
    """A `RowChange` while its fields are being set.

    A frozen dataclass pays for each field twice over. Here the fields are set on this open form,
    whose class is then changed to the sealed one: events are made by the thousand.
    """

    __slots__ = ("_identity", "_key", "after", "before", "cursor", "metadata", "op", "source")

    _identity: str | Seed
    """The event's id, or what it is to be made from when somebody asks for it."""
    _key: str | Mapping[str, CursorPart]
    """The key, or the name of the column of ``after`` that is the key."""
    op: Operation
    source: SourceDescriptor
    cursor: CursorPart
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    metadata: Mapping[str, Any]


class RowChange(OpenRowChange):
    """One changed row: what happened, to which key, and the row as it now is.

    ``event_id`` is the same whenever the same change is delivered again: remember it to make a
    handler idempotent. Where none is given it is a SHA-256 over the source's name and
    fingerprint, the operation, the cursor and the key.
    """

    __slots__ = ()
    __match_args__ = _FIELDS

    def __new__(
        cls,
        event_id: str | None,
        op: Operation,
        source: SourceDescriptor,
        cursor: CursorPart,
        pk: Mapping[str, CursorPart],
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        made: Any = OpenRowChange()
        made._identity, made._key = event_id or seed_of(source), pk  # noqa: SLF001 - made here
        made.op, made.source, made.cursor = op, source, cursor
        made.before, made.after, made.metadata = before, after, metadata or {}
        made.__class__ = cls
        return made  # type: ignore[no-any-return]

    def __init__(self, *_args: Any, **_fields: Any) -> None:
        """Keep the fields that `__new__` has set."""

    @property
    def pk(self) -> Mapping[str, CursorPart]:
        """The key of the row: column name to value."""
        key = self._key
        return {key: self.after[key]} if isinstance(key, str) else key  # type: ignore[index]

    @property
    def event_id(self) -> str:
        """The stable id of this change; made when it is first asked for."""
        known = self._identity
        if isinstance(known, str):
            return known
        cursor: Any = self.cursor
        key = self._key
        # What nearly all keys are is written out here: this runs for every event, and calls cost.
        value: Any = self.after[key] if isinstance(key, str) else key  # type: ignore[index]
        keys = repr(value) if value.__class__ in _PLAIN else _SEPARATOR.join(map(_text, self.pk.values()))
        if cursor.__class__ is dt.datetime:
            cursor = (cursor - _EPOCHS[cursor.tzinfo]) // _MICROSECOND
        digest = known.copy()
        digest.update(f"{self.op}\x1f{cursor!r}\x1f{keys}".encode())
        made: str = digest.hexdigest()
        _remember_id(self, made)
        return made

    def with_metadata(self, metadata: Mapping[str, Any]) -> RowChange:
        """Return the same change with other metadata."""
        return RowChange(self.event_id, self.op, self.source, self.cursor, self.pk, self.before, self.after, metadata)

    def to_json(self) -> dict[str, Any]:
        """Return the change as JSON can hold it; ``schemas/row_change.json`` describes the form."""
        return {
            "event_id": self.event_id,
            "op": self.op,
            "source": {
                "name": self.source.name,
                "kind": self.source.kind,
                "fingerprint": self.source.fingerprint,
            },
            "cursor": json_safe(self.cursor),
            "pk": json_safe(self.pk),
            "before": json_safe(self.before),
            "after": json_safe(self.after),
            "metadata": json_safe(self.metadata),
        }

    def to_cloudevent(self) -> dict[str, Any]:
        """Return the change as a CloudEvents 1.0 event in its JSON form."""
        from azure_functions_db.trigger.cloudevents import cloudevent_of

        return cloudevent_of(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"A RowChange is frozen: {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"A RowChange is frozen: {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowChange) and _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash(self.event_id)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in _FIELDS)
        return f"RowChange({fields})"

    def __reduce__(self) -> tuple[type[RowChange], tuple[Any, ...]]:
        return RowChange, _values(self)


# Past the seal, once.
_remember_id: Callable[[RowChange, str], None] = vars(OpenRowChange)["_identity"].__set__


def _values(change: RowChange) -> tuple[Any, ...]:
    return tuple(getattr(change, name) for name in _FIELDS)


def seed_of(source: SourceDescriptor) -> Seed:
    """Return the beginning of every event id of this source."""
    return hashlib.sha256(f"{source.name}\x1f{source.fingerprint}\x1f".encode())


def _text(value: Any) -> str:
    """Return a text that is one for one with the value and does not depend on a session's time zone."""
    if value.__class__ is dt.datetime:
        return repr((value - _EPOCHS[value.tzinfo]) // _MICROSECOND)
    return repr(value)
