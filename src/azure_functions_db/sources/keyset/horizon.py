"""How far a source may read without jumping over a transaction that commits late.

Which cursor values are safe to pass, worked out from who was running when they were first seen.

Rows become visible in the order of commits, not in the order of their cursors. The rule here lets no row
be jumped over, and knows nothing of any database:

1. See a *bound*: the newest cursor value that is visible to everybody. Its stamp was taken before this moment.
2. Only then list the running transactions. Stamps do not shrink, so a stamp below the bound was taken before
   the bound's own one, by a transaction that had begun by then: it has ended, or it is in the list. The same
   holds for a stamp *at* the bound, as long as that value is not handed out again.
3. Once everyone in the list has ended, read up to the bound, in a snapshot taken after that: whatever can
   ever appear at or below the bound is in it.

A value that is handed out again (a batch number, a stamp that a client has chosen) gets further rows after it
was seen, and of those the one with the higher key can become visible first. So a bound is seen together with
its *ties*, the number of rows that share it: when rows have joined them, that is a new sight with a list of
its own, and until this one has drained, rows are read only below the bound, whatever was promised for it before.
Who begins after that list and takes a value once more that several rows have is waited for where the database
shows that it *touches* the source's rows; who does so after the rows at the bound were read is beyond this rule.

A transaction reads its clock a moment before others can see that it is running, and a coarse clock shows one
value for a while. So a bound may have to *ripen*: the list is taken some time after the bound was seen, by when
its value is over and whoever has taken it can be seen.

Nobody is waited for without end unless the user wants it: a transaction that has written nothing is passed by
after the cap, one that has written after the second limit. Both count from the first bound that it has held.

From one process to the next, a part of the checkpoint says which bound has waited for longest, for whom, and
since when by the database's clock. Transactions are known by texts that are unique on one server between two of its
starts; what another one has written does not count. Whatever cannot be read is forgotten: that means to wait
once more, and never to lose a row.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.errors import CursorSerializationError, SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_part, serialize_part
from azure_functions_db.core.types import Horizon, HorizonHolder
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.position import BEGINNING, Bound

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from sqlalchemy import Connection, Select
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sources.keyset.position import Position


Grade = Literal["exact", "settled", "none"]

logger = logging.getLogger("azure_functions_db")

# A transaction would have to be stopped for this long between reading its clock and being listed.
_MOMENT = 0.05
# What is behind a source can change: a view is replaced, a sequence gets a cache.
_EXAMINE_SECONDS = 300.0
# Rows that share one cursor value are counted up to here.
_MOST_TIES = 10_000
# Seconds, the coarsest unit that a clock stamps with, for a column that does not tell its own.
_COARSEST = 1.0
# A time without a zone may be that of any session's zone: from 12 hours west of UTC to 14 east.
_ZONES = dt.timedelta(hours=26)


class Watch(ABC):
    """Finds out, on one kind of database, up to which cursor value it is safe to read."""

    grade: Grade
    ripening_seconds: float = 0.0
    sees_rows: bool = False
    """Whether a look tells that nothing is there at all."""
    is_blind: bool = False
    """Whether the database turned out to hide what this watch needs to see."""
    reason: str | None = None
    """Why this watch cannot promise more than its grade, where it could on another database."""

    @property
    @abstractmethod
    def bound(self) -> Any:
        """The cursor value up to which nothing can appear any more; None: nothing is safe yet."""

    @property
    def includes_bound(self) -> bool:
        """Whether rows at the bound itself are safe, too."""
        return True

    @abstractmethod
    def look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        """Look at the database, and tell whether there is anything after the position."""

    def examine(self, connection: Connection, plan: Plan) -> None:  # noqa: B027 - most have nothing to find out
        """Find out what the grade depends on, as it is now."""

    @property
    def is_settled(self) -> bool:
        """Whether waiting would not raise the bound."""
        return True

    def horizon(self) -> Horizon | None:
        """Tell who holds the horizon, if somebody does."""
        return None

    def resume(self, part: Any) -> None:  # noqa: B027 - most watches need no memory
        """Go on from what another process has remembered."""

    def saved(self, part: Any, *, moved: bool) -> Any:  # noqa: ARG002 - for those that have a memory
        """Return what the next process should remember, None for nothing."""
        return part


class SettledWatch(Watch):
    """Keeps a fixed distance from the database's clock."""

    grade: Grade = "settled"

    def __init__(self, kind: TypeEngine[Any], settle_seconds: float) -> None:
        require_clock(kind)
        self._seconds = settle_seconds
        self._bound: Any = None

    @property
    def bound(self) -> Any:
        """The database's clock at the last look, minus the distance."""
        return self._bound

    def look(self, connection: Connection, plan: Plan, start: Position) -> bool:  # noqa: ARG002 - the clock needs none
        """Read the clock."""
        self._bound = settled_until(connection, plan, self._seconds)
        return True


