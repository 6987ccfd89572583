"""What a server of MySQL or MariaDB says of itself, and what a source makes of it: answers that servers have given."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError, ProgrammingError

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    MySqlBinlogSource,
    PositionLostError,
    SourceConfigurationError,
    SqlAlchemySource,
)
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.mysql import log as logs
from azure_functions_db.sources.mysql import server as servers
from azure_functions_db.sources.mysql.decoding import EventKind
from azure_functions_db.sources.mysql.log import (
    BinlogLog,
    BinlogOptions,
    TableName,
    _by_place,
    in_utc,
    names_of,
    random_server_id,
)
from azure_functions_db.sources.mysql.position import BinlogPosition
from azure_functions_db.sources.mysql.server import LogFile, Server, bytes_after, health_at, log_end
from tests.unit.sources.test_binlog_transactions import END_OF_LOG, Log, Sent, log_with_times, packet

ONE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MARIADB = {
    "binlog_checksum": "NONE",
    "binlog_expire_logs_seconds": "0",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "expire_logs_days": "2.000000",
    "gtid_binlog_pos": "0-1-5",
    "log_bin": "ON",
    "log_bin_compress": "OFF",
    "lower_case_table_names": "0",
    "server_uuid": "not told",
    "version": "11.4.2-MariaDB",
}
MYSQL = {
    "binlog_checksum": "CRC32",
    "binlog_expire_logs_seconds": "2592000",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_row_value_options": "",
    "binlog_transaction_compression": "OFF",
    "expire_logs_days": "0",
    "gtid_executed": f"{ONE}:1-5",
    "gtid_mode": "ON",
    "log_bin": "ON",
    "lower_case_table_names": "1",
    "server_uuid": ONE,
    "version": "8.4.0",
}
WITHOUT_GTIDS = MYSQL | {"gtid_mode": "OFF", "gtid_executed": ""}


def test_servers_are_told_apart() -> None:
    mariadb, mysql = Server(MARIADB), Server(MYSQL)
    assert (mariadb.is_mariadb, mysql.is_mariadb) == (True, False)
    assert (mariadb.uuid, mysql.uuid) == ("", ONE)
    assert (mariadb.has_checksums, mysql.has_checksums) == (False, True)
    assert (mariadb.folds_names, mysql.folds_names) == (False, True)
    assert (str(mariadb.gtids), str(mysql.gtids)) == ("0-1-5", f"{ONE}:1-5")
    assert (mariadb.retention_seconds, mysql.retention_seconds) == (172_800.0, 2_592_000.0)
    assert Server({}).retention_seconds is None
    assert (str(mariadb.gtid_set("0-1-1")), str(mysql.gtid_set(f"{ONE}:1"))) == ("0-1-1", f"{ONE}:1")


def test_a_server_without_gtids_is_believed_to_have_seen_any() -> None:
    assert [Server(MYSQL).has_seen(f"{ONE}:{numbers}") for numbers in ("1-5", "2", "6")] == [True, True, False]
    assert Server(WITHOUT_GTIDS).gtids is None
    assert Server(MYSQL | {"gtid_mode": "ON_PERMISSIVE"}).gtids is None
    assert Server(WITHOUT_GTIDS).has_seen(f"{ONE}:6")


def test_only_gtids_that_are_all_done_make_a_server_idle() -> None:
    server = Server(MARIADB)
    assert server.is_idle_at(BinlogPosition(gtids="0-1-5"))
    assert not server.is_idle_at(BinlogPosition(gtids="0-1-4"))
    assert not server.is_idle_at(BinlogPosition(gtids="0-1-5", done=(1, 0)))
    assert not server.is_idle_at(BinlogPosition())
    assert not Server(MARIADB | {"gtid_binlog_pos": ""}).is_idle_at(BinlogPosition(gtids=""))
    assert not Server(WITHOUT_GTIDS).is_idle_at(BinlogPosition(gtids=f"{ONE}:1-5"))


@pytest.mark.parametrize(
    ("setting", "value", "cure"),
    [
        ("binlog_format", "MIXED", "SET GLOBAL binlog_format = 'ROW'"),
        ("binlog_row_image", "MINIMAL", "SET GLOBAL binlog_row_image = 'FULL'"),
        ("binlog_row_metadata", "MINIMAL", "SET GLOBAL binlog_row_metadata = 'FULL'"),
        ("binlog_transaction_compression", "ON", "SET GLOBAL binlog_transaction_compression = OFF"),
        ("binlog_row_value_options", "PARTIAL_JSON", "SET GLOBAL binlog_row_value_options = ''"),
        ("log_bin_compress", "ON", "SET GLOBAL log_bin_compress = OFF"),
        ("log_bin", "OFF", "start it with log_bin and a server_id of its own"),
    ],
)
def test_a_setting_that_would_leave_something_out_is_refused_with_its_cure(setting: str, value: str, cure: str) -> None:
    with pytest.raises(SourceConfigurationError, match=cure) as refused:
        Server(MYSQL | {setting: value}).demand()
    assert refused.value.setting == setting
    wrong = [finding for finding in Server(MYSQL | {setting: value}).examined() if finding.grade == "error"]
    assert [finding.check for finding in wrong] == [setting]


def test_settings_as_they_should_be_are_content() -> None:
    found = {finding.check: finding.text for finding in Server(MYSQL).examined()}
    assert found["binlog_row_value_options"] == "none"
    assert "log_bin_compress" not in found, "a setting of the other kind of server"
    Server(MYSQL | {"binlog_transaction_compression": "0", "binlog_format": "row"}).demand()
    assert [finding.check for finding in Server(MYSQL | {"log_bin": "OFF"}).examined()] == ["log_bin"]


FILES = [LogFile("b.000003", 1000), LogFile("b.000004", 100), LogFile("b.000005", 10)]


@pytest.mark.parametrize(
    ("position", "left"),
    [
        (BinlogPosition(), 1110),
        (BinlogPosition(file="b.000002", offset=50, end=50), 1110),
        (BinlogPosition(file="b.000003", offset=900, end=950), 160),
        (BinlogPosition(file="b.000004", offset=4, end=4), 106),
        (BinlogPosition(file="b.000005", offset=4, end=99), 0),
        (BinlogPosition(file="b.000006", offset=4, end=99), 0),
    ],
)
def test_what_is_left_of_a_log_is_counted_in_bytes(position: BinlogPosition, left: int) -> None:
    assert bytes_after(position, FILES) == left


def test_how_far_behind_a_position_is_is_told_by_its_last_commit() -> None:
    now = int(dt.datetime.now(dt.UTC).timestamp())
    behind = health_at(BinlogPosition(time=now - 100), 7, 1000.0)
    assert behind.lag_seconds is not None
    assert 100 <= behind.lag_seconds < 160
    assert behind.retention_left_seconds == 1000 - behind.lag_seconds
    assert behind.last_commit_at == dt.datetime.fromtimestamp(now - 100, dt.UTC)
    caught_up = health_at(BinlogPosition(time=now - 100), 0, 1000.0)
    assert (caught_up.lag_bytes, caught_up.lag_seconds, caught_up.retention_left_seconds) == (0, 0.0, 1000.0)
    unknown = health_at(BinlogPosition(), 7, 1000.0)
    assert (unknown.lag_seconds, unknown.retention_left_seconds, unknown.last_commit_at) == (None, None, None)
    assert health_at(BinlogPosition(time=now + 100), 7, None).lag_seconds == 0.0
    assert health_at(BinlogPosition(time=now), 7, None).retention_left_seconds is None


class Rows(list[Any]):
    """What a statement has answered."""

    def first(self) -> Any:
        return self[0] if self else None

    def all(self) -> list[Any]:
        return list(self)

    def scalar_one(self) -> Any:
        return self[0][0]


def refusal(number: int) -> Exception:
    kind = ProgrammingError if number == 1064 else OperationalError
    return kind("statement", {}, pymysql.err.OperationalError(number, "refused"))


class Answers:
    """A connection to a server that has been asked these things before."""

    dialect = create_engine("mysql+pymysql://nowhere/shop").dialect

    def __init__(self, variables: dict[str, str] = MYSQL, answers: Any = None) -> None:
        end = [("b.000005", 10, "")]
        status = "SHOW MASTER STATUS" if "gtid_binlog_pos" in variables else "SHOW BINARY LOG STATUS"
        self.variables = variables
        self.answers: dict[str, Any] = {"SHOW BINARY LOGS": FILES, status: end, **(answers or {})}
        self.asked: list[str] = []

    def exec_driver_sql(self, statement: str) -> Rows:
        self.asked.append(statement)
        if statement.startswith("SHOW GLOBAL VARIABLES"):
            return Rows(self.variables.items())
        answer = next((rows for text, rows in self.answers.items() if statement.startswith(text)), ())
        if isinstance(answer, Exception):
            raise answer
        return Rows(answer)

    def execute(self, statement: Any, values: Any = None) -> Rows:
        self.asked.append(str(statement))
        return Rows(self.answers.get(str(statement).partition("(")[0], ()))


def test_the_end_of_the_log_is_asked_for_in_the_words_that_the_server_knows() -> None:
    mysql, mariadb = Answers(), Answers(MARIADB)
    assert log_end(mysql, Server(MYSQL)) == LogFile("b.000005", 10)  # type: ignore[arg-type]
    assert log_end(mariadb, Server(MARIADB)) == LogFile("b.000005", 10)  # type: ignore[arg-type]
    assert (mysql.asked, mariadb.asked) == (["SHOW BINARY LOG STATUS"], ["SHOW MASTER STATUS"])
    old: Any = Answers(MYSQL, {"SHOW BINARY LOG STATUS": refusal(1064), "SHOW MASTER STATUS": [("b.000009", "7")]})
    assert log_end(old, Server(MYSQL)) == LogFile("b.000009", 7)


def test_a_log_whose_end_cannot_be_told_is_refused() -> None:
    forbidden: Any = Answers(MYSQL, {"SHOW BINARY LOG STATUS": refusal(1227)})
    with pytest.raises(OperationalError, match="1227"):
        log_end(forbidden, Server(MYSQL))
    unknown: Any = Answers(MYSQL, {"SHOW BINARY LOG STATUS": refusal(1064), "SHOW MASTER STATUS": refusal(1064)})
    with pytest.raises(ProgrammingError, match="1064"):
        log_end(unknown, Server(MYSQL))
    none: Any = Answers(MYSQL, {"SHOW BINARY LOG STATUS": []})
    with pytest.raises(SourceConfigurationError, match="writes no binary log") as refused:
        log_end(none, Server(MYSQL))
    assert refused.value.setting == "log_bin"


class AskedLog(BinlogLog):
    """A log whose server gives those answers, and sends these packets to each of its readers."""

    def __init__(self, answers: Answers, *sent: bytes, **options: Any) -> None:
        chosen: dict[str, Any] = {"tables": ("orders",), "snapshot": "never"} | options
        super().__init__(create_engine("mysql+pymysql://nowhere/shop"), BinlogOptions(**chosen), self._no_rows)
        self.answers = answers
        self.sent = list(sent)
        self.replicas: list[Dumped] = []

    @contextmanager
    def connected(self) -> Iterator[Any]:
        yield self.answers

    def _no_rows(self, name: TableName, key: Sequence[str]) -> Any:
        raise AssertionError("no rows are read")

    def _new_replica(self, server: Server) -> Any:
        self.replicas.append(Dumped(self.sent.pop(0) if self.sent else END_OF_LOG))
        return self.replicas[-1]


class Dumped(Sent):
    """Notes what it is asked for, and whether it was closed."""

    asked: Any = None
    is_closed = False

    def dump(self, file: str, offset: int) -> Any:
        self.file, self.asked = file, (file, offset)
        return self._events()

    def dump_after(self, done: Any) -> Any:
        self.asked = str(done)
        return self._events()

    def close(self) -> None:
        self.is_closed = True


PURGED = packet(b"\xff\xd4\x04#HY000gone")


@pytest.mark.parametrize(
    ("variables", "options", "anew", "position"),
    [
        (MYSQL, {}, False, BinlogPosition(gtids=f"{ONE}:1-5", server=ONE)),
        (MYSQL, {"snapshot": "initial"}, False, BinlogPosition(gtids=f"{ONE}:1-5", server=ONE)),
        (MYSQL, {"start_at": "beginning"}, False, BinlogPosition(file="b.000003", server=ONE)),
        (MYSQL, {"start_at": "b.000004:50"}, False, BinlogPosition(file="b.000004", offset=50, server=ONE)),
        (
            MYSQL,
            {"start_at": "beginning", "on_position_lost": "snapshot"},
            False,
            BinlogPosition(file="b.000003", server=ONE),
        ),
        (MARIADB, {"snapshot": "initial"}, False, BinlogPosition(file="b.000004", offset=77, gtids="0-1-5")),
        (WITHOUT_GTIDS, {}, False, BinlogPosition(file="b.000005", offset=10, server=ONE)),
        (WITHOUT_GTIDS, {"snapshot": "initial"}, False, BinlogPosition(file="b.000005", offset=10, server=ONE)),
        (MYSQL, {"on_position_lost": "continue"}, True, BinlogPosition(file="b.000003", server=ONE)),
        (MYSQL, {"on_position_lost": "snapshot"}, True, BinlogPosition(gtids=f"{ONE}:1-5", server=ONE)),
        (
            MYSQL,
            {"snapshot": "initial", "on_position_lost": "continue"},
            True,
            BinlogPosition(file="b.000003", server=ONE),
        ),
        (MARIADB, {}, False, BinlogPosition(file="b.000005", offset=10, gtids="0-1-5")),
    ],
)
def test_a_stream_begins_where_all_that_lies_before_it_shows_in_the_tables(
    variables: dict[str, str], options: dict[str, Any], anew: bool, position: BinlogPosition
) -> None:
    status = [("Binlog_snapshot_file", "b.000004"), ("Binlog_snapshot_position", "77")]
    answers = Answers(variables, {"SELECT BINLOG_GTID_POS": [("0-1-5",)], "SHOW STATUS": status})
    log = AskedLog(answers, **options)
    assert log.begin(anew=anew) == position.written()
    if position.file == "b.000004" and position.offset == 77:
        place = next(number for number, statement in enumerate(answers.asked) if statement.startswith("SHOW STATUS"))
        around = answers.asked[place - 1], answers.asked[place + 1]
        assert around == ("START TRANSACTION WITH CONSISTENT SNAPSHOT", "ROLLBACK")
    locks = [statement for statement in answers.asked if "LOCK" in statement]
    is_locked = variables is WITHOUT_GTIDS and options.get("snapshot") == "initial"
    assert locks == (["LOCK TABLES `shop`.`orders` READ", "UNLOCK TABLES"] if is_locked else [])
    assert [(replica.asked, replica.is_closed) for replica in log.replicas] == [(("b.000005", 10), True)]


def test_a_table_that_may_not_be_locked_is_told_and_another_failure_is_itself() -> None:
    def begin(number: int) -> Any:
        answers = Answers(WITHOUT_GTIDS, {"LOCK TABLES": refusal(number)})
        return AskedLog(answers, snapshot="initial").begin(anew=False)

    with pytest.raises(SourceConfigurationError, match="GRANT LOCK TABLES"):
        begin(1044)
    with pytest.raises(OperationalError, match="1205"):
        begin(1205)


def test_tables_are_unlocked_whatever_happens() -> None:
    answers = Answers(WITHOUT_GTIDS)
    log = AskedLog(answers, snapshot="initial")
    with pytest.raises(KeyboardInterrupt), log._locked(answers):  # type: ignore[arg-type]  # it answers as one does
        raise KeyboardInterrupt
    assert answers.asked[-1] == "UNLOCK TABLES"


def test_a_server_whose_log_would_leave_something_out_is_refused_by_every_look() -> None:
    log = AskedLog(Answers(MYSQL | {"binlog_format": "MIXED"}))
    position = written(file="b.000004")
    with pytest.raises(SourceConfigurationError, match="binlog_format"):
        log.begin(anew=False)
    with pytest.raises(SourceConfigurationError, match="binlog_format"):
        log.changes(position, 10)
    with pytest.raises(SourceConfigurationError, match="binlog_format"):
        log.quiet(position)


def test_a_reader_has_the_id_that_was_chosen_or_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[Any]()
    monkeypatch.setattr(logs, "Replica", lambda _engine, server_id, **options: given.append((server_id, options)))
    for options in ({"server_id": 5}, {}):
        BinlogLog._new_replica(AskedLog(Answers(), **options), Server(MYSQL))
    assert given[0] == (5, {"is_mariadb": False, "checksums": True})
    assert given[1][0] >= 1 << 31


def test_a_start_that_this_server_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no GTID set of MySQL"):
        AskedLog(Answers(), start_at="0-1-5").begin(anew=False)


def test_who_may_not_read_the_log_learns_of_it_at_the_beginning() -> None:
    denied = packet(b"\xff\xcb\x04#42000denied")
    log = AskedLog(Answers(), denied)
    with pytest.raises(SourceConfigurationError, match="denied"):
        log.begin(anew=False)
    assert log.replicas[0].is_closed
    lost = AskedLog(Answers(), PURGED)
    assert lost.begin(anew=False), "where it ends is a place that a reader never asks for"


def written(**fields: Any) -> dict[str, Any]:
    return BinlogPosition(**({"server": ONE} | fields)).written()


def test_another_server_or_one_that_was_reset_is_a_lost_position() -> None:
    log = AskedLog(Answers())
    with pytest.raises(PositionLostError, match=f"behind this address is now {ONE}"):
        log.changes(written(file="b.000004", server="another"), 10)
    with pytest.raises(PositionLostError, match=rf"has not seen all.*{ONE}:1-9.*only {ONE}:1-5"):
        log.changes(written(file="b.000004", gtids=f"{ONE}:1-9"), 10)
    elsewhere = AskedLog(Answers(MARIADB, {"SELECT BINLOG_GTID_POS": [("0-1-3",)]}))
    with pytest.raises(PositionLostError, match=r"At b\.000004:50 the log is another one"):
        elsewhere.changes(written(file="b.000004", offset=50, gtids="0-1-4", server=""), 10)


@pytest.mark.parametrize("found", [[("0-1-4",)], [(None,)]])
def test_a_place_whose_gtids_are_right_or_unknown_is_read_on(found: list[Any]) -> None:
    log = AskedLog(Answers(MARIADB, {"SELECT BINLOG_GTID_POS": found}))
    assert log.changes(written(file="b.000004", offset=50, gtids="0-1-4", server=""), 10).more is False
    assert log.replicas[0].asked == ("b.000004", 50)


def test_a_position_that_names_no_server_is_one_of_any() -> None:
    log = AskedLog(Answers())
    assert log.changes(written(file="b.000004", server=""), 10).more is False
    assert log.replicas[0].asked == ("b.000004", 4)


def test_gtids_of_a_place_are_not_asked_for_where_its_event_is_read_again() -> None:
    answers = Answers(MARIADB)
    with pytest.raises(PositionLostError, match="Another event"):
        AskedLog(answers).changes(written(file="b.000004", offset=50, gtids="0-1-4", crc=7, server=""), 10)
    assert not any("BINLOG_GTID_POS" in statement for statement in answers.asked)


@pytest.mark.parametrize(
    ("variables", "fields", "is_quiet"),
    [
        (MYSQL, {"file": "b.000004", "gtids": f"{ONE}:1-5"}, True),
        (MYSQL, {"file": "b.000004", "gtids": f"{ONE}:1-4"}, False),
        (MYSQL, {"file": "b.000005", "offset": 4, "end": 10}, False),
        (WITHOUT_GTIDS, {"file": "b.000005", "offset": 4, "end": 10}, True),
        (WITHOUT_GTIDS, {"file": "b.000005", "offset": 4, "end": 9}, False),
        (WITHOUT_GTIDS, {"file": "b.000004", "offset": 4, "end": 10}, False),
    ],
)
def test_a_log_is_quiet_only_where_it_is_certain_that_nothing_was_committed(
    variables: dict[str, str], fields: dict[str, Any], is_quiet: bool
) -> None:
    log = AskedLog(Answers(variables))
    assert (log.quiet(written(**fields)) is not None) == is_quiet
    page = log.changes(written(**fields), 10)
    assert (page.changes, page.more, len(log.replicas)) == ([], False, 0 if is_quiet else 1)
    if is_quiet:
        assert page.position == written(**fields)
        assert [fact.gauges()["azfdb_stream_lag_bytes"] for fact in page.facts] == [0.0]
        assert page.facts[0].log_fields()["retention_left_seconds"] == 2_592_000.0


@pytest.mark.parametrize("crc", [7, None])
def test_a_purged_file_is_no_loss_where_the_server_still_has_all_that_the_gtids_leave_out(crc: int | None) -> None:
    log = AskedLog(Answers(), PURGED)
    position = written(file="b.000002", offset=50, crc=crc, gtids=f"{ONE}:1-3")
    log.changes(position, 10)
    assert [replica.asked for replica in log.replicas] == [("b.000002", 50), f"{ONE}:1-3"]
    assert log.replicas[0].is_closed


@pytest.mark.parametrize(
    "fields",
    [
        {"file": "b.000002", "crc": 7, "gtids": None},
        {"file": "b.000004", "crc": 7, "gtids": f"{ONE}:1-3"},
        {"file": "b.000003", "crc": 7, "gtids": f"{ONE}:1-3"},
        {"file": "other.000002", "crc": 7, "gtids": f"{ONE}:1-3"},
        {"file": "", "gtids": f"{ONE}:1-3"},
    ],
)
def test_a_purged_file_is_a_loss_where_nothing_proves_the_contrary(fields: dict[str, Any]) -> None:
    log = AskedLog(Answers(), PURGED, PURGED)
    with pytest.raises(PositionLostError, match="1236"):
        log.changes(written(**fields), 10)
    assert len(log.replicas) == 1


# Reading on.


def packets_of(log: Log, start: int = 0) -> bytes:
    parts = [
        b"\0" + event.timestamp.to_bytes(4, "little") + bytes([event.kind]) + event.server_id.to_bytes(4, "little")
        + (len(event.body) + 19).to_bytes(4, "little") + event.end.to_bytes(4, "little") + b"\0\0" + event.body
        for event in log.events
        if event.start >= start
    ]  # fmt: skip
    return b"".join(map(packet, parts)) + END_OF_LOG


def three_orders() -> Log:
    log = Log()
    for key in (1, 2, 3):
        log.transaction(("insert", (key, key)))
    return log


class Orders(AskedLog):
    """The table of the made-up log is one of the source's, and of its columns the database says nothing."""

    def __init__(self, *sent: bytes, **options: Any) -> None:
        answers = Answers(MARIADB | {"gtid_binlog_pos": "0-1-9"})
        super().__init__(answers, *sent, **({"tables": ("d.t",)} | options))

    def _hints_of(self, schema: str, name: str) -> Any:
        return {}


