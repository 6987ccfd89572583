"""The status of a poller: how far it has come and is behind, who is at work, what holds it back, what comes next."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.errors import ConfigurationError, DbError, StateStoreError, with_code
from azure_functions_db.core.ports import CountsBacklog, LookingStateStore, NamesColumns, ReportsFacts
from azure_functions_db.core.types import Backlog
from azure_functions_db.operations.positions import reads_log
from azure_functions_db.operations.reports import HIDDEN
from azure_functions_db.operations.run import is_timer, schedule_of
from azure_functions_db.state.document import decoded, is_free
from azure_functions_db.trigger.batch import RATE_SECONDS, Checkpoint
from azure_functions_db.trigger.normalizers import normalized, reading
from azure_functions_db.trigger.tick import SIGN_OF_LIFE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from azure_functions_db.core.ports import ChangeSource, Fact
    from azure_functions_db.core.types import (
        CheckpointJson,
        Failure,
        FetchResult,
        Horizon,
        LeaseView,
        Pause,
        StuckBatch,
    )
    from azure_functions_db.operations.pollers import Poller
    from azure_functions_db.operations.run import Schedule


# How much of a source that cannot count is read to count it.
_READ = 1_000
# How late a tick may be before it is missed.
_GRACE = dt.timedelta(minutes=1)
_PARTITION = re.compile(r"(?P<whole>.+)-\d+-of-\d+")


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The lease as the state document has it."""

    owner: str
    token: int
    alive: bool
    age_seconds: float
    heartbeat_age_seconds: float
    expires_in_seconds: float


Condition = Literal["failing", "silent", "paused", "working", "behind", "idle", "new", "unknown"]
"""In a word, how a poller fares; the first of these that holds.

failing: its last ticks failed. silent: no tick has come when one was due. paused: by an operator. working: somebody
holds its lease. behind: changes wait. idle: all is handled. new: it never ran. unknown: it could not be looked at.
"""


_CONDITIONS = get_args(Condition)


@dataclass(slots=True, kw_only=True)
class PollerStatus:
    """One poller's line in `azfdb status`; what is not known is None."""

    poller: str
    condition: Condition = "unknown"
    cursor: Any = None
    key: Mapping[str, Any] = field(default_factory=dict)
    last_tick: dt.datetime | None = None
    """When it was last known to tick, well or not; an idle poller leaves a sign every two minutes."""
    last_tick_age_seconds: float | None = None
    last_success: dt.datetime | None = None
    last_success_age_seconds: float | None = None
    next_expected: dt.datetime | None = None
    """When its schedule says that it ticks next; in the past where that tick never came."""
    silent_from: dt.datetime | None = None
    """From when on it is called silent unless it gives a sign before: until then, a dead one may look idle."""
    rows_per_second: float | None = None
    rate_window_seconds: int = RATE_SECONDS
    """Over how long the rate is averaged."""
    catch_up_seconds: float | None = None
    """How long what waits takes at that rate; None where the poller does not go on by itself."""
    failure: Failure | None = None
    failed_attempts: int = 0
    paused: Pause | None = None
    lag_seconds: float | None = None
    waiting_rows: int | None = None
    waiting_unit: str = "rows"
    """What is counted: rows, changes or bytes."""
    waiting_is_more: bool = False
    lease: LeaseStatus | None = None
    quarantined: int | None = None
    horizon: Horizon | None = None
    fingerprint: str | None = None
    """Of the definition of the source that its state was written for."""
    partition_of: str | None = None
    """The name that it shares with the other partitions of its function."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the source reports of itself."""
    history: Any = field(default=None, repr=False, metadata=HIDDEN)
    """What it did lately, for `history.samples`."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Problem:
    """What needs a look."""

    poller: str
    text: str


@dataclass(frozen=True, slots=True)
class Status:
    """Where all pollers stand, those with problems first."""

    pollers: list[PollerStatus]
    at: dt.datetime
    problems: list[Problem] = field(default_factory=list)

    @property
    def has_problems(self) -> bool:
        """Whether something needs a look."""
        return bool(self.problems)


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is a problem; without a limit, only what is certainly wrong is one."""

    lag_seconds: float | None = None
    age_seconds: float | None = None
    failures: int = 0

    def breaches(self, status: PollerStatus, now: dt.datetime) -> Iterator[str]:
        """Return what goes beyond the limits."""
        if status.paused is not None:
            return
        if self.lag_seconds is not None and (lag := _delay(status)) is not None and lag > self.lag_seconds:
            yield f"it is {lag:,.0f} s behind, more than {self.lag_seconds:,.0f} s"
        if self.age_seconds is not None and status.condition != "unknown":
            age = None if status.last_success is None else (now - status.last_success).total_seconds()
            if age is None or age > self.age_seconds:
                told = "it never had a success" if age is None else f"its last success is {age:,.0f} s ago"
                yield f"{told}, more than {self.age_seconds:,.0f} s"