class DrainingWatch(Watch):
    """Waits until the transactions that ran when a cursor value was seen have ended."""

    grade: Grade = "exact"
    sees_rows = True

    def __init__(
        self,
        name: str,
        kind: TypeEngine[Any],
        *,
        settle_seconds: float | None,
        cap_seconds: float | None,
        clock: Callable[[], float],
        abandon_seconds: float | None = None,
    ) -> None:
        if settle_seconds is not None:
            require_clock(kind)
        self._lock = threading.Lock()
        self._name = name
        self._settle = settle_seconds
        self._clock = clock
        self._limits = (cap_seconds, abandon_seconds)
        self._pending = PendingBounds(*self._limits)
        self._ties: Hashable = None
        self._crowded: Any = None
        """A newest cursor value with too many rows to count them at each look: every position among them is news."""
        self._server: str | None = None
        self._ahead = 0.0
        """By how much the database's clock, in seconds since 1970, is ahead of ours."""
        self._saved: SavedHorizon | None = None
        self._doubt: str | None = None
        self._blindness: str | None = None
        self._examine_at = float("-inf")
        self.ripening_seconds = ripening(kind)

    @property
    def bound(self) -> Any:
        """The highest cursor value whose transactions have all ended.

        Where they cannot be seen, it is what was seen before the database said so: what comes after that may be of a
        server that was promoted meanwhile, and shows them.
        """
        return self._pending.confirmed

    @property
    def includes_bound(self) -> bool:
        """Whether rows at the bound itself wait for nobody."""
        return self._pending.includes_bound

    @property
    def is_settled(self) -> bool:
        """Whether every value seen so far may be read."""
        return self._pending.is_settled

    def horizon(self) -> Horizon | None:
        """Tell who holds the horizon, if somebody does."""
        return self._pending.horizon(self._clock())

    def look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        """See the newest cursor value, then who is running; one at a time, so that lists stay younger than bounds."""
        with self._lock:
            if self._clock() >= self._examine_at:
                self.examine(connection, plan)
            return self._look(connection, plan, start)

    def examine(self, connection: Connection, plan: Plan) -> None:
        """Find out whether rows can appear otherwise than by a transaction that is shown."""
        self._examine_at = self._clock() + _EXAMINE_SECONDS
        self._suspect(self._doubted(connection, plan))

    def _doubted(self, connection: Connection, plan: Plan) -> str | None:  # noqa: ARG002 - for those that can ask
        """Return why rows can appear otherwise, None where they cannot."""
        return None

    def resume(self, part: Any) -> None:
        """Go on from what another process has remembered, if this one knows nothing yet."""
        if self._server is None:
            self._saved = saved_horizon_in(part)

    def saved(self, part: Any, *, moved: bool) -> Any:
        """Return what the next process should remember: as it was written, as long as that still holds."""
        if self._server is None or self.is_blind or (self.is_settled and not moved):
            return part
        earlier, pending = saved_horizon_in(part), self._pending
        passed = {transaction.key for transaction in pending.passed_by}
        if earlier and earlier.server == self._server:
            waiting = {str(key) for key in pending.since if key not in passed}
            if waiting & set(earlier.waits):
                return part
        return written(self._saved_horizon(self._server))

    @abstractmethod
    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        """Call `_see` and then `_list`, and tell whether there is anything after the position."""

    def _give_up(self, reason: str) -> None:
        """Wait for nobody from now on, at the distance that was given: the database hides who is running."""
        if self.is_blind and reason == self._blindness:
            return
        self.is_blind = True
        self._blindness = reason
        self._regrade()
        warn_of_late_commits(self._name, reason, self._settle)

    def _see_again(self) -> None:
        """Go by the running transactions again; those that were known before are of another time."""
        if not self.is_blind:
            return
        self.is_blind = False
        self._pending = PendingBounds(*self._limits)
        self._regrade()
        logger.warning("Source %r sees the running transactions again, and waits for them", self._name)

    def _suspect(self, doubt: str | None) -> None:
        """Take back the promise to miss nothing, for a reason that is told once; None: there is none any more."""
        if doubt == self._doubt:
            return
        self._doubt = doubt
        self._regrade()
        if doubt is not None:
            warn_of_late_commits(self._name, doubt, self._settle)

    def _regrade(self) -> None:
        unproved: Grade = "none" if self._settle is None else "settled"
        self.reason = self._blindness if self.is_blind else self._doubt
        self.grade = unproved if self.reason else "exact"

    def _know(self, server: str, database_time: float) -> None:
        """Take note of which server this is, as of this start of it, and of its clock; call it before `_see`."""
        self._ahead = database_time - self._clock()
        if server != self._server:
            self._server, self._pending = server, PendingBounds(*self._limits)
        if self._saved is not None and self._saved.server == server:
            self._restore(self._saved)
        self._saved = None

    def _remembered(self, text: str) -> Transaction | None:
        """Return a transaction that was remembered by this text, as an older list would have shown it."""
        try:
            return Transaction(text, text, None, writes=False, mark=self._mark_of(text))
        except ValueError:
            return None

    def _mark_of(self, text: str) -> Any:  # noqa: ARG002 - for those that have marks
        """Return the mark of a transaction that was remembered by this text, or raise `ValueError`."""
        return None

    def _restore(self, earlier: SavedHorizon) -> None:
        def mine(times: Mapping[str, float]) -> dict[str, Transaction]:
            return {text: one for text in times if (one := self._remembered(text)) is not None}

        waits, passed = mine(earlier.waits), mine(earlier.passed)
        times = {**earlier.waits, **earlier.passed}
        since = {one.key: times[text] - self._ahead for text, one in (waits | passed).items()}
        pending_bound = None
        if waits:
            seen_at = min(since[one.key] for one in waits.values())
            pending_bound = PendingBound(earlier.bound, earlier.ties, seen_at, seen_at, list(waits.values()))
        self._pending.resume(pending_bound, passed.values(), since)

    def _saved_horizon(self, server: str) -> SavedHorizon:
        pending, oldest = self._pending, self._pending.oldest

        def times(keys: Iterable[Hashable]) -> dict[str, float]:
            return {str(key): round(pending.since[key] + self._ahead, 3) for key in keys}

        passed = times(transaction.key for transaction in pending.passed_by)
        if oldest is None or not oldest.running or not isinstance(oldest.ties, int | None):
            return SavedHorizon(server=server, passed=passed)
        waits = times(transaction.key for transaction in oldest.running)
        return SavedHorizon(server=server, bound=oldest.bound, ties=oldest.ties, waits=waits, passed=passed)

    def _see(self, newest: Any, database_clock: Any) -> bool:
        now = self._clock()
        ripe = self.ripening_seconds
        if _is_older(newest, database_clock, ripe):
            ripe = 0
        return self._pending.see(newest, at=now, ripe_at=now + ripe, ties=self._ties)

    def _list(
        self,
        running: Mapping[Hashable, Transaction],
        successors: Callable[[Transaction], Iterable[Transaction]],
        at: float | None = None,
    ) -> None:
        earlier = {transaction.key for transaction in self._pending.passed_by}
        self._pending.list_running(running, at=self._clock() if at is None else at, successors=successors)
        for transaction in self._pending.passed_by:
            if transaction.key not in earlier:
                self._warn_of(transaction)

    def _warn_of(self, passed: Transaction) -> None:
        has = "has written something" if passed.writes else "has not written anything so far"
        logger.warning(
            "Source %r no longer waits for session %s of %s, which %s: "
            "if it has already taken a cursor value and commits it later, that row will be missed",
            self._name,
            passed.session,
            passed.user,
            has,
        )

    def _observed(self, connection: Connection, plan: Plan, start: Position) -> Any:
        """Return the newest cursor value after a position, and what else is to be seen at that moment."""
        bounded, start = self._settle is not None, start.at_value
        newest = plan.newest(start, bounded=bounded)
        bound = None if self._settle is None else Bound(settled_until(connection, plan, self._settle))
        parameters = plan.parameters(start, bound) | self._parameters()
        observed = plan.seen(connection, self._statement(newest, plan), parameters)
        if self._crowded is not None and observed.newest not in (None, self._crowded):
            self._crowded = None
            observed = plan.seen(connection, self._statement(newest, plan), parameters)
        if getattr(observed, "azfdb_ties", None) == _MOST_TIES:
            self._crowded = observed.newest
        is_crowded = self._crowded is not None
        self._ties = start.values if is_crowded else getattr(observed, "azfdb_ties", None)
        return observed

    def _parameters(self) -> dict[str, Any]:
        """Return what the statement of `_beside` binds."""
        return {}

    def _due(self, newest: Select[Any], plan: Plan) -> Select[Any]:  # noqa: ARG002 - for those that need it
        """Return the statement for the newest cursor value without those that are not due yet."""
        return newest

    def _statement(self, newest: Select[Any], plan: Plan) -> Select[Any]:
        # Rows that share no value with another, or are known to be too many, need not be counted.
        if len(plan.order) == 1 or self._crowded is not None:
            return plan.kept(("observed", newest), lambda: self._beside(self._due(newest, plan), plan))
        return plan.kept(("observed with ties", newest), lambda: self._with_ties(self._due(newest, plan), plan))

    def _with_ties(self, newest: Select[Any], plan: Plan) -> Select[Any]:
        ties = plan.ties(newest, _MOST_TIES).scalar_subquery()
        return self._beside(newest, plan).add_columns(ties.label("azfdb_ties"))

    @abstractmethod
    def _beside(self, newest: Select[Any], plan: Plan) -> Select[Any]:
        """Return a statement for the newest cursor value together with what else has to be seen."""


