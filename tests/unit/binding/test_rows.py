"""Rows on their way in, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db import ConfigurationError
from azure_functions_db.binding.conversion import chunked, grouped, merged
from azure_functions_db.binding.writer import _filled

ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 4)}, optional={"a": st.integers(0, 9), "b": st.integers(0, 9), "c": st.none()}
    ),
    min_size=1,
    max_size=30,
)


def applied(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What upserting the rows one after the other leaves."""
    table: dict[int, dict[str, Any]] = {}
    for row in rows:
        table.setdefault(row["id"], {}).update(row)
    return table


@given(ROWS)
def test_merged_and_grouped_rows_leave_what_one_after_the_other_would(rows: list[dict[str, Any]]) -> None:
    unique = merged(rows, ("id",))
    regrouped = [row for _, group in grouped(unique, keep_order=False) for row in group]

    assert applied(regrouped) == applied(rows)
    assert len(regrouped) == len({row["id"] for row in rows})


@given(ROWS)
def test_groups_hold_every_row_once_under_its_own_columns(rows: list[dict[str, Any]]) -> None:
    for keep_order in (True, False):
        groups = grouped(rows, keep_order=keep_order)
        assert all(set(names) == set(row) for names, group in groups for row in group)
        flat = [row for _, group in groups for row in group]
        assert sorted(map(id, flat)) == sorted(map(id, rows))
        if keep_order:
            assert flat == rows


def test_the_given_rows_are_left_as_they_were() -> None:
    rows = [{"id": 1, "a": 1}, {"id": 1, "b": 2}]

    assert merged(rows, ("id",)) == [{"id": 1, "a": 1, "b": 2}]
    assert rows == [{"id": 1, "a": 1}, {"id": 1, "b": 2}]


def test_rows_are_taken_from_an_iterator_no_faster_than_they_are_used() -> None:
    taken: list[int] = []

    def rows() -> Any:
        for key in range(10):
            taken.append(key)
            yield {"id": key}

    chunks = chunked(rows(), 3)
    next(chunks)
    assert taken == [0, 1, 2]


@pytest.mark.parametrize("rows", ["text", b"bytes", {"id": 1}, 5, None])
def test_what_is_not_several_rows_is_refused(rows: object) -> None:
    with pytest.raises(ConfigurationError, match="rows= must be several rows"):
        chunked(rows, 10)


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=40), st.integers(1, 60))
def test_statements_are_filled_up_to_their_limit_and_no_further(rows: list[bytes], limit: int) -> None:
    rows = [row.replace(b",", b".") for row in rows]
    pieces = list(_filled(iter(rows), limit))

    assert [row for piece in pieces for row in piece.split(b",")] == rows
    assert all(len(piece) <= limit or b"," not in piece for piece in pieces)