ORDERS: dict[str, Callable[[PollerStatus], Any]] = {
    "trouble": lambda status: (not status.problems, _CONDITIONS.index(status.condition)),
    "name": lambda status: status.poller,
    "lag": lambda status: -(status.lag_seconds or 0),
    "waiting": lambda status: -(status.waiting_rows or 0),
    "age": lambda status: -(status.last_success_age_seconds or 0),
}
"""How pollers can be sorted; those of equal rank by name."""


def status_of(
    pollers: Iterable[Poller], now: dt.datetime, limits: Limits | None = None, order: str = "trouble"
) -> Status:
    """Return where pollers stand; what cannot be reached is a problem of that poller alone."""
    return ordered([poller_status(poller, now, limits) for poller in pollers], now, order)


def ordered(stands: list[PollerStatus], now: dt.datetime, order: str = "trouble") -> Status:
    """Return where pollers stand, in an order, with all that is wrong."""
    stands.sort(key=lambda status: status.poller)
    stands.sort(key=ORDERS[order])
    return Status(stands, now, [Problem(each.poller, text) for each in stands for text in each.problems])


def poller_status(
    poller: Poller, now: dt.datetime, limits: Limits | None = None, *, counts_quarantine: bool = True
) -> PollerStatus:
    """Return where one poller stands."""
    status = PollerStatus(poller=poller.name, partition_of=_whole_of(poller.name))
    limits = limits or Limits()
    try:
        checkpoint = read_ticks(poller, status, now, limits)
        if status.failure is not None:
            status.condition = "failing"  # whether or not its source can be looked at
        if poller.definition is not None:
            _note_fingerprint(poller, status)
            _read_source(poller, checkpoint, status, now)
        status.condition = _condition(status, now)
        status.catch_up_seconds = _catch_up(status)
    except DbError as error:
        status.problems.append(with_code(error))
    try:
        status.quarantined = poller.quarantined() if counts_quarantine else None
    except DbError as error:
        status.problems.append(with_code(error))
    status.problems += limits.breaches(status, now)
    return status


def read_ticks(poller: Poller, status: PollerStatus, now: dt.datetime, limits: Limits | None = None) -> CheckpointJson:
    """Read what a poller has left in its state, and tell what is wrong with its ticks; return its checkpoint."""
    checkpoint = _read_state(poller, status, now)
    _note_times(poller, status, now)
    _note_failure(status, limits or Limits(), now)
    return checkpoint


def _whole_of(name: str) -> str | None:
    match = _PARTITION.fullmatch(name)
    return None if match is None else match["whole"]


def _read_state(poller: Poller, status: PollerStatus, now: dt.datetime) -> CheckpointJson:
    if not poller.shows_documents:
        written = _read_other_store(poller, status, now)
        _note_checkpoint(status, Checkpoint.of(written), now)
        return written
    content = poller.documents.raw_document(poller.name)
    if content is None:
        return {}
    document = decoded(content, poller.name)
    status.paused = document.paused
    _note_checkpoint(status, Checkpoint.of(document.checkpoint), now)
    if document.lease is not None:
        status.lease = _lease_status(document.lease, now, alive=not is_free(document, now))
        status.last_tick = max(filter(None, (status.last_tick, document.lease.heartbeat_at)))
    status.fingerprint = document.source_fingerprint
    return document.checkpoint


def _read_other_store(poller: Poller, status: PollerStatus, now: dt.datetime) -> CheckpointJson:
    """Read a store of somebody else's own: the lease where it lets look at one, else the checkpoint alone."""
    if not isinstance(poller.store, LookingStateStore):
        return poller.store.load_checkpoint(poller.name)
    state = poller.store.look(poller.name)
    status.paused = state.paused
    if (lease := state.lease or state.abandoned) is not None:
        status.lease = _lease_status(lease, now, alive=state.lease is not None)
    return state.checkpoint