class RowversionWatch(Watch):
    """SQL Server tells by itself which row versions are still in use."""

    grade: Grade = "exact"

    def __init__(self) -> None:
        self._bound: Any = None

    @property
    def bound(self) -> Any:
        """The last row version below every active transaction."""
        return self._bound

    def look(self, connection: Connection, plan: Plan, start: Position) -> bool:  # noqa: ARG002 - see the statement
        """Ask for the lowest active row version."""
        below = "SELECT CAST(CAST(MIN_ACTIVE_ROWVERSION() AS BIGINT) - 1 AS BINARY(8))"
        self._bound = connection.exec_driver_sql(below).scalar_one()
        return True


def warn_of_late_commits(name: str, reason: str, settle_seconds: float | None = None) -> None:
    """Say that rows may be missed, why, and what helps."""
    if settle_seconds is not None:
        logger.warning(
            "Source %r may miss rows that commit later than settle_seconds=%g after their stamp: %s",
            name,
            settle_seconds,
            reason,
        )
        return
    logger.warning(
        "Source %r may miss rows that commit late: %s. Give settle_seconds= to keep a distance from the clock, "
        'or in_flight="ignore" if writers never overlap',
        name,
        reason,
    )


def warn_of_running(name: str, horizon: Horizon | None) -> None:
    """Say who was still writing when a source had to begin "now"."""
    sessions = ", ".join(holder.session for holder in horizon.holders) if horizon else "unknown"
    logger.warning(
        'Source %r begins "now" while transactions are running (sessions %s): what they have stamped already will not '
        "be delivered",
        name,
        sessions,
    )


