"""What the pages show, ready to be placed: read on top of `operations`, once for all who look at the same time."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.secrets import masked
from azure_functions_db.operations.doctor import examine
from azure_functions_db.operations.quarantine import entries_of
from azure_functions_db.operations.status import Status, ordered, poller_status
from azure_functions_db.trigger.batch import HOURS, MINUTES, Sample, samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from azure_functions_db.core.types import Finding
    from azure_functions_db.operations.pollers import Poller, Pollers
    from azure_functions_db.operations.quarantine import Entry
    from azure_functions_db.operations.status import PollerStatus
    from azure_functions_db.trigger.batch import Tier


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


# Of a long quarantine, a page shows the youngest rows; the filter finds the others.
MOST_ENTRIES = 200
_RECENT = 15
_LONGEST_VALUE = 300
NONE = "\N{EN DASH}"
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24


@dataclass(frozen=True, slots=True)
class Group:
    """A function's line: one poller, or its partitions folded into one."""

    name: str
    pollers: list[PollerStatus]
    at: dt.datetime

    @property
    def is_partitioned(self) -> bool:
        """Whether there are several pollers behind the line."""
        return len(self.pollers) > 1

    @property
    def worst(self) -> PollerStatus:
        """The poller that needs a look first."""
        return self.pollers[0]

    @property
    def waiting(self) -> int | None:
        """How much waits for all of them."""
        counted = [each.waiting_rows for each in self.pollers if each.waiting_rows is not None]
        return sum(counted) if counted else None

    @property
    def rate(self) -> float | None:
        """Rows per second of all of them."""
        rates = [each.rows_per_second for each in self.pollers if each.rows_per_second is not None]
        return sum(rates) if rates else None

    @property
    def lag(self) -> float | None:
        """The longest of their lags."""
        return max((each.lag_seconds for each in self.pollers if each.lag_seconds is not None), default=None)

    @property
    def quarantined(self) -> int | None:
        """How many rows they have put aside."""
        counted = [each.quarantined for each in self.pollers if each.quarantined is not None]
        return sum(counted) if counted else None

    @property
    def trend(self) -> str:
        """The rows of each minute of the last hour as the points of a line."""
        histories = [_all_slots(each.history, MINUTES, self.at) for each in self.pollers]
        return _line([sum(sample.rows for _, sample in slots) for slots in zip(*histories, strict=True)])


@dataclass(frozen=True, slots=True)
class Overview:
    """The first page: every function, trouble first, and how many fare how."""

    groups: list[Group]
    conditions: dict[str, int]


def overview(status: Status) -> Overview:
    """Return the first page; partitions stand where the worst of them would."""
    named: dict[str, list[PollerStatus]] = {}
    for each in status.pollers:
        named.setdefault(each.partition_of or each.poller, []).append(each)
    conditions = Counter[str](each.condition for each in status.pollers)
    return Overview([Group(name, pollers, status.at) for name, pollers in named.items()], dict(conditions))


@dataclass(frozen=True)
class PollerView:
    """One poller's page."""

    status: PollerStatus
    at: dt.datetime
    findings: Sequence[Finding]
    entries: Sequence[Entry]
    error: str | None
    """The kind of error that its quarantine is filtered by."""
    pace: Pace

    @cached_property
    def kinds(self) -> list[tuple[str, int]]:
        """The kinds of error in its quarantine, the most frequent first."""
        return Counter(entry.row.error_type for entry in self.entries).most_common()

    @cached_property
    def shown(self) -> list[Entry]:
        """The youngest rows that the filter lets pass."""
        passing = [entry for entry in self.entries if self.error in {None, entry.row.error_type}]
        return passing[::-1][:MOST_ENTRIES]

    @property
    def hidden(self) -> int:
        """How many more there are."""
        return sum(self.error in {None, entry.row.error_type} for entry in self.entries) - len(self.shown)

    @property
    def position(self) -> str:
        """Where it stands, for people."""
        return brief({"cursor": self.status.cursor, **self.status.key} if self.status.key else self.status.cursor)

    @cached_property
    def plots(self) -> str:
        """The series of its plots as JSON."""
        hour, week = (_series(self.status.history, tier, self.at) for tier in (MINUTES, HOURS))
        return json.dumps({"hour": hour, "week": week})

    @property
    def recent(self) -> list[tuple[dt.datetime, Sample]]:
        """What was done in the last minutes that had something to do, the youngest first."""
        return samples(self.status.history, MINUTES)[: -_RECENT - 1 : -1]

    @property
    def has_history(self) -> bool:
        """Whether there is anything to plot."""
        return bool(samples(self.status.history, HOURS))


def _series(history: Any, tier: Tier, until: dt.datetime) -> dict[str, list[Any]]:
    found = list(_all_slots(history, tier, until))
    return {
        "at": [int(at.timestamp()) for at, _ in found],
        "rate": [round(sample.rows / tier.seconds, 3) for _, sample in found],
        "lag": [sample.lag_seconds for _, sample in found],
        "fetch": [_each(sample, sample.fetch_ms) for _, sample in found],
        "handler": [_each(sample, sample.handler_ms) for _, sample in found],
        "commit": [_each(sample, sample.commit_ms) for _, sample in found],
        "failures": [sample.failures for _, sample in found],
    }


def _each(sample: Sample, milliseconds: int) -> float | None:
    return round(milliseconds / sample.batches, 1) if sample.batches else None


def _all_slots(history: Any, tier: Tier, until: dt.datetime) -> Iterator[tuple[dt.datetime, Sample]]:
    """Return every slot up to now; those in which nothing was noted are empty, so that a line falls to zero there."""
    known = dict(samples(history, tier))
    last = int(until.timestamp()) // tier.seconds
    for number in range(last - tier.slots + 1, last + 1):
        at = dt.datetime.fromtimestamp(number * tier.seconds, dt.UTC)
        yield at, known.get(at, Sample())


def _line(values: list[int]) -> str:
    if len(values) < 2 or not any(values):
        return ""
    step, most = _SPARK_WIDTH / (len(values) - 1), max(values)
    return " ".join(
        f"{place * step:.0f},{_SPARK_HEIGHT - 2 - value / most * (_SPARK_HEIGHT - 4):.1f}"
        for place, value in enumerate(values)
    )


# Filters of the templates.


def number(value: float | None) -> str:
    """Return a number with thousands apart, a dash for none."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.2f}"


def duration(seconds: float | None) -> str:
    """Return a stretch of time in its two largest units, a dash for none."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    whole = int(seconds)
    for unit, size, next_unit, next_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // next_size} {next_unit}"
    return f"{whole} s"


def moment(at: dt.datetime | None) -> str:
    """Return a moment, a dash for none."""
    return NONE if at is None else f"{at:%Y-%m-%d %H:%M:%S}Z"


def brief(value: Any) -> str:
    """Return any value in a short form, with what cannot be seen escaped and without secrets."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    shortened = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}… ({len(text):,} characters)"
    return visible(masked(shortened))


def visible(text: str) -> str:
    """Return a text with control and bidi characters written out."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}" for char in text)


FILTERS = {"number": number, "duration": duration, "moment": moment, "brief": brief, "visible": visible}