def _note_checkpoint(status: PollerStatus, checkpoint: Checkpoint, now: dt.datetime) -> None:
    status.cursor, status.key = checkpoint.shown_position
    status.history = checkpoint.history
    status.failed_attempts, status.failure = checkpoint.failed_attempts, checkpoint.failure
    status.last_tick, status.last_success = checkpoint.ticked_at, checkpoint.succeeded_at
    if status.last_success is not None:
        status.last_success_age_seconds = max(0.0, (now - status.last_success).total_seconds())
    if checkpoint.committed_at is not None and checkpoint.rows_per_second is not None:
        # Nothing has come since: the average fades.
        age = max(0.0, (now - checkpoint.committed_at).total_seconds())
        status.rows_per_second = round(checkpoint.rows_per_second * math.exp(-age / RATE_SECONDS), 3)


def _note_failure(status: PollerStatus, limits: Limits, now: dt.datetime) -> None:
    """Say what is wrong: ticks that fail, or none that come."""
    failure = status.failure
    if failure is not None and failure.attempts > limits.failures:
        status.problems.append(told_of(failure))
    elif failure is None and status.failed_attempts > limits.failures:
        status.problems.append(f"the next batch has failed {status.failed_attempts} time(s)")
    if _is_silent(status, now):
        told = f"{status.last_tick:%Y-%m-%d %H:%M:%S}Z" if status.last_tick else "ever"
        status.problems.append(f"no tick since {told}, though its schedule is due: does the app run?")


def told_of(failure: Failure) -> str:
    """Return since when, how often, where and why a poller fails."""
    since = f"{failure.since:%Y-%m-%d %H:%M:%S}Z"
    return f"failed {failure.attempts} time(s) since {since}{_place_of(failure.batch)}: {failure.error}"


def _place_of(batch: StuckBatch | None) -> str:
    if batch is None:
        return ""
    return f" at {batch.id}" if batch.first is None else f" at a batch of {batch.rows} from {batch.first}"


def _note_times(poller: Poller, status: PollerStatus, now: dt.datetime) -> None:
    """Say when the next tick is expected; where one should have come long ago, when that was."""
    if status.last_tick is not None:
        status.last_tick_age_seconds = max(0.0, (now - status.last_tick).total_seconds())
    schedule = _schedule_of(poller)
    if schedule is None or status.paused is not None:
        return
    status.next_expected = schedule.after(now)
    if status.last_tick is None or (status.lease is not None and status.lease.alive):
        return
    # The sign of an idle poller comes with the first tick after its time; a tick takes its own.
    status.silent_from = schedule.after(status.last_tick + SIGN_OF_LIFE) + _GRACE
    if now > status.silent_from:
        status.next_expected = schedule.after(status.last_tick)


def _schedule_of(poller: Poller) -> Schedule | None:
    """Return when a poller's function is called, where a timer does that and its schedule can be read here."""
    if poller.definition is None or not is_timer(poller.definition.function):
        return None
    with suppress(ConfigurationError, ImportError):
        return schedule_of(poller.definition.function)
    return None


def _is_silent(status: PollerStatus, now: dt.datetime) -> bool:
    return status.next_expected is not None and status.next_expected < now


def _condition(status: PollerStatus, now: dt.datetime) -> Condition:
    holds: dict[Condition, bool] = {
        "failing": bool(status.failure or status.failed_attempts),
        "silent": _is_silent(status, now),
        "paused": status.paused is not None,
        "working": status.lease is not None and status.lease.alive,
        "behind": bool(status.waiting_rows),
        "new": status.last_tick is None,
        "idle": True,
    }
    return next(condition for condition, is_so in holds.items() if is_so)


def _delay(status: PollerStatus) -> float | None:
    """Return the lag; where only rows can be counted, the longer of the time to catch up and that since a success."""
    if status.lag_seconds is not None or not status.waiting_rows:
        return status.lag_seconds
    return max(status.last_success_age_seconds or 0.0, status.catch_up_seconds or 0.0)


def _lease_status(lease: LeaseView, now: dt.datetime, *, alive: bool) -> LeaseStatus:
    return LeaseStatus(
        owner=lease.owner_id,
        token=lease.fencing_token,
        alive=alive,
        age_seconds=(now - lease.acquired_at).total_seconds(),
        heartbeat_age_seconds=(now - lease.heartbeat_at).total_seconds(),
        expires_in_seconds=(lease.expires_at - now).total_seconds(),
    )


def _note_fingerprint(poller: Poller, status: PollerStatus) -> None:
    if status.fingerprint not in poller.fingerprints:
        status.problems.append(
            "its state was written for another definition of the source: "
            f"azfdb reset {poller.name} --adopt-fingerprint or --to-beginning"
        )


