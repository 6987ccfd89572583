"""How fast ticks go: one stays and looks again, reads the next page ahead, and tells the next how long it waited."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from azure_functions_db.core.bridge import in_background

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.types import FetchResult, Position
    from azure_functions_db.trigger.normalizers import EarlyEvents


# While nothing comes, a tenth of the quiet so far passes between two looks, up to this.
_LONGEST_PAUSE = 2.0
_PART_OF_QUIET = 0.1
# What others hold back, the late commits, is usually free within milliseconds.
_SHORTEST_PAUSE = 0.02


class Linger:
    """How long one tick stays, counted from its beginning, and how long it pauses between two looks."""

    def __init__(
        self, seconds: float, interval: float, began: float, *, clock: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        self._until = began + seconds
        self._interval = interval
        self._clock = clock
        self._wake = wake
        self._quiet_since = began
        self._next_try = _SHORTEST_PAUSE
        self._is_ended = False
        with _lock:
            _all.add(self)

    def lasts(self, most: float) -> bool:
        """Tell whether the tick may stay for one more look, where so many seconds at most are left for pauses."""
        return not self._is_ended and min(most, self._until - self._clock()) >= _SHORTEST_PAUSE

    def end(self) -> None:
        """Let the tick go home, though not out of a batch; callable from any thread."""
        self._is_ended = True
        self._wake()

    def note_change(self) -> None:
        """Take note that something has come: more is likely to follow."""
        self._quiet_since, self._next_try = self._clock(), _SHORTEST_PAUSE

    def pause(self, most: float, *, held_back: bool) -> float:
        """Return how long to wait before the next look; not for long where changes are there and held back."""
        quiet = self._clock() - self._quiet_since
        longest = max(self._interval, min(_LONGEST_PAUSE, quiet * _PART_OF_QUIET))
        length = min(longest, self._next_try) if held_back else longest
        self._next_try = self._next_try * 2 if held_back else _SHORTEST_PAUSE
        return min(length, most, self._until - self._clock())


_all: weakref.WeakSet[Linger] = weakref.WeakSet()
_lock = threading.Lock()


def end_lingering() -> None:
    """Let every tick of this process that lingers, or is about to, end by itself: the process is to end."""
    with _lock:
        present = list(_all)
    for linger in present:
        linger.end()


WORTHWHILE_SECONDS = 0.00015
"""Where nobody waits for longer than this nothing is gained: for two threads to take turns costs a third of it."""


class Page(NamedTuple):
    """What a source gave, and its events where they are made already."""

    result: FetchResult
    events: EarlyEvents | None = None


class PageAhead:
    """A page that is read before it is due, from the position where it will be wanted.

    What became of it counts only then: one that could not be read is read again in its turn, and that tells why.
    """

    def __init__(self, position: Position, page: Future[Page], *, is_here: bool) -> None:
        self._position = position
        self._page = page
        self.is_here = is_here
        """Whether it was read in the tick's own thread, and nobody has to wait for it."""

    @classmethod
    def read(cls, position: Position, read: Callable[[], FetchResult]) -> Self:
        """Read the page here and now."""
        page: Future[Page] = Future()
        try:
            page.set_result(Page(read()))
        except Exception as error:  # noqa: BLE001 - told in its turn
            page.set_exception(error)
        return cls(position, page, is_here=True)

    @classmethod
    def begin(cls, position: Position, read: Callable[[], Page], *, at_once: bool) -> Self | None:
        """Read the page in another thread, see `in_background`; None where the process ends and none can be had."""
        try:
            return cls(position, in_background(read, at_once=at_once), is_here=False)
        except RuntimeError:
            return None

    @property
    def is_done(self) -> bool:
        """Whether nobody is reading any more."""
        return self._page.done()

    def at(self, position: Position) -> Page | None:
        """Wait for the page and return it; None where it belongs elsewhere, or could not be read."""
        self.wait()
        is_wanted = self._position == position and self._page.exception() is None
        return self._page.result() if is_wanted else None

    def wait(self) -> None:
        """Wait until nobody is reading any more: a reader serves one at a time."""
        self._page.exception()


def _few_waits() -> deque[float]:
    return deque([0.0] * 3, maxlen=3)


@dataclass(slots=True)
class Pace:
    """What a poller's ticks in one process tell each other."""

    commit_ms: float = 0.0
    """How long the last commit took."""
    fetch_waits: deque[float] = field(default_factory=_few_waits)
    """For how many seconds the last few reads did not compute: they waited for others."""
    handler_waits: deque[float] = field(default_factory=_few_waits)
    """The same of the handler's last few calls."""

    @property
    def waited(self) -> float:
        """For how long reads or handler wait each time: now and then, everybody waits for a busy machine."""
        return max(min(self.fetch_waits), min(self.handler_waits))

    @property
    def is_read_at_once(self) -> bool:
        """Whether the next page had better be asked for before the handler is called: it waits less than a read does.

        A handler that waits for long lets the read begin by that, and is not kept from beginning itself.
        """
        return min(self.fetch_waits) > min(self.handler_waits)
