"""The rule that lets no late commit be jumped over, told without a database."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from azure_functions_db.sources.keyset.bounds import Generations, Transaction


def running(*names: str, writes: bool = True) -> dict[object, Transaction]:
    return {name: Transaction(name, name, "writer", writes) for name in names}


def note(generations: Generations, present: dict[object, Transaction], at: float = 0.0) -> None:
    generations.list_running(present, at=at, successors=lambda then: [present[then.key]] if then.key in present else [])


def test_a_value_is_safe_at_once_when_nobody_is_running() -> None:
    generations = Generations(None)
    generations.see(7, at=0, ripe_at=0)
    note(generations, running())
    assert generations.confirmed == 7
    assert generations.is_settled


def test_a_value_waits_for_those_who_were_running_and_for_no_one_else() -> None:
    generations = Generations(None)
    generations.see(7, at=0, ripe_at=0)
    note(generations, running("early"))
    note(generations, running("early", "later"))
    assert generations.confirmed is None
    note(generations, running("later"))
    assert generations.confirmed == 7


def test_the_horizon_moves_in_steps_while_transactions_overlap() -> None:
    generations = Generations(None)
    generations.see(1, at=0, ripe_at=0)
    note(generations, running("a"))
    generations.see(2, at=0, ripe_at=0)
    note(generations, running("a", "b"))
    note(generations, running("b"))
    assert generations.confirmed == 1
    note(generations, running())
    assert generations.confirmed == 2


def test_a_value_ripens_before_the_running_are_listed() -> None:
    generations = Generations(None)
    generations.see(7, at=0, ripe_at=0.05)
    note(generations, running(), at=0.04)
    assert generations.confirmed is None
    note(generations, running("slow"), at=0.06)
    note(generations, running(), at=0.07)
    assert generations.confirmed == 7


def test_rows_that_join_a_value_already_passed_have_a_list_of_their_own() -> None:
    generations = Generations(None)
    generations.see(7, at=0, ripe_at=0, ties=1)
    note(generations, running())
    assert (generations.confirmed, generations.includes_bound) == (7, True)
    assert generations.see(7, at=0, ripe_at=0, ties=2)
    note(generations, running("early"))
    assert (generations.confirmed, generations.includes_bound) == (7, False)
    note(generations, running())
    assert (generations.confirmed, generations.includes_bound) == (7, True)


def test_rows_that_join_a_value_that_waits_are_waited_for_as_well() -> None:
    generations = Generations(None)
    generations.see(7, at=0, ripe_at=0, ties=1)
    note(generations, running("reader"))
    generations.see(7, at=0, ripe_at=0, ties=2)
    note(generations, running("reader", "early"))
    note(generations, running("early"))
    assert (generations.confirmed, generations.includes_bound) == (7, False)
    note(generations, running())
    assert (generations.confirmed, generations.includes_bound) == (7, True)


def test_rows_that_are_seen_again_wait_for_no_one_else() -> None:
    generations = Generations(None)
    generations.see(7, at=0, ripe_at=0, ties=2)
    note(generations, running("a"))
    for earlier, later in ("ab", "bc"):
        assert not generations.see(7, at=0, ripe_at=0, ties=2)
        note(generations, running(later)) if earlier == "b" else note(generations, running(earlier, later))
    assert generations.confirmed == 7
    assert generations.is_settled


def test_a_value_below_the_one_confirmed_is_not_covered_by_it() -> None:
    generations = Generations(None)
    generations.see(7, at=0, ripe_at=0, ties=1)
    note(generations, running())
    generations.see(5, at=0, ripe_at=0, ties=2)  # the newest row was deleted
    note(generations, running("early"))
    assert (generations.confirmed, generations.includes_bound) == (5, False)


def test_whoever_holds_the_horizon_is_named() -> None:
    generations = Generations(None)
    generations.see(7, at=10, ripe_at=10)
    note(generations, running("idle"), at=10)
    horizon = generations.horizon(at=25)
    assert horizon is not None
    assert horizon.age_seconds == 15
    assert [(holder.session, holder.user, holder.age_seconds) for holder in horizon.holders] == [("idle", "writer", 15)]


def test_after_the_cap_only_writers_are_waited_for() -> None:
    generations = Generations(60)
    generations.see(7, at=0, ripe_at=0)
    present = running("dump", writes=False) | running("writer")
    note(generations, present, at=1)
    note(generations, present, at=61)
    assert generations.confirmed is None
    assert {transaction.session for transaction in generations.passed_by} == {"dump"}
    note(generations, running("dump", writes=False), at=62)
    assert generations.confirmed == 7


def test_whoever_was_passed_by_is_not_waited_for_again() -> None:
    generations = Generations(60)
    for moment in (0, 61, 62, 200):
        generations.see(moment, at=moment, ripe_at=moment)
        note(generations, running("dump", writes=False), at=moment)
    assert generations.confirmed == 200
    assert len(generations.passed_by) == 1
    generations.see(201, at=201, ripe_at=201)
    note(generations, running("dump"), at=201)
    assert generations.confirmed == 200  # it has written something meanwhile


def test_after_the_second_limit_nobody_is_waited_for() -> None:
    generations = Generations(60, 600)
    generations.see(7, at=0, ripe_at=0)
    note(generations, running("writer"), at=0)
    note(generations, running("writer"), at=600)
    assert generations.confirmed is None
    note(generations, running("writer"), at=601)
    assert generations.confirmed == 7


def test_many_values_in_a_row_are_not_remembered_for_ever() -> None:
    generations = Generations(None)
    for value in range(1000):
        generations.see(value, at=value, ripe_at=value)
        note(generations, running("long"), at=value)
    assert len(generations._waiting) < 50
    note(generations, running())
    assert generations.confirmed == 999


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
    database, generations = Database(), Generations(None)
    begun: dict[str, int] = {}
    read: set[int] = set()
    position = 0
    for name, what in interleaving:
        if what == "poll":
            generations.see(max(database.visible, default=None), at=0, ripe_at=0)
            note(generations, running(*(f"{name}{begun[name]}" for name in database.stamps)))
            page = {stamp for stamp in database.visible if position < stamp <= (generations.confirmed or 0)}
            read |= page
            position = max(page, default=position)
        else:
            if what == "begin" and name not in database.stamps:
                begun[name] = begun.get(name, 0) + 1
            database.step(name, what)
        assert {stamp for stamp in database.visible if stamp <= position} == read


def test_whoever_touches_the_rows_is_waited_for_even_when_it_came_later() -> None:
    generations = Generations(None)
    later: dict[object, Transaction] = {"later": Transaction("later", "later", "writer", writes=True, touches=True)}
    generations.see(7, at=0, ripe_at=0, ties=2)
    note(generations, running("reader"))
    assert not generations.see(7, at=1, ripe_at=1, ties=2)
    note(generations, running("reader") | later)
    note(generations, later)
    assert generations.confirmed is None
    note(generations, running("other"))
    assert generations.confirmed == 7
    note(generations, later)
    assert not generations.includes_bound
