"""How far a source may read without jumping over a transaction that commits late."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.adapter import values
from azure_functions_db.adapter.generations import Generations
from azure_functions_db.adapter.position import BEGINNING
from azure_functions_db.core.errors import SourceConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from sqlalchemy import Connection, Select
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.adapter.generations import Transaction
    from azure_functions_db.adapter.plan import Plan
    from azure_functions_db.adapter.position import Position
    from azure_functions_db.core.types import Horizon

Grade = Literal["exact", "settled", "none"]

logger = logging.getLogger("azure_functions_db")

# A transaction would have to be stopped for this long between reading its clock and being listed.
_MOMENT = 0.05


class Watch(ABC):
    """Finds out, on one kind of database, up to which cursor value it is safe to read."""

    grade: Grade
    ripening_seconds: float = 0.0
    is_blind: bool = False
    """Whether the database turned out to hide what this watch needs to see."""

    @property
    @abstractmethod
    def bound(self) -> Any:
        """The cursor value up to which nothing can appear any more; None: nothing is safe yet."""

    @abstractmethod
    def look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        """Look at the database, and tell whether there is anything after the position."""

    @property
    def is_settled(self) -> bool:
        """Whether waiting would not raise the bound."""
        return True

    def horizon(self) -> Horizon | None:
        """Tell who holds the horizon, if somebody does."""
        return None


class DrainingWatch(Watch):
    """Waits until the transactions that ran when a cursor value was seen have ended."""

    grade: Grade = "exact"
    _hidden_because: str | None = None
    _distant: Any = None

    def __init__(
        self,
        name: str,
        kind: TypeEngine[Any],
        *,
        settle_seconds: float | None,
        cap_seconds: float | None,
        clock: Callable[[], float],
    ) -> None:
        if settle_seconds is not None:
            require_clock(kind)
        self._lock = threading.Lock()
        self._name = name
        self._settle = settle_seconds
        self._clock = clock
        self._generations = Generations(cap_seconds)
        self.ripening_seconds = ripening(kind)

    @property
    def bound(self) -> Any:
        """The highest cursor value whose transactions have all ended; where they are hidden, one at a distance."""
        return self._distant if self.is_blind else self._generations.confirmed

    @property
    def is_settled(self) -> bool:
        """Whether every value seen so far may be read."""
        return self._generations.is_settled

    def horizon(self) -> Horizon | None:
        """Tell who holds the horizon, if somebody does."""
        return self._generations.horizon(self._clock())

    def look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        """See the newest cursor value, then who is running; one at a time, so that lists stay younger than bounds."""
        with self._lock:
            return self._look(connection, plan, start)

    @abstractmethod
    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        """Call `_see` and then `_list`, and tell whether there is anything after the position."""

    def _give_up(self, reason: str) -> None:
        """Say that the database hides who is running, and keep the distance that the user gave, if any."""
        if reason == self._hidden_because:
            return
        self._hidden_because, self.is_blind = reason, True
        self.grade = "none" if self._settle is None else "settled"
        warn_of_late_commits(self._name, reason)

    def _recover(self) -> None:
        """See again who is running."""
        if self.is_blind:
            self._hidden_because, self.is_blind, self.grade = None, False, "exact"

    def _see(self, newest: Any, database_clock: Any) -> bool:
        now = self._clock()
        ripe = self.ripening_seconds
        if ripe and _is_older(newest, database_clock, ripe):
            ripe = 0
        return self._generations.see(newest, at=now, ripe_at=now + ripe)

    def _list(
        self,
        running: Mapping[Hashable, Transaction],
        successors: Callable[[Transaction], Iterable[Transaction]],
        at: float | None = None,
    ) -> None:
        known = set(self._generations.passed_by)
        self._generations.list_running(running, at=self._clock() if at is None else at, successors=successors)
        for transaction in self._generations.passed_by - known:
            logger.warning(
                "Source %r no longer waits for session %s of %s, which has not written anything so far: "
                "if it has already taken a cursor value and writes it later, that row will be missed",
                self._name,
                transaction.session,
                transaction.user,
            )

    def _sight(self, connection: Connection, plan: Plan, start: Position) -> Any:
        """Return the newest cursor value after a position, and what else is to be seen at that moment."""
        bounded = self._settle is not None
        newest = plan.newest(start, bounded=bounded)
        parameters = plan.parameters(start.values)
        if self._settle is not None:
            self._distant = settled_until(connection, plan, self._settle)
            parameters |= plan.bounded(self._distant)
        sight = plan.kept(("sight", newest), lambda: self._beside(newest, plan))
        return connection.execute(sight, parameters).one()

    @abstractmethod
    def _beside(self, newest: Select[Any], plan: Plan) -> Select[Any]:
        """Return a statement for the newest cursor value together with what else has to be seen."""


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


def warn_of_late_commits(name: str, reason: str) -> None:
    """Say that rows may be missed, why, and what helps."""
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
    gets more rows of the same value until the second is over.
    """
    if values.is_whole(kind):
        return 0.0
    digits = getattr(kind, "fsp", getattr(kind, "precision", 6))
    coarse = values.is_temporal(kind) and not digits and (hasattr(kind, "fsp") or digits == 0)
    return 1.0 + _MOMENT if coarse else _MOMENT


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
        case "sqlite":  # in process, and its own clock is UTC as well
            return dt.datetime.now(dt.UTC).replace(tzinfo=None)
        case "mysql" | "mariadb":
            clock: Any = func.now(6)
        case "postgresql":
            clock = func.clock_timestamp() if aware else cast(func.clock_timestamp(), DateTime)
        case "mssql":
            clock = func.sysdatetimeoffset() if aware else func.sysdatetime()
        case _:
            clock = func.current_timestamp() if aware else cast(func.current_timestamp(), DateTime)
    found = connection.execute(select(clock)).scalar_one()
    return found if isinstance(found, dt.datetime) else dt.datetime.fromisoformat(str(found))


def _is_older(newest: Any, database_clock: Any, seconds: float) -> bool:
    match newest, database_clock:
        case dt.datetime(), dt.datetime() if (newest.tzinfo is None) == (database_clock.tzinfo is None):
            return database_clock - newest > dt.timedelta(seconds=seconds)
        case _:
            return False
