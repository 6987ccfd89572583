"""Where a source goes on: by the checkpoints of others, and by values whose type may have changed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.serializers import serialize_position
from azure_functions_db.sources.keyset.position import MOST_ROWS, Boundary, Layout, Mark, are_alike, are_tied, digest

if TYPE_CHECKING:
    from azure_functions_db.core.types import CheckpointJson

NOON = dt.datetime(2026, 11, 16, 12)  # noqa: DTZ001 - as drivers give it


def source(**options: Any) -> SqlAlchemySource:
    given: dict[str, Any] = {"url": "sqlite://", "table": "orders", "cursor_column": "version", "pk_columns": ["id"]}
    return SqlAlchemySource(**(given | options))


def at(cursor: Any, key: Any = 1, **beside: Any) -> CheckpointJson:
    return {"cursor": serialize_position(cursor, {"id": key}), **beside}


class TestTheLowestOfSeveral:
    """A source that takes over from partitions begins there: at a higher one, rows would be skipped."""

    def test_is_the_lowest_cursor_with_its_rows(self) -> None:
        assert source().lowest([at(5, 9), at(3, 7), at(4)]) == {"cursor": serialize_position(3, {})}

    def test_is_the_one_that_all_share_with_what_was_delivered_there(self) -> None:
        shared = at(5, 9, boundary={"at": "x", "rows": ""})
        noted = {**shared, "metadata": {"row_count": 3}, "horizon": {"server": "s"}}
        assert source().lowest([noted, shared]) == shared

    def test_is_the_beginning_where_somebody_has_not_begun(self) -> None:
        assert source().lowest([at(5), {}]) == {}
        assert source().lowest([]) == {}

    def test_is_that_of_those_who_have_begun_where_the_others_begin_now(self) -> None:
        assert source(start_at="now").lowest([at(5), {}, at(7)]) == {"cursor": serialize_position(5, {})}

    def test_is_the_beginning_that_somebody_stands_at(self) -> None:
        beginning = at(None, None)
        assert source().lowest([at(5), beginning]) == beginning

    def test_keeps_the_key_where_the_cursor_is_the_key(self) -> None:
        keyed = source(cursor_column="id")
        assert keyed.lowest([at(5, 5), at(3, 3)]) == {"cursor": serialize_position(3, {"id": 3})}

    @pytest.mark.parametrize("cursors", [("a", "b"), (UUID(int=1), UUID(int=2)), (5, NOON)])
    def test_of_what_only_the_database_can_order_is_not_guessed(self, cursors: tuple[Any, Any]) -> None:
        checkpoints = [at(cursor) for cursor in cursors]
        assert source().lowest(checkpoints) is None
        with pytest.raises(SourceConfigurationError, match="give start_at="):
            source(start_at="now").lowest(checkpoints)

    def test_of_texts_that_are_the_same_is_that_text(self) -> None:
        assert source().lowest([at("a", 1), at("a", 2)]) == {"cursor": serialize_position("a", {})}


def test_only_a_position_that_is_certainly_lower_is_behind() -> None:
    assert source().is_behind(at(3), at(5))
    assert not source().is_behind(at(5), at(5))
    assert not source().is_behind(at(5), at(3))
    assert source().is_behind({}, at(3))
    assert not source().is_behind(at(3), {})
    assert not source().is_behind({}, {})
    assert not source().is_behind(at("a"), at("b")), "how texts are ordered, only the database knows"


def test_values_are_compared_with_their_like() -> None:
    aware = NOON.replace(tzinfo=dt.UTC)
    assert are_alike(1, Decimal(2))
    assert are_alike(1.5, 2)
    assert are_alike(aware, aware)
    assert not are_alike(NOON, aware)
    assert not are_alike(1, "1")
    assert are_alike("a", "b")
    assert not are_tied("1", 1)
    assert are_tied(1, Decimal(1))


class TestAPosition:
    @pytest.fixture
    def orders(self, sqlite_database: str, provider: EngineProvider) -> SqlAlchemySource:
        engine = create_engine(sqlite_database)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id integer PRIMARY KEY, version bigint)"))
            connection.execute(text("INSERT INTO orders VALUES (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)"))
        engine.dispose()
        return source(url=sqlite_database, engine_provider=provider)

    @staticmethod
    def after(source: SqlAlchemySource, checkpoint: CheckpointJson) -> list[int]:
        return [record["id"] for record in source.fetch_changes(checkpoint, 10).records]

    def test_of_a_cursor_alone_includes_its_rows(self, orders: SqlAlchemySource) -> None:
        assert self.after(orders, {"cursor": serialize_position(2, {})}) == [3, 4, 5]

    def test_of_a_cursor_and_a_key_excludes_that_row(self, orders: SqlAlchemySource) -> None:
        assert self.after(orders, at(2, 3)) == [4, 5]
        assert self.after(orders, {"cursor": [2, 3]}) == [4, 5], "as release 0.8 wrote it"
        assert self.after(orders, {"cursor": ["2", "3"]}) == [4, 5], "and what it wrote as texts"

    def test_of_nothing_is_the_beginning(self, orders: SqlAlchemySource) -> None:
        assert self.after(orders, {}) == [1, 2, 3, 4, 5]
        assert self.after(orders, at(None, None)) == [1, 2, 3, 4, 5]

    def test_to_start_at_may_be_a_cursor_or_a_row(self, orders: SqlAlchemySource) -> None:
        def started(start_at: Any) -> list[int]:
            return self.after(orders.ranged(start_at, None), {})

        assert started(2) == [3, 4, 5]
        assert started((2, 3)) == [4, 5]
        with pytest.raises(SourceConfigurationError, match="a cursor, or"):
            started((2, 3, 4))
        assert self.after(orders.ranged(1, 2), {}) == [1, 2, 3, 4], "both ends included"


class TestRows:
    """Where they have their cursor, their key and everything else."""

    layout = Layout((0, 1), (2,))

    def test_have_a_position_that_a_checkpoint_can_hold(self) -> None:
        position = self.layout.position((5, bytearray(b"a"), "word"))
        assert (position, type(position[1])) == ((5, b"a"), bytes)

    def test_at_a_text_are_those_that_a_collation_may_take_for_it(self) -> None:
        rows = [("a", 1, ""), ("A ", 2, ""), ("b", 3, "")]
        assert self.layout.rows_at(rows, "a") == rows[:2]
        assert self.layout.count_at_start(rows, "a") == 2
        assert self.layout.rows_at([(1, 1, ""), (2, 2, "")], 1) == [(1, 1, "")]

    def test_that_begin_with_a_cursor_of_another_type_cannot_be_compared(self) -> None:
        assert self.layout.begins_alike([], 5)
        assert self.layout.begins_alike([(5, 1, "")], 5)
        assert self.layout.begins_alike([(7, 1, "")], 5)
        assert not self.layout.begins_alike([("x", 1, "")], 5)

    def test_are_remembered_up_to_a_number(self) -> None:
        rows = [(1, key, "") for key in range(MOST_ROWS + 1)]
        marks = self.layout.marks_at_end(rows[:-1], 1, Boundary())
        assert marks is not None
        assert len(marks) == MOST_ROWS
        assert self.layout.marks_at_end(rows, 1, Boundary()) is None
        assert self.layout.marks_at_end([(0, 1, ""), (1, 2, "")], 1, Boundary()) == {
            key: Mark(content) for _, key, (content, _) in self.layout.fresh([(1, 2, "")], Boundary())
        }

    def test_that_were_delivered_like_this_are_not_fresh_and_keep_their_mark(self) -> None:
        [(_, key, mark)] = self.layout.fresh([(1, 2, "a")], Boundary())
        delivered = Boundary({key: mark})
        assert self.layout.fresh([(1, 2, "a")], delivered) == []
        assert self.layout.marks_at_end([(1, 2, "a")], 1, delivered) == {key: mark}
        [(place, same, changed)] = self.layout.fresh([(1, 1, "a"), (1, 2, "b")], delivered)[1:]
        assert (place, same, changed.revision) == (1, key, 1)

    def test_of_keys_that_only_differ_in_how_the_driver_gives_them_are_the_same(self) -> None:
        [one], [other] = (self.layout.fresh([(1, key, "a")], Boundary()) for key in (b"a", bytearray(b"a")))
        assert one == other


def test_a_boundary_has_place_for_a_number_of_rows() -> None:
    marks = {key.to_bytes(8): Mark(b"content!") for key in range(MOST_ROWS + 1)}
    first, rest = dict([*marks.items()][:1]), dict([*marks.items()][1:])
    full = Boundary(rest).joined({}, complete=False)
    assert full is not None
    assert len(full) == MOST_ROWS
    assert full.joined(first, complete=False) is None, "what has gone may come back"
    assert full.joined({}, complete=True) == full, "nothing is forgotten as long as there is place"
    kept = full.joined(first, complete=True)
    assert kept is not None
    assert kept.marks == first


def test_a_moment_cannot_be_compared_with_a_day() -> None:
    assert not are_alike(NOON, NOON.date())
    assert not are_alike(NOON.date(), NOON)


class Word(str):
    """A text as a driver may give it."""

    __slots__ = ()


class Number(float):
    """A number as a driver may give it."""

    __slots__ = ()


class Says:
    """A value of a driver's own type."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __str__(self) -> str:
        return self.words


class Shows:
    """A value that only programmers can read."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


def test_a_row_is_known_by_its_values_whatever_classes_they_have() -> None:
    assert digest([Word("a"), True, Number(1.5)]) == digest(["a", 1, 1.5])
    assert digest([NOON]) != digest([NOON.replace(tzinfo=dt.UTC)]), "a moment without a zone is another"
    for kind in (Says, Shows):
        assert digest([kind("a")]) == digest([kind("a")])
        assert digest([kind("a")]) != digest([kind("b")])