START = written(file="b.000004", offset=4, server="")


def test_a_reader_goes_on_with_the_connection_it_has_where_it_is_asked_for_what_follows() -> None:
    log = Orders(packets_of(three_orders()), packets_of(three_orders()))
    first = log.changes(START, 1)
    second = log.changes(first.position, 1)
    assert [change.key["id"] for change in (*first.changes, *second.changes)] == [1, 2]
    assert (first.more, len(log.replicas)) == (True, 1)
    again = log.changes(START, 1)
    assert [change.key["id"] for change in again.changes] == [1], "another place is another connection"
    assert (len(log.replicas), log.replicas[0].is_closed) == (2, True)


def test_a_reader_that_was_closed_begins_with_a_connection_of_its_own() -> None:
    log = Orders(packets_of(three_orders()))
    first = log.changes(START, 1)
    log.close()
    log.sent = [packets_of(three_orders(), first.position["offset"])]
    assert [change.key["id"] for change in log.changes(first.position, 1).changes] == [2]
    assert len(log.replicas) == 2


def test_changes_move_the_position_however_little_that_is() -> None:
    start = written(file="b.000004", offset=4, server="", time=Log().add(EventKind.XID).timestamp)
    assert Orders(packets_of(three_orders())).changes(start, 1).position != start


