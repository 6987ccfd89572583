from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from azure_functions_db.trigger.batch import Search

BATCH = 8


@dataclass
class World:
    """A table, a handler that fails on poison and in outages, and a poller that makes one step after the other."""

    rows: list[int]
    poison: set[int]
    outages: set[int] = field(default_factory=set)
    """The numbers of the calls at which everything fails."""
    restarts: set[int] = field(default_factory=set)
    """The numbers of the calls after which the process ends: what was noted is all that is left."""
    calls: int = 0
    done: int = 0
    aside: list[int] = field(default_factory=list)
    digested: list[int] = field(default_factory=list)
    witness: int | None = None
    breakers: int = 0

    def digests(self, rows: list[int]) -> bool:
        self.calls += 1
        return self.calls not in self.outages and not self.poison.intersection(rows)

    def commit(self, rows: int) -> None:
        self.done += rows

    def deliver(self) -> Search | None:
        batch = self.rows[self.done : self.done + BATCH]
        if self.digests(batch):
            self.digested += batch
            self.commit(len(batch))
            return None
        return Search.through(len(batch), named=False)

    def step(self, search: Search) -> Search | None:
        """Do what a tick does with one step of a search."""
        rows = self.rows[self.done : self.done + search.rows.stop]
        more = self.done + len(rows) < len(self.rows)
        known = search.facing(str(rows[0]))
        if known is not search:
            return known
        return self.try_witness(search, rows) if search.needs_witness else self.try_part(search, rows, more=more)

    def try_witness(self, search: Search, rows: list[int]) -> Search:
        witness = rows[search.rows.start :] or ([] if self.witness is None else [self.witness])
        if not witness:
            self.breakers += 1
            return search.given_up()
        if self.digests(witness):
            return search.witnessed()
        found = search.refused(str(rows[0]))
        self.breakers += not found.needs_witness
        return found

    def try_part(self, search: Search, rows: list[int], *, more: bool) -> Search | None:
        if self.digests(rows):
            self.digested += rows
            self.witness = rows[-1]
            self.commit(len(rows))
            return search.passed(len(rows), more=more)
        if not search.convicts:
            return search.refused(str(rows[0]))
        self.aside += rows
        self.commit(1)
        return search.convicted(more=more)

    def run(self, most: int) -> None:
        search: Search | None = None
        for _ in range(most):
            if self.done >= len(self.rows):
                return
            search = self.deliver() if search is None else self.step(search)
            if self.calls in self.restarts:
                self.witness = None
                search = search and Search.noted_in(json.loads(json.dumps(search.noted())), BATCH)


def outage(begin: int, length: int) -> set[int]:
    return set(range(begin, begin + length))


# An outage of a single call cannot be told from a row that fails by chance; two of them in five calls could.
OUTAGES = st.lists(st.builds(outage, st.integers(1, 300), st.integers(2, 60)), max_size=5).map(
    lambda o: set().union(*o)
)


@settings(deadline=None, max_examples=400)  # a busy machine is no failure
@given(
    size=st.integers(1, 60),
    poison=st.sets(st.integers(0, 59)),
    outages=OUTAGES,
    restarts=st.sets(st.integers(1, 300)),
)
def test_poison_is_put_aside_in_the_end_and_nothing_else_ever(
    size: int, poison: set[int], outages: set[int], restarts: set[int]
) -> None:
    # A good last row: behind it, nothing is left that could show the handler to work.
    world = World([*range(size), 1000], poison, outages, restarts)
    world.run(most=3000)
    assert world.done == size + 1, "the end is reached"
    assert world.aside == sorted(poison & set(range(size))), "exactly the poison, in order"
    assert world.digested == [row for row in world.rows if row not in poison], "all others, in order"


@settings(deadline=None)
@given(size=st.integers(1, 60), poison=st.sets(st.integers(0, 59)))
def test_the_number_of_calls_is_bounded(size: int, poison: set[int]) -> None:
    world = World([*range(size), 1000], poison)
    world.run(most=3000)
    batches, bad = size // BATCH + 1, len(poison & set(range(size)))
    assert world.calls <= batches + bad * (3 + 5 + 5)


