"""Both kinds of source behind the full port."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.ports import NamesColumns
from azure_functions_db.core.serializers import deserialize_position, serialize_position
from azure_functions_db.core.types import AdapterCapability, FetchResult
from azure_functions_db.trigger.normalizers import normalized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.core.ports import ChangeReader, ChangeSource, SourceAdapter
    from azure_functions_db.core.types import CursorValue, Position, SourceDescriptor
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
    """A source with just a descriptor and ``fetch``: its position is the last event's cursor and key."""

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
        records = list(self._source.fetch(self._cursor(checkpoint), limit))[:limit]
        if not records:
            return FetchResult(records, checkpoint, more=False)
        [last] = normalized(self._normalizer, records[-1:], self.source_descriptor, {})
        position = {"cursor": serialize_position(last.cursor, last.pk)}
        return FetchResult(records, position, more=len(records) == limit)

    def acknowledge(self, checkpoint: Position) -> None:
        """Do nothing: a small source keeps nothing back."""

    def _cursor(self, checkpoint: Position) -> CursorValue:
        written = checkpoint.get("cursor")
        match written:
            case None:
                return None
            case list():
                return tuple(written)
            case {"tiebreaker": dict() as key}:
                columns = self._source.pk_columns if isinstance(self._source, NamesColumns) else list(key)
                position = deserialize_position(written, columns)
                return position if key else position[0]
            case _:
                return deserialize_position(written, ())
