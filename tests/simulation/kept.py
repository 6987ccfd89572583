"""Seeds worth keeping: for each guard, and each bug that was found, one history that goes wrong without it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.guards import taken_away
from tests.simulation.history import played
from tests.simulation.plan import Plan

KEPT: dict[str, list[tuple[int, str | None]]] = {
    "fencing": [(501, None)],
    "conditional_writes": [(2, None)],
    "takers_margin": [(6914, None)],
    "holders_margin": [(435, "keyset")],
    "own_clock": [(57, None)],
    "heartbeat": [(1, None)],
    "check": [(57, None)],
    "release_of_own": [(518, None)],
    "take_of_the_looked_at": [(37, None)],
    "ghosts": [(1, None)],
    "fingerprints": [(37, None)],
    "noted_beside_the_looked_at": [(779, None)],
    "lost_answers": [(30, None)],
    "late_commits": [(291, None)],
    "ambiguous_commits": [(11, None)],
    "acknowledge_last": [(1, None)],
    "idle_commits": [(5, "postgres")],
    "start": [(293, "postgres")],
    "start_once_joined": [(13079, "postgres")],
    "losses_of_the_holder": [(828, None)],
    "parts": [(17, None)],
    "pages_of_their_position": [(23, None)],
    "turns_at_a_reader": [(23, None)],
    "acknowledged_in_turn": [(4, None)],
    "one_page_ahead": [(4, None)],
    "check_before_the_call": [(34, None)],
    "cancellation": [(237, None)],
    "watched_clock": [(253, None)],
    "end_of_the_cancelled": [(237, None)],
    "end_of_the_tick": [(139, None)],
    "one_transaction": [(0, None)],
    "doubt": [(101, None)],
    "quarantine_first": [(12, None)],
    "taken_back_first": [(201, None)],
    "aside_is_noted": [(367, None)],
    "taken_back_as_listed": [(5009885, None)],
    "attempts": [(23, None)],
    "witnesses": [(74, None)],
    "removal_of_delivered": [(1, None)],
    "rows_anew": [(177, None)],
    "gaps_told": [(77, None)],
    "lost_positions": [(3, None)],
    "looks_of_their_holding": [(2306, "postgres")],
    "timelines": [(77, None)],
    "later_pages": [(1569, "postgres")],
    "names_by_timeline": [(2401, "postgres")],
    "invisible_commits": [(633, "postgres")],
    "resumption": [(15, None)],
}
"""By guard, the seeds that miss it, each with the world that it is played in: that of the seed where it is None."""


def first_found(guard: str, most: int, seeds: Iterable[tuple[int, str | None]] = ()) -> tuple[int, str] | None:
    """Return the first seed whose history goes wrong without a guard, and in which way; kept ones are tried first."""
    with taken_away(guard):
        for seed, world in (*seeds, *((seed, None) for seed in range(most))):
            complaints = played(Plan.of(seed, world)).complaints
            if complaints:
                return seed, complaints[0]
    return None
