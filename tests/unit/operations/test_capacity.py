"""Many partitions on many workers, by the simulation that the capacity page is drawn from."""

from __future__ import annotations

import pytest

from tools.capacity import Scene, simulated, waits_after

TTL, MARGIN, INTERVAL = 40.0, 5.0, 5.0
FLEET = {
    "partitions": 100,
    "workers": 20,
    "ttl": TTL,
    "interval": INTERVAL,
    "handler": 1.5,
    "seconds": 90.0,
    "at": 31.5,
}


@pytest.mark.parametrize("seed", [1, 2])
def test_every_partition_is_handled_in_the_first_round(seed: int) -> None:
    figures = simulated(Scene(**{**FLEET, "seconds": 20.0}), seed)  # type: ignore[arg-type]
    waits = waits_after(figures, 0.0)
    assert len(waits) == 100
    assert waits[-1] < 2 * INTERVAL
    assert figures.together == 0


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("deaths", "restart"), [(0.5, False), (1.0, True)], ids=["half die", "killed and restarted"])
def test_what_the_dead_held_is_taken_over_once_its_lease_has_expired(seed: int, deaths: float, restart: bool) -> None:
    scene = Scene(**FLEET, deaths=deaths, restart=restart)  # type: ignore[arg-type]
    figures = simulated(scene, seed)
    waits = waits_after(figures, scene.at)
    assert TTL - INTERVAL < waits[-1] < TTL + MARGIN + 2 * INTERVAL  # somebody had died at work, and all are served
    assert figures.together == 0
    assert figures.lost_races < 0.02 * figures.takes
    assert max(figures.requests.values()) < 5 * scene.partitions  # nobody storms


def test_a_slow_partition_holds_up_nobody_else() -> None:
    figures = simulated(Scene(**FLEET, slow=70.0))  # type: ignore[arg-type]
    waits = waits_after(figures, 0.0)
    assert waits[-1] > 70
    assert waits[-2] < 2 * INTERVAL
    assert figures.longest_queue <= 2 * 100


def test_two_messages_for_one_partition_do_not_meet() -> None:
    """The timer is faster than the workers: rounds overlap, and whoever comes second is skipped or loses the race."""
    figures = simulated(Scene(**{**FLEET, "handler": 8.0, "interval": 2.0, "seconds": 40.0}))  # type: ignore[arg-type]
    assert figures.skipped > 0
    assert figures.together == 0
