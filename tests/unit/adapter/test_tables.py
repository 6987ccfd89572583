"""Tables and queries of databases without a server: what is read of them, and what is said about them."""

from __future__ import annotations

import datetime as dt
import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, TypeDecorator, make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from azure_functions_db import EngineProvider, SqlAlchemySource
from azure_functions_db.core.errors import Code, FetchError, SourceConfigurationError
from azure_functions_db.sources.keyset import reader
from azure_functions_db.sources.keyset.page import Salvage, is_undecodable
from azure_functions_db.sources.keyset.position import BEGINNING, Position
from azure_functions_db.sources.keyset.values import Header
from tests.conftest import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

NewSource = "Callable[..., SqlAlchemySource]"


@pytest.fixture
def url(sqlite_database: str) -> str:
    run(sqlite_database, "CREATE TABLE t (id integer PRIMARY KEY, c integer, word text)")
    run(sqlite_database, "INSERT INTO t VALUES (1, 1, 'one'), (2, 1, 'two'), (3, 2, 'three'), (4, 3, 'four')")
    return sqlite_database


def run(url: str, statement: str) -> None:
    execute(make_url(url), statement)


@pytest.fixture
def new_source(url: str, provider: EngineProvider) -> Callable[..., SqlAlchemySource]:
    def new_source(**options: Any) -> SqlAlchemySource:
        named = {} if "query" in options else {"table": "t"}
        place = {"url": url, "engine_provider": provider, "cursor_column": "c", "pk_columns": ["id"]}
        return SqlAlchemySource(**{**place, **named, **options})

    return new_source


def words(source: SqlAlchemySource, limit: int = 10, **checkpoint: Any) -> list[Any]:
    return [record["word"] for record in source.fetch_changes(checkpoint, limit).records]


class Loud(TypeDecorator[str]):
    """Shows what it holds in capital letters."""

    impl = String
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value and value.upper()


def described() -> Table:
    columns = Column("id", Integer, primary_key=True), Column("c", Integer), Column("word", Loud)
    return Table("t", MetaData(), *columns)