def test_a_time_that_python_cannot_hold_is_told_by_its_place_unless_texts_are_wanted() -> None:
    assert list(Orders(packets_of(log_with_times())).changes(START, 10).undecodable) == [1]
    assert Orders(packets_of(log_with_times()), undecodable="text").changes(START, 10).undecodable == {}


def test_rows_of_a_table_are_read_in_the_order_of_its_key(sqlite_database: str, provider: EngineProvider) -> None:
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        for table in ("orders", "items"):
            connection.exec_driver_sql(f"CREATE TABLE {table} (id integer PRIMARY KEY, v text)")
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES (1, '{table}'), (2, '{table}')")
    engine.dispose()
    made = list[str]()

    class Tables(AskedLog):
        def _key_of(self, name: TableName) -> list[str]:
            return ["id"]

        def _no_rows(self, name: TableName, key: Sequence[str]) -> Any:
            made.append(name.name)
            return SqlAlchemySource(
                url=sqlite_database, table=name.name, cursor_column=key[0], pk_columns=key, engine_provider=provider
            )

    log = Tables(Answers(), tables=("orders", "items"))
    first = log.rows(START, "shop.items", None, 1)
    second = log.rows(START, "shop.items", first and first.after, 1)
    other = log.rows(START, "shop.orders", None, 1)
    assert [[change.after for change in page.changes] for page in (first, second, other) if page] == [
        [{"id": 1, "v": "items"}],
        [{"id": 2, "v": "items"}],
        [{"id": 1, "v": "orders"}],
    ]
    assert made == ["items", "orders"]


