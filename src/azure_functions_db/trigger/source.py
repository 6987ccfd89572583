"""Both kinds of source behind the full port, and one tick's session with it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, FetchError, PollerError, SourceInUseError
from azure_functions_db.core.ports import CountsChanges
from azure_functions_db.core.serializers import datetime_text, deserialize_position, serialize_position
from azure_functions_db.core.signals import FetchedNothing, SourceReported, Stage
from azure_functions_db.core.types import AdapterCapability, FetchResult
from azure_functions_db.trigger.batch import (
    Batch,
    committed_checkpoint,
    failed_attempts,
    joined,
    search_after,
    undeliverable,
)
from azure_functions_db.trigger.normalizers import normalized
from azure_functions_db.trigger.retry import FETCH_RETRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from azure_functions_db.core.ports import ChangeReader, ChangeSource, SourceAdapter
    from azure_functions_db.core.types import Checkpoint, CursorValue, SourceDescriptor
    from azure_functions_db.trigger.normalizers import Normalizer
    from azure_functions_db.trigger.poison import Search
    from azure_functions_db.trigger.poll import PollSettings
    from azure_functions_db.trigger.stages import Stages

# Further behind than this is far behind; counting on would cost more than it tells.
_MOST_ROWS = 10_000
# A row that shows the handler to work may lie behind many rows of other partitions.
_PAGES_TO_WITNESS = 100


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

    def fetch_changes(self, checkpoint: Checkpoint, limit: int) -> FetchResult:
        records = list(self._source.fetch(self._cursor(checkpoint), limit))[:limit]
        if not records:
            return FetchResult(records, checkpoint, more=False)
        [last] = normalized(self._normalizer, records[-1:], self.source_descriptor, {})
        position = {"cursor": serialize_position(last.cursor, last.pk)}
        return FetchResult(records, position, more=len(records) == limit)

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Do nothing: a small source keeps nothing back."""

    def _cursor(self, checkpoint: Checkpoint) -> CursorValue:
        written = checkpoint.get("cursor")
        match written:
            case None:
                return None
            case list():
                return tuple(written)
            case {"tiebreaker": dict() as key}:
                position = deserialize_position(written, getattr(self._source, "pk_columns", None) or list(key))
                return position if key else position[0]
            case _:
                return deserialize_position(written, ())


class SourceSession:
    """One tick's reading of its source: opened when it is first needed, closed with the tick."""

    def __init__(self, settings: PollSettings, stages: Stages, pause: Callable[[float], None]) -> None:
        self._settings = settings
        self._source = settings.source
        self._stages = stages
        self._pause = pause
        self._reader: ChangeReader | None = None
        self.fetched = 0
        """How many records were read."""

    def describe(self) -> None:
        """Find out who the source is and what it needs."""
        self.descriptor, self.needs = self._stages.run(
            Stage.DESCRIPTOR, lambda: (self._source.source_descriptor, self._source.capability())
        )
        self._stages.source = self.descriptor.name

    def next_batch(self, position: Checkpoint) -> Batch:
        """Return what follows a position; a batch without events where nothing has changed."""
        began, search, spent = self._settings.monotonic(), self.search_after(position), dict[Stage, float]()
        limit = self._settings.batch_size if search is None else search.rows.stop
        result = self._read(position, limit, spent, fill=search is not None and search.needs_witness)
        self._tell_facts(result)
        batch = Batch(
            id=f"batch_{self._settings.new_id()}" if result.records else "",
            events=(),
            before=position,
            after=result.next_checkpoint,
            more=len(result.records) >= limit if result.more is None else bool(result.more),
            began=began,
            attempts=failed_attempts(position),
            search=search,
            is_whole=len(result.records) > limit,
            spent=spent,
        )
        if result.records:
            self.fetched += len(result.records)
            self._normalize(batch, result)
        else:
            self._stages.say(FetchedNothing, fetch_duration_ms=spent[Stage.FETCH], checkpoint_before=position)
        return batch

    def acknowledge(self, checkpoint: Checkpoint, batch_id: str | None = None) -> None:
        """Tell the source of a commit; failing at that is told, not raised, and done again by a later tick."""
        try:
            self._stages.run(Stage.ACKNOWLEDGE, lambda: self._opened().acknowledge(checkpoint), batch_id)
        except SourceInUseError:
            raise
        except PollerError:
            pass

    def rows_behind(self, checkpoint: Checkpoint) -> int | None:
        """Return how many rows wait behind it, None where the source cannot count them; counting is bounded."""
        with suppress(Exception):  # a number for a dashboard is not worth a failed tick
            if isinstance(self._source, CountsChanges):
                return self._source.count_changes(checkpoint, _MOST_ROWS)
        return None

    def search_after(self, position: Checkpoint) -> Search | None:
        """Return the search for poison rows that a checkpoint tells of, where there is a quarantine for them."""
        return search_after(position, self._settings.batch_size) if self._settings.quarantine is not None else None

    def close(self) -> None:
        """Give back what was opened; failing at that is told, not raised."""
        if self._reader is not None:
            with suppress(PollerError):
                self._stages.run(Stage.CLOSE, self._reader.close)

    def _read(self, position: Checkpoint, limit: int, spent: dict[Stage, float], *, fill: bool) -> FetchResult:
        """Fetch, and fetch again after a pause where the database failed in passing."""
        pauses = FETCH_RETRIES.pauses()
        while True:
            try:
                return self._stages.run(Stage.FETCH, lambda: self._page(position, limit, fill=fill), spent=spent)
            except FetchError as error:
                pause = next(pauses, None)
                if pause is None or not error.transient:
                    raise
                self._pause(pause)

    def _page(self, position: Checkpoint, limit: int, *, fill: bool) -> FetchResult:
        """Read a page; where it has to be full, on over pages that bring few rows or none."""
        fetch = self._opened().fetch_changes
        page = fetch(position, limit)
        for _ in range(_PAGES_TO_WITNESS if fill else 0):
            if len(page.records) >= limit or not page.more:
                break
            page = joined(page, fetch(page.next_checkpoint, limit - len(page.records)))
        return page

    def _opened(self) -> ChangeReader:
        if self._reader is None:
            self._reader = self._source.open() or self._source
        return self._reader

    def _tell_facts(self, result: FetchResult) -> None:
        for fact in result.facts:
            self._stages.say(SourceReported, fact=fact)

    def _normalize(self, batch: Batch, result: FetchResult) -> None:
        """Make the events of a page, and the checkpoint to write after them."""
        fetched_at = self._settings.now()
        metadata = {
            "batch_id": batch.id,
            "attempt": batch.attempts + 1,
            "fetched_at": fetched_at,
            "consumer": self._settings.consumer,
        }
        self._stages.run(Stage.NORMALIZE, lambda: self._make_events(batch, result, metadata), batch.id)
        batch.after = committed_checkpoint(
            result.next_checkpoint,
            before=batch.before,
            batch_id=batch.id,
            updated_at=datetime_text(fetched_at),
            row_count=len(batch.events),
        )

    def _make_events(self, batch: Batch, result: FetchResult, metadata: Mapping[str, Any]) -> None:
        source = self.descriptor.whole or self.descriptor
        events = normalized(self._settings.normalizer, result.records, source, metadata, result.revisions)
        undecodable = {events[place].event_id: reason for place, reason in result.undecodable.items()}
        if undecodable and self._settings.quarantine is None:
            raise undeliverable(events, undecodable)
        batch.events, batch.undecodable = events, undecodable
