"""The extension surface: what a third party implements to add a source, a store, a sink or a listener.

Each class here is a protocol; its docstrings are the contract. A class that has the methods
fits, nothing needs to be inherited. ``azure_functions_db.testing`` has suites that check it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from azure_functions_db.core.signals import Signal
    from azure_functions_db.core.types import (
        AdapterCapability,
        Backlog,
        CheckpointJson,
        Comparison,
        CursorPart,
        CursorValue,
        FetchResult,
        Finding,
        Pause,
        PollerState,
        Position,
        QuarantinedRow,
        RawRecord,
        SourceDescriptor,
    )


@runtime_checkable
class SourceAdapter(Protocol):
    """The small source: a name and a way to read rows after a cursor.

    Give it ``cursor_column`` and ``pk_columns`` attributes, or pass a ``normalizer=`` to the
    trigger, so that its records can be turned into events.
    """

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""

    def fetch(self, cursor: CursorValue, batch_size: int) -> Sequence[RawRecord]:
        """Return at most ``batch_size`` records after ``cursor``, in order; None is the start."""


@runtime_checkable
class ChangeReader(Protocol):
    """One reading of a source, from `ChangeSource.open` to `close`: whatever belongs to it alone lives here."""

    def fetch_changes(self, checkpoint: Position, limit: int) -> FetchResult:
        """Return at most ``limit`` records after ``checkpoint`` and the checkpoint after them.

        An empty checkpoint is the start. Calling twice with the same checkpoint must be safe:
        nothing is consumed until `acknowledge`.
        """

    def acknowledge(self, checkpoint: Position) -> None:
        """Learn that ``checkpoint`` is committed; only now may what lies before it be let go.

        Where it fails it is called again with the same checkpoint in the next tick that has the lease.
        """

    def close(self) -> None:
        """Give back what `open` took; called once a tick is over, however it ended."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A reader that may be asked for the next page while the handler has the one before.

    It is asked in another thread, for one page at a time, from a checkpoint that is not committed yet; nothing else
    is asked of it meanwhile. Where the batch fails, the page is thrown away.
    """

    @property
    def reads_ahead(self) -> bool:
        """Whether it may be asked like that now; asked after the first page."""


@runtime_checkable
class ChangeSource(Protocol):
    """The full source: it owns the form of its checkpoint and is told when one was committed.

    What it needs, its `capability` says, and the tick grants it: the lease before anything is read,
    acknowledgement while the lease is held. `open` raises `SourceInUseError` where somebody else
    reads: the tick is then skipped. A position that is no longer there is a `PositionLostError`,
    never a jump. Where nothing has changed but the position has moved on, as that of a log does, it
    returns the moved one only once it is worth a write.
    """

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the database disagree."""

    def open(self) -> ChangeReader | None:
        """Begin to read; called before the first fetch of a tick.

        Return the reader of this tick. Where nothing is returned the source is its own reader, which
        suits one that holds nothing while it is open.
        """

    def close(self) -> None:
        """Give back what `open` took, for a source that is its own reader."""

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""

    def fetch_changes(self, checkpoint: Position, limit: int) -> FetchResult:
        """Read as `ChangeReader.fetch_changes` does; a source with readers may do it by one of its own."""

    def acknowledge(self, checkpoint: Position) -> None:
        """Learn of a commit as `ChangeReader.acknowledge` does."""


@runtime_checkable
class NamesColumns(Protocol):
    """A source of rows that have a cursor and a key."""

    cursor_column: str
    pk_columns: Sequence[str]


@runtime_checkable
class TellsOperations(NamesColumns, Protocol):
    """A source whose rows tell what was done to them: an insert, an update, or a soft delete."""

    created_column: str | None
    """Equals the cursor as long as a row has not been updated."""
    deleted_column: str | None
    """Marks a row as deleted."""


@runtime_checkable
class NormalizesItself(Protocol):
    """A source that knows how its records become events."""

    normalizer: Any


@runtime_checkable
class CountsChanges(Protocol):
    """A source that can count what it would read."""

    def count_changes(self, checkpoint: Position, most: int | None = None) -> int:
        """Return how many rows follow a checkpoint; counting stops at ``most``."""


@runtime_checkable
class CountsBacklog(Protocol):
    """A source that tells how far behind a checkpoint is.

    Asking consumes nothing, locks nothing and does not read as the poller does: an operator may
    ask at any time.
    """

    def backlog(self, checkpoint: Position) -> Backlog:
        """Return how much waits behind the checkpoint."""


@runtime_checkable
class Fact(Protocol):
    """Something a source knows besides its changes (log held by a slot, the age of a token), with its own telemetry."""

    @property
    def log_event(self) -> str:
        """The name of its log event."""

    @property
    def log_level(self) -> int:
        """How serious it is, as `logging` counts."""

    def log_fields(self) -> Mapping[str, Any]:
        """Return what the log record carries."""

    def gauges(self) -> Mapping[str, float]:
        """Return the values of its metrics by their names."""


