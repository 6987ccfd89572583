"""The rule that lets no late commit be jumped over, told without a database."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from azure_functions_db.sources.keyset.bounds import PendingBounds, Transaction


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
