"""What every log has in common, over a log that can be made to forget."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import EngineProvider, PositionLostError, SqlAlchemySource
from azure_functions_db.core.errors import DbConnectionError, FetchError, SourceConfigurationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.stream import (
    LogPage,
    LogPosition,
    LogSource,
    PositionLost,
    RowsPage,
    StreamHealth,
    StreamReader,
    check_choice,
    quiet_at,
)


class ShrinkingLog:
    """A log that is thrown away while it is read: so many times, what it begins with is gone when it is read."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.oldest = 10

    def begin(self, *, anew: bool) -> LogPosition:
        self.oldest += 1
        return {"value": str(self.oldest)}

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        raise AssertionError("no table is read")

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        if self.left:
            self.left -= 1
            raise PositionLostError(f"{position['value']} is gone")
        return LogPage([Change("upsert", position["value"], {"id": 1}, {"id": 1})], {"value": "99"}, more=False)

    def acknowledge(self, position: LogPosition) -> None: ...

    def close(self) -> None: ...


def reader(log: ShrinkingLog, policy: Any) -> StreamReader:
    return StreamReader(log, kind="shrinking", tables=["rows"], snapshot="never", on_position_lost=policy)


def test_a_log_that_is_shortened_while_it_is_read_is_gone_on_with_where_it_has_come_to() -> None:
    page = reader(ShrinkingLog(3), "continue").fetch_changes({"cursor": {"value": "1"}}, 10)
    assert [change.position for change in page.records] == ["13"]
    gap = page.next_checkpoint["cursor"]["gap"]
    assert (gap["from"], gap["to"], gap["reason"]) == ("1", "13", "1 is gone")


def test_a_log_that_loses_everything_it_is_asked_for_is_told_and_not_asked_for_ever() -> None:
    with pytest.raises(PositionLostError, match="15 is gone"):
        reader(ShrinkingLog(1000), "continue").fetch_changes({"cursor": {"value": "1"}}, 10)


def test_who_wants_to_be_stopped_is_stopped_by_the_first_loss() -> None:
    with pytest.raises(PositionLostError, match=r"^1 is gone"):
        reader(ShrinkingLog(1), "stop").fetch_changes({"cursor": {"value": "1"}}, 10)


class Shelf:
    """A log behind two tables of numbers; how a page of rows is joined to the log may become known with it."""

    def __init__(self, joined: dict[int, str] | None = None, **tables: int) -> None:
        self.tables = tables
        self.joined = joined or {}
        self.is_readable = True
        self.acknowledged: list[str] = []
        self.closed = 0
        self.page = LogPage([], {"value": "100"}, more=False)

    def begin(self, *, anew: bool) -> LogPosition:
        return {"value": "50" if anew else "1"}

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        if not self.is_readable:
            return None
        first = 0 if after is None else int(after)
        end = min(first + limit, self.tables[table])
        changes = [
            Change("upsert", f"{table} {number}", {"id": number}, {"id": number}) for number in range(first, end)
        ]
        value = self.joined.get(first, position["value"])
        return RowsPage(changes, {"value": value}, end if end < self.tables[table] else None)

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        return self.page

    def acknowledge(self, position: LogPosition) -> None:
        self.acknowledged.append(position["value"])

    def close(self) -> None:
        self.closed += 1


def stream(log: Any, **options: Any) -> StreamReader:
    return StreamReader(log, kind="shelf", tables=["a", "b"], **options)


def read_through(
    reader: StreamReader, pages: int, checkpoint: dict[str, Any] | None = None
) -> tuple[list[str], list[bool], list[Any]]:
    """Return the positions of what came, whether each page had a start to be fixed, and the checkpoints."""
    told, fixed, checkpoints = list[str](), list[bool](), [checkpoint or {}]
    for _ in range(pages):
        page = reader.fetch_changes(checkpoints[-1], 2)
        told += [change.position for change in page.records]
        fixed.append(page.start is not None)
        checkpoints.append(page.next_checkpoint)
    return told, fixed, checkpoints[1:]


def test_tables_are_read_page_by_page_and_the_log_from_where_it_stood_before() -> None:
    log = Shelf(a=3, b=2)
    told, fixed, checkpoints = read_through(stream(log), 4)
    assert told == ["a 0", "a 1", "a 2", "b 0", "b 1"]
    assert fixed == [True, False, False, False], "where the log begins is committed before anything is handled"
    assert [checkpoint["cursor"].get("snapshot") for checkpoint in checkpoints] == [
        {"table": "a", "after": 2},
        {"table": "b", "after": None},
        None,
        None,
    ]
    assert [checkpoint["cursor"]["value"] for checkpoint in checkpoints] == ["1", "1", "1", "100"]


