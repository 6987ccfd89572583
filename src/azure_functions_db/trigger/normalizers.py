"""Turns the records of a source into events, and either kind of source into one with the full port."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import uuid4

from azure_functions_db.core.errors import ConfigurationError, SerializationError
from azure_functions_db.core.garbage import hide, uncollected
from azure_functions_db.core.ports import ChangeReader, NamesColumns, NormalizesItself, TellsOperations
from azure_functions_db.core.serializers import (
    deserialize_part,
    deserialize_position,
    serialize_part,
    serialize_position,
)
from azure_functions_db.core.speedups import speedups
from azure_functions_db.core.types import AdapterCapability, Change, FetchResult
from azure_functions_db.trigger.events import Identities, OpenRowChange, PositionIdentities, RowChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure_functions_db.core.ports import ChangeSource, SourceAdapter
    from azure_functions_db.core.types import CursorValue, Operation, Position, RawRecord, SourceDescriptor


class Normalizer(Protocol):
    """Makes an event of one record.

    Pass ``event_id=None`` to have the stable id made from the event's own fields. Metadata of the
    batch (its id, the attempt, the time it was read) is added afterwards.
    """

    def __call__(self, record: RawRecord, source: SourceDescriptor, /) -> RowChange:
        """Return the event of this record."""


EventNormalizer = Normalizer
"""The same, as the specification calls it."""


class RecordNormalizer:
    """The default: cursor and key are columns of the record, the record is the row as it now is.

    With a ``deleted_column`` a row in which it is true (or set) is a delete; it still carries the
    row. With a ``created_column`` a row whose cursor equals it is an insert, any other an update.
    """

    def __init__(
        self,
        cursor_column: str,
        pk_columns: str | Sequence[str],
        *,
        created_column: str | None = None,
        deleted_column: str | None = None,
    ) -> None:
        self._cursor_column = cursor_column
        self._pk_columns = (pk_columns,) if isinstance(pk_columns, str) else tuple(pk_columns)
        self._operations_of = _operations_reader(cursor_column, created_column, deleted_column)

    def __call__(self, record: RawRecord, source: SourceDescriptor, /) -> RowChange:
        """Return the event of this record."""
        return self.batch([record], source, {})[0]

    def batch(
        self,
        records: Sequence[RawRecord],
        source: SourceDescriptor,
        metadata: Mapping[str, Any],
        revisions: Mapping[int, str] | None = None,
    ) -> list[RowChange]:
        """Return the events of many records, which share their metadata."""
        rows = list(records)
        cursors, *keys = _columns((self._cursor_column, *self._pk_columns), rows)
        operations = self._operations_of(records)
        identities = Identities(source, operations, (cursors, *keys), revisions or {})
        return row_changes(
            identities,
            source,
            ops=operations,
            cursors=cursors,
            pks=_keys_by_name(self._pk_columns, keys),
            befores=[None] * len(records),
            afters=rows,
            metadata=[metadata] * len(records),
        )


def row_changes(
    identities: Identities,
    source: SourceDescriptor,
    *,
    ops: list[Operation],
    cursors: list[Any],
    pks: list[Any],
    befores: list[Any],
    afters: list[Any],
    metadata: list[Any],
) -> list[RowChange]:
    """Return the events of a batch, of which all lists have one value each.

    The hottest loop of the library: whatever can be shared is, and no call is made for an event.
    """
    if speedups is not None:
        count = len(ops)
        shared: dict[str, list[Any]] = {
            "_identities": [identities] * count,
            "_index": _places(count),
            "source": [source] * count,
        }
        own = {"op": ops, "cursor": cursors, "pk": pks, "before": befores, "after": afters, "metadata": metadata}
        return speedups.instances(RowChange, shared | own)
    events: list[Any] = []
    for index, values in enumerate(zip(ops, cursors, pks, befores, afters, metadata, strict=True)):
        event: Any = OpenRowChange()
        event._identities, event._index, event.source = identities, index, source  # noqa: SLF001 - made here
        event.op, event.cursor, event.pk, event.before, event.after, event.metadata = values
        event.__class__ = RowChange
        events.append(event)
    return events


@lru_cache(maxsize=1)
def _places(count: int) -> list[int]:
    """Return the numbers of the events of a batch: most have as many as the one before."""
    return list(range(count))


class ChangeNormalizer:
    """Makes events of changes, which say themselves what happened to which row."""

    def __call__(self, record: Any, source: SourceDescriptor, /) -> RowChange:
        """Return the event of one change."""
        return self.batch([record], source, {})[0]

    def batch(self, changes: Sequence[Any], source: SourceDescriptor, metadata: Mapping[str, Any]) -> list[RowChange]:
        """Return the events of many changes."""
        for stranger in changes:
            if not isinstance(stranger, Change):
                raise SerializationError(
                    f"The source handed out a {type(stranger).__name__}: it needs a normalizer=, "
                    "or cursor_column and pk_columns, or has to hand out changes"
                )
        operations = [change.op for change in changes]
        return row_changes(
            PositionIdentities(source, operations, ([change.position for change in changes],)),
            source,
            ops=operations,
            cursors=[change.position if change.cursor is None else change.cursor for change in changes],
            pks=[change.key for change in changes],
            befores=[change.before for change in changes],
            afters=[change.after for change in changes],
            metadata=[{**metadata, **change.metadata} if change.metadata else metadata for change in changes],
        )


def make_normalizer(*, cursor_column: str, pk_columns: Sequence[str]) -> RecordNormalizer:
    """Return the normaliser of records with these columns, as release 0.8 offered it."""
    return RecordNormalizer(cursor_column, pk_columns)


def default_normalizer(record: RawRecord, descriptor: SourceDescriptor, /) -> RowChange:
    """Return the event of a record whose cursor and key nobody knows, as release 0.8 offered it.

    Each delivery has another id, and the position does not move: it is for looking at a source only.
    """
    return RowChange(
        event_id=uuid4().hex, op="upsert", source=descriptor, cursor=None, pk={}, before=None, after=record
    )


def normalizer_for(source: object, chosen: Normalizer | None) -> Normalizer:
    """Return the normaliser of a source: the user's choice, the source's own, or the default."""
    match source:
        case _ if chosen is not None:
            return chosen
        case NormalizesItself() if source.normalizer is not None:
            return source.normalizer  # type: ignore[no-any-return]  # as its author says
        case TellsOperations():
            return RecordNormalizer(
                source.cursor_column,
                source.pk_columns,
                created_column=source.created_column,
                deleted_column=source.deleted_column,
            )
        case NamesColumns():
            return RecordNormalizer(source.cursor_column, source.pk_columns)
        case ChangeReader():
            return ChangeNormalizer()
        case _:
            raise ConfigurationError(
                f"{type(source).__name__} has no cursor_column and pk_columns: source= takes a source, such as "
                "SqlAlchemySource(...); one of your own without them needs a normalizer="
            )


def normalized(
    normalizer: Normalizer,
    records: Sequence[Any],
    source: SourceDescriptor,
    metadata: Mapping[str, Any],
    revisions: Mapping[int, str] | None = None,
    *,
    hidden: bool = False,
) -> list[RowChange]:
    """Return the events of a batch, each carrying the batch's metadata; see `FetchResult` for ``revisions``.

    They may be hidden from the garbage collector by who shows it those that others hold, see `hide`.
    """
    shared, revised = MappingProxyType(metadata), revisions or {}
    try:
        if isinstance(normalizer, ChangeNormalizer):
            return normalizer.batch(records, source, shared)
        if isinstance(normalizer, RecordNormalizer):
            with uncollected:
                events = normalizer.batch(records, source, shared, revised)
                if hidden and type(normalizer) is RecordNormalizer:  # the user's own may keep the list
                    hide(events)
                return events
        return [_joined(normalizer(record, source), shared, revised.get(place)) for place, record in enumerate(records)]
    except SerializationError:
        raise
    except KeyError as missing:
        raise SerializationError(f"A record has no column {missing}", source=source.name) from missing
    except Exception as error:
        raise SerializationError(f"The normalizer failed: {type(error).__name__}: {error}") from error


class EarlyEvents:
    """The events of a page that was read ahead, made before anything is known of their batch."""

    def __init__(self, events: list[RowChange], metadata: dict[str, Any]) -> None:
        self._events = events
        self._metadata = metadata

    @classmethod
    def made(cls, normalizer: Normalizer, page: FetchResult, source: SourceDescriptor) -> Self | None:
        """Make them; None for a user's code, which expects the thread of the tick, and for changes.

        Those may tell something of themselves, which is joined with what is told of their batch.
        """
        if not isinstance(normalizer, RecordNormalizer):
            return None
        metadata: dict[str, Any] = {}
        return cls(normalized(normalizer, page.records, source, metadata, page.revisions, hidden=True), metadata)

    def of(self, metadata: Mapping[str, Any]) -> list[RowChange]:
        """Return them as those of the batch that its metadata tells of."""
        self._metadata.update(metadata)
        return self._events


def _joined(event: object, metadata: Mapping[str, Any], revision: str | None) -> RowChange:
    if not isinstance(event, RowChange):
        raise SerializationError(f"The normalizer returned a {type(event).__name__}, not a RowChange")
    if revision is not None:
        event = event.with_revision(revision)
    return event.with_metadata(MappingProxyType({**metadata, **event.metadata}) if event.metadata else metadata)


def _columns(names: Sequence[str], records: list[RawRecord]) -> list[list[Any]]:
    """Return for each name the value that each record has of it."""
    if speedups is not None:
        return [speedups.column(name, records) for name in names]
    return [list(map(itemgetter(name), records)) for name in names]


def _keys_by_name(names: Sequence[str], columns: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """Return the key of each event, of which the columns have the values."""
    if len(names) > 1:
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    [name], [values] = names, columns
    if speedups is not None:
        return speedups.singles(name, values)
    return [{name: value} for value in values]


def _operations_reader(
    cursor_column: str, created_column: str | None, deleted_column: str | None
) -> Callable[[Sequence[RawRecord]], list[Operation]]:
    if created_column is None and deleted_column is None:
        return lambda records: ["upsert"] * len(records)

    def operation(record: RawRecord) -> Operation:
        if deleted_column is not None and record[deleted_column]:
            return "delete"
        if created_column is None:
            return "upsert"
        return "insert" if record[created_column] == record[cursor_column] else "update"

    return lambda records: [operation(record) for record in records]


def full_source(source: object, normalizer: Normalizer) -> ChangeSource:
    """Return the source itself, or the small one dressed as a full one."""
    # Only names are looked at: a descriptor may want settings that are not read before the first use.
    names = set(dir(source))
    if {"fetch_changes", "open", "close", "validate", "acknowledge", "source_descriptor"} <= names:
        return source  # type: ignore[return-value]
    if {"fetch", "source_descriptor"} <= names:
        return SmallSource(source, normalizer)  # type: ignore[arg-type]
    raise ConfigurationError(
        f"{type(source).__name__} is no change source: it needs source_descriptor and fetch(cursor, batch_size)"
    )


@contextmanager
def reading(source: ChangeSource) -> Iterator[ChangeReader]:
    """Open a source for as long as the block lasts."""
    reader = source.open() or source
    try:
        yield reader
    finally:
        reader.close()


class SmallSource:
    """A source with just a descriptor and ``fetch``: its position is the last event's cursor and key.

    With a normaliser of the user's own it is the event's cursor as that gave it: a scalar alone, or a tuple.
    A page may be short: the source is asked again until it returns none.
    """

    def __init__(self, source: SourceAdapter, normalizer: Normalizer) -> None:
        self._source = source
        self._normalizer = normalizer

    @property
    def source_descriptor(self) -> SourceDescriptor:
        return self._source.source_descriptor

    def validate(self) -> None:
        """Do nothing: a small source has nothing to check."""

    def open(self) -> None:
        """Do nothing: a small source holds nothing."""

    def close(self) -> None:
        """Do nothing: a small source holds nothing."""

    def capability(self) -> AdapterCapability:
        return AdapterCapability()

    def fetch_changes(self, checkpoint: Position, limit: int) -> FetchResult:
        records = self._fetch(self._cursor(checkpoint), limit)
        if not records:
            return FetchResult(records, checkpoint, more=False)

        def end(count: int) -> Position:
            return {"cursor": self._position(records[count - 1])}

        # Whether more follows a short page, only the next one tells.
        return FetchResult(records, end(len(records)), more=len(records) == limit or None, cut=end)

    def acknowledge(self, checkpoint: Position) -> None:
        """Do nothing: a small source keeps nothing back."""

    def _fetch(self, cursor: CursorValue, limit: int) -> list[RawRecord]:
        try:
            return list(self._source.fetch(cursor, limit))[:limit]
        except TypeError as error:
            error.add_note(f"fetch was given {cursor!r}; release 0.8 gave times, Decimals and UUIDs as texts")
            raise

    def _position(self, record: RawRecord) -> Any:
        """Return the position after a record, in the JSON form that `_cursor` reads."""
        [last] = normalized(self._normalizer, [record], self.source_descriptor, {})
        if isinstance(last.cursor, tuple):
            return [serialize_part(part) for part in last.cursor]
        return serialize_position(last.cursor, last.pk if isinstance(self._normalizer, RecordNormalizer) else {})

    def _cursor(self, checkpoint: Position) -> CursorValue:
        written = checkpoint.get("cursor")
        match written:
            case None | str() | int() | float():
                return written  # a scalar, as release 0.8 wrote it
            case list() | tuple():
                return tuple(deserialize_part(part) for part in written)
            case {"tiebreaker": dict() as key} if key:
                columns = self._source.pk_columns if isinstance(self._source, NamesColumns) else list(key)
                return deserialize_position(written, columns)
            case _:
                return deserialize_position(written, ())[0]
