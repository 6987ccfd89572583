"""For each guard: the fault it is there for, with and without it. Without it the judge must complain."""

from __future__ import annotations

import pytest

from tests.chaos.poller import POISON_EVERY
from tests.chaos.scene import Scene, removing
from tests.support.waiting import wait_for


@removing("fencing")
def test_a_holder_that_slept_through_its_lease_cannot_commit(scene: Scene, without: str) -> None:
    scene.write(1, 2, 3)
    scene.start("sleeper", hold=["commit"])
    scene.start("successor", hold=["start"])
    scene.wait_for(what="waits", who="sleeper", place="commit")
    scene.let_go("successor", "start")
    scene.wait_for(what="committed", who="successor")
    scene.let_go("sleeper", "commit")
    if without:
        scene.wait_for(who="sleeper", what="committed")
    else:
        scene.wait_for(who="sleeper", what="failed", error="LostLeaseError")

    verdict = scene.verdict()
    assert bool(verdict.stale) is bool(without)
    assert verdict.concurrent == verdict.lost == []


@removing("etag")
def test_of_two_that_take_the_lease_in_the_same_moment_one_gets_it(scene: Scene, without: str) -> None:
    scene.write(1, 2, 3)
    for who in ("left", "right"):
        scene.start(who, hold=["take", "handler"])
    scene.wait_for(2, what="waits", place="take")
    idle = len(scene.seen(what="ticked"))
    for who in ("left", "right"):
        scene.let_go(who, "take")
    scene.wait_for(what="begin")
    # The other one begins as well, or finds the lease taken.
    wait_for(lambda: len(scene.seen(what="begin")) + len(scene.seen(what="ticked")) >= 2 + idle, 30, "no second")
    for begun in scene.seen(what="begin"):
        scene.wait_for(len(scene.seen(what="alive", call=begun["call"])) + 2, what="alive", call=begun["call"])
    for who in ("left", "right"):
        scene.let_go(who, "handler")
    scene.wait_for(what="committed")

    verdict = scene.verdict()
    assert bool(verdict.concurrent) is bool(without)
    assert bool(verdict.stale) is bool(without)


@removing("horizon")
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_row_that_commits_late_is_not_jumped_over(scene: Scene, without: str) -> None:
    with scene.engine.connect() as late:
        scene.insert(late, 1)
        scene.write(2)
        scene.start("poller")
        scene.wait_for(what="ticked")
        late.commit()
    scene.write(3)
    scene.wait_for_row(3)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == verdict.stale == []


@removing("quarantine_first")
def test_a_poison_row_is_in_the_sink_before_the_checkpoint_passes_it(scene: Scene, without: str) -> None:
    scene.write(*range(1, 5), POISON_EVERY, *range(6, 10))
    scene.start("victim", hold=["sink"])
    scene.start("successor", hold=["start"])
    scene.wait_for(what="waits", who="victim", place="sink")
    scene.kill("victim")
    scene.write(10)
    scene.let_go("successor", "start")
    scene.wait_for_row(10)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == verdict.stale == []


@removing("heartbeat")
def test_a_handler_of_three_times_the_ttl_gets_through_beside_a_competitor(scene: Scene, without: str) -> None:
    scene.write(1, 2, 3)
    for who in ("left", "right"):
        scene.start(who, overtime=1.0)
    scene.wait_for(2 if without else 1, what="told" if without else "committed")

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == verdict.stale == []


@removing("own_clock")
def test_a_holder_that_cannot_reach_the_storage_stops_in_time(scene: Scene, without: str) -> None:
    scene.write(1, 2, 3)
    scene.start("hermit", hold=["handler"])
    scene.start("successor", hold=["start", "handler"])
    scene.wait_for(what="begin", who="hermit")
    scene.sky.turn(**{"cut off": "hermit"})
    scene.let_go("successor", "start")
    scene.wait_for(what="begin", who="successor")
    if without:
        scene.wait_for(len(scene.seen(what="alive", who="hermit")) + 2, what="alive", who="hermit")
    else:
        scene.wait_for(what="told", who="hermit")
    scene.let_go("successor", "handler")
    scene.wait_for(what="committed", who="successor")
    scene.let_go("hermit", "handler")

    verdict = scene.verdict()
    assert bool(verdict.concurrent) is bool(without)
    assert verdict.lost == verdict.stale == []


@pytest.mark.parametrize("without", [""])
def test_a_clock_far_beyond_the_margin_can_steal_a_lease_but_loses_nothing(scene: Scene) -> None:
    scene.write(1, 2, 3)
    scene.sky.turn(**{"clock of hasty": 3600})
    scene.start("steady", hold=["handler"])
    scene.start("hasty", hold=["start"])
    scene.wait_for(what="begin", who="steady")
    scene.let_go("hasty", "start")
    scene.wait_for(what="committed", who="hasty")
    scene.wait_for(what="told", who="steady")

    verdict = scene.verdict()
    assert verdict.lost == verdict.stale == []


@removing("lost_positions")
@pytest.mark.parametrize("server", ["postgres_log"])
def test_what_a_slot_has_lost_is_read_from_the_table(scene: Scene, without: str) -> None:
    scene.start("one", reads_log=True)
    scene.write(1)
    scene.wait_for_row(1)
    scene.wait_for_ticks()  # what is killed has committed it
    scene.kill("one")
    scene.write(2)
    drop = "SELECT pg_drop_replication_slot('scene')"
    wait_for(lambda: scene.succeeds(drop), 30, "the slot is never free")
    scene.execute("SELECT pg_create_logical_replication_slot('scene', 'pgoutput')")
    scene.start("two", reads_log=True)
    scene.write(3)
    scene.wait_for_row(3)
    assert bool(scene.verdict().lost) is bool(without)
