"""The rule that lets no late commit be jumped over, told without a database."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azure_functions_db.sources.keyset.horizon import (
    PendingBound,
    PendingBounds,
    SavedHorizon,
    Transaction,
    saved_horizon_in,
    written,
)


def running(*names: str, writes: bool = True) -> dict[object, Transaction]:
    return {name: Transaction(name, name, "writer", writes) for name in names}


def note(pending: PendingBounds, present: dict[object, Transaction], at: float = 0.0) -> None:
    pending.list_running(present, at=at, successors=lambda then: [present[then.key]] if then.key in present else [])


def test_a_value_is_safe_at_once_when_nobody_is_running() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0)
    note(pending, running())
    assert pending.confirmed == 7
    assert pending.is_settled


def test_a_value_waits_for_those_who_were_running_and_for_no_one_else() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0)
    note(pending, running("early"))
    note(pending, running("early", "later"))
    assert pending.confirmed is None
    note(pending, running("later"))
    assert pending.confirmed == 7


def test_the_horizon_moves_in_steps_while_transactions_overlap() -> None:
    pending = PendingBounds(None)
    pending.see(1, at=0, ripe_at=0)
    note(pending, running("a"))
    pending.see(2, at=0, ripe_at=0)
    note(pending, running("a", "b"))
    note(pending, running("b"))
    assert pending.confirmed == 1
    note(pending, running())
    assert pending.confirmed == 2


def test_a_value_ripens_before_the_running_are_listed() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0.05)
    note(pending, running(), at=0.04)
    assert pending.confirmed is None
    note(pending, running("slow"), at=0.06)
    note(pending, running(), at=0.07)
    assert pending.confirmed == 7


def test_rows_that_join_a_value_already_passed_have_a_list_of_their_own() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0, ties=1)
    note(pending, running())
    assert (pending.confirmed, pending.includes_bound) == (7, True)
    assert pending.see(7, at=0, ripe_at=0, ties=2)
    note(pending, running("early"))
    assert (pending.confirmed, pending.includes_bound) == (7, False)
    note(pending, running())
    assert (pending.confirmed, pending.includes_bound) == (7, True)


def test_rows_that_join_a_value_that_waits_are_waited_for_as_well() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0, ties=1)
    note(pending, running("reader"))
    pending.see(7, at=0, ripe_at=0, ties=2)
    note(pending, running("reader", "early"))
    note(pending, running("early"))
    assert (pending.confirmed, pending.includes_bound) == (7, False)
    note(pending, running())
    assert (pending.confirmed, pending.includes_bound) == (7, True)


def test_rows_that_are_seen_again_wait_for_no_one_else() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0, ties=2)
    note(pending, running("a"))
    for earlier, later in ("ab", "bc"):
        assert not pending.see(7, at=0, ripe_at=0, ties=2)
        note(pending, running(later)) if earlier == "b" else note(pending, running(earlier, later))
    assert pending.confirmed == 7
    assert pending.is_settled


def test_a_value_below_the_one_confirmed_is_not_covered_by_it() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0, ties=1)
    note(pending, running())
    pending.see(5, at=0, ripe_at=0, ties=2)  # the newest row was deleted
    note(pending, running("early"))
    assert (pending.confirmed, pending.includes_bound) == (5, False)


def test_whoever_holds_the_horizon_is_named() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=10, ripe_at=10)
    note(pending, running("idle"), at=10)
    horizon = pending.horizon(at=25)
    assert horizon is not None
    assert horizon.age_seconds == 15
    assert [(holder.session, holder.user, holder.age_seconds) for holder in horizon.holders] == [("idle", "writer", 15)]


def test_after_the_cap_only_writers_are_waited_for() -> None:
    pending = PendingBounds(60)
    pending.see(7, at=0, ripe_at=0)
    present = running("dump", writes=False) | running("writer")
    note(pending, present, at=1)
    note(pending, present, at=61)
    assert pending.confirmed is None
    assert {transaction.session for transaction in pending.passed_by} == {"dump"}
    note(pending, running("dump", writes=False), at=62)
    assert pending.confirmed == 7


def test_whoever_was_passed_by_is_not_waited_for_again() -> None:
    pending = PendingBounds(60)
    for moment in (0, 61, 62, 200):
        pending.see(moment, at=moment, ripe_at=moment)
        note(pending, running("dump", writes=False), at=moment)
    assert pending.confirmed == 200
    assert len(pending.passed_by) == 1
    pending.see(201, at=201, ripe_at=201)
    note(pending, running("dump"), at=201)
    assert pending.confirmed == 200  # it has written something meanwhile


def test_after_the_second_limit_nobody_is_waited_for() -> None:
    pending = PendingBounds(60, 600)
    pending.see(7, at=0, ripe_at=0)
    note(pending, running("writer"), at=0)
    note(pending, running("writer"), at=600)
    assert pending.confirmed is None
    note(pending, running("writer"), at=601)
    assert pending.confirmed == 7


def test_many_values_in_a_row_are_not_remembered_for_ever() -> None:
    pending = PendingBounds(None)
    for value in range(1000):
        pending.see(value, at=value, ripe_at=value)
        note(pending, running("long"), at=value)
    assert len(pending._waiting) < 50
    note(pending, running())
    assert pending.confirmed == 999


@dataclass
class Database:
    """Transactions that stamp, commit and are listed, in any interleaving."""

    counter: int = 0
    stamps: dict[str, list[int]] = field(default_factory=dict)
    visible: set[int] = field(default_factory=set)

    def step(self, name: str, what: str) -> None:
        match what:
            case "begin":
                self.stamps.setdefault(name, [])
            case "stamp" if name in self.stamps:
                self.counter += 1
                self.stamps[name].append(self.counter)
            case "commit" if name in self.stamps:
                self.visible.update(self.stamps.pop(name))
            case "rollback":
                self.stamps.pop(name, None)


steps = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["begin", "stamp", "stamp", "commit", "rollback", "poll"])),
    max_size=60,
)


@given(steps)
@settings(max_examples=300, deadline=None)
def test_no_interleaving_lets_a_row_be_jumped_over(interleaving: list[tuple[str, str]]) -> None:
    database, pending = Database(), PendingBounds(None)
    begun: dict[str, int] = {}
    read: set[int] = set()
    position = 0
    for name, what in interleaving:
        if what == "poll":
            pending.see(max(database.visible, default=None), at=0, ripe_at=0)
            note(pending, running(*(f"{name}{begun[name]}" for name in database.stamps)))
            page = {stamp for stamp in database.visible if position < stamp <= (pending.confirmed or 0)}
            read |= page
            position = max(page, default=position)
        else:
            if what == "begin" and name not in database.stamps:
                begun[name] = begun.get(name, 0) + 1
            database.step(name, what)
        assert {stamp for stamp in database.visible if stamp <= position} == read


def test_whoever_touches_the_rows_is_waited_for_even_when_it_came_later() -> None:
    pending = PendingBounds(None)
    later: dict[object, Transaction] = {"later": Transaction("later", "later", "writer", writes=True, touches=True)}
    pending.see(7, at=0, ripe_at=0, ties=2)
    note(pending, running("reader"))
    assert not pending.see(7, at=1, ripe_at=1, ties=2)
    note(pending, running("reader") | later)
    note(pending, later)
    assert pending.confirmed is None
    note(pending, running("other"))
    assert pending.confirmed == 7
    note(pending, later)
    assert not pending.includes_bound


def test_whoever_touches_the_rows_in_one_list_after_the_other_is_waited_for_once() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0, ties=2)
    for _ in range(3):
        note(pending, touching("writer"))
    horizon = pending.horizon(1)
    assert horizon is not None
    assert [holder.session for holder in horizon.holders] == ["writer"]


def touching(*names: str) -> dict[object, Transaction]:
    return {name: Transaction(name, name, "writer", writes=True, touches=True) for name in names}


def test_an_empty_table_has_no_value_to_wait_for() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0)
    note(pending, running())
    assert not pending.see(None, at=1, ripe_at=1)
    assert pending.is_settled


def test_whoever_has_ended_is_forgotten() -> None:
    pending = PendingBounds(60)
    pending.see(7, at=0, ripe_at=0)
    present = running("dump", writes=False) | running("writer")
    note(pending, present, at=0)
    note(pending, present, at=61)
    assert set(pending.since) == {"dump", "writer"}
    note(pending, running("writer"), at=62)
    assert (set(pending.since), list(pending.passed_by)) == ({"writer"}, [])
    note(pending, running(), at=63)
    assert pending.since == {}


def test_the_age_that_the_database_tells_counts_before_our_own_wait() -> None:
    pending = PendingBounds(None)
    assert pending.horizon(at=0) is None
    pending.see(7, at=10, ripe_at=20)
    assert pending.horizon(at=15) is None, "who holds it is not known before it is ripe"
    assert pending.oldest is None
    note(pending, {"old": Transaction("old", "old", None, writes=True, age_seconds=500.0)}, at=20)
    horizon = pending.horizon(at=25)
    assert horizon is not None
    assert [holder.age_seconds for holder in horizon.holders] == [500.0]
    assert pending.oldest is not None
    assert pending.oldest.running is not None


def test_a_transaction_under_another_name_is_the_same_one_for_the_cap() -> None:
    pending = PendingBounds(60)
    anonymous, named = running("anonymous", writes=False), running("named", writes=False)
    pending.resume(PendingBound(7, None, 20, 20, list(anonymous.values())), [], {"anonymous": 0.0})
    pending.list_running(named, at=50, successors=lambda _then: named.values())
    assert pending.since == {"named": 0.0}
    note(pending, named, at=61)
    assert pending.confirmed == 7


def test_another_process_goes_on_waiting_from_when_the_first_began() -> None:
    pending = PendingBounds(60)
    dump = running("dump", writes=False)
    assert pending.is_new
    pending.resume(PendingBound(7, None, 0, 0, list(dump.values())), [], {"dump": 0.0})
    assert not pending.is_new
    note(pending, dump | running("later"), at=59)
    assert pending.confirmed is None
    note(pending, dump | running("later"), at=61)
    assert pending.confirmed == 7
    assert [transaction.session for transaction in pending.passed_by] == ["dump"]


def test_another_process_does_not_wait_again_for_whoever_was_passed_by() -> None:
    pending = PendingBounds(60, 600)
    gone = touching("gone")
    pending.resume(None, gone.values(), {"gone": -700.0})
    assert [transaction.session for transaction in pending.passed_by] == ["gone"]
    pending.see(7, at=0, ripe_at=0, ties=2)
    note(pending, gone, at=0)
    assert pending.confirmed == 7
    note(pending, gone, at=1)
    assert pending.includes_bound
    assert [transaction.session for transaction in pending.passed_by] == ["gone"]


def test_whoever_comes_later_and_touches_nothing_or_a_value_of_one_row_is_not_waited_for() -> None:
    for ties, later in ((2, running("later")), (1, touching("later")), (None, touching("later"))):
        pending = PendingBounds(None)
        pending.see(7, at=0, ripe_at=0, ties=ties)
        note(pending, running())
        note(pending, later)
        assert (pending.confirmed, pending.includes_bound, pending.is_settled) == (7, True, True)
    fresh = PendingBounds(None)
    note(fresh, touching("later"))
    assert fresh.is_settled, "nothing was seen so far"


def test_whoever_touches_the_rows_before_the_newest_value_is_ripe_is_in_its_list() -> None:
    pending = PendingBounds(60, 600)
    pending.see(7, at=0, ripe_at=10, ties=2)
    note(pending, touching("early"), at=5)
    assert pending.since == {"early": 5}
    note(pending, touching("early"), at=10)
    assert pending.confirmed is None
    note(pending, running(), at=11)
    assert pending.confirmed == 7


def test_a_value_of_another_type_is_compared_with_nothing() -> None:
    pending = PendingBounds(None)
    pending.see(7, at=0, ripe_at=0)
    note(pending, running())
    pending.see("text", at=1, ripe_at=1)
    note(pending, running("early"), at=1)
    assert (pending.confirmed, pending.includes_bound) == (7, True)
    note(pending, running(), at=2)
    pending.see("earlier", at=3, ripe_at=3)
    note(pending, running("early"), at=3)
    assert (pending.confirmed, pending.includes_bound) == ("text", True), "how texts are ordered, only databases know"
    pending.see(5, at=4, ripe_at=4)
    note(pending, running("early"), at=4)
    assert (pending.confirmed, pending.includes_bound) == ("text", True)


def test_what_is_remembered_goes_through_json_and_is_small() -> None:
    saved = SavedHorizon(server="s", bound=7, ties=2, waits={"t1": 5.0}, passed={"t2": 1.5})
    assert saved_horizon_in(json.loads(json.dumps(written(saved)))) == saved
    assert written(SavedHorizon(server="s", bound=7)) is None, "nobody is waited for"
    assert written(SavedHorizon(server="s", bound=7, waits={f"t{number}": 5.0 for number in range(500)})) is None
    assert written(SavedHorizon(server="s", passed={"t2": 1.5})) is not None


@pytest.mark.parametrize(
    "change",
    [{"server": 5}, {"waits": []}, {"waits": {"t1": "long"}}, {"waits": {"t1": math.inf}}, {"passed": {"t1": math.nan}},
     {"ties": "two"}, {"bound": {"type": "unheard of", "value": 1}}],
)  # fmt: skip
def test_what_cannot_be_read_is_forgotten(change: dict[str, Any]) -> None:
    part = written(SavedHorizon(server="s", bound=7, ties=2, waits={"t1": 5.0}, passed={"t2": 1.5}))
    assert part is not None
    assert saved_horizon_in(part | change) is None