def test_a_reader_that_has_come_to_the_end_lets_its_connection_go() -> None:
    log = Orders(packets_of(three_orders()))
    log.answers.answers["SHOW BINARY LOGS"] = [LogFile("b.000004", 10_000)]
    page = log.changes(START, 10)
    assert (len(page.changes), page.more) == (3, False)
    assert log.replicas[0].is_closed
    assert [fact.gauges()["azfdb_stream_lag_bytes"] for fact in page.facts] == [0.0]


def test_a_page_that_failed_comes_when_it_is_asked_for_again() -> None:
    cut = packets_of(three_orders())[: -len(END_OF_LOG) - 10]
    log = Orders(cut, packets_of(three_orders()))
    first = log.changes(START, 1)
    with pytest.raises(Exception, match="cut the connection"):
        log.changes(first.position, 10)
    assert log.replicas[0].is_closed
    log.sent = [packets_of(three_orders())]
    assert [change.key["id"] for change in log.changes(START, 10).changes] == [1, 2, 3]


def test_what_is_left_of_the_log_is_asked_for_every_few_seconds_only() -> None:
    log = Orders(packets_of(three_orders()))
    log.answers.answers["SHOW BINARY LOGS"] = [LogFile("b.000004", 10_000)]
    now = 1.0
    log._clock = lambda: now
    first = log.changes(START, 1)
    second = log.changes(first.position, 1)
    assert log.answers.asked.count("SHOW BINARY LOGS") == 1
    lag = [page.facts[0].gauges()["azfdb_stream_lag_bytes"] for page in (first, second)]
    assert lag[0] > lag[1] > 0
    now = 6.5
    log._bytes_after(BinlogPosition())
    assert log.answers.asked.count("SHOW BINARY LOGS") == 2


