"""Without each of the guards, the simulator finds a history that goes wrong: one that is kept, or another."""

from __future__ import annotations

import pytest

from tests.simulation.guards import GUARDS
from tests.simulation.history import played, shrunk
from tests.simulation.kept import KEPT, first_found
from tests.simulation.plan import Plan

_MOST = 300


@pytest.mark.parametrize("guard", GUARDS)
def test_a_missing_guard_is_found(guard: str) -> None:
    assert first_found(guard, _MOST, KEPT[guard]) is not None


@pytest.mark.parametrize("guard", GUARDS)
def test_a_kept_history_goes_well_with_every_guard(guard: str) -> None:
    for seed, world in KEPT[guard]:
        assert played(Plan.of(seed, world)).complaints == []


def test_a_wrong_history_is_told_in_fewer_words() -> None:
    from tests.simulation.guards import taken_away

    [(seed, world)] = KEPT["quarantine_first"]
    with taken_away("quarantine_first"):
        history = played(Plan.of(seed, world))
        shorter = shrunk(history)
    assert shorter.guarantees & history.guarantees
    assert len(shorter.story) <= len(history.story)
    assert len(shorter.struck) <= len(history.struck)