def ripening(kind: TypeEngine[Any]) -> float:
    """Return how long a visible cursor value must age before the running transactions are listed.

    An integer comes out of a sequence inside a transaction: no time at all. A column of whole seconds
    gets more rows of the same value until the second is over, and so does any other by its own unit.
    """
    if values.is_whole(kind):
        return 0.0
    if not values.is_temporal(kind):
        return _MOMENT
    unit = values.resolution(kind)
    return _MOMENT + (_COARSEST if unit is None else unit)


def require_clock(kind: TypeEngine[Any]) -> None:
    """Refuse ``settle_seconds`` for a cursor that no clock can be compared with."""
    if not values.is_temporal(kind):
        raise SourceConfigurationError(
            f"settle_seconds= needs a cursor of date and time, this one is {values.type_name(kind)}"
        )


def settled_until(connection: Connection, plan: Plan, seconds: float) -> Any:
    """Return the database's clock minus some seconds, as a value of the cursor column."""
    kind = plan.shape.types[plan.definition.cursor_column]
    moment = _clock(connection, aware=bool(getattr(kind, "timezone", False))) - dt.timedelta(seconds=seconds)
    sample = connection.execute(plan.newest(BEGINNING)).scalar() if plan.dialect.name == "sqlite" else None
    return values.driver_value(moment, kind, plan.dialect, sample)


