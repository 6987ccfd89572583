"""A tick that has drained its backlog stays and looks again: how often, for how long, and what ends it early."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
