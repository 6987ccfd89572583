"""The words that all parts share."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Union
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.ports import Fact

Row = dict[str, Any]
"""One row of a result: column name to value."""

RowDict = Row
"""The same, as the specification calls it."""

RawRecord = dict[str, Any]
"""One changed row as a source read it."""

JsonScalar = str | int | float | bool | None
"""A value that JSON can hold as it is."""

JsonValue = Union[JsonScalar, list["JsonValue"], dict[str, "JsonValue"]]  # noqa: UP007 - names itself
"""Whatever JSON can hold."""

Operation = Literal["insert", "update", "upsert", "delete", "truncate", "unknown"]
"""What happened to a row; ``truncate`` is about all rows of a table at once and has no key."""

CursorPart = str | int | float | bool | dt.datetime | dt.date | dt.time | Decimal | UUID | bytes | None
"""One value that a checkpoint can hold."""

CursorValue = CursorPart | tuple[CursorPart, ...]
"""A position: a cursor alone, or a cursor followed by its key values."""

Position = dict[str, Any]
"""Where a source stands, in a JSON form that is its own; an empty one means "from the start"."""

CheckpointJson = dict[str, Any]
"""The JSON form of a checkpoint, as state stores keep it: a position with what the tick notes beside it."""


class Event(Protocol):
    """What every part may know of a change: which one it is, and of which row."""

    @property
    def event_id(self) -> str:
        """The same for the same change, however often it is delivered."""

    @property
    def cursor(self) -> CursorValue:
        """The row's cursor value; a tuple where a normaliser gave the key with it."""

    @property
    def pk(self) -> Mapping[str, CursorPart]:
        """The row's key."""


@dataclass(frozen=True, slots=True)
class HandledFirst:
    """Returned by a handler that got through the first ``count`` of its events only: the others come again."""

    count: int

    def __post_init__(self) -> None:
        count: object = self.count
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"HandledFirst takes the number of events that were handled, not {count!r}")


@dataclass(frozen=True, slots=True)
class SourceDescriptor:
    """Names a source and tells one definition of it from another."""

    name: str
    kind: str
    fingerprint: str
    whole: SourceDescriptor | None = None
    """Of a share: what it is a share of. Events are the whole's: another number of shares does not change their ids."""
    former: tuple[str, ...] = ()
    """The fingerprints of this very definition in earlier releases: state that was left under them is this source's."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change as a source read it.

    ``position`` tells it from every other change of the source, however often it is read: the id of
    its event is made of it.
    """

    op: Operation
    position: str
    key: Mapping[str, CursorPart]
    after: RawRecord | None
    before: RawRecord | None = None
    cursor: CursorPart = None
    """What people are shown as the place of the change; the position where there is nothing better."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class OpenChange:
    """A change while a source fills it in: set all its fields, then ``change.__class__ = Change``.

    Five times as quick as making a frozen one, which counts where a page has thousands.
    """

    __slots__ = ("after", "before", "cursor", "key", "metadata", "op", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCapability:
    """What a source can tell about a change, and what it needs from whoever reads it."""

    detects_deletes: bool = False
    before_images: bool = False
    distinguishes_insert: bool = False
    every_change: bool = False
    """Delivers every change of a row, instead of its newest state only."""
    native_resume_token: bool = False
    partitions: bool = False
    needs_lease: bool = False
    """Has one reader at a time: the lease is taken before anything is read."""
    acknowledges: bool = False
    """Lets go of what is acknowledged: `acknowledge` is called while the lease is held, and again after a crash."""
    whole_transactions: bool = False
    """Hands out a transaction as a whole: a page may be longer than was asked for."""
    scans: bool = False
    """Goes through all its rows to find what has changed: nobody should look every half second."""


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """A session that keeps the late-commit horizon where it is."""

    session: str
    user: str | None
    age_seconds: float | None


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far a source dares to read, and who keeps it from reading further."""

    bound: CursorPart
    age_seconds: float
    holders: tuple[HorizonHolder, ...] = ()

    log_event: ClassVar[str] = "late_commit_wait"
    log_level: ClassVar[int] = logging.INFO

    def log_fields(self) -> dict[str, Any]:
        """Return what the log record carries."""
        holders = [asdict(holder) for holder in self.holders]
        return {"horizon_bound": str(self.bound), "horizon_age_seconds": self.age_seconds, "holders": holders}

    def gauges(self) -> dict[str, float]:
        """Return the age of the oldest wait."""
        return {"azfdb_horizon_age_seconds": self.age_seconds}


