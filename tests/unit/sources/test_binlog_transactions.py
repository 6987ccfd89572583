"""Changes out of the events of a binary log: none lost and none twice, wherever a reader was stopped."""

from __future__ import annotations

import datetime as dt
import io
import logging
import struct
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from azure_functions_db.core.errors import FetchError, PositionLostError, SourceConfigurationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.mysql.decoding import EventKind, TableMaps
from azure_functions_db.sources.mysql.log import Event, Replica
from azure_functions_db.sources.mysql.position import BinlogPosition, MariaDbGtids, MySqlGtids
from azure_functions_db.sources.mysql.transactions import TransactionReader
from azure_functions_db.sql.mysql_wire import packets

FILE = "binlog.000007"
SERVER = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
NOW = 1_790_000_000
STANDALONE, PREPARED_XA = 1, 64
TABLES = {"t": 1, "u": 2, "others": 3}
Row = tuple[int, int]


class Log:
    """A log as servers write it: MariaDB, MySQL with and without GTIDs, and one that knows nothing of them."""

    def __init__(self, kind: str = "mariadb") -> None:
        self.kind = kind
        self.events: list[Event] = []
        self._end = 4
        self._number = 0

    def add(self, kind: int, body: bytes = b"", timestamp: int = NOW) -> Event:
        start, self._end = self._end, self._end + 19 + len(body)
        crc = zlib.crc32(body, kind << 32 | start)
        self.events.append(Event(kind, timestamp, 1, start, self._end, body, crc))
        return self.events[-1]

    def begin(self, flags: int = 0, *, committed: int = NOW) -> None:
        self._number += 1
        if self.kind == "mariadb":
            self.add(EventKind.MARIADB_GTID, struct.pack("<QIB", self._number, 0, flags) + bytes(6), committed)
        elif self.kind in {"mysql", "anonymous"}:
            kind = EventKind.GTID if self.kind == "mysql" else EventKind.ANONYMOUS_GTID
            times = (committed * 10**6 | 1 << 55).to_bytes(7, "little") + bytes(7)
            self.add(kind, b"\0" + SERVER.bytes + struct.pack("<Q", self._number) + bytes(17) + times)
        if self.kind != "mariadb" and not flags & STANDALONE:
            self.statement("BEGIN", timestamp=committed)

    def statement(self, text: str, timestamp: int = NOW) -> Event:
        head = bytes(8) + b"\x01" + bytes(2) + b"\x03\0"
        return self.add(EventKind.QUERY, head + b"var" + b"d\0" + text.encode(), timestamp)

    def ddl(self, text: str) -> None:
        self.begin(STANDALONE)
        self.statement(text)

    def rows(self, kind: str, *rows: Row, table: str = "t") -> None:
        number = TABLES[table].to_bytes(6, "little")
        columns = b"\2\1\1\0\0" + b"\1\1\0" + b"\4\5\2id\1v" + b"\x08\1\0"
        self.add(
            EventKind.TABLE_MAP, number + b"\0\0" + b"\1d\0" + bytes([len(table)]) + table.encode() + b"\0" + columns
        )
        event = {"insert": EventKind.WRITE_ROWS, "update": EventKind.UPDATE_ROWS, "delete": EventKind.DELETE_ROWS}[kind]
        present = b"\3\3" if kind == "update" else b"\3"
        images = b"".join(b"\0" + bytes(row) for row in rows)
        self.add(event, number + b"\0\0" + b"\2\0" + b"\2" + present + images)

    def commit(self) -> None:
        self.add(EventKind.XID, struct.pack("<Q", self._number))

    def transaction(self, *rows: tuple[Any, ...], committed: int = NOW) -> None:
        self.begin(committed=committed)
        for kind, *images in rows:
            self.rows(kind, *images)
        self.commit()

    def sent_from(self, position: BinlogPosition) -> list[Event]:
        """What a server sends to whoever asks for a place: what stands at a file's beginning comes before it."""
        before = [Event(kind, 0, 1, 0, 0, b"", 0) for kind in (EventKind.ROTATE, EventKind.FORMAT)]
        return [*before, *(event for event in self.events if event.start >= position.offset)]


BEGINNING = BinlogPosition(file=FILE, offset=4, server="s")