def test_a_table_stays_as_it_was_described_also_after_a_read_that_failed(
    new_source: Any, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = new_source(table=described())
    assert words(source) == ["ONE", "TWO", "THREE", "FOUR"]
    assert "No index" not in caplog.text, "the database is not asked"
    run(url, "ALTER TABLE t RENAME COLUMN word TO said")
    with pytest.raises(SourceConfigurationError):
        source.fetch_changes({}, 10)
    run(url, "ALTER TABLE t RENAME COLUMN said TO word")
    assert words(source) == ["ONE", "TWO", "THREE", "FOUR"]


def test_a_described_table_tells_no_more_of_its_keys_after_a_read_that_failed(new_source: Any, url: str) -> None:
    source = new_source(table=described(), pk_columns=["word"])
    run(url, "ALTER TABLE t RENAME COLUMN word TO said")
    with pytest.raises(SourceConfigurationError):
        source.fetch_changes({}, 10)
    run(url, "ALTER TABLE t RENAME COLUMN said TO word")
    assert [finding for finding in source.examine() if finding.check == "key"] == [], "the database was not asked"


def test_rows_that_are_read_once_are_not_warned_of_as_too_many_to_be_read_again(
    new_source: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(words(new_source(in_flight="ignore"))) == 4
    assert "rows of one" not in caplog.text


def test_a_poll_that_no_index_serves_is_warned_of_once(new_source: Any, url: str, caplog: Any) -> None:
    source = new_source()
    for _ in range(2):
        words(source)
    assert caplog.text.count("No index serves source 't'") == 1


@pytest.mark.parametrize("options", [{"query": "SELECT * FROM t"}, {"table": "t"}])
def test_a_new_column_is_shown_without_a_restart(new_source: Any, url: str, options: dict[str, str]) -> None:
    source = new_source(**options)
    assert words(source, 1) == ["one"]
    run(url, "ALTER TABLE t ADD COLUMN stamp datetime")
    run(url, "UPDATE t SET stamp = '2026-11-17 12:00:00'")
    for each in (new_source(**options), source):  # whose engine remembers the table as it was
        [record] = each.fetch_changes({}, 1).records
        assert record == {"id": 1, "c": 1, "word": "one", "stamp": dt.datetime(2026, 11, 17, 12)}  # noqa: DTZ001 - as stored


@pytest.mark.parametrize(("table", "first"), [("t", "one"), (described(), "ONE")], ids=["reflected", "described"])
def test_a_statement_that_fails_amid_a_migration_is_sent_once_more(
    new_source: Any, url: str, monkeypatch: pytest.MonkeyPatch, table: Any, first: str
) -> None:
    source = new_source(table=table, where="EXISTS (SELECT 1 FROM others)")
    looks_again = source._relation.has_changed

    def has_changed() -> bool:
        run(url, "CREATE TABLE others AS SELECT 1")
        return bool(looks_again())

    monkeypatch.setattr(source._relation, "has_changed", has_changed)
    assert words(source, 1) == [first], "by a plan that is as good as the first"


def test_a_range_ends_where_it_ends_also_when_it_was_examined_before_it_was_read(new_source: Any) -> None:
    some = new_source(in_flight="ignore").ranged(1, 2)
    some.examine()
    first = some.fetch_changes({}, 1).next_checkpoint
    assert words(some, **first) == ["two", "three"]


def test_a_statement_that_fails_for_another_reason_than_a_new_shape_is_sent_once(new_source: Any) -> None:
    source, asked = new_source(where="fails(id)"), list[int]()

    def fails(key: int) -> None:
        asked.append(key)
        raise ValueError

    with source._relation.engine().connect() as connection:
        connection.connection.dbapi_connection.create_function("fails", 1, fails)
    with pytest.raises(FetchError, match="user-defined function"):
        source.fetch_changes({}, 10)
    assert asked == [1], "what is slow or refused on a server is not asked of it twice"


@pytest.mark.parametrize("asked", [{"query": "SELECT * FROM nowhere"}, {"table": "nowhere"}])
def test_a_table_that_is_not_there_is_a_wrong_definition(new_source: Any, asked: dict[str, str]) -> None:
    with pytest.raises(SourceConfigurationError, match="nowhere"):
        new_source(**asked).fetch_changes({}, 1)


def test_a_database_in_memory_is_not_read_ahead(new_source: Any, provider: EngineProvider) -> None:
    assert new_source().open().reads_ahead
    alone = SqlAlchemySource(url="sqlite://", table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider)
    assert not alone.open().reads_ahead, "another thread would get another database"


def test_a_look_at_a_source_that_waits_for_nobody_is_a_read(new_source: Any) -> None:
    source = new_source()
    page = source.open().look({}, 10)
    assert ([record["id"] for record in page.records], page.more) == ([1, 2, 3, 4], False)
    page = source.open().look(page.next_checkpoint, 10)
    assert (page.records, page.more) == ([], False)


def test_a_part_of_a_page_ends_behind_its_last_row(new_source: Any) -> None:
    source = new_source()
    page = source.fetch_changes({}, 10)
    for count in (1, 2, 3, 4):
        rest = source.fetch_changes(page.cut(count), 10)
        assert [record["id"] for record in rest.records] == [1, 2, 3, 4][count:]


@pytest.mark.parametrize(
    ("cursor", "in_flight", "grade"),
    [("c", "wait", "exact"), ("c", "ignore", "none"), ("word", "wait", "none"), ("word", "ignore", "none")],
)
def test_how_late_commits_are_guarded_against_is_told_and_warned_of_once(
    new_source: Any, caplog: pytest.LogCaptureFixture, cursor: str, in_flight: Any, grade: str
) -> None:
    source = new_source(cursor_column=cursor, in_flight=in_flight)
    for _ in range(2):
        source.fetch_changes({}, 10)
    assert source.grade() == source.late_commit_grade() == grade
    warned = caplog.text.count("sqlite does not show its running transactions")
    assert warned == (cursor == "word" and in_flight == "wait")


def test_numbers_of_a_database_whose_writers_take_no_turns_may_be_missed(
    tmp_path: Path, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"duckdb:///{tmp_path / 'rows.duckdb'}"
    run(url, "CREATE TABLE t (id integer PRIMARY KEY, c integer)")
    source = SqlAlchemySource(url=url, table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider)
    assert source.fetch_changes({}, 1).records == []
    assert source.grade() == "none"
    assert "duckdb does not show its running transactions" in caplog.text


def test_a_query_is_asked_for_its_columns_as_often_as_it_is_looked_at(new_source: Any, url: str) -> None:
    for _ in range(2):
        assert words(new_source(query="SELECT * FROM t")) == ["one", "two", "three", "four"]


@pytest.mark.parametrize("undecodable", ["error", "text"])
def test_a_text_that_is_none_does_not_stop_the_rows_around_it(new_source: Any, url: str, undecodable: Any) -> None:
    run(url, "UPDATE t SET word = CAST(x'ff41' AS text) WHERE id = 2")
    source = new_source(undecodable=undecodable)
    page = source.fetch_changes({}, 10)
    assert [record["word"] for record in page.records] == ["one", "\\xffA", "three", "four"]
    assert list(page.undecodable) == ([1] if undecodable == "error" else [])
    assert [record["id"] for record in source.fetch_changes(page.cut(2), 10).records] == [3, 4]
    assert page.records[1] == {"id": 2, "c": 1, "word": "\\xffA"}, "the other values are what they are"
    for limit in (1, 2, 3):
        checkpoint, found = dict[str, Any](), list[int]()
        for _ in range(4):
            part = source.fetch_changes(checkpoint, limit)
            checkpoint, found = part.next_checkpoint, [*found, *(record["id"] for record in part.records)]
        assert found == [1, 2, 3, 4]
    if undecodable == "error":
        with pytest.raises(Exception, match="column 'word'"):
            source.fetch(None, 10)
    else:
        assert len(source.fetch(None, 10)) == 4


def test_bytes_beside_a_text_that_is_none_stay_bytes(new_source: Any, url: str) -> None:
    run(url, "ALTER TABLE t ADD COLUMN data blob")
    run(url, "UPDATE t SET word = CAST(x'ff41' AS text), data = x'00ff' WHERE id = 1")
    [record] = new_source(undecodable="text").fetch_changes({}, 1).records
    assert record == {"id": 1, "c": 1, "word": "\\xffA", "data": b"\x00\xff"}


def test_a_connection_that_breaks_while_a_row_is_read_around_is_no_value_that_cannot_be_read(new_source: Any) -> None:
    def undecodable(*_: Any) -> Any:
        raise ValueError("year is out of range")

    def broken(*_: Any) -> Any:
        raise OperationalError("SELECT", None, Exception("gone"))

    source = new_source()
    with source._relation.connected() as (plan, _):
        with pytest.raises(OperationalError):
            Salvage(plan, undecodable, broken).rows(BEGINNING, 2)
        with pytest.raises(OperationalError):
            Salvage(plan, broken, broken).rows(BEGINNING, 2)


PLAIN, TEXTS = (Header(("id", "c", "word"), ("int", "int", kind)) for kind in ("text", "bytes"))
WIDER = Header(("id", "c", "word", "new"), ("int", "int", "text", "text"))


class Broken:
    """Rows of which some cannot be decoded, as their table has them at each read."""

    def __init__(self, broken: set[int], wider_from: int = 99) -> None:
        self._broken = broken
        self._wider_from = wider_from

    def read_page(self, start: Position, count: int) -> Any:
        keys = self._keys_after(start)[:count]
        if self._broken.intersection(keys):
            raise ValueError
        is_wider = self._wider_from in keys
        return WIDER if is_wider else PLAIN, [(key, key, "w", "n") if is_wider else (key, key, "w") for key in keys]

    def read_row(self, start: Position, names: Sequence[str], texts: Collection[str]) -> Any:
        key = self._keys_after(start)[0]
        if key in self._broken and "word" in names and "word" not in texts:
            raise ValueError
        return TEXTS, [(key, key, b"w" if key % 2 else "w")]  # one database gives bytes, the other a text

    def _keys_after(self, start: Position) -> list[int]:
        return [key for key in range(1, 5) if not start.values or key > start.values[0]]


@pytest.mark.parametrize(
    ("broken", "wider_from", "header", "keys", "is_cut"),
    [
        (set(), 99, PLAIN, [1, 2, 3, 4], False),
        ({4}, 99, PLAIN, [1, 2, 3, 4], False),
        ({1}, 99, PLAIN, [1, 2, 3, 4], False),
        ({1, 2, 3, 4}, 99, TEXTS, [1, 2, 3, 4], False),
        ({4}, 3, PLAIN, [1, 2], True),
    ],
)
def test_rows_around_broken_ones_are_told_by_their_own_header_up_to_a_migration(
    new_source: Any, broken: set[int], wider_from: int, header: Header, keys: list[int], is_cut: bool
) -> None:
    rows = Broken(broken, wider_from)
    found = Salvage(new_source()._plan(), rows.read_page, rows.read_row).rows(BEGINNING, 4)
    assert (found[0], [row[0] for row in found[1]], found[2]) == (header, keys, is_cut)


@pytest.mark.parametrize(
    ("cause", "is_broken"),
    [
        (psycopg.DataError("timestamp too large"), True),
        (psycopg.OperationalError("the connection is lost"), False),
        (psycopg.errors.NumericValueOutOfRange("of the server"), False),
        (pymysql.err.DataError(1264, "out of range", sqlstate="22003"), False),
        (sqlite3.OperationalError("Could not decode to UTF-8 column"), True),
        (sqlite3.OperationalError("disk I/O error"), False),
    ],
    ids=repr,
)
def test_a_value_that_a_driver_cannot_hold_is_told_from_what_a_server_refuses(cause: Any, is_broken: bool) -> None:
    assert is_undecodable(DBAPIError("a statement", None, cause)) is is_broken


@pytest.mark.parametrize("form", [" ", "T"])
def test_a_moment_is_gone_on_from_in_the_form_that_its_writers_chose(new_source: Any, url: str, form: str) -> None:
    run(url, "ALTER TABLE t ADD COLUMN stamp datetime")
    for key in (1, 2, 3, 4):
        run(url, f"UPDATE t SET stamp = '2026-11-17{form}12:00:0{key}' WHERE id = {key}")
    source = new_source(cursor_column="stamp", start_at=dt.datetime(2026, 11, 17, 12, 0, 2))  # noqa: DTZ001 - as stored
    assert ids(source) == [2, 3, 4]
    assert ids(source, cursor=["2026-11-17T12:00:03", 3]) == [4], "as release 0.8 has written it"
    run(url, f"UPDATE t SET stamp = '2026-11-17{form}later' WHERE id = 4")
    end = source.fetch_changes({}, 10).next_checkpoint
    assert source.fetch_changes(end, 10).records == [], "what is no moment is a place as well"


@pytest.mark.parametrize("options", [{}, {"in_flight": "ignore"}, {"partition": (0, 1)}])
def test_a_key_that_cannot_be_read_stops_the_poller_behind_the_rows_before_it_and_says_so(
    new_source: Any, url: str, options: dict[str, Any]
) -> None:
    run(url, "UPDATE t SET word = CAST(x'ff41' AS text) WHERE id = 3")
    source = new_source(pk_columns=["word"], **options)
    page = source.fetch_changes({}, 10)
    assert ([record["id"] for record in page.records], page.more) == ([1, 2], False)
    with pytest.raises(FetchError, match=r"The row after position \(1, 'two'\) has a cursor or key that Python cannot"):
        source.fetch_changes(page.next_checkpoint, 10)
    run(url, "UPDATE t SET word = CAST(x'ff41' AS text) WHERE id < 3")
    with pytest.raises(FetchError, match="The row after the beginning"):
        source.fetch_changes({}, 10)


def test_a_backlog_tells_how_many_rows_there_are_and_how_old_the_first_is(
    new_source: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(url, "ALTER TABLE t ADD COLUMN stamp datetime")
    stamp = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=100)).replace(tzinfo=None).isoformat(" ")
    run(url, f"UPDATE t SET stamp = '{stamp}'")
    source = new_source(cursor_column="stamp", in_flight="ignore")
    backlog = source.backlog({})
    assert (backlog.amount, backlog.is_more, round(backlog.lag_seconds, -1)) == (4, False, 100)
    end = source.fetch_changes({}, 10).next_checkpoint
    assert (source.backlog(end).amount, source.backlog(end).lag_seconds) == (0, 0.0)
    monkeypatch.setattr(reader, "_COUNTED", 3)
    assert (source.backlog({}).amount, source.backlog({}).is_more) == (3, True)
    share = new_source(partition=(0, 2), partition_by="word")
    assert (share.backlog({}).amount, share.backlog({}).is_more) == (1, True), "of a share as well it is a part"


def test_how_old_the_backlog_of_a_share_is_cannot_be_told_where_none_of_its_rows_is_found(new_source: Any) -> None:
    empty, *_ = (index for index in range(4) if not words(new_source(partition=(index, 4), partition_by="word")))
    backlog = new_source(partition=(empty, 4), partition_by="word").backlog({})
    assert (backlog.amount, backlog.lag_seconds) == (1, None), "it was estimated"


def test_a_share_is_counted_where_the_database_can_tell_it_and_estimated_where_it_cannot(new_source: Any) -> None:
    shares = [new_source(partition=(index, 2)) for index in (0, 1)]
    assert [share.count_changes({}) for share in shares] == [2, 2]
    shares = [new_source(partition=(index, 4)) for index in range(4)]
    assert [share.count_changes({}) for share in shares] == [1, 1, 1, 1]
    shares = [new_source(partition=(index, 2), partition_by="word") for index in (0, 1)]
    assert [share.count_changes({}) for share in shares] == [2, 2]
    assert sorted(word for share in shares for word in words(share)) == ["four", "one", "three", "two"]
    assert new_source().count_changes({}, 3) == 3


def test_a_column_that_is_not_there_is_told_with_those_that_are(new_source: Any) -> None:
    with pytest.raises(SourceConfigurationError, match="no column 'wort'; there are 'id', 'c', 'word'") as told:
        new_source(columns=["wort"]).fetch_changes({}, 1)
    assert told.value.code == Code.COLUMN_MISSING


def ids(source: SqlAlchemySource, **checkpoint: Any) -> list[Any]:
    return [record["id"] for record in source.fetch_changes(checkpoint, 10).records]


def test_a_range_has_both_its_ends_and_the_events_that_it_always_has(new_source: Any) -> None:
    source = new_source()
    assert ids(source.ranged(1, 2)) == [1, 2, 3]
    assert ids(source.ranged(2, None)) == [3, 4]
    assert ids(source.ranged(None, 1)) == [1, 2]
    assert source.ranged(1, 2).count_changes({}) == 3
    assert source.ranged(1, 2).source_descriptor == source.source_descriptor
    assert ids(source) == [1, 2, 3, 4]


def test_a_share_of_a_source_that_was_described_before_is_described_anew(new_source: Any) -> None:
    source = new_source()
    whole = source.source_descriptor
    share = source.partitioned(0, 2)
    assert share.source_descriptor != whole
    assert source.source_descriptor == whole


def test_a_row_is_told_as_it_is_now(new_source: Any, url: str) -> None:
    source = new_source(where="word <> 'gone'")
    assert source.current_row({"id": 3}) == {"id": 3, "c": 2, "word": "three"}
    run(url, "UPDATE t SET word = 'gone' WHERE id = 3")
    assert source.current_row({"id": 3}) is None, "it is no row of this source any more"
    assert source.current_row({"id": 9}) is None


def test_a_cursor_that_was_typed_is_a_value_of_its_column(new_source: Any) -> None:
    source = new_source()
    assert source.cursor_from("7") == 7
    with pytest.raises(SourceConfigurationError, match="'soon' is no value of c"):
        source.cursor_from("soon")
    assert source.cursor_at(source.fetch_changes({}, 3).next_checkpoint) == 2


def test_a_fetch_goes_on_behind_a_cursor_or_a_row(new_source: Any) -> None:
    source = new_source()

    def after(position: Any) -> list[int]:
        return [record["id"] for record in source.fetch(position, 10)]

    assert (after(None), after(1), after((1, 1)), after([1, 1])) == ([1, 2, 3, 4], [3, 4], [2, 3, 4], [2, 3, 4])
    with pytest.raises(SourceConfigurationError, match="of 2 values"):
        after((1, 1, 1))
    with pytest.raises(SourceConfigurationError, match="at least one row, not 0"):
        source.fetch_changes({}, 0)


def test_a_source_that_was_there_before_its_column_reads_it_without_a_restart(new_source: Any, url: str) -> None:
    source = new_source(columns=["total"])
    for refused in (source.validate, lambda: source.fetch_changes({}, 1)):
        with pytest.raises(SourceConfigurationError, match="'total'"):
            refused()
    run(url, "ALTER TABLE t ADD COLUMN total integer")
    assert source.fetch_changes({}, 1).records == [{"total": None, "c": 1, "id": 1}]
    source.validate()
    with pytest.raises(SourceConfigurationError):
        new_source(where="nothing = 1").validate()


QUESTIONS: list[Any] = [
    lambda source: source.validate(),
    lambda source: source.fetch(None, 1),
    lambda source: source.fetch_changes({}, 1),
    lambda source: source.null_cursor_rows(),
    lambda source: source.late_commit_grade(),
    lambda source: source.examine(),
    lambda source: source.parse("c=1 id=1"),
    lambda source: source.cursor_from("1"),
    lambda source: source.count_changes({}),
    lambda source: source.current_row({"id": 1}),
    lambda source: source.backlog({}),
]


@pytest.mark.parametrize("ask", QUESTIONS, ids=range(len(QUESTIONS)))
def test_a_database_that_cannot_be_reached_is_told_as_such_whatever_it_is_asked(
    new_source: Any, tmp_path: Path, ask: Any
) -> None:
    source = new_source(url=f"sqlite:///{tmp_path / 'nowhere' / 'rows.db'}")
    with pytest.raises(FetchError, match="Source 't': the database cannot be reached") as told:
        ask(source)
    assert told.value.code == Code.DATABASE_UNREACHABLE


@pytest.mark.parametrize(
    "ask",
    [
        lambda source, checkpoint: source.lowest([checkpoint, {"cursor": [1, 1]}]),
        lambda source, checkpoint: source.is_behind(checkpoint, {"cursor": [1, 1]}),
        lambda source, checkpoint: source.count_changes(checkpoint),
        lambda source, checkpoint: source.fetch_changes(checkpoint, 1),
    ],
    ids=["lowest", "is_behind", "count_changes", "fetch_changes"],
)
def test_a_checkpoint_that_cannot_be_read_is_told_as_such_whatever_it_is_needed_for(new_source: Any, ask: Any) -> None:
    with pytest.raises(FetchError, match="Source 't': "):
        ask(new_source(), {"cursor": {"$type": "unheard of"}})


@pytest.mark.parametrize("options", [{"query": "SELECT * FROM t"}, {"table": "t"}])
def test_a_source_is_held_against_its_database_as_it_is_now(new_source: Any, url: str, options: dict[str, str]) -> None:
    source = new_source(created_column="word", **options)
    source.validate()
    run(url, "ALTER TABLE t DROP COLUMN word")
    with pytest.raises(SourceConfigurationError, match="no column 'word'"):
        source.validate()


def test_a_distance_from_a_clock_that_the_cursor_does_not_tell_is_refused_before_anything_is_read(
    new_source: Any,
) -> None:
    with pytest.raises(SourceConfigurationError, match="needs a cursor of date and time"):
        new_source(settle_seconds=60).validate()


def test_a_source_that_was_disposed_of_begins_like_a_new_one(new_source: Any, url: str) -> None:
    source = new_source(start_at="now")
    assert ids(source) == []
    run(url, "INSERT INTO t VALUES (5, 4, 'five')")
    assert ids(source) == [5]
    source.dispose()
    assert ids(source) == [], "its now is another one"


def test_what_a_source_can_tell_about_a_change_is_said(new_source: Any) -> None:
    plain, marked = new_source().capability(), new_source(created_column="made", deleted_column="gone").capability()
    assert (plain.detects_deletes, plain.distinguishes_insert, plain.partitions) == (False, False, True)
    assert (marked.detects_deletes, marked.distinguishes_insert) == (True, True)


def test_a_condition_stays_a_unit_whatever_is_in_it(new_source: Any) -> None:
    source = new_source(where="id = 1 OR id = :other -- and nothing else", parameters={"other": 3})
    assert ids(source, cursor=[1, 1]) == [3]
    source = new_source(query="SELECT * FROM t WHERE id > :low -- and no others", parameters={"low": 2})
    assert ids(source) == [3, 4]


def test_rows_whose_key_is_null_come_first_and_are_not_passed_over(new_source: Any, url: str) -> None:
    run(url, "UPDATE t SET word = NULL WHERE id IN (1, 3)")
    for limit in (1, 2, 3):
        source, checkpoint, found = new_source(pk_columns=["word"], in_flight="ignore"), dict[str, Any](), list[int]()
        for _ in range(6):
            page = source.fetch_changes(checkpoint, limit)
            checkpoint, found = page.next_checkpoint, [*found, *(record["id"] for record in page.records)]
        assert found == [1, 2, 3, 4]


def test_only_the_columns_that_are_wanted_or_needed_are_read(new_source: Any, url: str) -> None:
    assert new_source(columns=["word"]).fetch_changes({}, 1).records == [{"word": "one", "c": 1, "id": 1}]
    run(url, "ALTER TABLE t ADD COLUMN later integer")
    assert new_source(columns=["word"]).fetch_changes({}, 1).records == [{"word": "one", "c": 1, "id": 1}]


def test_a_value_that_is_not_of_its_declared_type_is_handed_out_as_it_is(new_source: Any, url: str) -> None:
    run(url, "ALTER TABLE t ADD COLUMN day date")
    run(url, "UPDATE t SET day = '2026-11-17' WHERE id < 3")
    run(url, "UPDATE t SET day = 'some day' WHERE id = 2")
    days = [record["day"] for record in new_source().fetch_changes({}, 10).records]
    assert days == [dt.date(2026, 11, 17), "some day", None, None]


@pytest.mark.parametrize("form", ["{:%Y-%m-%d %H:%M:%S}", "{:%Y-%m-%dT%H:%M:%S}Z", "{:%Y-%m-%dT%H:%M:%S}+00:00"])
def test_a_moment_to_begin_at_is_the_same_whatever_zone_it_is_told_in(new_source: Any, url: str, form: str) -> None:
    run(url, "CREATE TABLE stamped (id integer PRIMARY KEY, c datetime)")
    for hour in range(10, 14):
        run(url, f"INSERT INTO stamped VALUES ({hour}, '{form.format(dt.datetime(2026, 1, 1, hour))}')")  # noqa: DTZ001 - as stored
    for offset in (-5, 0, 2):
        noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC).astimezone(dt.timezone(dt.timedelta(hours=offset)))
        found = new_source(table="stamped", start_at=noon).fetch_changes({}, 10).records
        assert [record["id"] for record in found] == [12, 13]


@pytest.mark.parametrize("zone", ["+09:00", "-05:00", None])
def test_a_distance_is_kept_from_the_clock_in_whatever_zone_writers_stamp(
    new_source: Any, url: str, zone: str | None
) -> None:
    run(url, "CREATE TABLE stamped (id integer PRIMARY KEY, c datetime)")
    now = dt.datetime.now(dt.UTC)
    there = dt.datetime.fromisoformat(f"2000-01-01T00:00{zone or '+00:00'}").tzinfo
    for key, age in enumerate((7200, 3600, 0), 1):
        stamp = (now - dt.timedelta(seconds=age)).astimezone(there)
        run(url, f"INSERT INTO stamped VALUES ({key}, '{stamp if zone else stamp.timestamp()}')")
    found = new_source(table="stamped", settle_seconds=1800).fetch_changes({}, 10).records
    assert [record["id"] for record in found] == [1, 2]