@runtime_checkable
class ReadsRanges(Protocol):
    """A source that can be read from one cursor value to another: for backfills.

    The source itself says what a cursor value is: one of a column that grows, of a key, the number of an event.
    """

    def ranged(self, start_at: CursorValue, end_at: CursorValue) -> ChangeSource:
        """Return the same source between two cursor values, both included; None is open. It `CountsChanges`."""

    def cursor_from(self, text: str) -> CursorPart:
        """Return the cursor value that a person means; `SourceConfigurationError` where it can be none."""

    def cursor_at(self, checkpoint: Position) -> CursorPart:
        """Return the cursor value that a checkpoint has come to; None where all there is lies before it."""


@runtime_checkable
class RevivesRows(Protocol):
    """A source whose rows come back from JSON with values of their own types."""

    def revived(self, row: Mapping[str, Any], *, strict: bool = False) -> RawRecord:
        """Return the row with values of its columns' types; ``strict`` refuses what does not fit."""


@runtime_checkable
class TypesValues(RevivesRows, NamesColumns, Protocol):
    """A source that knows the types of its columns: for values that were written as JSON, or typed by people."""


@runtime_checkable
class ParsesPositions(Protocol):
    """A source whose positions a person can type."""

    def parse(self, text: str) -> Position:
        """Return the checkpoint of a text; `SourceConfigurationError` says what it should look like."""


@runtime_checkable
class ComparesItself(Protocol):
    """A source that remembers what was delivered, and can compare all of it with what is there: for `verify`."""

    def compared(self, checkpoint: Position, share: float = 1) -> Iterable[Comparison]:
        """Compare part by part, or about this share of the parts; nothing is consumed."""


@runtime_checkable
class ReadsRows(Protocol):
    """A source that can look up a single row."""

    def current_row(self, key: Mapping[str, CursorPart]) -> RawRecord | None:
        """Return the row of a key as it is now; None where it is gone, or no row of this source any more."""


@runtime_checkable
class ExaminesItself(Protocol):
    """A source or a store that can examine itself and its service; asking consumes nothing."""

    def checkup(self) -> Iterable[Finding]:
        """Return what an operator should know."""


@runtime_checkable
class Partitionable(Protocol):
    """A source that can be narrowed to a share of its rows, and tells which of two positions is behind the other."""

    def partitioned(self, index: int, count: int, by: Sequence[str] | None = None) -> Any:
        """Return the source of one share; all of them together read every row once.

        ``by`` names the columns whose values belong together, the key unless given. The remainder of one
        stable number by ``count`` tells the share of a row.
        """

    def lowest(self, checkpoints: Sequence[Position]) -> Position | None:
        """Return where to begin so as to miss nothing that follows any of these; None where that cannot be told."""

    def is_behind(self, checkpoint: Position, other: Position) -> bool:
        """Tell whether a position is certainly behind another one."""


@runtime_checkable
class HasPlace(Protocol):
    """A source that tells where it reads: for the metadata of a poll function."""

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """The connection URL as it is written, then table and schema where there are any; nothing is looked up."""


@runtime_checkable
class ReportsFacts(Protocol):
    """A source that tells facts about itself to whoever asks; asking consumes nothing."""

    def report(self, checkpoint: Position) -> Sequence[Fact]:
        """Return what is to be known of a poller that stands at the checkpoint."""


@runtime_checkable
class TellsQuiet(Protocol):
    """A source that needs the lease to be read, and knows without it when there is nothing to read."""

    def quiet(self, checkpoint: Position) -> FetchResult | None:
        """Return an empty result where certainly nothing follows and nothing is to be acknowledged; else None."""


@runtime_checkable
class LooksBriefly(Protocol):
    """A reader that a tick which lingers may ask every half second."""

    def look(self, checkpoint: Position, limit: int) -> FetchResult:
        """Read as `ChangeReader.fetch_changes` does, in one statement where nothing has come; wait for nobody."""


@runtime_checkable
class TellsPositions(ParsesPositions, Protocol):
    """A source whose positions people can read, and type: places in a log, or "now"."""

    def describe(self, checkpoint: Position) -> str:
        """Return where a checkpoint stands, as people read it and as `parse` takes it."""


@runtime_checkable
class ManagesStream(Protocol):
    """A source that needs something on its server to stream from, a slot and a publication say, and can make it."""

    def create_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Make what is missing; return the statements that did it, or would."""

    def drop_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove what is there; return the statements that did it, or would."""

    def show_stream(self) -> Mapping[str, Any]:
        """Return what is there."""


