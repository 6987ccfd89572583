"""A clock for tests."""

from __future__ import annotations

import datetime as dt


class FakeClock:
    """Stands still until it is told to move; give it wherever a ``clock=`` is asked for."""

    def __init__(self, now: dt.datetime | None = None) -> None:
        self.now = now or dt.datetime(2026, 4, 7, 1, 23, 45, tzinfo=dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass, backwards too."""
        self.now += dt.timedelta(seconds=seconds)

    def monotonic(self) -> float:
        """Return the time in seconds, for what measures spans."""
        return self.now.timestamp()

    def sleep(self, seconds: float) -> None:
        """Pass the time at once, for what would wait."""
        self.advance(seconds)