def test_the_log_keeps_everything_until_the_tables_are_read() -> None:
    log = Shelf(a=3, b=2)
    reader = stream(log)
    _, _, checkpoints = read_through(reader, 4)
    for checkpoint in ({}, *checkpoints):
        reader.acknowledge(checkpoint)
    assert log.acknowledged == ["1", "100"]


def test_empty_tables_still_have_their_beginning_fixed() -> None:
    page = stream(Shelf(a=0, b=0)).fetch_changes({}, 2)
    assert page.start == {"cursor": {"kind": "shelf", "value": "1", "snapshot": {"table": "b", "after": None}}}
    assert page.next_checkpoint == {"cursor": {"kind": "shelf", "value": "100"}}


def test_a_beginning_that_only_a_later_page_can_tell_is_fixed_by_that_page() -> None:
    _, fixed, checkpoints = read_through(stream(Shelf({2: "7"}, a=4, b=1)), 3)
    assert fixed == [True, True, False]
    assert [checkpoint["cursor"]["value"] for checkpoint in checkpoints] == ["1", "7", "7"]


def test_tables_that_cannot_be_read_yet_are_waited_for_where_they_are() -> None:
    log = Shelf(a=3, b=2)
    log.is_readable = False
    page = stream(log).fetch_changes({}, 2)
    assert (list(page.records), page.more) == ([], False)
    assert page.next_checkpoint["cursor"]["snapshot"] == {"table": "a", "after": None}


def test_who_wants_the_tables_alone_gets_nothing_of_the_log() -> None:
    log = Shelf(a=1, b=1)
    reader = stream(log, snapshot="only")
    told, _, checkpoints = read_through(reader, 3)
    assert told == ["a 0", "b 0"]
    assert [checkpoint["cursor"].get("over", False) for checkpoint in checkpoints] == [False, True, True]
    assert checkpoints[1] == checkpoints[2], "where the log is by now is nobody's business"
    assert reader.fetch_changes(checkpoints[0], 2).more is False
    reader.acknowledge(checkpoints[-1])
    assert log.acknowledged == []
    assert quiet_at(checkpoints[-1], lambda _position: StreamHealth()) is None


def test_who_wants_the_log_alone_gets_nothing_of_the_tables() -> None:
    page = stream(Shelf(a=3, b=2), snapshot="never").fetch_changes({}, 2)
    assert (list(page.records), page.next_checkpoint["cursor"]["value"]) == ([], "100")


def test_a_table_that_the_log_has_not_told_is_read_before_the_log_goes_on() -> None:
    log = Shelf(a=3, b=2, renamed=1)
    log.page = LogPage([], {"value": "60"}, more=True, reads_anew="renamed")
    reader = stream(log)
    page = reader.fetch_changes({"cursor": {"value": "50"}}, 2)
    assert page.next_checkpoint["cursor"]["snapshot"] == {"table": "renamed", "after": None}
    log.page = LogPage([], {"value": "70"}, more=False)
    told, _, [first, second] = read_through(reader, 2, page.next_checkpoint)
    assert told == ["renamed 0"]
    assert (first["cursor"], second["cursor"]["value"]) == ({"kind": "shelf", "value": "60"}, "70")


def test_after_a_loss_the_tables_are_read_anew_where_that_is_wanted_and_the_loss_stays_told() -> None:
    class Lost(Shelf):
        def changes(self, position: LogPosition, limit: int) -> LogPage:
            if position["value"] == "1":
                raise PositionLostError("1 is gone")
            return super().changes(position, limit)

    reader = stream(Lost(a=1, b=1), on_position_lost="snapshot")
    page = reader.fetch_changes({"cursor": {"value": "1"}}, 2)
    assert [change.position for change in page.records] == ["a 0"]
    assert page.start is not None
    [fact] = page.facts
    assert isinstance(fact, PositionLost)
    assert (fact.policy, fact.gap["from"], fact.gap["to"]) == ("snapshot", "1", "50")
    _, _, later = read_through(reader, 2, page.next_checkpoint)
    assert [checkpoint["cursor"]["gap"] for checkpoint in later] == [fact.gap, fact.gap]


def test_a_log_that_loses_its_place_at_the_very_beginning_is_told() -> None:
    """Nothing was read so far: there is no gap to go past."""
    with pytest.raises(PositionLostError):
        reader(ShrinkingLog(1), "continue").fetch_changes({}, 10)


