"""What sources that read a log share: a snapshot before the stream, lost positions, what they tell about the log."""

from __future__ import annotations

import datetime as dt
import json
import logging
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from azure_functions_db.core.errors import PositionLostError, SourceConfigurationError
from azure_functions_db.core.serializers import datetime_text, json_safe
from azure_functions_db.core.types import AdapterCapability, Change, FetchResult
from azure_functions_db.sources.read_errors import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.ports import ChangeReader, Fact
    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.sources.keyset.source import SqlAlchemySource

SnapshotMode = Literal["initial", "never", "only"]
"""Whether the tables are read before the stream, not at all, or without a stream after them."""
OnPositionLost = Literal["stop", "snapshot", "continue"]
"""After a loss: raise until somebody decides, read the tables anew, or go on from what is left."""
LogPosition = dict[str, Any]
"""A position in a log in the JSON form of its source; ``value`` in it is the text that people are shown."""


class RowsPage(NamedTuple):
    """Rows of one table of a snapshot, in key order."""

    changes: Sequence[Change]
    position: LogPosition
    """Where the stream begins, with all that it takes to join it to these rows."""
    after: Any
    """The key to go on after, as JSON; None where the table ends with this page."""
    undecodable: Mapping[int, Exception] = {}

    @classmethod
    def of(
        cls, rows: SqlAlchemySource, position: LogPosition, table: str, key: Sequence[str], after: Any, limit: int
    ) -> RowsPage:
        """Return the next rows of a table that is read in the order of its key."""
        result = rows.fetch_changes({} if after is None else {"cursor": after}, limit)
        metadata = {"table": table, "snapshot": True}
        changes = [
            Change(
                "upsert",
                f"snapshot {position['value']} {table} {key_text(row, key)}",
                {name: row[name] for name in key},
                row,
                metadata=metadata,
            )
            for row in result.records
        ]
        following = result.next_checkpoint.get("cursor") if result.more else None
        return cls(changes, position, following, result.undecodable)


def key_text(row: Mapping[str, Any], key: Sequence[str]) -> str:
    """Return a row's key as a part of its position, which is a text."""
    return json.dumps([json_safe(row[name]) for name in key], separators=(",", ":"), default=str)


class LogPage(NamedTuple):
    """Changes of a log, and where it stands after them."""

    changes: Sequence[Change]
    position: LogPosition
    """As it was where nothing has changed and moving on is not worth a write."""
    more: bool
    facts: Sequence[Fact] = ()
    undecodable: Mapping[int, Exception] = {}
    reads_anew: str | None = None
    """A table whose rows the log has not told, one that was renamed say: they are read before the log goes on."""


class Log(Protocol):
    """One tick's reading of a log and its tables: the part that each source writes for itself.

    Whatever meets a position that is no longer there raises `PositionLostError`.
    """

    def begin(self, *, anew: bool) -> LogPosition:
        """Fix where the stream begins, before a row is read; ``anew`` after a loss, when nothing older is left."""

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        """Return the next rows of a table; None where they cannot be read yet."""

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        """Return the changes after a position."""

    def acknowledge(self, position: LogPosition) -> None:
        """Let go of what lies before a position."""

    def close(self) -> None:
        """Give back what was taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a poller stands: at a position of the log, and before that at a key of a table."""

    position: LogPosition
    table: str | None = None
    """The table that is being read; None in the stream."""
    after: Any = None
    is_over: bool = False
    """Whether nothing is left to read: the tables alone were wanted."""
    gap: Mapping[str, Any] | None = None
    """The last loss that was gone past."""

    @classmethod
    def of(cls, checkpoint: CheckpointJson) -> Place | None:
        """Return the place that a checkpoint tells, None where it tells of none."""
        written = checkpoint.get("cursor")
        if written is None:
            return None
        if not isinstance(written, dict) or "value" not in written:
            raise SourceConfigurationError(
                "The checkpoint was written by another kind of source: reset the poller (azfdb reset --to-beginning)"
            )
        snapshot = written.get("snapshot") or {}
        position = {name: part for name, part in written.items() if name not in {"kind", "snapshot", "gap", "over"}}
        return cls(
            position, snapshot.get("table"), snapshot.get("after"), bool(written.get("over")), written.get("gap")
        )

    def checkpoint(self, kind: str) -> CheckpointJson:
        """Return the place as a checkpoint tells it."""
        cursor: dict[str, Any] = {"kind": kind, **self.position}
        if self.table is not None:
            cursor["snapshot"] = {"table": self.table, "after": self.after}
        if self.is_over:
            cursor["over"] = True
        if self.gap is not None:
            cursor["gap"] = dict(self.gap)
        return {"cursor": cursor}


