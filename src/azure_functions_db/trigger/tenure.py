"""How long a lease is ours, by our own clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def margin_of(ttl_seconds: float) -> float:
    """Return the distance to the expiry at which a holder gives up and a taker still waits."""
    return min(5.0, ttl_seconds / 4)


class Tenure:
    """Is set once the lease is lost: told so, or not renewed in time.

    It asks the clock itself, so a renewal that hangs cannot keep a lost lease alive.
    """

    def __init__(self, ttl_seconds: float, began: float, clock: Callable[[], float]) -> None:
        self._length = ttl_seconds - margin_of(ttl_seconds)
        self._clock = clock
        self._began = began
        self._lost = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    def extend(self, began: float) -> None:
        """Count the ttl anew from the moment at which a renewal was sent."""
        self._began = began

    def lose(self) -> None:
        """Take note that the lease is gone."""
        if not self._lost.is_set():
            self._lost.set()
            for listener in tuple(self._listeners):
                listener()

    def on_loss(self, listener: Callable[[], None]) -> None:
        """Call the listener when the lease is told lost; at once when it already is."""
        self._listeners.append(listener)
        if self._lost.is_set():
            listener()

    def age(self) -> float:
        """Return the seconds since the lease was last asked for."""
        return self._clock() - self._began

    def remaining(self) -> float:
        """Return the seconds that are left unless the lease is renewed."""
        return max(0.0, self._length - self.age())

    def is_set(self) -> bool:
        """Tell whether the lease is lost by now."""
        if not self._lost.is_set() and self.age() >= self._length:
            self.lose()
        return self._lost.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost or the time is up; tell which."""
        until = None if timeout is None else self._clock() + timeout
        while not self.is_set():
            left = None if until is None else until - self._clock()
            if left is not None and left <= 0:
                return False
            self._lost.wait(self.remaining() if left is None else min(left, self.remaining()))
        return True