@pytest.mark.parametrize("cursor", [5, [1, 2], {"tiebreaker": {"id": 1}}])
def test_a_position_of_another_kind_of_source_is_refused(cursor: Any) -> None:
    with pytest.raises(SourceConfigurationError, match="another kind of source"):
        stream(Shelf(a=1, b=1)).fetch_changes({"cursor": cursor}, 2)


def test_only_a_log_that_says_so_is_quiet() -> None:
    checkpoint = {"cursor": {"value": "5"}}
    quiet = quiet_at(checkpoint, lambda position: StreamHealth(lag_bytes=int(position["value"])))
    assert quiet is not None
    assert (list(quiet.records), quiet.next_checkpoint, quiet.more) == ([], checkpoint, False)
    assert [fact.gauges() for fact in quiet.facts] == [{"azfdb_stream_lag_bytes": 5.0}]
    assert quiet_at(checkpoint, lambda _position: None) is None
    assert quiet_at({}, lambda _position: StreamHealth()) is None
    reading_tables = {"cursor": {"value": "5", "snapshot": {"table": "a", "after": None}}}
    assert quiet_at(reading_tables, lambda _position: StreamHealth()) is None

    def fail(_position: LogPosition) -> StreamHealth:
        raise ConnectionError

    assert quiet_at(checkpoint, fail) is None, "whoever reads meets it again, and tells it"


def test_what_is_not_known_of_a_log_is_not_told() -> None:
    health = StreamHealth(lag_bytes=0, warning="The slot is nearly full", details={"slot": "s", "active": None})
    assert health.log_fields() == {"lag_bytes": 0, "slot": "s", "warning": "The slot is nearly full"}
    assert (health.log_level, StreamHealth().log_level) == (logging.WARNING, logging.DEBUG)
    assert health.gauges() == {"azfdb_stream_lag_bytes": 0.0}


def test_who_reads_without_opening_a_reader_leaves_none_behind() -> None:
    log = Shelf(a=1, b=0)

    class Source(LogSource):
        def open(self) -> Any:
            return stream(log)

    page = Source().fetch_changes({}, 2)
    assert [change.position for change in page.records] == ["a 0"]
    Source().acknowledge({"cursor": {"value": "9"}})
    assert (log.acknowledged, log.closed) == (["9"], 2)


def test_a_word_that_is_none_of_those_that_are_taken_is_refused() -> None:
    check_choice("snapshot", "never", ["initial", "never"])
    with pytest.raises(SourceConfigurationError, match=r"snapshot= must be one of 'initial', 'never', not 'nevre'"):
        check_choice("snapshot", "nevre", ["initial", "never"])


@pytest.mark.parametrize(("options", "named"), [({}, "shelf"), ({"source": "orders"}, "orders")])
def test_what_goes_wrong_underneath_is_an_error_that_a_poller_knows(options: dict[str, Any], named: str) -> None:
    class Broken(Shelf):
        def changes(self, position: LogPosition, limit: int) -> LogPage:
            raise DbConnectionError("reset by peer")

        def acknowledge(self, position: LogPosition) -> None:
            raise DbConnectionError("reset by peer")

    broken, checkpoint = stream(Broken(a=1, b=1), **options), {"cursor": {"value": "5"}}
    with pytest.raises(FetchError, match="reset by peer") as unread:
        broken.fetch_changes(checkpoint, 2)
    with pytest.raises(FetchError, match="reset by peer") as unacknowledged:
        broken.acknowledge(checkpoint)
    assert (unread.value.source, unacknowledged.value.source) == (named, named)


def test_rows_of_a_table_are_read_on_after_their_key(sqlite_database: str, provider: EngineProvider) -> None:
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer PRIMARY KEY, item text)"))
        connection.execute(text("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')"))
    engine.dispose()
    rows = SqlAlchemySource(
        url=sqlite_database, table="orders", cursor_column="id", pk_columns=["id"], engine_provider=provider
    )
    first = RowsPage.of(rows, {"value": "7"}, "orders", ["id"], None, 2)
    assert [(change.key, change.position) for change in first.changes] == [
        ({"id": 1}, "snapshot 7 orders [1]"),
        ({"id": 2}, "snapshot 7 orders [2]"),
    ]
    assert first.changes[0].metadata == {"table": "orders", "snapshot": True}
    last = RowsPage.of(rows, {"value": "7"}, "orders", ["id"], first.after, 2)
    assert ([change.after for change in last.changes], last.after) == ([{"id": 3, "item": "c"}], None)
