"""Two pages as one: the end of a backlog, and what has come since."""

from __future__ import annotations

from dataclasses import replace

from azure_functions_db.sources.keyset.page import Page, empty_page
from azure_functions_db.sources.keyset.position import Position
from azure_functions_db.sources.keyset.values import Header

HEADER = Header(("id",), (23,))


def page(*numbers: int, more: bool = False) -> Page:
    def cut(first: int) -> Position:
        return Position((numbers[first - 1],))

    rows = [(number,) for number in numbers]
    return Page(HEADER, rows, Position(numbers[-1:]), more, {len(numbers) - 1: f"revision {numbers[-1]}"}, cut)


def test_it_has_the_rows_of_both_and_can_be_cut_anywhere() -> None:
    both = page(1, 2).followed_by(page(3, 4, more=True))
    assert (both.rows, both.end, both.more) == ([(1,), (2,), (3,), (4,)], Position((4,)), True)
    assert both.revisions == {1: "revision 2", 3: "revision 4"}
    assert both.cut is not None
    assert [both.cut(count).values for count in range(1, 5)] == [(1,), (2,), (3,), (4,)]


def test_where_nothing_has_come_it_ends_where_the_search_has() -> None:
    first, nothing = page(1, 2), replace(empty_page(Position((7,))), more=True)
    assert first.followed_by(nothing) == replace(first, end=Position((7,)), more=True)


def test_rows_with_other_columns_are_another_page() -> None:
    migrated = replace(page(3), header=Header(("id", "note"), (23, 25)))
    assert page(1, 2).followed_by(migrated) == page(1, 2, more=True)