def test_a_reader_whose_patience_is_over_hands_back_where_it_has_come_to() -> None:
    log = Orders(packets_of(three_orders()), tables=("d.none",), idle_bytes=1)
    times = iter([0.0, 0.0, 11.0, 11.0, 11.0, 11.0])
    log._clock = lambda: next(times)
    page = log.changes(START, 10)
    assert (page.changes, page.more, page.position != START) == ([], True, True)


def test_changes_of_others_are_worth_a_write_when_they_are_many_or_old() -> None:
    def moved(start: dict[str, Any], **options: Any) -> bool:
        log = Orders(packets_of(three_orders()), tables=("d.none",), **options)
        return log.changes(start, 10).position != start

    at = Log().add(EventKind.XID).timestamp
    recent = written(file="b.000004", offset=4, server="", time=at - 59)
    assert not moved(recent)
    assert moved(written(file="b.000004", offset=4, server="", time=at - 60))
    assert moved(recent, idle_bytes=10)
    assert moved(written(gtids="0-1-0", server="", time=at)), "a place is found sooner than GTIDs are"
    nothing = Orders(END_OF_LOG, idle_bytes=0)
    assert nothing.changes(recent, 10).position == recent


# Tables.


def test_a_table_without_a_schema_is_one_of_the_url() -> None:
    engine = create_engine("mysql+pymysql://nowhere/shop")
    assert names_of(["orders", "other.items"], engine) == (TableName("shop", "orders"), TableName("other", "items"))
    with pytest.raises(SourceConfigurationError, match=r"write database\.orders") as refused:
        names_of(["orders"], create_engine("mysql+pymysql://nowhere"))
    assert refused.value.table == "orders"
    assert names_of(["a.b"], create_engine("mysql+pymysql://nowhere")) == (TableName("a", "b"),)