def reader_of(log: Log, position: BinlogPosition = BEGINNING, **options: Any) -> TransactionReader:
    wanted = {("d", "t"), ("d", "u")}
    chosen: dict[str, Any] = {
        "is_mariadb": log.kind == "mariadb",
        "is_wanted": lambda *name: name in wanted,
        "is_mentioned": lambda text: " t" in text,
    }
    return TransactionReader(
        SimpleNamespace(file=FILE),  # type: ignore[arg-type]  # of a connection, only the file's name is asked
        iter(log.sent_from(position)),
        position,
        TableMaps(lambda *name: name in wanted, lambda _: "utf8mb4", lambda *_: {}),
        **(chosen | options),
    )


def never() -> bool:
    return False


def told(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [(change.op, change.key.get("id"), (change.after or {}).get("v")) for change in changes]


def busy_log(kind: str) -> Log:
    log = Log(kind)
    log.transaction(("insert", (1, 1), (2, 2)), ("insert", (3, 3)))
    log.ddl("ALTER TABLE t ADD w int")
    log.begin()
    log.rows("update", (1, 1), (9, 1), (3, 3), (3, 4))
    log.statement("SAVEPOINT `a`")
    log.rows("insert", (5, 5), table="others")
    log.rows("delete", (2, 2))
    log.statement("COMMIT")
    log.ddl("TRUNCATE t")
    log.transaction(committed=NOW + 5)
    log.begin()
    log.statement("CREATE TEMPORARY TABLE x (id int)")
    log.rows("insert", (6, 6))
    log.rows("insert", (7, 7), table="u")
    log.commit()
    log.ddl("DROP TABLE u")
    log.begin()
    log.statement("CREATE OR REPLACE TABLE `t` (id int, v int)")
    log.rows("insert", (1, 1), (2, 2))
    log.rows("insert", (3, 3))
    log.commit()
    log.transaction(("insert", (8, 8)), committed=NOW + 9)
    return log


ALL = [
    ("insert", 1, 1),
    ("insert", 2, 2),
    ("insert", 3, 3),
    ("delete", 1, None),
    ("insert", 9, 1),
    ("update", 3, 4),
    ("delete", 2, None),
    ("truncate", None, None),
    ("insert", 6, 6),
    ("insert", 7, 7),
    ("truncate", None, None),
    ("truncate", None, None),
    ("insert", 1, 1),
    ("insert", 2, 2),
    ("insert", 3, 3),
    ("insert", 8, 8),
]
KINDS = ["mariadb", "mysql", "anonymous", "without"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_is_read_to_its_end_and_known_by_where_that_is(kind: str) -> None:
    log = busy_log(kind)
    reader = reader_of(log, BinlogPosition(file=FILE, server="s", gtids="" if kind in {"mariadb", "mysql"} else None))
    changes = reader.take(1000, never)
    assert told(changes) == ALL
    assert reader.is_over
    last = log.events[-1]
    gtids = {"mariadb": "0-1-9", "mysql": f"{SERVER}:1-9"}.get(kind)
    assert reader.position == BinlogPosition(
        file=FILE, offset=last.start, end=last.end, crc=last.crc, gtids=gtids, server="s", time=NOW + 9
    )
    assert reader.read_bytes == sum(len(event.body) for event in log.events)
    assert len({change.position for change in changes}) == len(changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", range(1, 17))
def test_reading_goes_on_from_any_place_and_nothing_is_lost_or_told_twice(kind: str, limit: int) -> None:
    log = busy_log(kind)
    whole = reader_of(log).take(1000, never)
    position, changes = BEGINNING, list[Change]()
    while True:
        reader = reader_of(log, position)
        page = reader.take(limit, never)
        assert len(page) <= limit
        changes += page
        position = BinlogPosition.of(reader.position.written())
        if reader.is_over:
            break
    assert changes == whole


@pytest.mark.parametrize("limit", range(1, 17))
def test_a_reader_that_goes_on_itself_tells_the_same(limit: int) -> None:
    reader, changes = reader_of(busy_log("mariadb")), list[Change]()
    while not reader.is_over:
        changes += reader.take(limit, never)
    assert changes == reader_of(busy_log("mariadb")).take(1000, never)


def test_a_place_inside_of_a_transaction_is_told_by_its_beginning_and_what_is_done() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)), committed=NOW - 7)
    log.transaction(("insert", (2, 2), (3, 3)), ("insert", (4, 4)))
    reader = reader_of(log, BinlogPosition(file=FILE, gtids="", server="s"))
    assert len(reader.take(2, never)) == 2
    begin = next(event for event in log.events[1:] if event.kind == EventKind.MARIADB_GTID)
    inside = BinlogPosition(
        file=FILE, offset=begin.start, end=begin.start, crc=begin.crc, done=(0, 1), gtids="0-1-1", server="s", time=NOW
    )
    assert reader.position == inside
    assert len(reader.take(1, never)) == 1
    assert reader.position.done == (1, 0)
    resumed = reader_of(log, inside)
    assert resumed.position == inside, "nothing was taken yet"
    assert told(resumed.take(1, never)) == [("insert", 3, 3)]
    assert resumed.position.done == (1, 0)


