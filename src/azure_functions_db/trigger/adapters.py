"""Both kinds of source behind the full port."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.ports import NamesColumns
from azure_functions_db.core.serializers import (
    deserialize_part,
    deserialize_position,
    serialize_part,
    serialize_position,
)
from azure_functions_db.core.types import AdapterCapability, FetchResult
from azure_functions_db.trigger.normalizers import RecordNormalizer, normalized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.core.ports import ChangeReader, ChangeSource, SourceAdapter
    from azure_functions_db.core.types import CursorValue, Position, RawRecord, SourceDescriptor
    from azure_functions_db.trigger.normalizers import Normalizer


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