def _clock(connection: Connection, *, aware: bool) -> dt.datetime:
    from sqlalchemy import DateTime, cast, func, select

    match connection.dialect.name:
        case "sqlite":  # in process
            return dt.datetime.now(dt.UTC)
        case "mysql" | "mariadb":
            clock: Any = func.now(6)
        case "postgresql":
            clock = func.clock_timestamp() if aware else cast(func.clock_timestamp(), DateTime)
        case "mssql":
            clock = func.sysdatetimeoffset() if aware else func.sysdatetime()
        case _:
            clock = func.current_timestamp() if aware else cast(func.current_timestamp(), DateTime)
    return dt.datetime.fromisoformat(str(connection.execute(select(clock)).scalar_one()))


def _is_older(newest: Any, database_clock: Any, seconds: float) -> bool:
    """Tell whether a stamp is certainly older than that, whichever zone its writer lives in."""
    match newest, database_clock:
        case dt.datetime(), dt.datetime() if (newest.tzinfo is None) == (database_clock.tzinfo is None):
            zones = _ZONES if newest.tzinfo is None else dt.timedelta()
            return database_clock - newest > zones + dt.timedelta(seconds=seconds)
        case _:
            return False


# More remembered bounds let the horizon move in smaller steps; a busy database fills any number.
_REMEMBERED = 16


@dataclass(frozen=True)
class Transaction:
    """A running transaction, as the database shows it."""

    key: Hashable
    """What its times are noted under."""
    session: str
    user: str | None
    writes: bool
    age_seconds: float | None = None
    mark: Any = None
    """What a later list is searched for, to tell whether it has ended."""
    touches: bool = False
    """Whether it is known to have changed rows that this source reads."""


