"""A change as the handler sees it."""

from __future__ import annotations

import copy
import datetime as dt
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from azure_functions_db.core.serializers import json_safe
from azure_functions_db.trigger.event_ids import Identities

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn, Self

    from azure_functions_db.core.types import CursorPart, CursorValue, Operation, SourceDescriptor

_FIELDS: Final = ("event_id", "op", "source", "cursor", "pk", "before", "after", "metadata")
_CONTAINERS: Final = frozenset({dict, list, set})


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
    cursor: CursorValue
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
        cursor: CursorValue,
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
    event = {
        "specversion": "1.0",
        "id": change.event_id,
        "source": _source_of(change.source),
        "type": f"azure-functions-db.row.{change.op}",
        "subject": ",".join(f"{quote(name)}={quote(str(json_safe(value)))}" for name, value in change.pk.items()),
        "time": _time_of(change),
        "datacontenttype": "application/json",
        "data": change.to_json(),
    }
    return {name: value for name, value in event.items() if value}


@lru_cache(maxsize=128)
def _source_of(source: SourceDescriptor) -> str:
    return f"azure-functions-db/{quote(source.kind)}/{quote(source.name)}"


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
    if not isinstance(row, dict):
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