def test_a_change_tells_its_table_its_transaction_and_when_it_was_committed() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)), ("insert", (2, 2)))
    log.ddl("/* why */ truncate TABLE t")
    first, second, emptied = reader_of(log).take(10, never)
    at = dt.datetime.fromtimestamp(NOW, dt.UTC)
    assert first.metadata == {"table": "d.t", "transaction": "0-1-1", "order": 1, "committed_at": at}
    assert second.metadata == {"table": "d.t", "transaction": "0-1-1", "order": 2, "committed_at": at}
    assert (first.position, second.position) == (f"0-1-1@{NOW}:1.0", f"0-1-1@{NOW}:2.0")
    assert emptied.metadata == {
        "table": "d.t", "transaction": "0-1-2", "order": 1, "committed_at": at, "statement": "TRUNCATE",
    }  # fmt: skip
    for kind in ("anonymous", "without"):
        nameless = Log(kind)
        nameless.transaction(("insert", (1, 1)))
        [change] = reader_of(nameless).take(10, never)
        assert change.metadata["transaction"] == f"{FILE}:4@{NOW}"


def test_a_change_tells_the_row_before_and_after() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)), ("update", (1, 1), (1, 2)), ("delete", (1, 2)))
    one, two = {"id": 1, "v": 1}, {"id": 1, "v": 2}
    assert [(change.before, change.after) for change in reader_of(log).take(10, never)] == [
        (None, one),
        (one, two),
        (two, None),
    ]


def test_a_page_that_is_full_at_the_end_of_a_transaction_ends_there() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)))
    end = log.events[-1]
    log.transaction(("insert", (2, 2)))
    reader = reader_of(log)
    reader.take(1, never)
    assert (reader.position.offset, reader.position.done, reader.is_over) == (end.start, None, False)


def test_a_log_that_ends_inside_of_a_transaction_is_gone_on_with_where_it_ended() -> None:
    """A server that is writing it, or that has crashed."""
    log = Log()
    log.transaction(("insert", (1, 1)))
    before = settled(log)
    log.transaction(("insert", (2, 2)), ("insert", (3, 3)))
    whole = list(log.events)
    begin = whole.index(next(event for event in whole[1:] if event.kind == EventKind.MARIADB_GTID))
    log.events = whole[: begin + 1]
    reader = reader_of(log)
    assert (told(reader.take(10, never)), reader.is_over) == ([("insert", 1, 1)], True)
    assert reader.position == before, "nothing of the next one has come"
    log.events = whole[: begin + 3]
    reader = reader_of(log)
    assert (told(reader.take(10, never))[1:], reader.position.done) == ([("insert", 2, 2)], (1, 0))
    done = BinlogPosition.of(reader.position.written() | {"done": [2, 0]})
    again = reader_of(log, done)
    assert (again.take(10, never), again.position.done) == ([], (2, 0)), "what was taken before stays so"


def test_a_server_that_tells_no_moment_of_the_commit_tells_when_it_was_written() -> None:
    log = Log("mysql")
    log.add(EventKind.GTID, b"\0" + SERVER.bytes + struct.pack("<Q", 1), NOW - 3)
    log.statement("BEGIN")
    log.rows("insert", (1, 1))
    log.commit()
    [change] = reader_of(log).take(10, never)
    assert change.metadata["committed_at"] == dt.datetime.fromtimestamp(NOW - 3, dt.UTC)