@dataclass
class PendingBound:
    """A bound, and those who were running when it was seen and have not ended since; None: not listed yet."""

    bound: Any
    ties: Hashable
    seen_at: float
    ripe_at: float
    running: list[Transaction] | None = None


class PendingBounds:
    """Bounds that wait for the transactions of their time to end, and the last one for which all have."""

    def __init__(self, cap_seconds: float | None, abandon_seconds: float | None = None) -> None:
        self.confirmed: Any = None
        self.includes_bound = True
        """Whether rows at the confirmed value itself are safe; otherwise only those below it."""
        self.since: dict[Hashable, float] = {}
        """Since when each running transaction has held a bound, or would have."""
        self._cap = cap_seconds
        self._abandon = abandon_seconds
        self._passed: dict[Hashable, Transaction] = {}
        self._waiting: list[PendingBound] = []
        self._latest: tuple[Any, Hashable] = (None, None)

    @property
    def is_settled(self) -> bool:
        """Whether no bound waits for anybody."""
        return not self._waiting

    @property
    def is_new(self) -> bool:
        """Whether nothing has been seen so far."""
        return self._latest == (None, None)

    @property
    def oldest(self) -> PendingBound | None:
        """The bound that has waited for others for the longest time."""
        return next((pending for pending in self._waiting if pending.running), None)

    @property
    def passed_by(self) -> Collection[Transaction]:
        """Running transactions that are no longer waited for because a limit was reached."""
        return self._passed.values()

    def see(self, bound: Any, *, at: float, ripe_at: float, ties: Hashable = None) -> bool:
        """Take note of the newest cursor value and of the rows that share it, and tell whether they are news."""
        if bound is None or (bound, ties) == self._latest:
            return False  # The older sighting of the same rows has the shorter list.
        self._wait_for(PendingBound(bound, ties, at, ripe_at))
        if len(self._waiting) > _REMEMBERED:
            del self._waiting[-2]
        return True

    def resume(
        self, pending: PendingBound | None, passed: Iterable[Transaction], since: Mapping[Hashable, float]
    ) -> None:
        """Go on from what another process has remembered, before anything was seen here."""
        self.since |= since
        self._passed |= {transaction.key: transaction for transaction in passed}
        if pending is not None:
            self._wait_for(pending)

    def list_running(
        self,
        running: Mapping[Hashable, Transaction],
        *,
        at: float,
        successors: Callable[[Transaction], Iterable[Transaction]],
    ) -> None:
        """Take note of who was running at some moment, which must be later than every bound seen so far.

        ``successors`` gives the present form of a transaction from an earlier list, or nothing if it has ended.
        """
        for pending in self._waiting:
            self._update(pending, running, at, successors)
        self._join([one for key, one in running.items() if one.touches and key not in self._passed], at)
        self.since = {key: since for key, since in self.since.items() if key in running}
        self._passed = {key: transaction for key, transaction in self._passed.items() if key in running}
        drained = [i for i, pending in enumerate(self._waiting) if pending.running == []]
        if drained:
            self.confirmed, self.includes_bound = self._waiting[drained[-1]].bound, True
            del self._waiting[: drained[-1] + 1]
            self._restrict()

    def horizon(self, at: float) -> Horizon | None:
        """Tell how far reading is safe and who holds it there, if somebody does."""
        held = self.oldest
        if held is None or held.running is None:
            return None
        waited = at - held.seen_at
        holders = tuple(
            HorizonHolder(holder.session, holder.user, waited if holder.age_seconds is None else holder.age_seconds)
            for holder in held.running
        )
        return Horizon(self.confirmed, waited, holders)

    def _wait_for(self, pending: PendingBound) -> None:
        self._latest = (pending.bound, pending.ties)
        self._waiting.append(pending)
        self._restrict()

    def _restrict(self) -> None:
        """Let no older promise cover rows at a value that waits."""
        for pending in self._waiting:
            if _is_at_or_below(pending.bound, self.confirmed):
                self.confirmed, self.includes_bound = pending.bound, False

    def _update(
        self,
        pending: PendingBound,
        running: Mapping[Hashable, Transaction],
        at: float,
        successors: Callable[[Transaction], Iterable[Transaction]],
    ) -> None:
        if pending.running is not None:
            pending.running = self._present(pending.running, successors)
        elif at >= pending.ripe_at:
            pending.running = list(running.values())
        for transaction in list(pending.running or []):
            since = self.since.setdefault(transaction.key, pending.seen_at)
            if self._is_passed(transaction, at - since):
                self._passed[transaction.key] = transaction
                pending.running.remove(transaction)  # type: ignore[union-attr]  # it has this one

    def _present(
        self, earlier: Iterable[Transaction], successors: Callable[[Transaction], Iterable[Transaction]]
    ) -> list[Transaction]:
        present: dict[Transaction, None] = {}
        for then in earlier:
            for now in successors(then):
                present[now] = None
                if then.key in self.since:
                    self.since.setdefault(now.key, self.since[then.key])
        return list(present)

    def _join(self, touching: list[Transaction], at: float) -> None:
        """Wait for those, too, who came later and may have taken the newest value once more."""
        if not touching or self.is_new or self._latest[1] in (None, 1):  # a value that one row has was taken once
            return
        for transaction in touching:
            self.since.setdefault(transaction.key, at)
        if not self._waiting:
            self._wait_for(PendingBound(*self._latest, at, at, touching))
        elif self._waiting[-1].running is not None:
            latest = self._waiting[-1].running
            latest += [transaction for transaction in touching if transaction not in latest]

    def _is_passed(self, transaction: Transaction, held_for: float) -> bool:
        limits = (self._abandon, None if transaction.writes else self._cap)
        return any(limit is not None and held_for > limit for limit in limits)