@runtime_checkable
class StateStore(Protocol):
    """Keeps one document per poller: its checkpoint and its lease.

    Every write must be conditional on the state that was read (compare and swap), so that a
    stale owner can never write. A lease id is opaque to the caller.
    """

    def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:
        """Take the lease and return its id; `LeaseConflictError` when somebody else holds it."""

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: float) -> None:
        """Push the expiry to now + ttl; `LostLeaseError` when the lease is no longer ours."""

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        """Free the lease at once, once more without harm; `LostLeaseError` when it has passed to somebody else."""

    def load_checkpoint(self, poller_name: str) -> CheckpointJson:
        """Return the checkpoint, or an empty dict for a poller that has none yet."""

    def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
        """Write the checkpoint in the write that proves the lease; `LostLeaseError` otherwise."""


class HeldLease(Protocol):
    """A lease that was taken: it is renewed, committed under and given back."""

    @property
    def lease_id(self) -> str:
        """What the five methods of its store know it by."""

    def renew(self, ttl_seconds: float) -> None:
        """Push the expiry to now + ttl; `LostLeaseError` when the lease is no longer ours."""

    def commit(self, checkpoint: CheckpointJson, *, release: bool = False) -> bool:
        """Write the checkpoint in the write that proves the lease; `LostLeaseError` otherwise.

        With ``release`` the same write may give the lease back; tell whether it did.
        """

    def release(self) -> None:
        """Free the lease at once."""

    def transaction(self) -> AbstractContextManager[object]:
        """Open the transaction that the handler and the next commit share, where the store shares one.

        It is ambient: every writer on the same engine joins it. Leaving it commits; an exception
        rolls back, checkpoint and the handler's writes alike.
        """


@runtime_checkable
class TellsPause(Protocol):
    """A held lease that learns by its writes that an operator wants the poller to stop."""

    @property
    def paused(self) -> Pause | None:
        """The operator's mark, as of the last write."""


@runtime_checkable
class ListsPollers(Protocol):
    """A store that knows which pollers have a state, and shows it without taking anything."""

    def poller_names(self) -> Sequence[str]:
        """Return the pollers of this app that have a state."""

    def inspect(self, poller_name: str) -> Mapping[str, Any] | None:
        """Return a poller's document as its JSON has it; None where there is none."""

    def look(self, poller_name: str, source_fingerprint: str | None = None) -> PollerState:
        """Read the state of one; `FingerprintMismatchError` when it belongs to another definition."""


@runtime_checkable
class LookingStateStore(StateStore, Protocol):
    """A store that lets a tick look before it locks, and release in its last commit."""

    def look(self, poller_name: str, source_fingerprint: str | None = None, *former_fingerprints: str) -> PollerState:
        """Read the state without taking anything.

        `FingerprintMismatchError` when the stored checkpoint belongs to another definition. By the former
        fingerprints a store recognises state that an earlier release has left.
        """

    def take(self, state: PollerState, ttl_seconds: float) -> HeldLease:
        """Take the lease if the state is still the one looked at; else `LeaseConflictError`."""


@runtime_checkable
class NotingStateStore(LookingStateStore, Protocol):
    """A store that lets a tick write something beside the position in one write, without taking the lease."""

    def note(self, state: PollerState, checkpoint: CheckpointJson) -> None:
        """Write the checkpoint, its position unmoved, if the state is still the one looked at and nobody is at work.

        `LeaseConflictError` otherwise.
        """


@runtime_checkable
class TransactionalStateStore(LookingStateStore, Protocol):
    """A store in a SQL database whose commits can join the handler's own transaction."""

    def transaction(self) -> AbstractContextManager[object]:
        """Open a transaction that this store and every writer on the same engine share."""


@runtime_checkable
class QuarantineSink(Protocol):
    """Keeps the rows that the handler could not digest."""

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably before returning; the same row put twice is kept once."""

    def entries(self, poller_name: str | None = None) -> Iterable[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error, unless rows may not be forgotten here."""


@runtime_checkable
class CountsQuarantined(Protocol):
    """A sink that can count the rows it keeps without reading them."""

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept."""


@runtime_checkable
class TakesBack(Protocol):
    """A sink that can forget what one batch has put aside, and nothing that came since.

    Without it the rows are listed and removed one by one, and a removal that takes effect late takes
    whatever lies there by then.
    """

    def take_back(self, poller_name: str, batch_id: str) -> None:
        """Forget the rows of a poller that this batch has put aside.

        A row that was put aside anew by another batch stays, even where this takes effect late.
        """


@runtime_checkable
class Observer(Protocol):
    """Listens to what happens; must not block, and what it raises harms nothing.

    An attribute ``ignores``, a set of signal classes, spares it signals that it has no use for.
    """

    def notice(self, signal: Signal) -> None:
        """Take note of one fact."""


@runtime_checkable
class MetricsCollector(Protocol):
    """Receives the library's metrics; labels are few, of low cardinality, and given by keyword."""

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Record one measurement of a distribution."""

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Set the present value of a gauge."""
