from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from azure_functions_db.trigger.poison import Search

if TYPE_CHECKING:
    from collections.abc import Callable


def searched(
    size: int, is_bad: Callable[[int], bool], *, chunk: int = 1000, patience: int = 1000, down_after: int | None = None
) -> tuple[Search, list[range]]:
    """Drive a search with a handler that fails on bad rows, and on everything once it is down."""
    search = Search(size, chunk=chunk, patience=patience, whole_failed=False)
    tried: list[range] = []
    while (part := search.next_part()) is not None:
        tried.append(part)
        if (down_after is not None and len(tried) > down_after) or any(map(is_bad, part)):
            search.refused("bad")
        else:
            search.digested()
    return search, tried


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(1, 60).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_exactly_the_bad_rows_are_found_unless_all_are_bad(case: tuple[int, set[int]]) -> None:
    size, bad = case
    search, tried = searched(size, bad.__contains__, chunk=7)
    if len(bad) == size:
        assert search.is_outage
        assert not search.culprits
    else:
        assert set(search.culprits) == bad
        assert search.good == [row for row in range(size) if row not in bad]
    assert all(len(part) <= 7 for part in tried)


def test_one_bad_row_in_forty_costs_few_calls() -> None:
    search, tried = searched(40, lambda row: row == 17)
    assert set(search.culprits) == {17}
    assert len(tried) <= 14


def test_an_outage_ends_the_search_early() -> None:
    search, tried = searched(1000, lambda _row: True, patience=10)
    assert search.is_outage
    assert len(tried) < 40


def test_an_outage_that_begins_during_the_search_condemns_nobody_after_it() -> None:
    search, _ = searched(64, lambda row: row == 2, patience=5, down_after=12)
    assert search.is_outage
    assert set(search.culprits) <= {2}


def test_a_bad_last_row_is_told_from_an_outage_by_trying_a_good_one_again() -> None:
    search, tried = searched(4, lambda row: row == 3)
    assert set(search.culprits) == {3}
    assert tried[-1] == range(2, 3)


def test_named_rows_need_no_further_search() -> None:
    search = Search(10, chunk=10, patience=10, whole_failed=False)
    assert search.next_part() == range(10)
    search.named({3: "odd"})
    assert search.next_part() is None
    assert search.culprits == {3: "odd"}
    assert 3 not in search.good


def test_a_handler_that_names_every_row_tells_of_an_outage() -> None:
    search = Search(2, chunk=10, patience=10, whole_failed=False)
    search.next_part()
    search.named({0: "down", 1: "down"})
    assert search.next_part() is None
    assert search.is_outage