@dataclass(frozen=True, slots=True)
class NullCursors:
    """How many rows can never be delivered because their cursor is NULL."""

    rows: int

    log_event: ClassVar[str] = "null_cursor_rows"

    @property
    def log_level(self) -> int:
        """Worth a warning only where there are any."""
        return logging.WARNING if self.rows else logging.DEBUG

    def log_fields(self) -> dict[str, Any]:
        """Return what the log record carries."""
        told = f"{self.rows} row(s) are never delivered, because their cursor is NULL: fill it in"
        return {"null_cursor_rows": self.rows, **({"warning": told} if self.rows else {})}

    def gauges(self) -> dict[str, float]:
        """Return their number."""
        return {"azfdb_null_cursor_rows": self.rows}


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a source read: the records, where it stands after them, whether more is waiting.

    A record is a `RawRecord` or a `Change`. ``more`` is None where the source cannot tell: it is
    then asked again within the tick, until it returns none. True without a record says that something is there
    and cannot be handed out yet: a tick that lingers looks again soon.
    ``revisions`` is for a row that comes again with the cursor and key of an earlier delivery and another
    content: by its place among the records, a text that makes its event id another one.
    ``undecodable`` says by its place which record has values that Python cannot hold, and why: they
    are texts in it, for an operator to look at, and the record is not handed out.
    ``facts`` are what else the source has to tell this time; each knows its own log event and metrics.
    ``cut`` gives the checkpoint behind the first so many of the records, for a handler that got through those
    only; without it they are read again to find out.
    ``start`` is where the source has begun, to be committed before the records are handled: one that begins anew
    after a crash would begin elsewhere, and not tell what has become of these records meanwhile.
    """

    records: Sequence[Any]
    next_checkpoint: Position
    more: bool | None = None
    revisions: Mapping[int, str] = field(default_factory=dict)
    undecodable: Mapping[int, Exception] = field(default_factory=dict)
    facts: Sequence[Fact] = ()
    cut: Callable[[int], Position] | None = field(default=None, compare=False, repr=False)
    start: Position | None = None

    @property
    def horizon(self) -> Horizon | None:
        """How far the source dares to read, where late commits hold it back."""
        return next((fact for fact in self.facts if isinstance(fact, Horizon)), None)


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much waits behind a checkpoint, in what its source counts."""

    amount: int
    unit: Literal["rows", "changes", "bytes"] = "rows"
    is_more: bool = False
    """Whether counting stopped before the end."""
    lag_seconds: float | None = None
    """The age of the oldest change that waits; None where the source cannot tell."""
    horizon: Horizon | None = None
    """Who keeps what waits from being read, where somebody does."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a source found when it compared some of its rows with what it remembers as delivered."""

    checked: int
    waiting: int = 0
    """How many changes the next reading will find."""
    missing: Sequence[Mapping[str, CursorPart]] = ()
    """The keys of the rows that were not delivered as they are, and that no reading would find."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found out about a source, a store or a clock."""

    check: str
    grade: Literal["ok", "note", "warning", "error"]
    text: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as the state document tells it."""

    owner_id: str
    fencing_token: int
    acquired_at: dt.datetime
    heartbeat_at: dt.datetime
    expires_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Pause:
    """An operator's mark in the state: no instance ticks until it is taken away."""

    by: str
    at: dt.datetime
    why: str | None = None


@dataclass(frozen=True, slots=True)
class StuckBatch:
    """The batch that a poller could not get through."""

    id: str
    rows: int
    first: str | None
    """Cursor and key of its first event, in words."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What has gone wrong in every tick since the last one that went well."""

    attempts: int
    """How many ticks in a row have failed."""
    error_type: str
    error: str
    """The first line of what was said, without secrets."""
    since: dt.datetime
    last_at: dt.datetime
    batch: StuckBatch | None = None
    """None where there was none yet: nothing could be read."""


@dataclass(frozen=True, slots=True)
class PollerState:
    """A poller's state as it was read, with the version that a conditional write is held against."""

    poller_name: str
    checkpoint: CheckpointJson
    lease: LeaseView | None
    """The lease while somebody else holds it; None when it is free to take."""
    version: object = field(repr=False)
    """Opaque: what the store needs to take the lease from exactly this state."""
    abandoned: LeaseView | None = None
    """The lease of another holder who let it expire without giving it back: taking it over is a steal."""
    paused: Pause | None = None
    """Set while an operator does not want the poller to run."""


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """A row the handler could not digest, as it is put aside."""

    poller_name: str
    event_id: str
    event: Mapping[str, Any]
    """The event in its JSON form."""
    error_type: str
    error: str
    attempts: int
    batch_id: str
    quarantined_at: dt.datetime
    traceback: str | None = None
    """Where the handler failed, without secrets; None where the row was only named."""
    types: Mapping[str, str] | None = None
    """The types that JSON does not have, by where their values are in the event; None where nobody has noted them."""
