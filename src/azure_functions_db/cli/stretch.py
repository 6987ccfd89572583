"""A stretch of a source, from one cursor value to another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.serializers import deserialize_part, serialize_part

if TYPE_CHECKING:
    from azure_functions_db.core.types import AdapterCapability, Checkpoint, CursorPart, FetchResult, SourceDescriptor

_NOTE = "backfill"


@dataclass(frozen=True, slots=True)
class Stretch:
    """From one cursor value to another, both included; no beginning means the source's own."""

    first: CursorPart
    last: CursorPart

    def noted(self) -> dict[str, Any]:
        """Return the JSON form that the backfill's own checkpoint carries."""
        return {"from": serialize_part(self.first), "to": serialize_part(self.last)}

    @classmethod
    def noted_in(cls, checkpoint: Checkpoint) -> Stretch | None:
        """Return the stretch that a backfill's checkpoint carries; None for any other checkpoint."""
        match checkpoint:
            case {"metadata": {"backfill": {"from": first, "to": last}}}:
                return cls(deserialize_part(first), deserialize_part(last))
            case _:
                return None


def checkpoint_at(stretch: Stretch) -> Checkpoint:
    """Return the checkpoint of a backfill that is about to begin."""
    return {"metadata": {_NOTE: stretch.noted()}}


class StretchSource:
    """A stretch of a source, noted in every checkpoint so that a later run goes on with the same one."""

    def __init__(self, source: Any, stretch: Stretch) -> None:
        self._source = source.ranged(stretch.first, stretch.last)
        self._note = {_NOTE: stretch.noted()}

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """The live source's own: events keep their ids."""
        descriptor: SourceDescriptor = self._source.source_descriptor
        return descriptor

    def validate(self) -> None:
        """Check the source."""
        self._source.validate()

    def open(self) -> None:
        """Open the source."""
        self._source.open()

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def capability(self) -> AdapterCapability:
        """Say what the source can tell."""
        capability: AdapterCapability = self._source.capability()
        return capability

    def fetch_changes(self, checkpoint: Checkpoint, limit: int) -> FetchResult:
        """Read on within the stretch."""
        found: FetchResult = self._source.fetch_changes(checkpoint, limit)
        metadata = {**(found.next_checkpoint.get("metadata") or {}), **self._note}
        return replace(found, next_checkpoint={**found.next_checkpoint, "metadata": metadata}, null_cursor_rows=None)

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Tell the source nothing: what the live poller still needs is not let go."""

    def count_changes(self, checkpoint: Checkpoint, most: int | None = None) -> int:
        """Return how many rows of the stretch are left; counting stops at ``most``."""
        return int(self._source.count_changes(checkpoint, most))
