"""Finds the rows that the handler cannot digest: what to try next, and what the answers mean."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Reason = BaseException | str


class Search:
    """Tries ever smaller parts of a batch, always in order.

    A row that fails alone is a suspect. It is a culprit once the handler has digested something
    after it: that tells a bad row from an outage, in which everything fails. Where no later row
    is left to show it, the last good row is tried once more. An outage ends the search.
    """

    def __init__(self, size: int, *, chunk: int, patience: int, whole_failed: bool) -> None:
        self._parts = deque(range(start, min(start + chunk, size)) for start in range(0, size, chunk))
        self._patience = patience
        self._probing = False
        self._suspects: dict[int, Reason] = {}
        self.culprits: dict[int, Reason] = {}
        self.good: list[int] = []
        self.is_outage = False
        if whole_failed:
            self._split(self._parts.popleft())

    def next_part(self) -> range | None:
        """Return the rows to try next, None when the search is over."""
        if self.is_outage:
            return None
        if self._suspects and (not self._parts or len(self._suspects) >= self._patience):
            return self._probe()
        return self._parts[0] if self._parts else None

    def digested(self) -> None:
        """Learn that the handler digested the part."""
        self._confirm()
        if self._probing:
            self._probing = False
        else:
            self.good.extend(self._parts.popleft())

    def refused(self, reason: Reason) -> None:
        """Learn that the handler failed on the part."""
        if self._probing:
            self.is_outage = True
            return
        part = self._parts.popleft()
        if len(part) == 1:
            self._suspects[part[0]] = reason
        else:
            self._split(part)

    def named(self, failures: Mapping[int, Reason]) -> None:
        """Learn that the handler failed on these rows of the part and digested the others."""
        if self._probing:
            self.is_outage = True
            return
        part = self._parts.popleft()
        digested = [row for row in part if row not in failures]
        if digested:
            self._confirm()
            self.culprits.update(failures)
            self.good.extend(digested)
        else:
            self._suspects.update(failures)

    def _probe(self) -> range | None:
        if not self.good:
            self.is_outage = True
            return None
        self._probing = True
        return range(self.good[-1], self.good[-1] + 1)

    def _confirm(self) -> None:
        self.culprits.update(self._suspects)
        self._suspects.clear()

    def _split(self, part: range) -> None:
        middle = (len(part) + 1) // 2
        halves = [half for half in (part[:middle], part[middle:]) if half]
        self._parts.extendleft(reversed(halves))
