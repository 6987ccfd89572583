"""Pages among rows that share a cursor value, of which some were delivered, some have changed and some have come since.

The table is small enough to try every mixture of them with every size of a page.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from azure_functions_db.sources.keyset import page
from azure_functions_db.sources.keyset.definition import Partition
from azure_functions_db.sources.keyset.position import Bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from azure_functions_db.core.types import CheckpointJson, FetchResult

Row = tuple[int, Any, str]


class Rows:
    """A table, and pollers that only know their checkpoints."""

    def __init__(self, url: str, kind: str, provider: EngineProvider) -> None:
        self._url = url
        self._provider = provider
        engine = self.source()._relation.engine()
        self._connection = engine.connect()
        self.migrate(kind)

    def source(self, **options: Any) -> SqlAlchemySource:
        place: dict[str, Any] = {"url": self._url, "engine_provider": self._provider, "pk_columns": ["id"]}
        return SqlAlchemySource(**{"table": "t", **place, **options}, cursor_column="c")

    def migrate(self, kind: str) -> None:
        """Let the cursor be of this type, in a table without rows."""
        self._execute("DROP TABLE IF EXISTS t")
        self._execute(f"CREATE TABLE t (id integer PRIMARY KEY, c {kind}, word text)")

    def hold(self, rows: Iterable[Row]) -> None:
        """Let these be all rows there are."""
        self._execute("DELETE FROM t")
        self.insert(*rows)

    def insert(self, *rows: Row) -> None:
        given = [{"id": key, "c": value, "word": word} for key, value, word in rows]
        if given:
            self._execute("INSERT OR REPLACE INTO t VALUES (:id, :c, :word)", given)

    def _execute(self, statement: str, values: list[dict[str, Any]] | None = None) -> None:
        self._connection.execute(text(statement), values)
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def rows(provider: EngineProvider, caplog: pytest.LogCaptureFixture) -> Iterator[Rows]:
    caplog.set_level("ERROR", "azure_functions_db")
    rows = Rows("sqlite://", "", provider)
    yield rows
    rows.close()


@pytest.fixture
def collated(tmp_path: Path, provider: EngineProvider, caplog: pytest.LogCaptureFixture) -> Iterator[Rows]:
    """Rows whose cursor is a text, of a database that may take several texts for the same."""
    caplog.set_level("ERROR", "azure_functions_db")
    rows = Rows(f"duckdb:///{tmp_path / 'rows.duckdb'}", "text", provider)
    yield rows
    rows.close()


class Poller:
    """Goes on from its checkpoint, which goes through JSON."""

    def __init__(self, source: SqlAlchemySource, checkpoint: CheckpointJson | None = None) -> None:
        self.source = source
        self.checkpoint: CheckpointJson = checkpoint or {}

    def read(self, limit: int = 100) -> list[Row]:
        self.last: FetchResult = self.source.fetch_changes(self.checkpoint, limit)
        self.checkpoint = json.loads(json.dumps(self.last.next_checkpoint))
        return found(self.last)

    def read_all(self, limit: int) -> list[Row]:
        """Read page after page for as long as there is more, and once more."""
        every = self.read(limit)
        while self.last.more:
            every += self.read(limit)
            assert len(every) < 50, "it does not end"
        return every + self.read(limit)


def found(result: FetchResult) -> list[Row]:
    return [(record["id"], record["c"], record["word"]) for record in result.records]


def subsets(keys: Sequence[int]) -> list[tuple[int, ...]]:
    return [chosen for size in range(len(keys) + 1) for chosen in itertools.combinations(keys, size)]


def test_whatever_has_come_at_a_value_is_delivered_once_and_whatever_has_not_is_not(rows: Rows) -> None:
    source = rows.source()
    for limit, delivered, changed in itertools.product((1, 2, 3, 9), subsets(range(3)), [(), (1, 2)]):
        before = [(key, 1, "old") for key in delivered]
        after = [(key, 1, "new" if key in changed or key not in delivered else "old") for key in range(3)]
        behind = [(4, 2, "new"), (5, 2, "new")]
        rows.hold(before)
        poller = Poller(source)
        assert poller.read_all(limit) == before
        rows.insert(*after, *behind)
        assert sorted(poller.read_all(limit)) == sorted({*after, *behind} - {*before})
        assert poller.read(limit) == []


def test_rows_that_come_between_two_pages_of_one_value_are_delivered_before_it_is_passed(rows: Rows) -> None:
    source = rows.source()
    for limit, late in itertools.product((1, 2, 3), subsets(range(2, 10, 2))):
        rows.hold([(1, 0, "before"), *((key, 1, "early") for key in (3, 5, 7, 9)), (10, 2, "behind")])
        poller = Poller(source)
        every = [*poller.read(limit), *poller.read(limit)]
        rows.insert(*((key, 1, "late") for key in late))
        every += poller.read_all(limit)
        expected = {1: "before", 3: "early", 5: "early", 7: "early", 9: "early", 10: "behind"}
        passed = {key for key in late if (10, 2, "behind") in every[: 2 * limit]}
        expected |= dict.fromkeys(set(late) - passed, "late")
        assert sorted((key, word) for key, _, word in every) == sorted(expected.items())
        assert [value for _, value, _ in every] == sorted(value for _, value, _ in every), "values come in their order"


def test_a_row_that_changes_at_its_value_is_told_from_its_earlier_deliveries(rows: Rows) -> None:
    rows.hold([(key, 1, "a") for key in range(4)])
    poller = Poller(rows.source())
    poller.read()
    assert poller.last.revisions == {}
    labels = []
    for word in ("b", "a", "b"):
        rows.insert((2, 1, word), (3, 1, word))
        assert poller.read(1) == [(2, 1, word)]
        labels.append(poller.last.revisions[0])
        rows.insert((9, 1, word))
        assert poller.read(1) == [(3, 1, word)]
        assert list(poller.last.revisions) == [0]
        poller.read()
    assert len(set(labels)) == 3, "the same content for the second time is another delivery"
    rows.insert((0, 1, "z"), (7, 1, "z"))
    assert poller.read() == [(0, 1, "z"), (7, 1, "z")]
    assert list(poller.last.revisions) == [0], "what is new has no earlier delivery"


def test_a_part_of_a_page_ends_behind_its_last_row_whatever_was_delivered_before(rows: Rows) -> None:
    source = rows.source()
    for limit, delivered in itertools.product((3, 8), subsets(range(4))[::2]):
        rows.hold([(key, 1, "a") for key in delivered])
        first = Poller(source)
        first.read()
        rows.insert(*((key, 1, "a") for key in range(4)), (4, 2, "a"), (5, 2, "a"))
        whole = source.fetch_changes(first.checkpoint, limit)
        assert whole.cut is not None
        for count in range(1, len(whole.records)):
            rest = Poller(source, whole.cut(count)).read_all(limit)
            assert [*found(whole)[:count], *rest] == Poller(source, first.checkpoint).read_all(limit)


def test_a_row_that_has_gone_and_comes_back_as_it_was_is_no_news(rows: Rows) -> None:
    poller = Poller(rows.source())
    rows.hold([(1, 1, "a"), (2, 1, "a")])
    poller.read()
    rows.hold([(1, 1, "a")])
    assert poller.read() == []
    rows.insert((2, 1, "a"), (3, 1, "a"))
    assert poller.read() == [(3, 1, "a")]
    rows.hold([(4, 1, "a")])
    assert poller.read() == [(4, 1, "a")]


def test_a_place_that_does_not_tell_what_was_delivered_is_gone_on_from_by_key(rows: Rows) -> None:
    """As release 0.8 has written it: what comes below the key is not known to be new."""
    rows.hold([(key, 1, "a") for key in (1, 3, 5)])
    poller = Poller(rows.source(), {"cursor": [1, 3]})
    assert poller.read() == [(5, 1, "a")]
    rows.insert((2, 1, "b"), (7, 1, "b"))
    assert poller.read() == [(7, 1, "b")]
    rows.insert((6, 2, "c"), (8, 2, "c"))
    assert poller.read(1) == [(6, 2, "c")]
    rows.insert((4, 2, "d"))
    assert poller.read() == [(4, 2, "d"), (8, 2, "c")], "of the next value it is known"


def test_to_begin_at_a_value_includes_its_rows_and_remembers_them(rows: Rows) -> None:
    rows.hold([(1, 1, "a"), (2, 2, "a"), (4, 2, "a")])
    poller = Poller(rows.source(start_at=2))
    assert poller.read(1) == [(2, 2, "a")]
    rows.insert((0, 2, "b"))
    assert poller.read() == [(0, 2, "b"), (4, 2, "a")]


def test_a_cursor_that_is_followed_by_one_of_another_type_is_passed(rows: Rows) -> None:
    rows.hold([(1, 1, "a"), (2, 1, "a")])
    poller = Poller(rows.source())
    poller.read()
    rows.hold([(1, "x", "b"), (2, "x", "b"), (3, "y", "b")])  # what a migration has made of it
    assert poller.read_all(1) == [(1, "x", "b"), (2, "x", "b"), (3, "y", "b")]


def test_what_was_delivered_does_not_come_again_as_another_type(
    tmp_path: Path, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """To the database a day is its midnight; to Python it is another value."""
    caplog.set_level("ERROR", "azure_functions_db")
    rows = Rows(f"duckdb:///{tmp_path / 'rows.duckdb'}", "date", provider)
    rows.hold([(1, "2026-01-01", "a"), (2, "2026-01-01", "a")])
    poller = Poller(rows.source())
    assert len(poller.read()) == 2
    rows.migrate("timestamp")
    rows.insert(*((key, "2026-01-01", "a") for key in (1, 2, 3)))
    assert [row[0] for row in poller.read()] == [3]
    assert poller.read() == [], "nor behind those that have come since"
    rows.close()


def test_shares_that_are_searched_for_in_short_stretches_miss_nothing(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = [(key, 1, f"w{key}") for key in range(1, 15, 2)]
    late = [(key, 1, f"w{key}") for key in range(0, 15, 2)]
    behind = [(key, 2, f"w{key}") for key in range(15, 20)]
    for searched, limit in itertools.product((3, 8, 50), (1, 2, 5)):
        monkeypatch.setattr(page, "_SEARCHED_ROWS", searched)
        rows.hold(early)
        pollers = [Poller(rows.source(partition=(index, 3), partition_by="word")) for index in range(3)]
        shares = [poller.read_all(limit) for poller in pollers]
        assert sorted(row for share in shares for row in share) == early
        rows.insert(*late, *behind)
        again = [poller.read_all(limit) for poller in pollers]
        everything = sorted(row for share in (*shares, *again) for row in share)
        assert everything == sorted([*early, *late, *behind]), "nothing is missed, and nothing comes twice"


def test_shares_of_a_whole_number_are_picked_by_the_database(rows: Rows) -> None:
    every = [(key, value, "a") for value in (1, 2) for key in range(10 * value - 5, 10 * value)]
    rows.hold(every)
    shares = [Poller(rows.source(partition=(index, 3))).read_all(2) for index in range(3)]
    assert sorted(row for share in shares for row in share) == every


def test_texts_that_only_the_database_can_compare_are_read_again_one_by_one(collated: Rows) -> None:
    source = collated.source()
    mixtures: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((1,), ()), ((0, 2), (2,)), ((1, 2), (1, 2))]
    for limit, (delivered, changed) in itertools.product((1, 2, 9), mixtures):
        before = [(key, "v1", "old") for key in delivered]
        after = [(key, "v1", "new" if key in changed or key not in delivered else "old") for key in range(4)]
        behind = [(4, "v2", "new"), (5, "v2", "new")]
        collated.hold(before)
        poller = Poller(source)
        assert poller.read_all(limit) == before
        collated.insert(*after, *behind)
        again = poller.read_all(limit)
        assert sorted(again) == sorted({*after, *behind} - {*before})
        assert [value for _, value, _ in again] == sorted(value for _, value, _ in again), "before the next value"
        assert poller.read(limit) == []


def test_a_part_of_a_page_of_such_texts_ends_behind_its_last_row(collated: Rows) -> None:
    source = collated.source()
    collated.hold([(key, "v1", "old") for key in (1, 3)])
    first = Poller(source)
    first.read()
    collated.insert((0, "v1", "new"), (2, "v1", "new"), (3, "v1", "new"), (4, "v1", "new"), (5, "v2", "new"))
    whole = source.fetch_changes(first.checkpoint, 3)
    assert whole.cut is not None
    assert sorted(found(whole)) == [(0, "v1", "new"), (2, "v1", "new"), (3, "v1", "new")]
    assert [place for place in whole.revisions if whole.records[place]["id"] == 3] == list(whole.revisions)
    for count in (1, 2):
        rest = Poller(source, whole.cut(count)).read_all(10)
        assert sorted([*found(whole)[:count], *rest]) == sorted(Poller(source, first.checkpoint).read_all(10))


def test_rows_at_a_text_that_others_may_still_join_wait_also_where_they_are_read_again(collated: Rows) -> None:
    source = collated.source()
    collated.hold([(1, "v1", "a")])
    poller = Poller(source)
    poller.read()
    collated.insert((0, "v1", "b"), (2, "v1", "b"))
    with source._relation.connected() as (plan, connection):
        start = source._relation.position(plan, poller.checkpoint, connection)
        below = page.read_page(connection, plan, start, 10, Bound("v1", inclusive=False))
        assert (list(below.rows), below.end) == ([], start)
        assert [row[0] for row in page.read_page(connection, plan, start, 10, Bound("v1")).rows] == [0]
        assert page.read_page(connection, plan, start, 10, Bound("v1")).more, "what follows the key comes next"
        assert [row[0] for row in page.read_page(connection, plan, start, 10, Bound("v2", inclusive=False)).rows] == [0]


def test_a_share_is_found_behind_any_number_of_others_rows_at_its_value(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_SEARCHED_ROWS", 3)
    ours, *_ = (word for word in map(str, range(100)) if Partition(0, 3).takes([word]))
    others = [word for word in map(str, range(200)) if not Partition(0, 3).takes([word])]
    rows.hold([(1, 1, ours)])
    poller = Poller(rows.source(partition=(0, 3), partition_by="word"))
    assert poller.read_all(1) == [(1, 1, ours)]
    rows.insert(*((key, 1, word) for key, word in enumerate(others[:40], 2)), (50, 1, ours), (51, 2, ours))
    assert poller.read(1) == []
    assert poller.last.more, "it was not searched for to the end"
    assert poller.read_all(1) == [(50, 1, ours), (51, 2, ours)]


def test_a_share_that_is_not_searched_to_its_last_row_does_not_deliver_that_again(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_SEARCHED_ROWS", 3)
    ours, *_ = (word for word in map(str, range(100)) if Partition(0, 3).takes([word]))
    others = [word for word in map(str, range(200)) if not Partition(0, 3).takes([word])]
    rows.hold([(50, 1, ours)])
    poller = Poller(rows.source(partition=(0, 3), partition_by="word"))
    assert poller.read_all(1) == [(50, 1, ours)]
    rows.insert((1, 1, ours), *((key, 1, word) for key, word in enumerate(others[:40], 2)), (60, 2, ours))
    assert poller.read_all(1) == [(1, 1, ours), (60, 2, ours)]


def test_a_late_row_of_a_share_is_not_the_last_as_long_as_its_value_was_not_searched_to_the_end(
    collated: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, *_ = (word for word in map(str, range(100)) if Partition(0, 3).takes([word]))
    others = [word for word in map(str, range(200)) if not Partition(0, 3).takes([word])]
    collated.hold([(1, "v1", ours)])
    poller = Poller(collated.source(partition=(0, 3), partition_by="word"))
    assert poller.read_all(1) == [(1, "v1", ours)]
    collated.insert(*((key, "v1", word) for key, word in enumerate(others[:40], 2)), (0, "v1", ours), (50, "v2", ours))
    monkeypatch.setattr(page, "_SEARCHED_ROWS", 3)
    assert poller.read(1) == [(0, "v1", ours)]
    assert poller.last.more
    assert poller.read_all(1) == [(50, "v2", ours)]


def test_a_beginning_at_now_takes_the_rows_of_the_newest_value_for_delivered_and_no_others(rows: Rows) -> None:
    rows.hold([(1, 1, "a"), (3, 2, "a"), (5, 2, "a")])
    poller = Poller(rows.source(start_at="now"))
    assert poller.read() == []
    rows.insert((2, 2, "b"), (4, 2, "b"), (5, 2, "b"))
    assert poller.read() == [(2, 2, "b"), (4, 2, "b"), (5, 2, "b")]


def test_among_more_rows_than_can_be_remembered_a_beginning_at_now_is_behind_the_last_of_them(rows: Rows) -> None:
    rows.hold([(key, 1, "a") for key in range(1002)])
    poller = Poller(rows.source(start_at="now"))
    assert poller.read() == []
    rows.insert((2000, 1, "b"))
    assert poller.read() == [(2000, 1, "b")]


def test_texts_that_have_come_below_the_key_are_told_to_be_more_as_long_as_they_are(collated: Rows) -> None:
    collated.hold([(9, "v1", "a")])
    poller = Poller(collated.source())
    poller.read()
    for number, more in ((3, True), (2, False)):
        collated.insert(*((key - 10 * number, "v1", "b") for key in range(number)))
        assert len(poller.read(2)) == 2
        assert poller.last.more is more
        poller.read()


def test_a_search_for_a_share_goes_on_where_its_last_stretch_has_ended(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, *_ = (word for word in map(str, range(100)) if Partition(0, 3).takes([word]))
    others, *_ = (word for word in map(str, range(100)) if not Partition(0, 3).takes([word]))
    rows.hold([(key, 1, ours if key in {3, 20, 25} else others) for key in range(40)])
    poller = Poller(rows.source(partition=(0, 3), partition_by="word"))
    assert poller.read(2) == [(3, 1, ours), (20, 1, ours)]
    assert poller.read_all(2) == [(25, 1, ours)]
    monkeypatch.setattr(page, "_SEARCHED_ROWS", 3)
    rows.hold([(1, 1, ours)])
    poller = Poller(rows.source(partition=(0, 3), partition_by="word"))
    assert poller.read_all(5) == [(1, 1, ours)]
    rows.insert((2, 2, ours), *((key, 2, others) for key in range(3, 60)), (60, 2, ours))
    assert poller.read_all(5) == [(2, 2, ours), (60, 2, ours)]


def test_a_page_that_is_just_full_is_the_last_one_where_nothing_follows(rows: Rows) -> None:
    rows.hold([(1, 1, "a"), (2, 1, "a")])
    poller = Poller(rows.source())
    assert len(poller.read(2)) == 2
    assert not poller.last.more
    rows.insert((0, 1, "b"), (3, 2, "b"))
    assert len(poller.read(2)) == 2
    assert not poller.last.more


def test_rows_that_have_gone_are_nothing_to_write(rows: Rows) -> None:
    rows.hold([(1, 1, "a"), (2, 1, "a"), (3, 1, "a")])
    poller = Poller(rows.source())
    poller.read()
    before = poller.checkpoint
    for left in ([(1, 1, "a"), (2, 1, "a")], []):
        rows.hold(left)
        assert poller.read() == []
        assert poller.checkpoint == before


def test_a_row_that_only_moves_on_to_the_newest_value_is_delivered_there(rows: Rows) -> None:
    rows.hold([(1, 1, "a"), (2, 1, "a")])
    poller = Poller(rows.source())
    poller.read()
    rows.insert((3, 2, "a"))
    assert poller.read() == [(3, 2, "a")]
    rows.insert((1, 2, "a"), (2, 2, "a"))
    assert poller.read() == [(1, 2, "a"), (2, 2, "a")]


def test_rows_that_are_too_many_to_remember_are_gone_on_from_by_key(rows: Rows) -> None:
    rows.hold([(key, 1, "a") for key in range(1001)])
    poller = Poller(rows.source())
    assert len(poller.read(1)) == 1
    assert len(poller.read(2000)) == 1000
    rows.insert((5000, 1, "b"))
    assert poller.read() == [(5000, 1, "b")]


def test_rows_that_have_gone_make_place_for_those_that_have_come(rows: Rows) -> None:
    rows.hold([(key, 1, "a") for key in range(1, 601)])
    poller = Poller(rows.source())
    assert len(poller.read(2000)) == 600
    rows.hold([(key, 1, "a") for key in range(2000, 2600)])
    assert len(poller.read(2000)) == 600
    rows.insert((0, 1, "b"))
    assert poller.read() == [(0, 1, "b")]


def test_plain_polling_reads_no_value_twice(rows: Rows) -> None:
    rows.hold([(1, 1, "a"), (3, 1, "a")])
    reader = rows.source(in_flight="ignore").open()
    first = reader.fetch_changes({}, 10)
    rows.insert((2, 1, "b"), (4, 1, "b"))
    assert found(reader.fetch_changes(first.next_checkpoint, 10)) == [(4, 1, "b")]
    assert set(first.next_checkpoint) == {"cursor"}
    patient = Poller(rows.source())
    patient.read()
    rows.insert((0, 1, "c"), (5, 1, "c"))
    assert Poller(rows.source(in_flight="ignore"), patient.checkpoint).read() == [(5, 1, "c")]


def test_a_beginning_at_now_in_a_table_without_rows_is_before_the_first(rows: Rows) -> None:
    poller = Poller(rows.source(start_at="now"))
    assert poller.read() == []
    rows.insert((1, 1, "a"))
    assert poller.read() == [(1, 1, "a")]


def test_a_late_row_at_a_value_of_many_is_not_passed_for_those_behind_it(rows: Rows) -> None:
    rows.hold([(key, 1, "a") for key in (1, 3, 5)])
    poller = Poller(rows.source())
    poller.read()
    rows.insert((2, 1, "b"), (6, 2, "b"), (7, 2, "b"), (8, 2, "b"))
    assert poller.read(1) == [(2, 1, "b")]
    assert poller.read_all(1) == [(6, 2, "b"), (7, 2, "b"), (8, 2, "b")]


def test_a_long_tie_is_read_row_by_row_also_where_keys_may_be_null(collated: Rows) -> None:
    words: list[Any] = ["a", "b", "c", "d", "e", "f", None]
    every = [(key, "v1", word) for key, word in enumerate(words)] + [(7, "v2", "a"), (8, "v2", "b"), (9, "v3", "a")]
    collated.hold(every)
    for limit in (1, 2, 3):
        source = collated.source(pk_columns=["word"], in_flight="ignore")
        assert Poller(source).read_all(limit) == every
        assert Poller(source).read_all(limit) == every, "whatever was read last"
    assert [row[0] for row in Poller(collated.source(pk_columns=["word"], start_at="v2")).read_all(1)] == [7, 8, 9]


def test_a_cursor_alone_is_behind_all_rows_of_its_value_also_where_the_last_page_ended_among_them(
    collated: Rows,
) -> None:
    collated.hold([*((key, "v1", word) for key, word in enumerate("abcd")), (5, "v2", "a")])
    source = collated.source(pk_columns=["word"])
    assert [row["id"] for row in source.fetch(("v1", "a"), 2)] == [1, 2]
    assert [row["id"] for row in source.fetch("v1", 2)] == [5]


def test_a_page_is_one_statement_but_for_the_one_that_leaves_a_tie(collated: Rows) -> None:
    """Among the rows of one value it is looked for at that value alone: the other form would begin at its first row."""
    collated.hold([*((key, "v1", word) for key, word in enumerate("abcdef")), (6, "v2", "a"), (7, "v3", "a")])
    source = collated.source(pk_columns=["word"], in_flight="ignore")
    asked: list[str] = []
    event.listen(source._relation.engine(), "before_cursor_execute", lambda *sent: asked.append(sent[2]))
    poller, forms = Poller(source), list[list[bool]]()
    poller.read(1)
    for key in range(1, 8):
        asked.clear()
        assert [row[0] for row in poller.read(1)] == [key]
        forms.append(["t.c = " in statement.partition("OR")[0] for statement in asked if " LIMIT" in statement])
    assert forms == [[False], [True], [True], [True], [True, False], [False], [False]]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_within_a_tie_no_row_is_passed_over_because_a_part_of_its_key_is_null(collated: Rows, limit: int) -> None:
    every = [("v1", a, b) for a in (0, 1, None) for b in (0, 1, None)] + [("v2", 0, 0), ("v2", 0, None)]
    collated._execute("CREATE TABLE ties (c text, a integer, b integer)")
    collated._execute("INSERT INTO ties VALUES (:c, :a, :b)", [dict(zip("cab", row, strict=True)) for row in every])
    source, found = collated.source(table="ties", pk_columns=["a", "b"], in_flight="ignore"), list[Any]()
    checkpoint: CheckpointJson = {}
    for _ in every:
        page = source.fetch_changes(checkpoint, limit)
        checkpoint = page.next_checkpoint
        found += [(record["c"], record["a"], record["b"]) for record in page.records]
    assert found == every


def test_a_row_without_a_cursor_is_never_a_later_one(collated: Rows) -> None:
    collated.hold([(1, "v1", "a"), (2, None, "b"), (3, "v2", "c")])
    assert [row[0] for row in Poller(collated.source(in_flight="ignore")).read_all(1)] == [1, 3]