def test_names_are_the_same_in_upper_and_lower_case_where_the_server_says_so() -> None:
    log = AskedLog(Answers(MARIADB), tables=("Orders", "items"))
    log.quiet(written(file="b.000004", server=""))
    assert [log._is_wanted(*name) for name in (("shop", "Orders"), ("shop", "orders"), ("other", "Orders"))] == [
        True, False, False,
    ]  # fmt: skip
    folding = AskedLog(Answers(MYSQL), tables=("Orders", "items"))
    folding.quiet(written(file="b.000004"))
    assert [folding._is_wanted(*name) for name in (("SHOP", "ORDERS"), ("other", "orders"))] == [True, False]


def test_a_statement_mentions_a_table_by_its_whole_name() -> None:
    log = AskedLog(Answers(), tables=("orders", "a.b"))
    statements = ("UPDATE orders SET a = 1", "update `ORDERS`", "UPDATE my_orders", "UPDATE orders$2", "DELETE FROM b")
    assert [log._is_mentioned(each) for each in statements] == [True, True, False, False, True]


def test_a_collation_is_looked_up_once_and_one_that_nobody_knows_is_refused() -> None:
    answers = Answers(MYSQL, {"SELECT id, character_set_name": [(45, "utf8mb4")]})
    log = AskedLog(answers)
    assert (log._charset_of(45), log._charset_of(45), len(answers.asked)) == ("utf8mb4", "utf8mb4", 1)
    with pytest.raises(SourceConfigurationError, match="the collation 46"):
        log._charset_of(46)


def test_mariadb_has_collations_that_the_standard_view_does_not_show() -> None:
    answers = Answers(MARIADB, {"SELECT id, character_set_name FROM information_schema.collations": [(45, "utf8mb4")]})
    fuller = "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability"
    answers.answers = {fuller: [(2048, "utf8mb4")], **answers.answers}
    answers.dialect = SimpleNamespace(is_mariadb=True)  # type: ignore[assignment]  # nothing else is asked of it
    log = AskedLog(answers)
    assert (log._charset_of(45), log._charset_of(2048)) == ("utf8mb4", "utf8mb4")


def test_only_what_the_log_does_not_say_of_columns_is_a_hint() -> None:
    columns = [
        ("id", "int", 0, 0), ("f", "float", 3, 0), ("g", "float", None, 0), ("u", "uuid", None, 0),
        ("h", "int", 0, 1), ("a", "inet4", None, 0), ("b", "inet6", None, 0), ("v", "varchar", None, 0),
    ]  # fmt: skip
    query = "SELECT column_name, data_type, numeric_scale, extra LIKE '%INVISIBLE%' FROM information_schema.columns "
    answers = Answers(MYSQL, {f"{query}WHERE table_schema = :schema AND table_name = :name": columns})
    assert AskedLog(answers)._hints_of("shop", "orders") == {
        "f": 3, "u": "uuid", "h": "invisible", "a": "inet4", "b": "inet6",
    }  # fmt: skip


def test_why_a_change_cannot_be_handed_out_is_told_by_its_place_once() -> None:
    changes = [Change("insert", str(number), {"id": number}, {}) for number in range(3)]
    reasons: dict[str, Exception] = {"1": ValueError("one"), "7": ValueError("later")}
    assert list(_by_place(changes, reasons)) == [1]
    assert list(reasons) == ["7"], "of the next page"
    assert _by_place(changes, {}) == {}


def test_sessions_are_in_utc_beside_what_was_configured() -> None:
    def command(**arguments: Any) -> Any:
        config = in_utc(DbConfig(connection_url="mysql+pymysql://nowhere", connect_args=arguments or None))
        return (config.connect_args or {}).get("init_command")

    assert command() == "SET time_zone = '+00:00'"
    assert command(init_command="SET sql_mode = '';") == "SET sql_mode = '', time_zone = '+00:00'"
    assert command(init_command="CALL setup()") == "CALL setup()"
    config = in_utc(DbConfig(connection_url="mysql+pymysql://nowhere", connect_args={"ssl_disabled": True}))
    assert config.connect_args == {"ssl_disabled": True, "init_command": "SET time_zone = '+00:00'"}


def test_ids_of_readers_are_far_from_those_of_servers_and_seldom_the_same() -> None:
    ids = {random_server_id() for _ in range(100)}
    assert len(ids) > 95
    assert all(1 << 31 <= each < 1 << 32 for each in ids)


# Operators.


def findings(log: AskedLog) -> dict[str, str]:
    return {finding.check: finding.grade for finding in servers.examined(log)}


