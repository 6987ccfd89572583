"""What the pages show: read on top of `operations`, once for all who look at the same time."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.operations.doctor import examine
from azure_functions_db.operations.quarantine import entries_of
from azure_functions_db.operations.status import Status, ordered, poller_status

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from azure_functions_db.core.types import Finding
    from azure_functions_db.operations.pollers import Poller, Pollers
    from azure_functions_db.operations.quarantine import Entry
    from azure_functions_db.operations.status import PollerStatus

T = TypeVar("T")

# Pollers are looked at side by side: each look waits for a store and a database.
_LOOKERS = 8
_FRESH_SECONDS = 3.0
# How many looks a trend covers: some minutes.
_LOOKS = 60
# Counting what is in quarantine is a request of its own, and asks for a look now and then only.
_COUNTED_SECONDS = 60.0
_EXAMINED_SECONDS = 60.0


class Shared(Generic[T]):
    """An answer that is asked for once and given to all who come while it is fresh."""

    def __init__(self, fresh_seconds: float, clock: Callable[[], float]) -> None:
        self._lock = threading.Lock()
        self._fresh_seconds = fresh_seconds
        self._clock = clock
        self._kept: tuple[float, T] | None = None

    def get(self, ask: Callable[[], T]) -> T:
        """Return the answer; whoever comes while it is being asked for waits for it."""
        with self._lock:
            if self._kept is None or self._clock() - self._kept[0] >= self._fresh_seconds:
                self._kept = (self._clock(), ask())
            return self._kept[1]

    def forget(self) -> None:
        """Let the next one ask anew: something was changed."""
        with self._lock:
            self._kept = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How what waits has changed while somebody looked."""

    seconds: float = 0.0
    """Over how long; 0 after the first look."""
    waiting_more: int = 0
    rate_in: float | None = None
    """Changes that came per second, by what waits and what was handled meanwhile."""

    @property
    def arrow(self) -> str:
        """Whether it grows or shrinks."""
        return "" if not self.waiting_more else "\N{UPWARDS ARROW}" if self.waiting_more > 0 else "\N{DOWNWARDS ARROW}"


class _Look(NamedTuple):
    at: float
    waiting: int


@dataclass(frozen=True, slots=True)
class _Counted:
    at: float
    rows: int | None


class Board:
    """All pollers of an app or a store, as they stand."""

    def __init__(
        self,
        pollers: Callable[[], Pollers],
        *,
        now: Callable[[], dt.datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pollers = pollers
        self._now = now
        self._clock = clock
        self._status: Shared[Status] = Shared(_FRESH_SECONDS, clock)
        self._findings: dict[str, Shared[list[Finding]]] = {}
        self._counted: dict[str, _Counted] = {}
        self._looks: dict[str, deque[_Look]] = {}

    @property
    def pollers(self) -> Pollers:
        """The pollers themselves, for acts."""
        return self._pollers()

    def status(self) -> Status:
        """Return where all pollers stand, trouble first."""
        return self._status.get(self._look)

    def one(self, name: str) -> PollerStatus:
        """Return where one poller stands; one that is not there is refused."""
        found = next((each for each in self.status().pollers if each.poller == name), None)
        return found or poller_status(self.pollers.one(name), self._now())

    def findings(self, name: str) -> list[Finding]:
        """Return what `doctor` finds."""
        shared = self._findings.setdefault(name, Shared(_EXAMINED_SECONDS, self._clock))
        return shared.get(lambda: examine([self.pollers.one(name)]).pollers[0].findings)

    def entries(self, name: str) -> list[Entry]:
        """Return the rows of a poller that are in quarantine; none where it has no quarantine."""
        pollers = self.pollers
        return [] if pollers.one(name).sink is None else entries_of(pollers.all(), name)

    def pace(self, status: PollerStatus) -> Pace:
        """Return how what waits for a poller changes."""
        looks = self._looks.get(status.poller) or deque[_Look]()
        if len(looks) < 2:
            return Pace()
        first, last = looks[0], looks[-1]
        seconds, more = last.at - first.at, last.waiting - first.waiting
        out = status.rows_per_second
        return Pace(seconds, more, None if out is None or not seconds else max(0.0, out + more / seconds))

    def changed(self) -> None:
        """Let the next look be a new one."""
        self._status.forget()
        self._counted.clear()

    def _look(self) -> Status:
        now, pollers = self._now(), self.pollers.all()
        with ThreadPoolExecutor(_LOOKERS, "azfdb-dashboard") as lookers:
            return ordered(list(lookers.map(lambda poller: self._looked(poller, now), pollers)), now)

    def _looked(self, poller: Poller, now: dt.datetime) -> PollerStatus:
        counted = self._counted.get(poller.name)
        is_due = counted is None or self._clock() - counted.at >= _COUNTED_SECONDS
        status = poller_status(poller, now, counts_quarantine=is_due)
        if is_due:
            self._counted[poller.name] = _Counted(self._clock(), status.quarantined)
        elif counted is not None:
            status.quarantined = counted.rows
        if status.waiting_rows is not None and not status.waiting_is_more:
            looks = self._looks.setdefault(poller.name, deque(maxlen=_LOOKS))
            looks.append(_Look(self._clock(), status.waiting_rows))
        return status