def check_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is none of the words an argument takes."""
    if value not in choices:
        raise SourceConfigurationError(f"{argument}= must be one of {', '.join(map(repr, choices))}, not {value!r}")


# How often a place to go on from is looked for after a loss.
_RECOVERIES: Final = 5


class StreamReader:
    """Reads the tables and then the stream, as one tick's reader of a source.

    The start of the stream is fixed before the first row is read, and committed before it is handled; every page of
    rows has its checkpoint: a crash repeats one page. For each key the last thing delivered is its newest state.
    What goes wrong underneath becomes an error that a poller knows.
    """

    def __init__(
        self,
        log: Log,
        *,
        kind: str,
        tables: Sequence[str],
        snapshot: SnapshotMode = "initial",
        on_position_lost: OnPositionLost = "stop",
        source: str | None = None,
    ) -> None:
        self._log = log
        self._kind = kind
        self._source = source or kind
        self._tables = list(tables)
        self._snapshot = snapshot
        self._on_position_lost = on_position_lost

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return rows of the snapshot, or changes of the log."""
        with reading(self._source):
            return self._fetched(Place.of(checkpoint), limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Let the log go of what lies before a checkpoint; while tables are read it has to keep all of it."""
        place = Place.of(checkpoint)
        if place is not None and place.table is None and not place.is_over:
            with reading(self._source):
                self._log.acknowledge(place.position)

    def close(self) -> None:
        """Give back what was taken."""
        self._log.close()

    def _fetched(self, place: Place | None, limit: int) -> FetchResult:
        try:
            return self._read(self._start() if place is None else place, limit, begins=place is None)
        except PositionLostError as lost:
            if place is None or self._on_position_lost == "stop":
                raise
            return self._recover(place, lost, limit)

    def _start(self) -> Place:
        return Place(self._log.begin(anew=False), None if self._snapshot == "never" else self._tables[0])

    def _recover(self, place: Place, lost: PositionLostError, limit: int, attempts: int = _RECOVERIES) -> FetchResult:
        """Go on after a loss as the policy says; the loss is told, and kept in the checkpoint.

        A log that is being shortened may lose the place to go on from as well.
        """
        position = self._log.begin(anew=True)
        gap = {
            "from": place.position["value"],
            "to": position["value"],
            "at": datetime_text(dt.datetime.now(dt.UTC)),
            "reason": str(lost),
        }
        table = self._tables[0] if self._on_position_lost == "snapshot" else None
        try:
            result = self._read(Place(position, table, gap=gap), limit, begins=True)
        except PositionLostError:
            if attempts == 1:
                raise
            return self._recover(place, lost, limit, attempts - 1)
        return replace(result, facts=[PositionLost(self._on_position_lost, gap), *result.facts])

    def _read(self, place: Place, limit: int, *, begins: bool) -> FetchResult:
        start = None
        while place.table is not None:
            page = self._log.rows(place.position, place.table, place.after, limit)
            if page is None:
                return FetchResult([], place.checkpoint(self._kind), more=False)
            begins = begins or page.position != place.position  # how it is joined to the stream may be known only now
            start = replace(place, position=page.position).checkpoint(self._kind) if begins else None
            place = self._past(place, page)
            if page.changes:
                checkpoint = place.checkpoint(self._kind)
                return FetchResult(
                    page.changes, checkpoint, not place.is_over, undecodable=page.undecodable, start=start
                )
        if place.is_over:
            return FetchResult([], place.checkpoint(self._kind), more=False)
        return self._streamed(place, limit, start)

    def _streamed(self, place: Place, limit: int, start: CheckpointJson | None) -> FetchResult:
        page = self._log.changes(place.position, limit)
        following = replace(place, position=page.position, table=page.reads_anew).checkpoint(self._kind)
        return FetchResult(
            page.changes, following, page.more, undecodable=page.undecodable, facts=page.facts, start=start
        )

    def _past(self, place: Place, page: RowsPage) -> Place:
        """Return the place after a page of rows: further in the table, in the next one, or in the stream."""
        if page.after is not None:
            return replace(place, position=page.position, after=page.after)
        further = self._tables[self._tables.index(place.table) + 1 :] if place.table in self._tables else []
        is_over = not further and self._snapshot == "only"
        return replace(
            place, position=page.position, table=further[0] if further else None, after=None, is_over=is_over
        )


LOG_CAPABILITY = AdapterCapability(
    detects_deletes=True,
    before_images=True,
    distinguishes_insert=True,
    every_change=True,
    native_resume_token=True,
    needs_lease=True,
)
"""What every log can tell about changes."""


class LogSource:
    """A source that is read by readers only: who reads without opening one is a reader for this once."""

    def open(self) -> ChangeReader:
        """Begin to read."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: readers are closed, not the source."""

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return what follows the checkpoint."""
        with closing(self.open()) as reader:
            return reader.fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Let the log go of what lies before the checkpoint."""
        with closing(self.open()) as reader:
            reader.acknowledge(checkpoint)


def quiet_at(checkpoint: CheckpointJson, ask: Callable[[LogPosition], StreamHealth | None]) -> FetchResult | None:
    """Return an empty result where a log is quiet at a checkpoint; whatever is wrong is left for a read to tell."""
    place = Place.of(checkpoint)
    if place is None or place.table is not None or place.is_over:
        return None
    try:
        health = ask(place.position)
    except Exception:  # noqa: BLE001 - whoever reads meets it again, and tells it as it is to be told
        return None
    return None if health is None else FetchResult([], checkpoint, more=False, facts=[health])


@dataclass(frozen=True, slots=True)
class PositionLost:
    """The fact that changes were lost and the poller went on all the same, as it was told to."""

    policy: OnPositionLost
    gap: Mapping[str, Any]
    log_event: str = field(default="position_lost", init=False)
    log_level: int = field(default=logging.ERROR, init=False)

    def log_fields(self) -> Mapping[str, Any]:
        """Return what the log record carries."""
        return {"policy": self.policy, "gap": dict(self.gap)}

    def gauges(self) -> Mapping[str, float]:
        """Return no metric: failures are counted, and this one was decided beforehand."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHealth:
    """The fact of how far a poller is behind its log and what the log keeps for it; None is not known."""

    lag_bytes: int | None = None
    lag_seconds: float | None = None
    retained_bytes: int | None = None
    """How much of the log the server keeps because of this poller."""
    retained_limit_bytes: int | None = None
    retention_left_bytes: int | None = None
    """How much more the log may grow before what the poller has not read is given up."""
    retention_left_seconds: float | None = None
    """For how long the server will still keep what the poller has not read."""
    last_commit_at: dt.datetime | None = None
    """When the last change that was read had been committed."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else this kind of log has to tell."""
    warning: str | None = None
    log_event: str = field(default="stream_health", init=False)

    @property
    def log_level(self) -> int:
        """How serious it is."""
        return logging.DEBUG if self.warning is None else logging.WARNING

    def log_fields(self) -> Mapping[str, Any]:
        """Return what is known."""
        fields = {
            "lag_bytes": self.lag_bytes,
            "stream_lag_seconds": self.lag_seconds,
            "retained_bytes": self.retained_bytes,
            "retained_limit_bytes": self.retained_limit_bytes,
            "retention_left_bytes": self.retention_left_bytes,
            "retention_left_seconds": self.retention_left_seconds,
            "last_commit_at": self.last_commit_at,
            **self.details,
            "warning": self.warning,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def gauges(self) -> Mapping[str, float]:
        """Return the metrics of what is known."""
        values = {
            "azfdb_stream_lag_bytes": self.lag_bytes,
            "azfdb_stream_lag_seconds": self.lag_seconds,
            "azfdb_stream_retained_bytes": self.retained_bytes,
            "azfdb_stream_retention_left_bytes": self.retention_left_bytes,
            "azfdb_stream_retention_left_seconds": self.retention_left_seconds,
        }
        return {name: float(value) for name, value in values.items() if value is not None}