def test_doctor_looks_at_rights_retention_and_gtids() -> None:
    assert findings(AskedLog(Answers(MYSQL), tables=())) == {
        **dict.fromkeys(
            ["binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_transaction_compression"], "ok"
        ),
        "binlog_row_value_options": "ok",
        "rights": "ok",
        "retention": "ok",
    }
    assert findings(AskedLog(Answers(WITHOUT_GTIDS), tables=()))["gtid_mode"] == "note"
    forever = WITHOUT_GTIDS | {"binlog_expire_logs_seconds": "0"}
    assert findings(AskedLog(Answers(forever), tables=()))["retention"] == "note"
    short = WITHOUT_GTIDS | {"binlog_expire_logs_seconds": "86399"}
    assert findings(AskedLog(Answers(short), tables=()))["retention"] == "warning"
    day = WITHOUT_GTIDS | {"binlog_expire_logs_seconds": "86400"}
    assert findings(AskedLog(Answers(day), tables=()))["retention"] == "ok"
    assert findings(AskedLog(Answers({"log_bin": "OFF"}), tables=())) == {"log_bin": "error"}
    denied = packet(b"\xff\xcb\x04#42000denied")
    assert findings(AskedLog(Answers(), denied, tables=()))["rights"] == "error"
    forbidden = Answers(MYSQL, {"SHOW BINARY LOG STATUS": refusal(1227)})
    assert findings(AskedLog(forbidden, tables=()))["rights"] == "error"
    broken = Answers(MYSQL, {"SHOW BINARY LOG STATUS": refusal(2013)})
    with pytest.raises(OperationalError):
        findings(AskedLog(broken, tables=()))


def test_settings_are_cured_by_the_statements_that_are_told() -> None:
    wrong = MYSQL | {"binlog_format": "MIXED", "binlog_row_image": "MINIMAL"}
    cures = ["SET GLOBAL binlog_format = 'ROW'", "SET GLOBAL binlog_row_image = 'FULL'"]
    answers = Answers(wrong)
    assert servers.cured(AskedLog(answers), dry_run=True) == cures
    assert not any(statement.startswith("SET") for statement in answers.asked)
    assert servers.cured(AskedLog(answers), dry_run=False) == cures
    assert answers.asked[-2:] == cures
    assert servers.cured(AskedLog(Answers({"log_bin": "OFF"})), dry_run=False) == []


def test_an_operator_sees_the_files_of_the_log_and_how_long_they_are_kept() -> None:
    view = servers.shown(AskedLog(Answers()))
    assert (view["server"], view["oldest_log"], view["newest_log"]) == ("8.4.0", "b.000003", "b.000005")
    assert (view["log_bytes"], view["log_retention_seconds"], view["gtids"]) == (1110, 2_592_000.0, f"{ONE}:1-5")
    assert view["binlog_format"] == "ROW"
    assert servers.shown(AskedLog(Answers(WITHOUT_GTIDS)))["gtids"] is None


def checkpoint(**fields: Any) -> dict[str, Any]:
    return {"cursor": {"kind": "binlog", **written(**fields)}}


def test_how_far_behind_a_checkpoint_is_is_told_without_reading_the_log() -> None:
    log = AskedLog(Answers())
    idle = servers.health_of(log, checkpoint(file="b.000004", gtids=f"{ONE}:1-5"), begins_now=True)
    assert (idle.lag_bytes, idle.warning) == (0, None)
    behind = servers.health_of(log, checkpoint(file="b.000004", offset=4, gtids=f"{ONE}:1-4"), begins_now=True)
    assert (behind.lag_bytes, behind.warning) == (106, None)
    assert behind.details == {"oldest_log": "b.000003", "log_bytes": 1110, "log_retention_seconds": 2_592_000.0}
    assert servers.health_of(log, {}, begins_now=True).lag_bytes == 0
    assert servers.health_of(log, {}, begins_now=False).lag_bytes == 1110
    assert log.replicas == []


def test_a_log_that_is_gone_or_about_to_go_is_a_warning() -> None:
    now = int(dt.datetime.now(dt.UTC).timestamp())

    def warning(variables: dict[str, str] = MYSQL, **fields: Any) -> str:
        position = checkpoint(**({"file": "b.000003", "gtids": f"{ONE}:1-4"} | fields))
        return str(servers.health_of(AskedLog(Answers(variables)), position, begins_now=True).warning)

    hour = MYSQL | {"binlog_expire_logs_seconds": "3600"}
    assert warning(file="b.000002") == "the log of the position (b.000002) is gone: the oldest that is left is b.000003"
    assert warning(file="b.000002", gtids=f"{ONE}:1-5") == "None", "nothing of it was left to read"
    assert warning(file="") == "None", "GTIDs are no place in a file"
    assert warning(time=now) == "None"
    assert warning(hour, time=now - 2600) == "None"
    assert warning(hour, time=now - 2800) == "the server keeps what the poller has not read for 0.22 more hours only"
    assert "for 0 more hours only" in warning(hour, time=now - 9999)
    assert warning(hour, time=now - 9999, gtids=f"{ONE}:1-5") == "None", "all of it was read"


# The source.


def source(**options: Any) -> MySqlBinlogSource:
    return MySqlBinlogSource(**({"url": "mysql+pymysql://nowhere/shop", "tables": ["orders"]} | options))


def test_a_source_is_another_one_when_its_tables_or_its_server_are() -> None:
    one = source().source_descriptor
    assert (one.name, one.kind) == ("orders", "binlog")
    assert one.fingerprint == source(name="other").source_descriptor.fingerprint
    assert source(name="other").source_descriptor.name == "other"
    others: list[dict[str, Any]] = [
        {"tables": ["orders", "b"]},
        {"url": "mysql+pymysql://nowhere/other"},
        {"url": "mysql+pymysql://x/shop"},
    ]
    assert len({one.fingerprint, *(source(**each).source_descriptor.fingerprint for each in others)}) == 4
    two = source(tables=["a", "b"]).source_descriptor
    assert two.fingerprint == source(tables=["b", "a"]).source_descriptor.fingerprint
    assert two.name == "a,b"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"tables": []}, "tables= is a list of names"),
        ({"tables": "orders"}, "tables= is a list of names"),
        ({"tables": ["orders", " "]}, "tables= is a list of names"),
        ({"tables": ["a", "a"]}, "names a table twice"),
        ({"snapshot": "sometimes"}, "snapshot= must be one of"),
        ({"on_position_lost": "shrug"}, "on_position_lost= must be one of"),
        ({"undecodable": "maybe"}, "undecodable= must be one of"),
        ({"server_id": 0}, "from 1 to 4294967295"),
        ({"server_id": 1 << 32}, "from 1 to 4294967295"),
        ({"start_at": ""}, "start_at=: A position is"),
        ({"start_at": None}, "start_at=:"),
        ({"url": None}, "url"),
    ],
)
def test_what_cannot_work_is_refused_when_the_source_is_made(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SourceConfigurationError, match=complaint):
        source(**wrong)