def test_one_bad_row_in_eight_costs_few_calls() -> None:
    world = World(list(range(8)), {5})
    world.run(most=100)
    assert world.aside == [5]
    assert world.calls <= 12


def test_an_outage_stops_a_tick_after_few_calls() -> None:
    search, calls, looks = Search.through(1000, named=False), 0, False
    while search.needs_witness or not looks:
        looks, search, calls = search.needs_witness, search.refused("e"), calls + 1
    assert calls < 25
    assert search.ahead == 10, "the next tick looks further"


def test_a_bad_last_row_is_told_from_an_outage_by_trying_a_good_one_again() -> None:
    world = World(list(range(8)), {7})
    world.run(most=100)
    assert (world.aside, world.breakers) == ([7], 0)


def test_a_lone_bad_row_is_never_put_aside() -> None:
    world = World([0], {0})
    world.run(most=100)
    assert world.aside == []
    assert world.breakers > 10


def test_a_run_of_bad_rows_longer_than_any_look_ahead_begins_again_from_the_nearest() -> None:
    world = World(list(range(1200)), set(range(1100)))
    world.run(most=1300)
    assert world.breakers >= 100
    world.poison = {0}
    world.run(most=1000)
    assert world.aside == [0]


def test_what_is_known_of_a_row_does_not_count_against_another() -> None:
    search = Search(parts=(1, 1), suspect="e1", proofs=4, ahead=3)
    assert search.facing("e1") is search
    assert search.facing("e2") == Search(parts=(1, 1))


def test_a_note_of_something_else_is_no_search() -> None:
    noted = Search(parts=(2, 4), suspect="e1", proofs=1, ahead=7).noted()
    assert Search.noted_in(noted, 4) == Search(parts=(2, 4), suspect="e1", proofs=1, ahead=7)
    odds: tuple[object, ...] = (None, 7, {}, [], {**noted, "parts": []}, {**noted, "proofs": 9}, {**noted, "ahead": -1})
    assert all(Search.noted_in(odd, 4) is None for odd in odds)
    assert Search.noted_in({**noted, "parts": [2, "4"]}, 4) is None
    assert Search.noted_in(noted, 3) is None, "batches have become smaller since"


def test_a_batch_whose_rows_were_named_is_tried_once_more_as_a_whole() -> None:
    assert Search.through(5, named=True).parts == (5,)
    assert Search.through(5, named=False).parts == (3, 2)


def test_a_part_that_was_digested_in_part_is_tried_on_from_there() -> None:
    search = Search(parts=(4, 2))
    assert search.passed(3, more=True) == Search(parts=(1, 2))
    assert search.passed(4, more=True) == Search(parts=(2,))
    assert search.passed(4, more=False) is None, "nothing is left of the batch"


def test_behind_a_row_put_aside_the_same_witness_is_one_row_nearer() -> None:
    convicting = Search(parts=(1, 3), suspect="e1", proofs=4, ahead=5)
    assert convicting.convicted(more=True) == Search(parts=(3,), ahead=4)
    assert Search(parts=(1, 3), suspect="e1", proofs=4).convicted(more=True) == Search(parts=(3,))
    assert convicting.convicted(more=False) is None


def test_a_witness_that_fails_after_it_was_digested_ends_the_search_of_a_tick() -> None:
    assert Search(parts=(1,), suspect="e1", proofs=3, ahead=2).refused("e1") == Search(parts=(1,), ahead=2)


def test_the_look_ahead_ends_at_a_thousand_rows() -> None:
    assert Search(parts=(1,), suspect="e1", proofs=1, ahead=989).refused("e1").ahead == 990
    assert Search(parts=(1,), suspect="e1", proofs=1, ahead=999).refused("e1") == Search(parts=(1,))