def test_a_reader_whose_time_is_up_stops_between_two_transactions() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)), ("insert", (2, 2)))
    log.transaction(("insert", (3, 3)))
    reader = reader_of(log)
    assert told(reader.take(10, lambda: reader.read_bytes > 0)) == [("insert", 1, 1), ("insert", 2, 2)]
    assert not reader.is_over
    assert told(reader.take(10, never)) == [("insert", 3, 3)]


# Another log.


def settled(log: Log) -> BinlogPosition:
    reader = reader_of(log)
    reader.take(100, never)
    return reader.position


@pytest.mark.parametrize("change", [{"crc": 5}, {"offset": 23}, {"offset": 10**6}])
def test_another_event_at_the_place_of_the_last_one_is_a_lost_position(change: dict[str, int]) -> None:
    log = busy_log("mariadb")
    position = BinlogPosition.of(settled(log).written() | change)
    with pytest.raises(PositionLostError, match=f"Another event than before stands at {FILE}:{position.offset}"):
        reader_of(log, position)


def test_what_a_server_sends_before_the_event_that_was_asked_for_is_not_taken_for_it() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)))
    position = settled(log)
    before = [
        Event(kind, 0, 1, position.offset, 0, b"", 0)
        for kind in (EventKind.HEARTBEAT, EventKind.HEARTBEAT_V2, EventKind.PREVIOUS_GTIDS, EventKind.MARIADB_GTID_LIST)
    ]
    log.transaction(("insert", (2, 2)))
    log.events = [*before, *log.events]
    assert told(reader_of(log, position).take(10, never)) == [("insert", 2, 2)]


# What a log may not hold.


def test_rows_without_their_table_map_are_refused() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)))
    log.events = [event for event in log.events if event.kind != EventKind.TABLE_MAP]
    with pytest.raises(FetchError, match=f"without their table map before {FILE}:"):
        reader_of(log).take(10, never)


def test_rows_without_a_transaction_are_refused() -> None:
    log = Log()
    log.rows("insert", (1, 1))
    with pytest.raises(FetchError, match=f"without a transaction before {FILE}:"):
        reader_of(log).take(10, never)


def test_an_event_that_only_ends_a_statement_has_no_rows() -> None:
    log = Log()
    log.begin()
    log.rows("insert", (1, 1))
    log.add(EventKind.WRITE_ROWS, b"\xff\xff\xff\0\0\0" + bytes(2))
    log.commit()
    assert told(reader_of(log).take(10, never)) == [("insert", 1, 1)]


def test_the_end_of_a_transaction_that_was_not_seen_beginning_moves_nothing() -> None:
    log = Log()
    log.commit()
    reader = reader_of(log)
    assert reader.take(10, never) == []
    assert reader.position == BEGINNING


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_the_rows_of_an_xa_transaction_are_refused_and_those_of_other_tables_are_not(kind: str) -> None:
    def prepared(table: str) -> Log:
        log = Log(kind)
        if kind == "mariadb":
            log.begin(PREPARED_XA)
        else:
            log.begin(STANDALONE)
            log.statement("XA START X'78',X'',1")
        log.rows("insert", (1, 1), table=table)
        log.statement("XA END X'78',X'',1")
        log.add(EventKind.XA_PREPARE)
        log.transaction(("insert", (2, 2)))
        return log

    with pytest.raises(SourceConfigurationError, match=r"An XA transaction has changed d\.t"):
        reader_of(prepared("t")).take(10, never)
    assert told(reader_of(prepared("others")).take(10, never)) == [("insert", 2, 2)]


def test_an_xa_transaction_without_a_gtid_is_no_transaction_that_has_begun() -> None:
    log = Log("without")
    log.statement("XA START X'78',X'',1")
    log.rows("insert", (1, 1), table="others")
    log.transaction(("insert", (2, 2)))
    assert told(reader_of(log).take(10, never)) == [("insert", 2, 2)]


