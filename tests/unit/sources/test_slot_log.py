"""One tick's reading of a slot: what a server may say of it, and what becomes of a position then."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine

from azure_functions_db import DbConfig, PositionLostError, PostgresLogicalSource, SourceConfigurationError
from azure_functions_db.core.errors import DbConnectionError, FetchError
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.core.types import Change
from azure_functions_db.sources.postgres import log as logs
from azure_functions_db.sources.postgres.changes import KeyPage, Shape, TableReader, TableRows, processors_of
from azure_functions_db.sources.postgres.log import PostgresLog, age_of, committed_at, health
from azure_functions_db.sources.postgres.pgoutput import UNCHANGED, Column, Relation
from azure_functions_db.sources.postgres.replication import SlotRefusedError
from azure_functions_db.sources.postgres.server import Server, ServerState, Slot, Table, TableName
from tests.unit.sources.test_change_stream import (
    COMMITTED,
    Feed,
    Wal,
    insert,
    rows_of,
    told,
    update,
    values,
)

URL = "postgresql+psycopg://nowhere/db"
NOW = COMMITTED + dt.timedelta(minutes=1)
SLOT = Slot(
    plugin="pgoutput",
    database="db",
    is_active=False,
    active_pid=None,
    wal_status="reserved",
    invalidation=None,
    restart_lsn=0x10,
    confirmed_lsn=0x20,
    safe_wal_bytes=None,
    is_failover=True,
)
STATE = ServerState(
    slot=SLOT,
    flushed_lsn=0x9000,
    timeline=1,
    system="7",
    now=NOW,
    version=180000,
    wal_level="logical",
    database="db",
    has_publication=True,
    publication="p1",
    unpublished=(),
)
POSITION = {"value": "0/50", "system": "7", "timeline": 1, "publication": "p1", "at": datetime_text(NOW)}
TABLE = Table(
    name=TableName("s", "t"),
    oid=1,
    kind="r",
    identity="d",
    key=(("id", "integer"),),
    is_identified=True,
    published={},
    may_read=True,
)


class AskedServer(Server):
    """A server that says what it is told to say, and notes what it is told to do."""

    def __init__(self, definition: Any, state: ServerState) -> None:
        super().__init__(create_engine(URL), definition, "orders")
        self.state = state
        self.after: ServerState | None = None
        """What it is once something was done to it."""
        self.did: list[str] = []
        self.beats = 0
        self.looks = 0
        self.listed = [TABLE]

    def look(self) -> ServerState:
        self.looks += 1
        return self.state

    def tables(self) -> list[Table]:
        return self.listed

    def running_xids(self) -> list[int]:
        return [101]

    def beat(self) -> None:
        self.beats += 1

    def execute(self, statements: Sequence[str]) -> None:
        self.did += statements
        self.state = self.after or self.state


class Held(Feed):
    """A slot that is held; noted by the log that holds it."""

    made: list[Held]
    wal: Wal
    is_let_go = True
    pid = 77
    refusal: Exception | None = None

    def __init__(self, *_: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        super().__init__(self.wal.sent_from(0), self.wal.end)
        self.made.append(self)
        self.followed: list[int] = []
        self.acknowledged: list[int] = []
        self.is_closed = False

    def follow(self, target: int) -> None:
        self.followed.append(target)

    def ask(self) -> None:
        self._received = iter([self.wal.end])

    def acknowledge(self, lsn: int) -> None:
        self.acknowledged.append(lsn)

    def close(self) -> None:
        self.is_closed = True


class Rows:
    """A table as one tick sees it."""

    def __init__(self, seen: str = "100:103:", until: str = "0/60") -> None:
        self.joint = {"seen": seen, "until": until}
        self.is_closed = False
        self.asked: list[Any] = []

    def page(self, table: Table, after: Any, limit: int, position: Any) -> KeyPage:
        self.asked.append((str(table.name), after, limit, position))
        return KeyPage([Change("upsert", "1", {"id": 1}, {"id": 1})], ["1"], {0: ValueError("odd")})

    def close(self) -> None:
        self.is_closed = True


class OwnLog(PostgresLog):
    """A log whose tables are not asked of a database."""

    rows_seen: Rows
    history: dict[int, int]

    def _table_rows(self, relation: Relation) -> TableRows | None:
        return rows_of(relation)

    def _reader(self) -> Any:
        if self._table_reader is None:
            self._table_reader = self.rows_seen  # type: ignore[assignment]  # it reads as one does
        return self._table_reader

    def _history(self, state: ServerState) -> dict[int, int]:
        return self.history


@pytest.fixture
def wal() -> Wal:
    wal = Wal()
    wal.transaction(insert(1), insert(2))
    wal.transaction(insert(3))
    return wal


@pytest.fixture
def new_log(monkeypatch: pytest.MonkeyPatch, wal: Wal) -> Any:
    class Streamed(Held):
        made: list[Held] = []  # noqa: RUF012 - of this test
        refusal = None

    class Peeked(Streamed): ...

    Streamed.wal = wal
    monkeypatch.setattr(logs, "Replication", Streamed)
    monkeypatch.setattr(logs, "Peek", Peeked)

    def new_log(state: ServerState = STATE, **options: Any) -> Any:
        definition = PostgresLogicalSource(url=URL, tables="s.t", slot="slot", **options)._definition
        log: Any = OwnLog(
            AskedServer(definition, state), DbConfig(connection_url=URL), definition, "orders", {}, {}, {}
        )
        log.rows_seen, log.history, log.feeds = Rows(), {}, Streamed.made
        log.feed_class = Streamed
        return log

    return new_log


# Whether a position is still there.


def changed(**slot: Any) -> dict[str, Any]:
    return {"slot": replace(SLOT, **slot)}


@pytest.mark.parametrize(
    ("position", "state", "reason"),
    [
        ({}, {}, None),
        ({"system": "8"}, {}, r"this is another server \(system 7, not 8\)"),
        ({}, {"slot": None}, "slot 'slot' does not exist any more"),
        ({}, changed(wal_status="lost"), r"slot 'slot' was invalidated \(its log was removed\)"),
        ({}, changed(invalidation="rows_removed"), r"slot 'slot' was invalidated \(rows_removed\)"),
        ({"publication": "p0"}, {}, "publication 'slot' was altered"),
        ({"publication": "p0"}, {"has_publication": False}, None),
        ({}, changed(confirmed_lsn=0x51), "slot 'slot' stands at 0/51, ahead of the checkpoint"),
        ({}, changed(confirmed_lsn=0x50), None),
        ({}, changed(confirmed_lsn=None), None),
        ({"timeline": 1}, {"timeline": 2}, r"promoted or restored before it had got this far \(timeline 2\)"),
        ({}, {"flushed_lsn": 0x4F}, r"the server's log ends at 0/4F: it was restored"),
        ({}, {"flushed_lsn": 0x50}, None),
    ],
)
def test_a_position_that_is_no_longer_there_is_told_with_the_reason(
    new_log: Any, position: dict[str, Any], state: dict[str, Any], reason: str | None
) -> None:
    log = new_log()
    if reason is None:
        log.check(POSITION | position, replace(STATE, **state))
        log.check({"value": "0/50"}, replace(STATE, **state))  # somebody has typed it: nothing else is known
        return
    with pytest.raises(PositionLostError, match=reason) as lost:
        log.check(POSITION | position, replace(STATE, **state))
    assert f"committed after 0/50 ({POSITION['at']}) and until {datetime_text(NOW)}" in str(lost.value)
    assert lost.value.source == "orders"


@pytest.mark.parametrize(
    ("history", "position", "is_there"),
    [
        ({1: 0x50}, {}, True),
        ({1: 0x4F}, {}, False),
        ({2: 0x50}, {}, False),
        ({}, {}, False),
        ({1: 0x60}, {"transaction": ["0/60", 1, 0]}, True),
        ({1: 0x5F}, {"transaction": ["0/60", 1, 0]}, False),
        ({1: 0x5F}, {"until": "0/60"}, False),
        ({1: 0x5F}, {"until": "0/51", "shown": "0/60"}, False),
        ({1: 0x60}, {"until": "0/51", "shown": "0/60"}, True),
    ],
)
def test_after_a_promotion_all_that_was_told_has_to_be_a_part_of_the_new_history(
    new_log: Any, history: dict[int, int], position: dict[str, Any], is_there: bool
) -> None:
    log, promoted = new_log(), replace(STATE, timeline=3)
    log.history = history
    log._histories["stale"] = {}
    if is_there:
        log.check(POSITION | position, promoted)
    else:
        with pytest.raises(PositionLostError, match="promoted"):
            log.check(POSITION | position, promoted)
    assert log._histories == {}, "another promotion may have got the same number"


def test_the_history_of_a_server_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, new_log: Any) -> None:
    asked = list[int]()

    def history(_engine: Any, _config: Any, timeline: int) -> dict[int, int]:
        asked.append(timeline)
        return {1: 0x50}

    monkeypatch.setattr(logs, "timeline_history", history)
    log = new_log()
    assert PostgresLog._history(log, STATE) == {}
    for timeline in (2, 2, 3):
        assert PostgresLog._history(log, replace(STATE, timeline=timeline)) == {1: 0x50}
    assert asked == [2, 3]


@pytest.mark.parametrize("wrong", [{"plugin": "wal2json"}, {"database": "other"}])
def test_a_slot_of_somebody_else_is_refused_and_left_alone(new_log: Any, wrong: dict[str, Any]) -> None:
    log = new_log(replace(STATE, **changed(**wrong)))
    with pytest.raises(SourceConfigurationError, match="belongs to"):
        log.begin(anew=True)
    with pytest.raises(SourceConfigurationError, match="belongs to"):
        log.changes(POSITION, 10)
    assert log._server.did == []


def test_what_is_not_published_is_refused(new_log: Any) -> None:
    with pytest.raises(SourceConfigurationError, match=r"does not publish s\.t, s\.u"):
        new_log(replace(STATE, unpublished=("s.t", "s.u"))).changes(POSITION, 10)
    with pytest.raises(SourceConfigurationError, match="Publication 'slot' is missing"):
        new_log(replace(STATE, has_publication=False)).changes(POSITION, 10)


# Beginning.


def test_a_stream_begins_where_its_slot_stands(new_log: Any) -> None:
    position = POSITION | {"value": "0/20"}
    assert new_log(snapshot="never").begin(anew=False) == position
    awaiting = position | {"awaits": [101]}
    assert new_log(snapshot="never").begin(anew=True) == awaiting, "the tables are read after a loss"
    log = new_log()
    assert log.begin(anew=False) == awaiting
    assert (log._server.did, len(log.feeds)) == ([], 3)


def test_a_snapshot_alone_begins_where_the_log_ends_and_holds_no_slot(new_log: Any) -> None:
    log = new_log(replace(STATE, slot=None), snapshot="only")
    log.hold()
    assert log.begin(anew=False) == POSITION | {"value": "0/9000"}
    assert (log.feeds, log._server.did) == ([], [])


def test_a_slot_that_somebody_else_is_making_is_waited_for(new_log: Any) -> None:
    log = new_log(replace(STATE, **changed(confirmed_lsn=None)))
    with pytest.raises(FetchError, match="still being made by somebody else"):
        log.begin(anew=False)
    vanished = new_log(replace(STATE, slot=None))
    with pytest.raises(FetchError, match="still being made"):
        vanished.begin(anew=False)


@pytest.mark.parametrize(
    ("state", "statements"),
    [
        ({"slot": None}, ["SELECT pg_create_logical_replication_slot('slot', 'pgoutput', false, false, true)"]),
        (
            changed(wal_status="lost"),
            [
                "SELECT pg_drop_replication_slot('slot')",
                "SELECT pg_create_logical_replication_slot('slot', 'pgoutput', false, false, true)",
            ],
        ),
    ],
)
def test_what_is_missing_or_lost_is_made_anew(new_log: Any, state: dict[str, Any], statements: list[str]) -> None:
    log = new_log(replace(STATE, **state))
    log.hold()
    log._server.after = STATE
    assert log.begin(anew=False)["value"] == "0/20"
    assert log._server.did == statements
    assert log.feeds[0].is_closed, "a slot is not dropped while it is held"
    refused = new_log(replace(STATE, **state), create=False)
    with pytest.raises(SourceConfigurationError, match="create=False: azfdb stream create"):
        refused.begin(anew=False)
    assert refused._server.did == []


def test_a_missing_publication_of_a_slot_that_is_there_is_refused(new_log: Any) -> None:
    with pytest.raises(SourceConfigurationError, match="older than the publication"):
        new_log(replace(STATE, has_publication=False)).begin(anew=False)


# Rows.


def test_rows_are_joined_to_the_stream_by_what_they_show(new_log: Any) -> None:
    log = new_log()
    page = log.rows(POSITION | {"awaits": [101, 102]}, "s.t", None, 10)
    assert page.position == POSITION | {"seen": "100:103:", "until": "0/60"}
    assert ([change.key for change in page.changes], page.after, list(page.undecodable)) == ([{"id": 1}], ["1"], [0])
    assert log.rows_seen.asked == [("s.t", None, 10, page.position)]
    assert new_log(undecodable="text").rows(POSITION, "s.t", None, 10).undecodable == {}


def test_rows_are_not_read_before_every_transaction_that_the_slot_left_out_can_be_seen(new_log: Any) -> None:
    log = new_log()
    log.rows_seen = Rows("100:103:101")
    assert log.rows(POSITION | {"awaits": [101, 102]}, "s.t", None, 10) is None
    assert (log.rows_seen.asked, log.rows_seen.is_closed) == ([], True), "the next tick looks anew"
    log.rows_seen = Rows("100:103:101")
    assert log.rows(POSITION | {"awaits": [102]}, "s.t", None, 10) is not None


def test_a_page_of_rows_that_failed_is_read_anew_by_whoever_tries_again(new_log: Any) -> None:
    class Cut(Rows):
        def page(self, *_: Any) -> KeyPage:
            raise DbConnectionError("reset by peer")

    log = new_log()
    log.rows_seen = cut = Cut()
    with pytest.raises(DbConnectionError):
        log.rows(POSITION, "s.t", None, 10)
    assert cut.is_closed
    log.rows_seen = Rows()
    assert log.rows(POSITION, "s.t", None, 10) is not None


def test_a_later_page_that_shows_more_moves_what_has_been_told(new_log: Any) -> None:
    position = POSITION | {"seen": "100:103:", "until": "0/60"}
    log = new_log()
    assert log.rows(position, "s.t", ["1"], 10).position == position
    log = new_log(replace(STATE, timeline=2))
    log.rows_seen, log.history = Rows(until="0/70"), {1: 0x9000}
    assert log.rows(position, "s.t", ["1"], 10).position == position | {"shown": "0/70", "timeline": 2}
    alone = new_log(snapshot="only")
    alone.rows_seen = Rows(until="0/70")
    assert alone.rows(position, "s.t", ["1"], 10).position == position


def test_a_lost_slot_is_told_before_rows_are_read_and_a_snapshot_alone_needs_none(new_log: Any) -> None:
    with pytest.raises(PositionLostError):
        new_log(replace(STATE, slot=None)).rows(POSITION, "s.t", None, 10)
    assert new_log(replace(STATE, slot=None), snapshot="only").rows(POSITION, "s.t", None, 10) is not None


def test_a_table_that_cannot_be_read_in_pages_is_refused(new_log: Any) -> None:
    with pytest.raises(SourceConfigurationError, match=r"inside s\.gone, which is no table"):
        new_log().rows(POSITION, "s.gone", None, 10)
    log = new_log()
    log._server.listed = [replace(TABLE, key=())]
    with pytest.raises(SourceConfigurationError, match="has no primary key or identity index"):
        log.rows(POSITION, "s.t", None, 10)


def test_rows_that_are_published_without_their_key_are_refused() -> None:
    reader = TableReader.__new__(TableReader)
    reader._source = "orders"
    with pytest.raises(SourceConfigurationError, match=r"is published without id of its key") as refused:
        reader._page(TABLE, Shape(("v",), (25,)), [], 10, POSITION)
    assert refused.value.source == "orders"


def test_of_a_table_that_is_gone_nothing_is_known_but_its_types(sqlite_database: str) -> None:
    engine = create_engine(sqlite_database)
    assert processors_of(engine, "main", "gone", Shape(("id",), (23,))) == {}
    engine.dispose()


def test_a_slot_that_holds_too_much_is_dropped_only_where_that_was_asked_for(new_log: Any) -> None:
    full = replace(STATE, flushed_lsn=(5 << 20) + 0x11)
    reads: list[Any] = [lambda log: log.rows(POSITION, "s.t", None, 10), lambda log: log.changes(POSITION, 10)]
    for read in reads:
        log = new_log(full, max_retained_mb=5, on_max_retained="drop")
        with pytest.raises(PositionLostError, match="held 5 MB of log, more than max_retained_mb=5"):
            read(log)
        assert log._server.did == ["SELECT pg_drop_replication_slot('slot')"]
        assert log.feeds[-1].is_closed
        read(new_log(full, max_retained_mb=5))
        read(new_log(full, max_retained_mb=6, on_max_retained="drop"))
        read(new_log(replace(full, flushed_lsn=(5 << 20) + 0x10), max_retained_mb=5, on_max_retained="drop"))


# Changes.


def test_pages_of_one_tick_come_out_of_one_stream(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    start = POSITION | {"value": "0/20"}
    first = log.changes(start, 2)
    second = log.changes(first.position, 2)
    assert [told(page.changes) for page in (first, second)] == [
        [("insert", 1, "v"), ("insert", 2, "v")],
        [("insert", 3, "v")],
    ]
    assert (first.more, second.more, len(log.feeds), log.feeds[0].followed) == (True, False, 1, [wal.end])
    assert (len(first.facts), len(second.facts)) == (1, 1)
    again = log.changes(start, 10)
    assert (len(again.changes), len(log.feeds), log.feeds[0].is_closed) == (3, 2, True), "another place: held anew"


def test_how_things_stand_is_told_by_the_first_page_and_the_last(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    pages = [log.changes(POSITION | {"value": "0/20"}, 1)]
    pages += [log.changes(pages[-1].position, 1)]
    pages += [log.changes(pages[-1].position, 1)]
    assert [len(page.facts) for page in pages] == [1, 0, 0]
    last = log.changes(pages[-1].position, 1)
    assert (last.changes, last.more, len(last.facts)) == ([], False, 1)
    assert pages[0].facts[0].gauges()["azfdb_stream_lag_bytes"] == wal.end - 0x20
    assert last.facts[0].gauges()["azfdb_stream_lag_bytes"] == 0


def test_a_feed_that_has_ended_is_held_anew(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    first = log.changes(POSITION | {"value": "0/20"}, 1)
    log.feeds[0].is_ended = True
    second = log.changes(first.position, 1)
    assert told(second.changes) == [("insert", 2, "v")]
    assert len(log.feeds) == 2


def test_a_page_that_was_not_handled_comes_again_when_it_is_asked_for_again(new_log: Any, wal: Wal) -> None:
    log, start = new_log(replace(STATE, flushed_lsn=wal.end)), POSITION | {"value": "0/20"}
    first = log.changes(start, 1)
    assert first.more
    assert log.changes(start, 1).changes == first.changes


def test_what_is_written_after_the_end_was_reached_comes_in_the_same_tick(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    page = log.changes(POSITION | {"value": "0/20"}, 10)
    wal.transaction(insert(4))
    log._server.state = replace(STATE, flushed_lsn=wal.end)
    assert told(log.changes(page.position, 10).changes) == [("insert", 4, "v")]


def test_a_feed_that_ended_before_anything_was_read_is_held_anew(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    log.hold()
    log.feeds[0].is_ended = True
    assert len(log.changes(POSITION | {"value": "0/20"}, 10).changes) == 3
    assert len(log.feeds) == 2


def test_a_slot_that_was_held_at_the_opening_is_looked_at_by_the_first_read(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    log.hold()
    assert len(log.changes(POSITION | {"value": "0/20"}, 10).changes) == 3
    assert (len(log.feeds), log._server.looks) == (1, 1)


def test_a_feed_that_ended_after_the_beginning_was_fixed_is_held_anew(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end), snapshot="never")
    position = log.begin(anew=False)
    log.feeds[0].is_ended = True
    assert len(log.changes(position, 10).changes) == 3
    assert len(log.feeds) == 2


def test_a_slot_that_is_refused_when_it_is_held_anew_is_told_as_often_as_it_is_asked_for(new_log: Any) -> None:
    log = new_log()
    log.hold()
    log.feeds[0].is_ended = True
    log.feed_class.refusal = SlotRefusedError("cannot be streamed")
    for _ in range(2):
        with pytest.raises(SlotRefusedError):
            log.changes(POSITION, 10)


def test_a_slot_that_is_held_anew_is_looked_at_anew_even_when_the_first_look_failed(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    page = log.changes(POSITION | {"value": "0/20"}, 1)
    log.feeds[0].is_ended = True
    looked = log._server.look

    def fail() -> ServerState:
        raise DbConnectionError("reset by peer")

    log._server.look = fail
    with pytest.raises(DbConnectionError):
        log.changes(page.position, 1)
    log._server.look = looked
    log._server.state = replace(log._server.state, **changed(confirmed_lsn=0x9000))
    with pytest.raises(PositionLostError, match="ahead of the checkpoint"):
        log.changes(page.position, 1)


def test_a_page_that_failed_comes_when_it_is_asked_for_again(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    first = log.changes(POSITION | {"value": "0/20"}, 1)
    stream = log._stream

    def fail(limit: int) -> Any:
        del stream.take
        stream.take(limit)
        raise DbConnectionError("reset by peer")

    stream.take = fail
    with pytest.raises(DbConnectionError):
        log.changes(first.position, 1)
    assert told(log.changes(first.position, 10).changes) == [("insert", 2, "v"), ("insert", 3, "v")]


def test_a_position_after_changes_says_when_they_were_committed(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    first = log.changes(POSITION | {"value": "0/20"}, 2).position
    committed = datetime_text(COMMITTED)
    assert first == POSITION | {"value": "0/110", "at": committed, "committed": committed}
    assert log.changes(first, 9).position == POSITION | {"value": "0/210", "committed": committed}


def test_how_a_stream_is_joined_to_a_snapshot_is_told_until_that_lies_behind(new_log: Any, wal: Wal) -> None:
    joined = {"seen": "100:103:", "until": "0/150", "shown": "0/210", "awaits": [1]}
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    first = log.changes(POSITION | {"value": "0/20"} | joined, 1).position
    assert {name: first.get(name) for name in joined} == joined | {"awaits": None}
    last = log.changes(first, 9).position
    assert last["value"] == "0/210"
    assert not {"seen", "until", "shown"} & last.keys()


def test_what_is_undecodable_is_told_by_its_place_unless_texts_are_wanted(new_log: Any, wal: Wal) -> None:
    wal.transaction(insert(4), insert(5, b"v", b"infinity"))
    state = replace(STATE, flushed_lsn=wal.end)
    start = POSITION | {"value": "0/210"}
    assert list(new_log(state).changes(start, 10).undecodable) == [1]
    assert new_log(state, undecodable="text").changes(start, 10).undecodable == {}


def test_a_position_that_hardly_moved_stays_as_it_was_written(new_log: Any, wal: Wal) -> None:
    wal.transactions.clear()
    wal.transaction(insert(1, table="others"))
    start = POSITION | {"value": "0/20"}

    def after(position: dict[str, Any] = start, state: ServerState = STATE, **options: Any) -> tuple[Any, int]:
        log = new_log(replace(state, flushed_lsn=wal.end), **options)
        page = log.changes(position, 10)
        assert (page.changes, page.more) == ([], False)
        return page.position, log._server.beats

    assert after() == (start, 0)
    assert after(idle_commit_mb=0xF0 / 2**20)[0]["value"] == "0/110"
    assert after(idle_commit_mb=0xF1 / 2**20) == (start, 0)
    later = replace(STATE, now=NOW + dt.timedelta(seconds=300))
    moved, beats = after(state=later)
    assert (moved["value"], moved["at"], beats) == ("0/110", datetime_text(later.now), 1), "with a message in the log"
    assert after(state=replace(STATE, now=NOW + dt.timedelta(seconds=299))) == (start, 0)
    assert after(state=later, heartbeat_seconds=None) == (start, 0)
    assert after(state=later, position=start | {"value": "0/110"}) == (start | {"value": "0/110"}, 0)
    assert after({"value": "0/20"})[0]["system"] == "7", "somebody has typed it"
    inside = start | {"transaction": ["0/60", 1, 0]}
    assert "transaction" not in after(inside)[0]


def test_what_a_source_was_told_last_is_kept_while_nothing_comes(new_log: Any, wal: Wal) -> None:
    wal.transactions.clear()
    wal.transaction(insert(1, table="others"))
    log = new_log(replace(STATE, flushed_lsn=wal.end), idle_commit_mb=1e-6)
    page = log.changes(POSITION | {"value": "0/20", "committed": "2026-01-01T00:00:00+00:00"}, 10)
    assert page.position["value"] == "0/110"
    assert page.position["committed"] == datetime_text(COMMITTED), "of the last transaction, whosoever it was"


def test_a_log_without_any_transaction_moves_the_position_and_not_the_last_commit(new_log: Any) -> None:
    class Idle(Wal):
        end = 0x9000

    log = new_log(idle_commit_mb=1e-6)
    log.feed_class.wal = Idle()
    position = POSITION | {"value": "0/20", "committed": "2026-01-01T00:00:00.000000Z"}
    assert log.changes(position, 10).position == position | {"value": "0/9000"}
    assert log.changes(POSITION | {"value": "0/20"}, 10).position == POSITION | {"value": "0/9000"}


# Quiet.


def quiet_position(**changes: Any) -> dict[str, Any]:
    return POSITION | {"value": "0/20", "committed": datetime_text(COMMITTED)} | changes


IDLE = replace(STATE, flushed_lsn=0x20)


@pytest.mark.parametrize(
    ("position", "state", "is_quiet"),
    [
        ({}, {}, True),
        ({"system": "8"}, {}, False),
        ({"timeline": 2}, {}, False),
        ({"publication": "p0"}, {}, False),
        ({"transaction": ["0/60", 1, 0]}, {}, False),
        ({}, {"slot": None}, False),
        ({}, changed(wal_status="lost"), False),
        ({}, changed(confirmed_lsn=0x1F), False),
        ({}, {"has_publication": False}, False),
        ({}, {"flushed_lsn": 0x21}, False),
        ({}, {"flushed_lsn": 0x20 + (2 << 30)} | changed(restart_lsn=0), False),
    ],
)
def test_a_log_is_quiet_only_where_all_is_as_it_was(
    new_log: Any, position: dict[str, Any], state: dict[str, Any], is_quiet: bool
) -> None:
    log = new_log(replace(IDLE, **state))
    found = log.quiet(quiet_position(**position))
    assert (found is not None) == is_quiet
    assert log.feeds == [], "nobody holds the slot"
    if found is not None:
        assert (found.lag_bytes, found.lag_seconds, found.last_commit_at) == (0, 0.0, COMMITTED)


def test_what_was_found_to_concern_nobody_is_quiet_until_more_is_written(new_log: Any, wal: Wal) -> None:
    wal.transactions.clear()
    wal.transaction(insert(1, table="others"))
    state = replace(STATE, flushed_lsn=0x120)
    log, position = new_log(state), quiet_position()
    assert log.quiet(position) is None
    log.changes(position, 10)
    assert log._passed == {"0/20": 0x120}
    assert log.quiet(position) is not None
    log._server.state = replace(state, flushed_lsn=0x121)
    assert log.quiet(position) is None
    log._server.state = replace(state, now=NOW + dt.timedelta(seconds=301))
    assert log.quiet(position) is None, "a heartbeat is due"
    log._server.state = state
    log.changes(quiet_position(value="0/30"), 10)
    assert log._passed == {"0/30": 0x120}, "of the place where the poller is, and of no other"


def test_changes_that_were_read_and_not_committed_are_not_quiet(new_log: Any, wal: Wal) -> None:
    """A handler that fails leaves its checkpoint where it was: the next tick has to read again."""
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    assert len(log.changes(quiet_position(), 10).changes) == 3
    assert log.quiet(quiet_position()) is None


def test_a_slot_that_holds_too_much_is_told_even_where_nothing_is_written(new_log: Any) -> None:
    state = replace(STATE, flushed_lsn=2 << 20, **changed(restart_lsn=1 << 20, confirmed_lsn=2 << 20))
    position = quiet_position(value="0/200000")
    assert new_log(state, max_retained_mb=1).quiet(position) is not None
    assert new_log(state, max_retained_mb=0.9).quiet(position) is None


# Holding the slot.


def test_a_slot_is_read_by_the_transport_that_was_chosen(new_log: Any) -> None:
    for transport, name in (("stream", "Streamed"), ("sql", "Peeked")):
        log = new_log(transport=transport)
        log.hold()
        assert type(log._feed).__name__ == name


def test_a_slot_that_is_refused_is_explained_by_the_first_read(new_log: Any) -> None:
    log = new_log()
    log.feed_class.refusal = SlotRefusedError("cannot be streamed")
    log.hold()
    with pytest.raises(SlotRefusedError, match="cannot be streamed"):
        log.changes(POSITION, 10)
    log._server.state = replace(STATE, wal_level="replica")
    with pytest.raises(SourceConfigurationError, match="wal_level must be logical"):
        log.changes(POSITION, 10)
    log.feed_class.refusal = None
    log._server.state = STATE
    assert len(log.changes(POSITION | {"value": "0/20"}, 10).changes) == 3


def test_a_slot_that_was_held_at_the_opening_is_not_held_again(new_log: Any) -> None:
    log = new_log()
    log.hold()
    log.begin(anew=False)
    log.rows(POSITION | {"value": "0/20"}, "s.t", None, 10)
    log.changes(POSITION | {"value": "0/20"}, 10)
    assert (len(log.feeds), log._server.looks) == (1, 2)
    assert log.rows_seen.is_closed, "what it has seen is older than what is read from now on"
    log.close()
    assert log.feeds[0].is_closed
    reading = new_log()
    reading.rows(POSITION, "s.t", None, 10)
    reading.close()
    assert reading.rows_seen.is_closed


def test_a_slot_that_its_server_has_not_let_go_of_is_waited_for(new_log: Any) -> None:
    log = new_log(replace(STATE, **changed(active_pid=77)))
    log.hold()
    log._feed.is_let_go = False
    looked = log._server.look

    def look() -> ServerState:
        if log._server.looks == 3:
            log._server.state = STATE
        state: ServerState = looked()
        return state

    log._server.look = look
    log.close()
    assert log._server.looks == 4
    log.hold()
    log.close()
    assert log._server.looks == 4, "it has said that it is free"
    log.hold()
    log._feed.is_let_go = False
    log._server.state = replace(STATE, slot=None)
    log.close()
    assert log._server.looks == 5


def test_a_slot_is_acknowledged_once_it_is_known_to_be_the_right_one(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    log.acknowledge(POSITION)
    assert log.feeds[0].acknowledged == [0x50]
    with pytest.raises(PositionLostError):
        new_log().acknowledge(POSITION | {"system": "8"})
    assert log.feeds[-1].acknowledged == []
    reading = new_log(replace(STATE, flushed_lsn=wal.end))
    page = reading.changes(POSITION | {"value": "0/20"}, 10)
    looks = reading._server.looks
    reading.acknowledge(page.position)
    assert (reading.feeds[-1].acknowledged, reading._server.looks) == ([0x210], looks)


def test_a_slot_that_is_refused_is_not_acknowledged(new_log: Any) -> None:
    log = new_log()
    log.feed_class.refusal = SlotRefusedError("cannot be streamed")
    log.acknowledge(POSITION)
    assert log.feeds == []


# Values, tables and facts.


def test_a_table_is_found_by_its_number_and_then_by_its_name(new_log: Any) -> None:
    log = new_log()
    log._server.listed = [TABLE, replace(TABLE, name=TableName("s", "u"), oid=2)]

    def found(oid: int, name: str) -> str | None:
        table = log._table_of(Relation(oid, "s", name, "d", (Column("id", 23, -1, True),)))
        return None if table is None else str(table.name)

    assert found(2, "t") == "s.u", "it had another name then"
    assert found(9, "t") == "s.t", "it was made anew since"
    assert found(9, "other") is None


def test_a_large_value_is_read_again_only_where_the_log_has_left_it_out(
    monkeypatch: pytest.MonkeyPatch, new_log: Any, wal: Wal
) -> None:
    wal.transaction(update(values(1, UNCHANGED)), update(values(2, UNCHANGED)), update(values(3)))
    log = new_log(replace(STATE, flushed_lsn=wal.end), refetch_toast=True)
    asked = list[Any]()

    def current(_connection: Any, _server: Any, table: Table, key: Any, columns: Any) -> Any:
        asked.append((str(table.name), dict(key), list(columns)))
        return {"v": "large"} if key["id"] == 1 else None

    monkeypatch.setattr(logs, "current_values", current)
    monkeypatch.setattr(log._server, "connected", nullcontext)
    first, gone, plain = log.changes(POSITION | {"value": "0/210"}, 10).changes
    assert asked == [("s.t", {"id": 1}, ["v"]), ("s.t", {"id": 2}, ["v"])]
    assert (first.after, first.metadata["refetched"]) == ({"id": 1, "d": None, "v": "large"}, ["v"])
    assert "unchanged" not in first.metadata
    assert (gone.after, gone.metadata["unchanged"]) == ({"id": 2, "d": None}, ["v"])
    assert plain.metadata.keys() == gone.metadata.keys() - {"unchanged"}
    left_out = new_log(replace(STATE, flushed_lsn=wal.end)).changes(POSITION | {"value": "0/210"}, 10).changes
    assert left_out[0].metadata["unchanged"] == ["v"], "only where that is wanted"


def test_ages_are_known_of_what_has_a_moment() -> None:
    assert age_of({"value": "0/20"}, STATE) is None
    assert age_of({"at": datetime_text(NOW - dt.timedelta(seconds=5))}, STATE) == 5.0
    assert age_of({"at": datetime_text(NOW + dt.timedelta(seconds=5))}, STATE) == 0.0
    assert committed_at({}) is None
    assert committed_at({"committed": datetime_text(NOW)}) == NOW


def test_what_a_slot_holds_is_told_and_too_much_is_a_warning() -> None:
    definition = PostgresLogicalSource(url=URL, tables="t", slot="slot", max_retained_mb=2)._definition

    def told_of(state: ServerState) -> Any:
        return health(definition, state, 5, 1.5, None)

    calm = told_of(replace(STATE, flushed_lsn=0x10 + (2 << 20)))
    assert (calm.warning, calm.retained_bytes, calm.retention_left_bytes) == (None, 2 << 20, 0)
    assert calm.details == {"wal_status": "reserved"}
    full = told_of(replace(STATE, flushed_lsn=0x11 + (2 << 20)))
    assert "slot 'slot' holds 2 MB of log on the server's disk, more than max_retained_mb=2" in str(full.warning)
    assert full.retention_left_bytes == 0
    safe = told_of(replace(STATE, flushed_lsn=0x10, **changed(safe_wal_bytes=1000)))
    assert (safe.retention_left_bytes, safe.details["safe_wal_bytes"]) == (1000, 1000)
    none = told_of(replace(STATE, slot=None))
    assert (none.retained_bytes, none.details, none.retention_left_bytes) == (0, {}, 2 << 20)


def test_how_far_behind_a_stream_is_is_known_by_its_last_commit(new_log: Any, wal: Wal) -> None:
    log = new_log(replace(STATE, flushed_lsn=wal.end))
    fact = log.changes(POSITION | {"value": "0/20"}, 2).facts[0]
    assert (fact.lag_bytes, fact.lag_seconds, fact.last_commit_at) == (wal.end - 0x110, 60.0, COMMITTED)
    early = new_log(replace(STATE, flushed_lsn=wal.end, now=COMMITTED - dt.timedelta(seconds=5)))
    assert early.changes(POSITION | {"value": "0/20"}, 2).facts[0].lag_seconds == 0.0
    done = new_log(replace(STATE, flushed_lsn=wal.end)).changes(POSITION | {"value": "0/20"}, 10)
    assert (done.facts[0].lag_seconds, done.facts[0].lag_bytes) == (0.0, 0), "however old the last one is"