def test_what_can_work_is_taken() -> None:
    for right in (
        {"server_id": 1},
        {"server_id": (1 << 32) - 1},
        {"start_at": "beginning"},
        {"start_at": "b.000001:4"},
    ):
        assert repr(source(**right)) == "MySqlBinlogSource('orders')"


def test_a_position_can_be_shown_and_the_beginning_typed() -> None:
    assert source().describe({}) == "beginning"
    assert source().describe(checkpoint(file="b.000004", offset=7)) == "b.000004:7"
    assert source().parse(" beginning ") == {}
    typed: Any = source()
    typed._log = lambda: AskedLog(Answers())
    assert typed.parse(" b.000004:7 ")["cursor"]["file"] == "b.000004"
    assert typed.parse("now")["cursor"]["gtids"] == f"{ONE}:1-5"


def test_what_is_wrong_with_the_address_of_a_source_is_told_as_its_fault() -> None:
    with pytest.raises(SourceConfigurationError, match="PyMySQL"):
        source(url="sqlite://").validate()


@pytest.mark.parametrize(
    "use",
    [
        lambda source: source.source_descriptor,
        lambda source: source.open(),
        lambda source: source.fetch_changes({}, 1),
        lambda source: source.validate(),
        lambda source: source.examine(),
        lambda source: source.backlog({}),
        lambda source: source.report({}),
        lambda source: source.parse("now"),
        lambda source: source.create_stream(),
        lambda source: source.show_stream(),
    ],
)
def test_a_setting_that_is_missing_is_told_as_a_fault_of_the_source(use: Any) -> None:
    with pytest.raises(SourceConfigurationError, match="NOT_SET_ANYWHERE"):
        use(source(url="%NOT_SET_ANYWHERE%"))


def test_a_source_connects_with_the_engines_that_it_was_given() -> None:
    class Own(EngineProvider):
        asked = 0

        def get_engine(self, config: DbConfig, *rest: Any, **more: Any) -> Any:
            self.asked += 1
            return super().get_engine(config, *rest, **more)

    own = Own()
    assert source(engine_provider=own).source_descriptor.name == "orders"
    assert own.asked == 1
    own.dispose_all()


def asked_source(answers: Answers, **options: Any) -> Any:
    """A source whose server gives those answers; of its tables nothing is asked."""
    made: Any = source(**options)
    made._log = lambda: AskedLog(answers, tables=())
    return made


def test_a_source_is_validated_examined_cured_and_shown_by_what_its_server_says() -> None:
    good, bad = asked_source(Answers()), asked_source(Answers(MYSQL | {"binlog_format": "MIXED"}))
    good.validate()
    with pytest.raises(SourceConfigurationError, match=r"'orders': binlog_format is MIXED.*: SET GLOBAL") as refused:
        bad.validate()
    assert refused.value.setting == "binlog_format"
    assert [finding.check for finding in bad.examine() if finding.grade == "error"] == ["binlog_format"]
    assert bad.create_stream() == ["SET GLOBAL binlog_format = 'ROW'"]
    assert good.create_stream() == good.drop_stream() == []
    assert good.show_stream()["newest_log"] == "b.000005"


def test_what_waits_behind_a_checkpoint_is_counted_in_bytes() -> None:
    behind = asked_source(Answers()).backlog(checkpoint(file="b.000004", offset=4, gtids=f"{ONE}:1-4"))
    assert (behind.amount, behind.unit) == (106, "bytes")
    assert asked_source(Answers()).backlog({}).amount == 0, "it begins now"
    assert asked_source(Answers(), start_at="beginning").backlog({}).amount == 1110


@pytest.fixture
def tables(sqlite_database: str) -> Iterator[Any]:
    """A database with tables that can be looked at as those of a server are."""
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id integer PRIMARY KEY, doc json, v text)")
        connection.exec_driver_sql("CREATE TABLE keyless (id integer)")
    yield engine
    engine.dispose()


def test_doctor_looks_at_keys_and_at_what_innodb_does_by_itself(tables: Any) -> None:
    def found(name: str, actions: list[Any]) -> list[tuple[str, str]]:
        query = "SELECT constraint_name FROM information_schema.referential_constraints WHERE constraint_schema = "
        answers: Any = Answers(MYSQL, {f"{query}:schema AND table_name = :name AND ": actions})
        return [(each.grade, each.text) for each in servers._table(answers, tables, TableName("main", name))]

    assert found("orders", []) == [("ok", "key id")]
    [(grade, text)] = found("orders", [("fk_items",)])
    assert (grade, "fk_items changes are not in the log" in text) == ("warning", True)
    assert found("keyless", [("fk_items",)]) == [("error", "table main.keyless has no primary key")]
    [(grade, text)] = found("missing", [("fk_items",)])
    assert (grade, "missing" in text) == ("error", True)


def test_keys_and_documents_of_a_table_are_those_of_the_database(tables: Any) -> None:
    log = AskedLog(Answers())
    log.engine = tables
    assert log._key_of(TableName("main", "orders")) == ["id"]
    with pytest.raises(SourceConfigurationError, match=r"main\.keyless has no primary key"):
        log._key_of(TableName("main", "keyless"))
    assert log._hints_of("main", "orders") == {}, "MySQL says in its log what is a document"
    tables.dialect.is_mariadb = True
    assert log._hints_of("main", "orders") == {"doc": "json"}
    assert log._hints_of("main", "dropped") == {}
