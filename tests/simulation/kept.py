"""Seeds worth keeping: for each guard, and each bug that was found, one history that goes wrong without it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.guards import taken_away
from tests.simulation.history import played
from tests.simulation.plan import Plan

KEPT: dict[str, tuple[int, str]] = {}
"""By guard, a seed and the world that it was found in."""


def first_found(guard: str, most: int, seeds: Iterable[tuple[int, str | None]] = ()) -> tuple[int, str] | None:
    """Return the first seed whose history goes wrong without a guard, and in which way; kept ones are tried first."""
    with taken_away(guard):
        for seed, world in (*seeds, *((seed, None) for seed in range(most))):
            complaints = played(Plan.of(seed, world)).complaints
            if complaints:
                return seed, complaints[0]
    return None
