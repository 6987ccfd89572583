"""The suite that every change source must pass; needs pytest.

A source's own test is three fixtures: one that makes sources over one and the same place, which is
empty when a test begins, and two that work on that place::

    class TestMySource(SourceContract):
        @pytest.fixture
        def new_source(self, place):
            return lambda: MySource(place)

        @pytest.fixture
        def change(self, place):
            return lambda key, value: place.put(key, value)

        @pytest.fixture
        def told(self):
            return lambda record: (record["id"], record["value"])
"""

# ruff: noqa: S101 - assertions are what a suite is made of

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from azure_functions_db.core.ports import ChangeSource, SourceAdapter
from azure_functions_db.core.types import AdapterCapability

if TYPE_CHECKING:
    from azure_functions_db.core.types import Checkpoint, FetchResult


class NewSource(Protocol):
    """Makes another source over the same place."""

    def __call__(self) -> Any:
        """Return a source of its own, as another process would have it."""


class Change(Protocol):
    """Writes to the place."""

    def __call__(self, key: int, value: str) -> None:
        """Insert the row of this key, or update it; committed, and later than every change before."""


class Told(Protocol):
    """Reads a record."""

    def __call__(self, record: dict[str, Any]) -> tuple[int, str]:
        """Return the key and the value of the row that the record is about."""


class SourceContract:
    """What holds for every change source; the flags name what goes beyond that."""

    reads_by_cursor = True
    """Also has the small port's `fetch`, and its ``cursor_column`` and ``pk_columns``."""
    keeps_history = False
    """Delivers every change of a row, instead of its newest state only."""

    @pytest.fixture
    def new_source(self) -> NewSource:
        """Return what makes sources over one and the same place; each test has a place of its own."""
        raise NotImplementedError

    @pytest.fixture
    def change(self) -> Change:
        """Return what changes a row there."""
        raise NotImplementedError

    @pytest.fixture
    def told(self) -> Told:
        """Return what tells key and value of a record."""
        raise NotImplementedError

    def test_it_is_a_change_source(self, new_source: NewSource) -> None:
        source = new_source()
        assert isinstance(source, ChangeSource)
        assert isinstance(source.capability(), AdapterCapability)

    def test_another_instance_has_the_same_descriptor(self, new_source: NewSource) -> None:
        descriptor = new_source().source_descriptor
        assert descriptor == new_source().source_descriptor
        assert descriptor.name
        assert descriptor.fingerprint.startswith("sha256:")

    def test_a_sound_definition_is_valid(self, new_source: NewSource) -> None:
        new_source().validate()

    def test_an_empty_place_has_nothing_and_waits_for_nothing(self, new_source: NewSource) -> None:
        result = new_source().fetch_changes({}, 10)
        assert list(result.records) == []
        assert not result.more

    def test_changes_come_in_their_order(self, new_source: NewSource, change: Change, told: Told) -> None:
        for key in (2, 1, 3):
            change(key, "new")
        result = opened(new_source()).fetch_changes({}, 10)
        assert [told(record)[0] for record in result.records] == [2, 1, 3]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_pages_of_any_size_add_up(self, new_source: NewSource, change: Change, told: Told, limit: int) -> None:
        for key in range(7):
            change(key, "new")
        pages = list(pages_of(new_source(), limit))
        assert [told(record)[0] for page in pages for record in page.records] == list(range(7))
        assert all(len(page.records) <= limit for page in pages)
        assert all(page.more in {True, None} for page in pages[:-2])

    def test_a_page_comes_again_until_its_checkpoint_is_used(self, new_source: NewSource, change: Change) -> None:
        change(1, "new")
        source = opened(new_source())
        assert list(source.fetch_changes({}, 10).records) == list(source.fetch_changes({}, 10).records)

    def test_a_checkpoint_is_json_and_good_for_another_instance(
        self, new_source: NewSource, change: Change, told: Told
    ) -> None:
        for key in range(4):
            change(key, "new")
        stored = json.dumps(opened(new_source()).fetch_changes({}, 2).next_checkpoint)
        rest = opened(new_source()).fetch_changes(json.loads(stored), 10)
        assert [told(record)[0] for record in rest.records] == [2, 3]

    def test_nothing_comes_twice_without_a_change(self, new_source: NewSource, change: Change) -> None:
        change(1, "new")
        source = new_source()
        checkpoint = [page.next_checkpoint for page in pages_of(source, 10)][-1]
        again = source.fetch_changes(checkpoint, 10)
        assert list(again.records) == []
        assert list(source.fetch_changes(again.next_checkpoint, 10).records) == []

    def test_an_updated_row_comes_again(self, new_source: NewSource, change: Change, told: Told) -> None:
        change(1, "old")
        change(2, "old")
        source = new_source()
        checkpoint = [page.next_checkpoint for page in pages_of(source, 10)][-1]
        source.acknowledge(checkpoint)
        change(1, "new")
        result = source.fetch_changes(checkpoint, 10)
        assert [told(record) for record in result.records] == [(1, "new")]

    def test_a_row_changed_twice_tells_its_newest_state_last(
        self, new_source: NewSource, change: Change, told: Told
    ) -> None:
        change(1, "old")
        change(1, "new")
        told_values = [told(record) for record in opened(new_source()).fetch_changes({}, 10).records]
        assert told_values == ([(1, "old"), (1, "new")] if self.keeps_history else [(1, "new")])

    def test_opening_and_closing_may_be_repeated(self, new_source: NewSource) -> None:
        source = new_source()
        for _ in range(2):
            source.open()
            source.fetch_changes({}, 1)
            source.close()
            source.close()

    def test_the_small_port_reads_on_after_a_cursor(self, new_source: NewSource, change: Change, told: Told) -> None:
        if not self.reads_by_cursor:
            pytest.skip("this source has no fetch()")
        for key in range(3):
            change(key, "new")
        source = new_source()
        is_small_port = isinstance(source, SourceAdapter)
        assert is_small_port
        first = source.fetch(None, 1)[0]
        cursor = (first[source.cursor_column], *(first[name] for name in source.pk_columns))
        assert [told(record)[0] for record in source.fetch(cursor, 10)] == [1, 2]


def opened(source: Any) -> Any:
    """Return the source, opened."""
    source.open()
    return source


def pages_of(source: Any, limit: int, checkpoint: Checkpoint | None = None) -> list[FetchResult]:
    """Return all pages up to the end, fetched as a trigger would."""
    source.open()
    pages: list[FetchResult] = []
    position: Checkpoint = checkpoint or {}
    while not pages or pages[-1].records:
        pages.append(source.fetch_changes(position, limit))
        position = pages[-1].next_checkpoint
    source.close()
    return pages