def _read_source(poller: Poller, checkpoint: dict[str, Any], status: PollerStatus, now: dt.datetime) -> None:
    source = poller.defined.settings.source
    if reads_log(source) and checkpoint.get("cursor") is not None:
        status.cursor = source.describe(checkpoint)
    waiting = look_behind(source, checkpoint, now)
    if waiting.backlog is not None:
        status.lag_seconds = waiting.backlog.lag_seconds
        status.waiting_rows = waiting.backlog.amount
        status.waiting_unit = waiting.backlog.unit
        status.waiting_is_more = waiting.backlog.is_more
    status.horizon = waiting.horizon
    if isinstance(source, ReportsFacts):
        _note_facts(status, source.report(checkpoint))


def _catch_up(status: PollerStatus) -> float | None:
    if status.condition not in {"working", "behind"}:
        return None  # what fails, is paused or is silent will not catch up by itself
    if not status.waiting_rows or not status.rows_per_second or status.waiting_unit == "bytes":
        return None
    return round(status.waiting_rows / status.rows_per_second, 1)


def _note_facts(status: PollerStatus, facts: Iterable[Fact]) -> None:
    for fact in facts:
        fields = dict(fact.log_fields())
        if fact.log_level >= logging.WARNING:
            status.problems.append(str(fields.pop("warning", fact.log_event)))
        status.facts |= fields


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits behind a checkpoint, where that can be told, and what keeps it from being read."""

    backlog: Backlog | None
    horizon: Horizon | None = None


def look_behind(source: ChangeSource, checkpoint: CheckpointJson, now: dt.datetime) -> Waiting:
    """Look at what waits behind a checkpoint: by asking, or by reading where that is all a source can."""
    if isinstance(source, CountsBacklog):
        backlog = source.backlog(checkpoint)
        return Waiting(backlog, backlog.horizon)
    if has_one_reader(source):
        return Waiting(None)
    with reading(source) as reader:
        result = reader.fetch_changes(checkpoint, _READ)
    rows = len(result.records)
    return Waiting(Backlog(rows, "rows", bool(result.more), _lag(source, result, rows, now)), result.horizon)


def has_one_reader(source: ChangeSource) -> bool:
    """Tell whether only the holder of the lease may read the source."""
    return source.capability().needs_lease


def _lag(source: Any, result: FetchResult, rows: int, now: dt.datetime) -> float | None:
    if not rows:
        return 0.0
    if not result.records:
        return None  # rows are there, and held back
    first = result.records[0]
    return lag_seconds(first.get(source.cursor_column), now) if isinstance(source, NamesColumns) else None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A poller's document, or what is there in its place and what is wrong with it."""

    poller: str
    document: dict[str, Any] | None
    problem: str | None = None
    raw: str | None = None
    failure: Failure | None = None
    """What has gone wrong since the last success."""

    @property
    def trouble(self) -> list[str]:
        """What has gone wrong, in words."""
        return [] if self.failure is None else [told_of(self.failure)]


def inspect(poller: Poller) -> Inspection:
    """Return a poller's document; where it cannot be read, what is there and why not."""
    try:
        document = poller.existing()
        return Inspection(poller.name, document, failure=Checkpoint.of(document["checkpoint"]).failure)
    except StateStoreError as error:
        content = poller.documents.raw_document(poller.name)
        if content is None:
            raise
        return Inspection(poller.name, None, with_code(error), content.decode(errors="replace"))


def exported(poller: Poller) -> str:
    """Return a poller's document as the text that `reset --to-checkpoint` reads."""
    return json.dumps(poller.existing(), indent=2)


@dataclass(frozen=True, slots=True)
class Tail:
    """The events that wait, oldest first."""

    poller: str
    events: list[dict[str, Any]]
    more: bool
    """Whether further ones wait behind them."""
    horizon: Horizon | None = None
    backlog: Backlog | None = None
    """What waits in a source with one reader, whose events nobody else may look at."""
    has_one_reader: bool = False


def tail(poller: Poller, limit: int | None = None) -> Tail:
    """Look at what follows the present checkpoint, a batch where no limit is given, and leave everything as it is."""
    settings = poller.defined.settings
    source = settings.source
    checkpoint = poller.store.load_checkpoint(poller.name)
    if has_one_reader(source):
        backlog = source.backlog(checkpoint) if isinstance(source, CountsBacklog) else None
        return Tail(poller.name, [], backlog is None or backlog.amount > 0, backlog=backlog, has_one_reader=True)
    with reading(source) as reader:
        result = reader.fetch_changes(checkpoint, limit or settings.batch_size)
    events = normalized(
        settings.normalizer, result.records, source.source_descriptor, {"dry_run": True}, result.revisions
    )
    return Tail(poller.name, [event.to_json() for event in events], bool(result.more), result.horizon)
