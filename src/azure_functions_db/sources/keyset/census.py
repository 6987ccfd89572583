"""Counts, now and then, the rows that a poll can never reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_EVERY_SECONDS = 3600.0


class Census:
    """Counts when the first page is read, and every hour after that."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due_at: float | None = None

    def taken(self, count: Callable[[], int]) -> int | None:
        """Return the number if it is time to count, None in between."""
        now = self._clock()
        if self._due_at is not None and now < self._due_at:
            return None
        self._due_at = now + _EVERY_SECONDS
        return count()