def _is_at_or_below(bound: Any, confirmed: Any) -> bool:
    """Tell whether a bound has not grown: it is seen again, or the rows above it have gone."""
    if confirmed is None or bound == confirmed:
        return confirmed is not None
    try:
        return not isinstance(bound, str) and bool(bound < confirmed)  # how texts are ordered, only the database knows
    except TypeError:
        return False


HORIZON = "horizon"
"""The name of this part in a checkpoint."""

# It is written with every batch: a crowd that needs more is not worth remembering.
_MOST_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class SavedHorizon:
    """A bound with the transactions that it waits for, and those that are no longer waited for."""

    server: str
    bound: Any = None
    ties: int | None = None
    waits: Mapping[str, float] = field(default_factory=dict)
    passed: Mapping[str, float] = field(default_factory=dict)


def written(saved: SavedHorizon) -> dict[str, Any] | None:
    """Return a saved horizon in its JSON form; None where there is nothing to remember, or too much."""
    if not saved.waits and not saved.passed:
        return None
    form = {
        "server": saved.server,
        "bound": serialize_part(values.storable(saved.bound)),
        "ties": saved.ties,
        "waits": dict(saved.waits),
        "passed": dict(saved.passed),
    }
    return form if len(json.dumps(form)) <= _MOST_BYTES else None


def saved_horizon_in(part: Any) -> SavedHorizon | None:
    """Return what `written` wrote, None for anything else."""
    match part:
        case {"server": str() as server, "bound": bound, "waits": dict() as waits, "passed": dict() as passed}:
            ties = part.get("ties")
        case _:
            return None
    if not _are_times(waits) or not _are_times(passed) or not isinstance(ties, int | None):
        return None
    try:
        return SavedHorizon(server=server, bound=deserialize_part(bound), ties=ties, waits=waits, passed=passed)
    except CursorSerializationError:
        return None


def _are_times(moments: Mapping[str, Any]) -> bool:
    return all(isinstance(moment, int | float) and math.isfinite(moment) for moment in moments.values())
