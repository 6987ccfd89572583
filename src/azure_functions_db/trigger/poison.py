"""Finds the rows that the handler cannot digest: what to try next, and what the answers mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

Reason = BaseException | str

# How many rows behind a suspect are tried in one tick, and how far the ticks get before they begin again.
_PATIENCE = 10
_FURTHEST = 1000
# Each time a suspect has failed, another row must be digested before it is tried again. An outage has to begin
# and to end twice within five calls to make a good row look like that.
_LAST_PROOF = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How far the search through a failed batch has come; it fits beside the checkpoint.

    Ever smaller parts of the batch are tried, in order, and committed once they are digested. A row
    that fails alone is a suspect: some row behind it has to be digested, then the suspect is tried
    again. Poison fails each time. In an outage, where everything fails, there is no such witness, and
    once the outage is over the suspect is digested.
    """

    parts: tuple[int, ...]
    """The number of rows in each part that is still to be tried."""
    suspect: str | None = None
    """The id of the event that failed alone."""
    proofs: int = 0
    """How often the suspect has failed and a witness was digested, in turn."""
    ahead: int = 0
    """How many rows behind the suspect have been tried as witnesses and failed, too."""

    @classmethod
    def through(cls, rows: int, *, named: bool) -> Self:
        """Return the search through a failed batch; where rows were named, it is tried as a whole once more."""
        return cls(parts=(rows,) if named else _halves(rows))

    @classmethod
    def noted_in(cls, written: object, most: int) -> Self | None:
        """Return the search that was noted; None for no such note, or one of larger batches than are wanted now."""
        match written:
            case {
                "parts": [_, *_] as parts,
                "suspect": None | str() as suspect,
                "proofs": 0 | 1 | 2 | 3 | 4 as proofs,
                "ahead": int() as ahead,
            } if ahead >= 0 and all(part in range(1, most + 1) for part in parts):
                return cls(parts=tuple(parts), suspect=suspect, proofs=proofs, ahead=ahead)
            case _:
                return None

    def noted(self) -> dict[str, Any]:
        """Return the JSON form that `noted_in` reads."""
        return {**asdict(self), "parts": list(self.parts)}

    @property
    def needs_witness(self) -> bool:
        """Whether a row behind the suspect is to be tried next."""
        return self.proofs % 2 == 1

    @property
    def rows(self) -> range:
        """The rows to try next, counted from the checkpoint."""
        return range(1 + self.ahead, 2 + self.ahead) if self.needs_witness else range(self.parts[0])

    @property
    def convicts(self) -> bool:
        """Whether the suspect is poison if it fails now."""
        return self.proofs == _LAST_PROOF

    def facing(self, event_id: str) -> Search:
        """Return the search at this first row: what is known of another one does not count against it."""
        return self if self.proofs == 0 or event_id == self.suspect else replace(self, suspect=None, proofs=0, ahead=0)

    def refused(self, event_id: str) -> Search:
        """Learn that the handler failed on what was tried; the event is the first behind the checkpoint."""
        if self.needs_witness:
            return self._without_witness()
        if self.parts[0] > 1:
            return replace(self, parts=(*_halves(self.parts[0]), *self.parts[1:]))
        return replace(self, suspect=event_id, proofs=self.proofs + 1)

    def witnessed(self) -> Search:
        """Learn that the handler digested a row behind the suspect."""
        return replace(self, proofs=self.proofs + 1)

    def passed(self, rows: int, *, more: bool) -> Search | None:
        """Learn that so many rows were digested and committed; None when the search is over."""
        left = self.parts[0] - rows
        parts = self.parts[1:] if left <= 0 else (left, *self.parts[1:])
        return Search(parts=parts) if parts and more else None

    def convicted(self, *, more: bool) -> Search | None:
        """Learn that the suspect was put aside; None when the search is over."""
        rest = self.passed(1, more=more)
        return rest and replace(rest, ahead=max(0, self.ahead - 1))

    def given_up(self) -> Search:
        """Return the search for a later tick, which tries the suspect itself and then the nearest rows again."""
        return replace(self, suspect=None, proofs=0, ahead=0)

    def _without_witness(self) -> Search:
        if self.proofs == 1 and (self.ahead + 1) % _PATIENCE:
            return replace(self, ahead=self.ahead + 1)
        # Enough for one tick: a later one begins with the suspect itself and looks further from here.
        ahead = self.ahead + (self.proofs == 1)
        return replace(self.given_up(), ahead=ahead if ahead < _FURTHEST else 0)


def _halves(rows: int) -> tuple[int, ...]:
    return tuple(half for half in ((rows + 1) // 2, rows // 2) if half)