@pytest.mark.parametrize(
    "kind", [EventKind.TRANSACTION_PAYLOAD, EventKind.PARTIAL_UPDATE_ROWS, *range(EventKind.QUERY_COMPRESSED, 172)]
)
def test_what_is_compressed_or_there_in_part_only_is_refused(kind: int) -> None:
    log = Log()
    log.add(kind)
    with pytest.raises(SourceConfigurationError, match="log_bin_compress = OFF"):
        reader_of(log).take(10, never)


def test_a_change_that_was_logged_as_a_statement_is_refused_where_it_may_be_one_of_a_watched_table() -> None:
    log = Log()
    log.begin()
    log.statement("UPDATE others SET a = 1")
    log.commit()
    log.transaction(("insert", (1, 1)))
    assert told(reader_of(log).take(10, never)) == [("insert", 1, 1)]
    log.begin()
    event = log.statement("/* x */ UPDATE t SET a = 1")
    with pytest.raises(SourceConfigurationError, match=rf"\({FILE}:{event.start}\).*binlog_format = 'ROW'"):
        reader_of(log).take(10, never)


@pytest.mark.parametrize(
    ("statement", "is_told"),
    [
        ("ALTER TABLE t DROP PARTITION p0", True),
        ("alter table t\n truncate partition p0", True),
        ("RENAME TABLE t TO s", True),
        ("ALTER TABLE others DROP PARTITION p0", False),
        ("ALTER TABLE t DROP COLUMN c", False),
    ],
)
def test_rows_that_ddl_takes_away_without_a_word_in_the_log_are_a_warning(
    statement: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    log.ddl(statement)
    log.transaction(("insert", (1, 1)))
    with caplog.at_level(logging.WARNING, "azure_functions_db"):
        assert told(reader_of(log).take(10, never)) == [("insert", 1, 1)]
    warned = [record.__dict__ for record in caplog.records if record.__dict__.get("event") == "rows_lost_by_ddl"]
    assert [record["statement"] for record in warned] == ([statement] if is_told else [])


def test_a_table_of_another_schema_or_name_that_is_emptied_is_not_told() -> None:
    log = Log()
    log.ddl("TRUNCATE e.t")
    log.ddl("DROP TABLE others")
    log.ddl("TRUNCATE d.t")
    [change] = reader_of(log).take(10, never)
    assert change.metadata["table"] == "d.t"


def log_with_times() -> Log:
    """A time of a day, and one that is none."""
    log = Log()
    log.begin()
    columns = b"\2\1\x0b\0\0" + b"\1\1\0" + b"\4\5\2id\1v" + b"\x08\1\0"
    log.add(EventKind.TABLE_MAP, b"\1" + bytes(7) + b"\1d\0\1t\0" + columns)
    hours = [(10_000).to_bytes(3, "little"), (250_000).to_bytes(3, "little")]
    log.add(EventKind.WRITE_ROWS, b"\1" + bytes(7) + b"\2\0\2\3" + b"\0\1" + hours[0] + b"\0\2" + hours[1])
    log.commit()
    return log


def test_a_time_that_python_cannot_hold_is_undecodable_unless_texts_are_wanted() -> None:
    log = log_with_times()
    reader = reader_of(log)
    changes = reader.take(10, never)
    assert {place: str(why) for place, why in reader.undecodable.items()} == {
        changes[1].position: "A value cannot be decoded: column 'v'"
    }
    reader = reader_of(log, undecodable_as_text=True)
    assert [change.after["v"] for change in reader.take(10, never) if change.after] == [
        dt.time(1),
        "25:00:00.000000",
    ]
    assert reader.undecodable == {}


# GTIDs that are learned at the beginning of the oldest file.


def mariadb_list(*gtids: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", len(gtids) | 1 << 28) + b"".join(struct.pack("<IIQ", *gtid) for gtid in gtids)


def mysql_list(*intervals: tuple[int, int]) -> bytes:
    listed = b"".join(struct.pack("<QQ", *interval) for interval in intervals)
    return struct.pack("<Q16sQ", 1, SERVER.bytes, len(intervals)) + listed


@pytest.mark.parametrize(
    ("kind", "event", "body", "gtids"),
    [
        ("mariadb", EventKind.MARIADB_GTID_LIST, mariadb_list((0, 1, 4), (2, 1, 9), (2, 3, 7)), "0-1-1,2-3-7"),
        ("mysql", EventKind.PREVIOUS_GTIDS, mysql_list((4, 6), (8, 9)), f"{SERVER}:1:4-5:8"),
        ("mysql", EventKind.PREVIOUS_GTIDS, mysql_list((4, 6))[:-1], None),
        ("mysql", EventKind.PREVIOUS_GTIDS, mysql_list((4, 6)) + b"tag", None),
        ("mysql", EventKind.PREVIOUS_GTIDS, mysql_list((0, 6)), None),
        ("mysql", EventKind.PREVIOUS_GTIDS, struct.pack("<Q", 1), None),
    ],
)
def test_what_lies_before_the_oldest_file_is_learned_from_its_beginning(
    kind: str, event: int, body: bytes, gtids: str | None
) -> None:
    log = Log(kind)
    log.add(event, body)
    log.transaction(("insert", (1, 1)))
    reader = reader_of(log)
    reader.take(10, never)
    assert reader.position.gtids == gtids


def test_a_list_of_gtids_that_is_cut_short_is_refused() -> None:
    log = Log()
    log.add(EventKind.MARIADB_GTID_LIST, mariadb_list((0, 1, 4))[:-1])
    with pytest.raises(FetchError, match="cut short"):
        reader_of(log).take(10, never)


@pytest.mark.parametrize(
    "position",
    [
        BinlogPosition(file=FILE, offset=4, gtids="0-1-99"),
        BinlogPosition(file=FILE, offset=5),
    ],
)
def test_gtids_that_are_known_or_stand_elsewhere_are_not_learned_anew(position: BinlogPosition) -> None:
    log = Log()
    log.add(EventKind.ROTATE)
    log.add(EventKind.MARIADB_GTID_LIST, mariadb_list((3, 1, 4)))
    log.transaction(("insert", (1, 1)))
    reader = reader_of(log, position)
    reader.take(10, never)
    assert reader.position.gtids == (None if position.gtids is None else "0-1-1")


def test_gtids_are_not_learned_from_a_later_file_nor_by_a_reader_that_goes_on() -> None:
    log = Log()
    log.transaction(("insert", (1, 1)))
    position = settled(log)
    log.add(EventKind.MARIADB_GTID_LIST, mariadb_list((3, 1, 4)))
    log.transaction(("insert", (2, 2)))
    for start in (BEGINNING, position):
        reader = reader_of(log, start)
        reader.take(10, never)
        assert reader.position.gtids is None


def test_a_gtid_with_a_tag_is_a_transaction_without_a_name_of_its_own() -> None:
    log = Log("mysql")
    log.add(EventKind.TAGGED_GTID, b"\0")
    log.statement("BEGIN")
    log.rows("insert", (1, 1))
    log.commit()
    log.add(EventKind.TAGGED_GTID, b"\0")
    log.statement("TRUNCATE t")
    reader = reader_of(log, BinlogPosition(file=FILE, gtids=f"{SERVER}:1-5"))
    assert told(reader.take(10, never)) == [("insert", 1, 1), ("truncate", None, None)]
    assert reader.position.gtids == f"{SERVER}:1-5"


@pytest.mark.parametrize("kind", [EventKind.MARIADB_GTID, EventKind.GTID, EventKind.ANONYMOUS_GTID])
def test_a_gtid_event_that_is_cut_short_is_one_clear_error(kind: int) -> None:
    log = Log()
    log.add(kind, b"\0\0\0")
    with pytest.raises(FetchError, match="A GTID event cannot be decoded"):
        reader_of(log).take(10, never)


# Packets.


class Sent(Replica):
    """A replica that is sent the bytes of somebody's choice."""

    def __init__(self, data: bytes, *, checksums: bool = False) -> None:
        self.file, self._checksums = "", checksums
        self._packets = packets(numbered(data))


def packet(data: bytes) -> bytes:
    return len(data).to_bytes(3, "little") + b"\1" + data


def numbered(data: bytes) -> io.BytesIO:
    """Return packets as a server numbers those of one answer; the last may be cut off."""
    sent, at, number = bytearray(data), 0, 1
    while at + 4 <= len(sent):
        sent[at + 3] = number % 256
        number += 1
        at += 4 + int.from_bytes(sent[at : at + 3], "little")
    return io.BytesIO(bytes(sent))


def event_packet(kind: int, body: bytes, *, end: int = 0, checksum: bool = False, damage: bytes = b"") -> bytes:
    size = 19 + len(body) + (4 if checksum else 0)
    event = struct.pack("<IBIIIH", NOW, kind, 1, size, end or size, 0) + body
    crc = zlib.crc32(event).to_bytes(4, "little") if checksum else b""
    return packet(b"\0" + event + (damage or crc))


END_OF_LOG = packet(b"\xfe\0\0\0\0")


def test_events_are_cut_out_of_packets_until_the_log_ends() -> None:
    rotation = event_packet(EventKind.ROTATE, bytes(8) + b"binlog.000009")
    replica = Sent(rotation + event_packet(EventKind.XID, b"12345678", end=500) + END_OF_LOG)
    first, second = replica._events()
    assert (first.kind, replica.file) == (EventKind.ROTATE, "binlog.000009")
    whole = struct.pack("<IBIIIH", NOW, EventKind.XID, 1, 27, 500, 0) + b"12345678"
    assert second == Event(EventKind.XID, NOW, 1, 473, 500, b"12345678", zlib.crc32(whole))


def test_a_checksum_is_held_against_the_event_and_is_no_part_of_it() -> None:
    form = event_packet(EventKind.FORMAT, b"format\x01" + bytes(4))
    good = event_packet(EventKind.XID, b"12345678", checksum=True)
    assert [event.body for event in Sent(form + good + END_OF_LOG)._events()] == [b"format\x01", b"12345678"]
    bad = event_packet(EventKind.XID, b"12345678", end=700, checksum=True, damage=b"wxyz")
    with pytest.raises(FetchError, match=r":700 is damaged"):
        list(Sent(bad + END_OF_LOG, checksums=True)._events())
    none = event_packet(EventKind.FORMAT, b"format\x00" + bytes(4))
    plain = event_packet(EventKind.XID, b"12345678")
    [_, event] = Sent(none + plain + END_OF_LOG, checksums=True)._events()
    assert event.body == b"12345678"


@pytest.mark.parametrize(
    ("data", "complaint", "transient"),
    [
        (packet(b"\0abc"), "no header", False),
        (packet(b"\0" + struct.pack("<IBIIIH", 0, 16, 1, 99, 0, 0)), "19 bytes long and claims to be 99", False),
        (b"\x05\0\0\0abc", "cut the connection", True),
        (b"\x05\0", "cut the connection", True),
        (b"", "cut the connection", True),
        (packet(b"\xff\x0d\x04#HY000closing"), r"closing \(1037\)", False),
        (packet(b"\xff\x1d\x04#HY000closing"), r"closing \(1053\)", True),
        (packet(b"\xff\x1d\x04closing"), r": closing \(1053\)", True),
    ],
)
def test_packets_that_are_none_are_one_clear_error(data: bytes, complaint: str, transient: bool) -> None:
    with pytest.raises(FetchError, match=complaint) as refused:
        list(Sent(data)._events())
    assert refused.value.transient is transient


def test_a_purged_log_and_a_missing_right_are_told_as_what_they_are() -> None:
    with pytest.raises(PositionLostError, match=r"no longer has what follows the position: gone \(1236\)"):
        list(Sent(packet(b"\xff\xd4\x04#HY000gone"))._events())
    for number in (1045, 1227):
        with pytest.raises(SourceConfigurationError, match=r"may not read the binary log: denied"):
            list(Sent(packet(b"\xff" + number.to_bytes(2, "little") + b"#42000denied"))._events())


def test_a_connection_that_fails_is_a_passing_failure() -> None:
    class Broken(io.BytesIO):
        def read1(self, _size: int | None = -1) -> bytes:
            raise TimeoutError("timed out")

    replica = Sent(b"")
    replica._packets = packets(Broken())
    with pytest.raises(FetchError, match="does not go on: timed out") as refused:
        replica._packet()
    assert refused.value.transient


class Driver:
    """PyMySQL's connection, as far as a replica touches it."""

    def __init__(self, answers: tuple[bytes, ...], fails: Exception | None = None) -> None:
        self._answers = iter(answers)
        self._sock = SimpleNamespace(settimeout=self._note)
        self._fails = fails
        self.timeouts: list[float] = []
        self.statements: list[str] = []
        self.commands: list[tuple[int, bytes]] = []
        self.is_closed = False

    def _note(self, seconds: float) -> None:
        self.timeouts.append(seconds)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        yield SimpleNamespace(execute=self._execute)

    def _execute(self, statement: str) -> None:
        if self._fails is not None:
            raise self._fails
        self.statements.append(statement)

    def _execute_command(self, code: int, arguments: bytes) -> None:
        self.commands.append((code, arguments))
        self._rfile = io.BytesIO(next(self._answers))

    def _force_close(self) -> None:
        self.is_closed, self._rfile = True, io.BytesIO()


class Lent:
    """A connection of the engine's, around it."""

    engine = create_engine("mysql+pymysql://nowhere")

    def __init__(self, driver: Driver) -> None:
        self.connection = self
        self.dbapi_connection = driver
        self.is_detached = self.is_invalid = False

    def detach(self) -> None:
        self.is_detached = True

    def invalidate(self, _error: object = None) -> None:
        self.is_invalid = True


OK = packet(b"\0")


def replica_of(*answers: bytes, fails: Exception | None = None, is_mariadb: bool = False) -> tuple[Any, Any, Any]:
    driver = Driver(answers or (OK,), fails)
    lent = Lent(driver)
    engine: Any = SimpleNamespace(connect=lambda: lent)
    try:
        return Replica(engine, 77, is_mariadb=is_mariadb, checksums=False), driver, lent
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error, driver, lent


def test_a_replica_introduces_itself_and_belongs_to_no_pool() -> None:
    replica, driver, lent = replica_of(OK, END_OF_LOG)
    assert lent.is_detached
    assert "@master_heartbeat_period" in driver.statements[0]
    assert driver.commands == [(0x15, struct.pack("<IBBBHII", 77, 0, 0, 0, 0, 0, 0))]
    assert list(replica.dump("b.000003", 50)) == []
    assert driver.commands[1] == (0x12, struct.pack("<IHI", 50, 1, 77) + b"b.000003")
    assert (replica.file, driver.timeouts, driver._current_timeout) == ("b.000003", [60.0, 60.0], 60.0)
    replica.close()
    assert (driver.is_closed, lent.is_invalid) == (True, True)


def test_a_replica_that_is_closed_in_the_middle_of_a_log_holds_no_stream() -> None:
    replica, driver, _ = replica_of(OK, event_packet(EventKind.XID, b"12345678") + END_OF_LOG)
    events, stream = replica.dump("b.000003", 50), weakref.ref(driver._rfile)
    next(events)
    replica.close()
    assert stream() is None


def test_a_replica_asks_for_what_its_gtids_leave_out() -> None:
    replica, driver, _ = replica_of(OK, END_OF_LOG)
    done = MySqlGtids(f"{SERVER}:1-5")
    assert list(replica.dump_after(done)) == []
    head = struct.pack("<HIIQI", 5, 77, 0, 4, len(done.encoded()))
    assert driver.commands[1] == (0x1E, head + done.encoded())
    mariadb, driver, _ = replica_of(OK, END_OF_LOG, is_mariadb=True)
    assert list(mariadb.dump_after(MariaDbGtids("0-1-5"))) == []
    assert driver.statements[1] == "SET @slave_connect_state = '0-1-5', @slave_gtid_strict_mode = 0"
    assert driver.commands[1] == (0x12, struct.pack("<IHI", 4, 1, 77))


def test_a_replica_that_is_not_let_in_leaves_no_connection_behind() -> None:
    refused, driver, lent = replica_of(packet(b"\xff\xcb\x04#42000denied"))
    assert isinstance(refused, SourceConfigurationError)
    assert (driver.is_closed, lent.is_invalid) == (True, True)
    failed, driver, lent = replica_of(fails=pymysql.err.OperationalError(1205, "timeout"))
    assert isinstance(failed, OperationalError), "as every other statement fails"
    assert (driver.is_closed, lent.is_invalid) == (True, True)


def test_a_connection_that_cannot_even_be_closed_is_let_go() -> None:
    replica, driver, _ = replica_of()

    def fail() -> None:
        raise OSError

    driver._force_close = fail
    replica.close()
