"""A change as the handler sees it."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from azure_functions_db.core.serializers import json_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import NoReturn, Self

    from azure_functions_db.core.types import CursorPart, Operation, SourceDescriptor

_FIELDS: Final = ("event_id", "op", "source", "cursor", "pk", "before", "after", "metadata")
_CONTAINERS: Final = frozenset({dict, list, set})


class Identities:
    """The stable ids of the events of a batch, made all at once when the first is asked for."""

    __slots__ = ("_cursors", "_keys", "_operations", "_source", "made", "revisions")

    def __init__(
        self,
        source: SourceDescriptor,
        operations: Sequence[str],
        cursors: Sequence[Any],
        keys: Sequence[Any],
        revisions: Mapping[int, str] | None = None,
    ) -> None:
        self._source = source
        self._operations = operations
        self._cursors = cursors
        self._keys = keys
        self.revisions = revisions or {}
        """What tells a change from an earlier one with the same cursor and key, by its place in the batch."""
        self.made: list[str] | None = None

    def make(self) -> list[str]:
        """Return a SHA-256 over source, operation, cursor and key for each change, in order."""
        prefix = f"{self._source.name}\x1f{self._source.fingerprint}"
        begun = {op: hashlib.sha256(f"{prefix}\x1f{op}\x1f".encode()) for op in set(self._operations)}
        changes = self._changes()
        for place, revision in self.revisions.items():
            changes[place] += f"\x1f{revision}".encode()
        made = []
        for op, change in zip(self._operations, changes, strict=True):
            digest = begun[op].copy()
            digest.update(change)
            made.append(digest.hexdigest())
        self.made = made
        return made

    def _changes(self) -> list[bytes]:
        # Joined before they are hashed, step by step over the whole batch: quicker than one loop for it all.
        return list(map(b"\x1f".join, zip(_packed(self._cursors), _packed(self._keys), strict=True)))


class PositionIdentities(Identities):
    """The stable ids of changes that have a position of their own: two changes of one row never share it."""

    __slots__ = ()

    def __init__(self, source: SourceDescriptor, operations: Sequence[str], positions: Sequence[str]) -> None:
        super().__init__(source, operations, positions, ())

    def _changes(self) -> list[bytes]:
        return [b"\x1e" + position.encode() for position in self._cursors]


class OpenRowChange:
    """A `RowChange` while its fields are being set.

    A frozen dataclass pays for each field twice over. Here the fields are set on this open form,
    whose class is then changed to the sealed one: events are made by the thousand.
    """

    __slots__ = ("_identities", "_index", "after", "before", "cursor", "metadata", "op", "pk", "source")

    _identities: Identities
    _index: int
    op: Operation
    source: SourceDescriptor
    cursor: CursorPart
    pk: Mapping[str, CursorPart]
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
        [key] = pk.values() if len(pk) == 1 else [tuple(pk.values())]
        made: Any = OpenRowChange()
        made._identities, made._index = Identities(source, [op], [cursor], [key]), 0  # noqa: SLF001 - made here
        made.op, made.source, made.cursor, made.pk = op, source, cursor, pk
        made.before, made.after, made.metadata = before, after, metadata or {}
        if event_id is not None:
            made._identities.made = [event_id]  # noqa: SLF001 - made here
        made.__class__ = cls
        return made  # type: ignore[no-any-return]

    def __init__(self, *_args: Any, **_fields: Any) -> None:
        """Keep the fields that `__new__` has set."""

    @property
    def event_id(self) -> str:
        """The stable id of this change."""
        identities = self._identities
        return (identities.made or identities.make())[self._index]

    def with_metadata(self, metadata: Mapping[str, Any]) -> RowChange:
        """Return the same change with other metadata."""
        return RowChange(self.event_id, self.op, self.source, self.cursor, self.pk, self.before, self.after, metadata)

    def with_revision(self, revision: str) -> RowChange:
        """Return the same change with the id of a later content; an id that was given stays."""
        identities = self._identities
        if identities.made is None and not identities.revisions:
            identities.revisions = {self._index: revision}
        return self

    def with_own_rows(self) -> RowChange:
        """Return the same change with a copy of its rows: what is done to them does not show in this one."""
        twin: Any = OpenRowChange()
        twin._identities, twin._index = self._identities, self._index  # noqa: SLF001 - made here
        twin.op, twin.source, twin.cursor, twin.metadata = self.op, self.source, self.cursor, self.metadata
        twin.pk, twin.before, twin.after = dict(self.pk), _copied(self.before), _copied(self.after)
        twin.__class__ = type(self)
        return twin  # type: ignore[no-any-return]

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
        return _cloudevent_of(self)

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

    def __reduce__(self) -> tuple[Callable[..., RowChange], tuple[Any, ...]]:
        *fields, metadata = _values(self)
        # A trigger's metadata is a read-only view, which cannot be pickled itself.
        return _revived, (type(self), *fields, dict(metadata), isinstance(metadata, MappingProxyType))


def _cloudevent_of(change: RowChange) -> dict[str, Any]:
    """Return the change as a CloudEvents JSON object; ``schemas/cloudevent.json`` describes it.

    The event's time is when the change happened where the cursor tells it, else when it was read.
    """
    from urllib.parse import quote

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


def _revived(kind: type[RowChange], *values: Any) -> RowChange:
    """Return the event that was pickled or copied, its metadata as read-only as it was."""
    *fields, metadata, read_only = values
    return kind(*fields, MappingProxyType(metadata) if read_only else metadata)


def _copied(row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if type(row) is not dict:
        return row
    if _CONTAINERS.isdisjoint(map(type, row.values())):
        return row.copy()
    try:
        return copy.deepcopy(row)
    except RecursionError:
        return _copied_deep(row)


def _copied_deep(row: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a row with documents that are nested deeper than Python calls itself."""
    copied = row.copy()
    waiting: list[Any] = [copied]
    while waiting:
        container = waiting.pop()
        for place, value in container.items() if type(container) is dict else enumerate(container):
            if type(value) in {dict, list}:
                container[place] = value.copy()
                waiting.append(container[place])
    return copied


def _values(change: RowChange) -> tuple[Any, ...]:
    return tuple(getattr(change, name) for name in _FIELDS)


def _packed(values: Sequence[Any]) -> Iterable[bytes]:
    """Return what `_packed_value` makes of each value, quicker where they are all of a common kind."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return [b"%d" % value for value in values]
    if kinds == {dt.datetime} and all(map(_is_utc, {value.tzinfo for value in values})):
        return [value.__reduce__()[1][0] for value in values]
    return map(_packed_value, values)


def _packed_value(value: Any) -> bytes:
    """Return bytes that are one for one with the value and do not depend on a session's time zone."""
    if value.__class__ is dt.datetime:
        # The ten bytes that a pickled time consists of: to write it out would take five times as long.
        moment: Any = value if _is_utc(value.tzinfo) else value.astimezone(dt.UTC)
        return moment.__reduce__()[1][0]  # type: ignore[no-any-return]
    if value.__class__ is tuple:
        return b"\x1f".join(map(_packed_value, value))
    return repr(value).encode()


def _is_utc(zone: dt.tzinfo | None) -> bool:
    """Tell whether times of this zone are what they are in UTC; those without a zone are left alone."""
    return zone is None or zone is dt.UTC or getattr(zone, "key", None) in {"UTC", "Etc/UTC"}
