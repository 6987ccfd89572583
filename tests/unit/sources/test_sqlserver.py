"""Change tracking without a server: positions, statements, and what rows of changes mean."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Computed, Integer, MetaData, Table, create_engine
from sqlalchemy.dialects import mssql
from sqlalchemy.exc import OperationalError

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    PositionLostError,
    SourceConfigurationError,
    SqlServerChangeTrackingSource,
)
from azure_functions_db.sources.sqlserver import source, tracking
from azure_functions_db.sources.sqlserver.tracking import (
    TrackedTable,
    TrackingOptions,
    TrackingPosition,
    TrackingServer,
)
from azure_functions_db.sources.stream import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

URL = "mssql+pyodbc://host/shop?driver=x"


def made(**options: Any) -> SqlServerChangeTrackingSource:
    return SqlServerChangeTrackingSource(**{"url": URL, "table": "orders", **options})


def tracked(*, with_columns: bool = False, keys: tuple[str, ...] = ("id",)) -> TrackedTable:
    columns = [Column(name, Integer, primary_key=True) for name in keys]
    table = Table(
        "orders", MetaData(), *columns, Column("name", Integer), Column("sum", Integer, Computed("1")), schema="dbo"
    )
    return TrackedTable(5, table, list(keys), with_columns)


# Positions.


@pytest.mark.parametrize(
    "position", [TrackingPosition(7, None, 7, 5, 60.0), TrackingPosition(7, (1, "a"), 3, None, 0.0)]
)
def test_a_position_comes_back_as_it_was_written(position: TrackingPosition) -> None:
    assert TrackingPosition.of(position.written()) == position


def test_a_position_is_shown_with_its_key_and_asks_for_what_is_left_of_its_version() -> None:
    whole, part = TrackingPosition(7), TrackingPosition(7, (1, dt.date(2026, 4, 7)))
    assert (whole.written()["value"], whole.since) == ("7", 7)
    assert (part.written()["value"].startswith("7 [1,"), part.since) == (True, 6)


@pytest.mark.parametrize("written", [{}, {"version": "soon", "base": 1}, {"version": 1, "base": None}, {"version": 1}])
def test_a_checkpoint_of_another_kind_of_source_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(SourceConfigurationError, match="another kind of source"):
        TrackingPosition.of(written)


@pytest.mark.parametrize(
    ("start", "typed", "version"),
    [("now", None, 9), ("beginning", None, 3), ("5", None, 5), ("now", "beginning", 3), ("now", "4", 4)],
)
def test_a_start_is_a_word_or_a_version(start: str, typed: str | None, version: int) -> None:
    assert TrackingOptions(table="orders", start_at=start).started_at(3, 9, typed) == version


def test_a_key_of_another_length_is_a_lost_position() -> None:
    with pytest.raises(PositionLostError, match="another key"):
        tracking.parameters_of(TrackingPosition(7, (1, 2)), tracked(), 0, 9)
    parameters = tracking.parameters_of(TrackingPosition(7, (1,)), tracked(), 2, 9)
    assert parameters == {"since": 2, "current": 9, "version": 7, "key_0": 1}
    assert tracking.parameters_of(TrackingPosition(7), tracked(), 2, 9) == {"since": 2, "current": 9, "version": 7}


def test_a_database_of_an_earlier_moment_is_a_lost_position() -> None:
    tracking._require_same_history(TrackingPosition(9), 9)
    with pytest.raises(PositionLostError, match="earlier moment"):
        tracking._require_same_history(TrackingPosition(10), 9)


def test_a_position_before_what_the_server_has_is_warned_of() -> None:
    assert tracking.health_of(TrackingPosition(3), 3, 9).warning is None
    lost = tracking.health_of(TrackingPosition(3, (1,)), 3, 9)
    assert "after version 2 are gone" in str(lost.warning)
    assert lost.details == {"current_version": 9, "oldest_version": 3, "versions_behind": 7}


class Server(TrackingServer):
    """A server that answers what it was told to."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        super().__init__(create_engine("sqlite://"), TrackingOptions(table="orders", **options))
        self.answers = list(answers)

    def asked(self, connection: Any, statement: str) -> Any:
        return self.answers.pop(0)


@pytest.mark.parametrize("answer", [None, (None,)])
def test_a_table_whose_changes_cannot_be_read_is_told_with_the_cure(answer: Any) -> None:
    with pytest.raises(SourceConfigurationError, match=r"azfdb stream create.*GRANT SELECT"):
        Server(answer).minimum(None)  # type: ignore[arg-type]


def test_the_oldest_version_is_asked_for_before_the_newest() -> None:
    assert Server((3,), (9,)).versions(None) == (3, 9)  # type: ignore[arg-type]


@pytest.mark.parametrize(("answer", "version"), [(None, 0), ((None,), 0), ((4,), 4)])
def test_a_database_without_a_version_is_at_its_beginning(answer: Any, version: int) -> None:
    assert Server(answer).current(None) == version  # type: ignore[arg-type]


def test_a_position_is_good_as_long_as_the_server_has_what_follows_it() -> None:
    def require(start: TrackingPosition) -> int:
        return Server((3,)).require(None, start, tracked())  # type: ignore[arg-type]

    assert require(TrackingPosition(3)) == require(TrackingPosition(3, None, 0, 5)) == 3
    assert require(TrackingPosition(4, (1,))) == 3
    for lost in (TrackingPosition(2), TrackingPosition(3, (1,))):
        with pytest.raises(PositionLostError, match="are gone"):
            require(lost)
    with pytest.raises(PositionLostError, match="made anew"):
        require(TrackingPosition(3, None, 0, 6))


@pytest.mark.parametrize("row", [None, SimpleNamespace(object_id=None)])
def test_a_table_that_is_not_there_is_told(row: Any) -> None:
    with pytest.raises(SourceConfigurationError, match=r"no table dbo\.orders"):
        Server(row).described()


def test_without_snapshot_isolation_nothing_is_read() -> None:
    with pytest.raises(SourceConfigurationError, match="ALLOW_SNAPSHOT_ISOLATION"):
        Server(SimpleNamespace(object_id=5, snapshots=0)).table()


# Connections.


class Levels:
    """What is said to a driver's connection about its isolation; a failure where one is named."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch, **failures: Exception) -> None:
        self.said: list[str] = []
        self._failures = failures
        monkeypatch.setattr(server.engine.dialect, "set_isolation_level", self.set)
        monkeypatch.setattr(server.engine.dialect, "reset_isolation_level", self.reset)

    def set(self, _raw: object, level: str) -> None:
        self._say("set", level)

    def reset(self, raw: sqlite3.Connection) -> None:
        self._say("reset", "too early" if raw.in_transaction else "as it was")

    def _say(self, what: str, level: str) -> None:
        if what in self._failures:
            raise self._failures[what]
        self.said.append(level)


def used(server: Server) -> Any:
    """Read something at one moment; return the driver's connection over which it was read."""
    with server.at_one_moment() as connection:
        connection.exec_driver_sql("BEGIN")
        return connection.connection.dbapi_connection


def test_a_connection_goes_back_with_the_isolation_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    levels = Levels(server, monkeypatch)
    assert used(server) is used(server)
    assert levels.said == ["SNAPSHOT", "as it was"] * 2


def test_a_connection_that_cannot_be_set_back_is_used_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    Levels(server, monkeypatch, reset=RuntimeError("no error of a driver"))
    assert used(server) is not used(server)


def test_a_driver_that_refuses_an_isolation_is_an_error_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    Levels(server, monkeypatch, set=sqlite3.OperationalError("not now"))
    with pytest.raises(OperationalError, match="not now"):
        used(server)


def test_each_change_of_a_table_is_seen() -> None:
    server = Server()
    with server.engine.begin() as connection:
        connection.exec_driver_sql("ATTACH ':memory:' AS dbo")
        connection.exec_driver_sql("CREATE TABLE dbo.orders (id integer PRIMARY KEY)")
    assert server.reflected("0") is server.reflected("0")
    for number, names in enumerate([["id", "a"], ["id", "a", "b"], ["id", "a", "b", "c"]], 1):
        with server.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE dbo.orders ADD COLUMN {names[-1]} integer")
        assert [column.name for column in server.reflected(str(number)).columns] == names


# Keys.


KINDS: Any = mssql


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (KINDS.FLOAT(), False),
        (KINDS.SQL_VARIANT(), False),
        (KINDS.XML(), False),
        (KINDS.DATETIME2(), False),
        (KINDS.DATETIME2(7), False),
        (KINDS.DATETIME2(6), True),
        (KINDS.DATETIMEOFFSET(3), True),
        (KINDS.TIME(7), False),
        (KINDS.BIGINT(), True),
    ],
)
def test_a_key_is_one_that_python_holds_exactly(kind: Any, fits: bool) -> None:
    server = Server()
    server.engine.dialect.name = "mssql"
    table = Table("orders", MetaData(), Column("id", kind, primary_key=True))
    if fits:
        assert server.key_of(table) == ["id"]
        return
    with pytest.raises(SourceConfigurationError, match="'id'"):
        server.key_of(table)


def test_the_key_is_the_primary_one_in_its_own_order() -> None:
    table = tracked(keys=("b", "a")).table
    assert Server().key_of(table) == Server(pk_columns=("a", "b")).key_of(table) == ["b", "a"]
    with pytest.raises(SourceConfigurationError, match="changes are tracked by"):
        Server(pk_columns=("a",)).key_of(table)
    with pytest.raises(SourceConfigurationError, match="has no primary key"):
        Server().key_of(Table("orders", MetaData(), Column("a", Integer)))


# Changes.


def change(
    letter: str, *, version: int = 7, creation: int | None = None, row: Any = (1, 5, None), **options: Any
) -> Any:
    base, with_columns = options.pop("start", TrackingPosition(6)), options.pop("with_columns", False)
    flags = (options.pop("flag", 1),) if with_columns else ()
    found: Any = (version, creation, letter, 1, *row, *flags)
    return tracking._change(found, tracked(with_columns=with_columns), base, knows_all=options.pop("knows_all", True))


def test_changes_are_what_they_are_to_the_reader() -> None:
    assert (change("D", row=(None, None, None)).op, change("D").after) == ("delete", None)
    assert (change("U").op, change("U", knows_all=False).op) == ("update", "upsert")
    assert change("I").op == change("I", creation=7).op == "insert"
    assert change("I", version=9, creation=7).op == "insert"
    assert change("I", version=9, creation=6).op == "upsert", "it may have come before it changed again"
    assert change("I", version=5, creation=5).op == "insert"


def test_a_row_that_is_gone_by_now_is_a_delete_whatever_happened_to_it() -> None:
    for letter in "IU":
        gone = change(letter, row=(None, None, None))
        assert (gone.op, gone.key, gone.after) == ("delete", {"id": 1}, None)


def test_an_update_says_which_columns_it_has_set() -> None:
    assert change("U", with_columns=True).metadata == {"table": "dbo.orders", "version": 7, "changed": ["name"]}
    assert change("U", with_columns=True, flag=0).metadata["changed"] == []
    assert "changed" not in change("U").metadata
    assert "changed" not in change("I", with_columns=True).metadata
    assert change("U").cursor == 7


def test_computed_columns_and_keys_are_never_said_to_be_set() -> None:
    assert tracking._changed_names(tracked(with_columns=True)) == ["name"]
    assert tracking._changed_names(tracked()) == []


def test_pages_go_on_behind_a_key_of_several_columns() -> None:
    start = TrackingPosition(7, (1, 2))
    after = tracking._after(tracked(keys=("a", "b")), start)
    assert after == (
        "CT.SYS_CHANGE_VERSION <= :current AND (CT.SYS_CHANGE_VERSION > :version OR (CT.SYS_CHANGE_VERSION = :version "
        "AND ((CT.[a] > :key_0) OR (CT.[a] = :key_0 AND CT.[b] > :key_1))))"
    )
    whole = tracking._after(tracked(), TrackingPosition(7))
    assert whole == "CT.SYS_CHANGE_VERSION <= :current AND CT.SYS_CHANGE_VERSION > :version"


@pytest.mark.parametrize(
    ("moved", "seconds", "key", "worth"),
    [
        (0, 100.0, None, False),
        (1, 59.0, None, False),
        (1, 60.0, None, True),
        (1000, 0.0, None, True),
        (999, 0.0, None, False),
        (0, 0.0, (1,), True),
    ],
)
def test_a_position_that_others_have_moved_is_written_now_and_then(
    moved: int, seconds: float, key: Any, worth: bool
) -> None:
    log = tracking.TrackingLog(Server(), lambda _key: None)  # type: ignore[arg-type,return-value]
    start, reached = TrackingPosition(5, key, 5, 5, 100.0), TrackingPosition(5 + moved, None, 5, 5, 100.0 + seconds)
    assert log._is_worth_a_write(start, reached) is worth


class Moment(Server):
    """A server whose table has some changes, and which notes what it was asked for."""

    def __init__(self, *answers: Any, rows: Any = (), **options: Any) -> None:
        super().__init__(*answers, **options)
        self.rows = list(rows)
        self.bound: list[Any] = []

    @contextmanager
    def at_one_moment(self) -> Iterator[Any]:
        yield self

    def table(self) -> TrackedTable:
        return tracked()

    def execute(self, _statement: object, parameters: Any) -> Any:
        self.bound.append(parameters)
        return SimpleNamespace(all=lambda: self.rows, scalar_one=lambda: len(self.rows))

    def log(self) -> tracking.TrackingLog:
        return tracking.TrackingLog(self, lambda _key: None, lambda: 100.0)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("options", "anew", "version"),
    [
        ({"start_at": "5"}, False, 9),
        ({"snapshot": "never"}, False, 9),
        ({"snapshot": "never", "start_at": "beginning"}, False, 3),
        ({"snapshot": "never", "start_at": "5"}, False, 5),
        ({"snapshot": "never", "start_at": "5", "on_position_lost": "snapshot"}, True, 9),
        ({"snapshot": "never", "start_at": "5", "on_position_lost": "continue"}, True, 3),
    ],
)
def test_a_stream_begins_where_its_rows_are_read_or_where_it_was_told(
    options: dict[str, Any], anew: bool, version: int
) -> None:
    position = Moment((3,), (9,), **options).log().begin(anew=anew)
    assert TrackingPosition.of(position) == TrackingPosition(version, None, version, 5, 100.0)


@pytest.mark.parametrize(("oldest", "since", "op"), [(3, 3, "update"), (4, 6, "upsert"), (6, 6, "upsert")])
def test_changes_are_told_since_all_was_known_or_since_the_server_knows(oldest: int, since: int, op: str) -> None:
    server = Moment((oldest,), (9,), (oldest,), rows=[(8, None, "U", 1, 1, 5, None)])
    page = server.log().changes(TrackingPosition(7, (1,), 3, 5).written(), 10)
    assert server.bound == [{"since": since, "current": 9, "version": 7, "key_0": 1, "most": 11}]
    assert ([change.op for change in page.changes], page.position["value"], page.more) == ([op], "9", False)


@pytest.mark.parametrize(
    ("count", "reached"), [(2, TrackingPosition(9, None, 9, 5, 100.0)), (3, TrackingPosition(8, (2,), 7, 5, 100.0))]
)
def test_a_page_behind_which_more_is_ends_at_its_last_row(count: int, reached: TrackingPosition) -> None:
    rows = [(8, None, "U", key, key, 5, None) for key in range(1, count + 1)]
    page = Moment((3,), (9,), (3,), rows=rows).log().changes(TrackingPosition(7, None, 7, 5).written(), 2)
    assert ([change.key["id"] for change in page.changes], page.more) == ([1, 2], count > 2)
    assert TrackingPosition.of(page.position) == reached


def test_a_quiet_page_stays_where_it_is_until_that_is_worth_a_write() -> None:
    start = TrackingPosition(7, None, 7, 5, 90.0).written()
    assert Moment((3,), (9,), (3,)).log().changes(start, 10).position == start
    assert Moment((3,), (9,), (3,), idle_seconds=10).log().changes(start, 10).position["value"] == "9"


@pytest.mark.parametrize("oldest", [(8, 8), (3, 8)])
def test_changes_that_are_gone_before_or_while_they_are_read_are_a_lost_position(oldest: tuple[int, int]) -> None:
    server = Moment((oldest[0],), (9,), (oldest[1],))
    with pytest.raises(PositionLostError, match="are gone"):
        server.log().changes(TrackingPosition(7, None, 7, 5).written(), 10)


# What an operator should know.


def database(period: int, units: int, cleanup: int = 1) -> Any:
    return SimpleNamespace(retention_period=period, retention_period_units=units, is_auto_cleanup_on=cleanup)


@pytest.mark.parametrize(
    ("seen", "grade", "said"),
    [
        (None, "error", "is off"),
        (database(2, 3), "ok", "48 hours"),
        (database(24, 2), "ok", "24 hours"),
        (database(23, 2), "warning", "loses its position"),
        (database(90, 1), "warning", "1.5 hours"),
        (database(1, 1, 0), "note", "never cleaned up"),
    ],
)
def test_how_long_changes_are_kept_is_judged(seen: Any, grade: str, said: str) -> None:
    finding = tracking._retention(seen, "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (X)")
    assert (finding.grade, said in finding.text) == (grade, True)
    if grade == "warning":
        assert finding.remedy == "ALTER DATABASE CURRENT SET CHANGE_TRACKING (X)"


@pytest.mark.parametrize(("state", "grade"), [(1, "ok"), (0, "error"), (2, "error"), (None, "error")])
def test_snapshot_isolation_is_on_or_an_error(state: int | None, grade: str) -> None:
    assert tracking._snapshots(state).grade == grade


def test_only_what_is_off_is_turned_on() -> None:
    off, on = (
        SimpleNamespace(object_id=5, snapshots=0, with_columns=None),
        SimpleNamespace(object_id=5, snapshots=1, with_columns=False),
    )
    assert len(tracking.creation(Server(off, None))) == 3
    assert tracking.creation(Server(on, database(1, 3))) == []
    assert tracking.removal(Server(off)) == []
    assert tracking.removal(Server(on)) == ["ALTER TABLE [dbo].[orders] DISABLE CHANGE_TRACKING"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            (SimpleNamespace(object_id=5, snapshots=1, with_columns=True), database(2, 3, 0), (3,), (9,)),
            {
                "tracked": True,
                "columns_tracked": True,
                "snapshot_isolation": True,
                "retention_seconds": 172_800,
                "auto_cleanup": False,
                "oldest_version": 3,
                "current_version": 9,
            },
        ),
        (
            (SimpleNamespace(object_id=5, snapshots=0, with_columns=None), None),
            {
                "tracked": False,
                "columns_tracked": False,
                "snapshot_isolation": False,
                "retention_seconds": None,
                "auto_cleanup": None,
                "oldest_version": None,
                "current_version": None,
            },
        ),
    ],
)
def test_what_is_there_is_shown(answers: Any, expected: dict[str, Any]) -> None:
    assert tracking.shown(Server(*answers)) == {"table": "dbo.orders", **expected}


@pytest.mark.parametrize(
    ("with_columns", "oldest", "expected"),
    [
        (None, 3, [("table dbo.orders", "error")]),
        (False, 3, [("columns", "note"), ("table dbo.orders", "ok")]),
        (True, 3, [("table dbo.orders", "ok")]),
        (True, None, [("table dbo.orders", "error")]),
    ],
)
def test_a_table_is_judged_by_what_is_tracked_and_can_be_read(
    monkeypatch: pytest.MonkeyPatch, with_columns: bool | None, oldest: int | None, expected: list[Any]
) -> None:
    server = Server((oldest,))
    monkeypatch.setattr(server, "reflected", lambda _modified_at: tracked().table)
    seen: Any = SimpleNamespace(with_columns=with_columns, modified_at="now")
    assert [(finding.check, finding.grade) for finding in tracking._table(server, seen)] == expected


@pytest.mark.parametrize(("count", "more", "lag"), [(0, False, 0.0), (5, False, None), (6, True, None)])
def test_a_backlog_is_counted_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch, count: int, more: bool, lag: float | None
) -> None:
    monkeypatch.setattr(tracking, "_COUNTED", 6)
    waiting = tracking.backlog(Moment((3,), (9,), (3,), rows=[()] * count), TrackingPosition(7, None, 7, 5))
    assert (waiting.amount, waiting.unit, waiting.is_more, waiting.lag_seconds) == (count, "changes", more, lag)


def test_a_backlog_begins_where_its_stream_would() -> None:
    server = Moment((3,), (9,), (3,), start_at="beginning")
    tracking.backlog(server, None)
    assert server.bound == [{"since": 3, "current": 9, "version": 3, "most": 100_000}]
    assert tracking.health(Server((3,), (9,)), None).details["versions_behind"] == 0
    with pytest.raises(PositionLostError):
        tracking.backlog(Moment((3,), (9,), (3,)), TrackingPosition(2))


def test_the_key_of_a_position_is_bound_with_the_types_of_its_columns() -> None:
    statement = tracking.count_statement(tracked(), "[dbo].[orders]", TrackingPosition(7, (1,)))
    assert isinstance(statement.compile().binds["key_0"].type, Integer)
    assert "key_0" not in tracking.count_statement(tracked(), "[dbo].[orders]", TrackingPosition(7)).compile().binds


# Arguments.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": " "}, "table="),
        ({"table": 5}, "table="),
        ({"schema": ""}, "schema="),
        ({"pk_columns": "id"}, "pk_columns="),
        ({"pk_columns": []}, "pk_columns="),
        ({"start_at": "soon"}, "A position is"),
        ({"start_at": "²"}, "A position is"),
        ({"start_at": -1}, "A position is"),
        ({"retention_days": 0}, "retention_days="),
        ({"retention_days": True}, "retention_days="),
        ({"retention_days": 1.5}, "retention_days="),
        ({"url": None}, "exactly one of url"),
        ({"snapshot": "sometimes"}, "snapshot="),
        ({"on_position_lost": "ignore"}, "on_position_lost="),
    ],
)
def test_an_argument_that_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceConfigurationError, match=said):
        made(**options)


def test_arguments_that_can_be_are_taken() -> None:
    assert (made(pk_columns=["id"], start_at=5, retention_days=1).name, made(name="mine").name) == (
        "dbo.orders",
        "mine",
    )


def test_a_source_is_told_from_another_by_where_it_reads() -> None:
    odbc = "mssql+pyodbc:///?odbc_connect=Server%3D{}%3BUID%3Dme%3BDatabase%3Dshop"
    prints = {
        made(**options).source_descriptor.fingerprint
        for options in (
            {},
            {"table": "others"},
            {"schema": "shop"},
            {"url": "mssql+pyodbc://host/other?driver=x"},
            {"url": odbc.format("one")},
            {"url": odbc.format("two")},
        )
    }
    assert len(prints) == 6
    assert source._place_of(" SERVER = one ;uid=me;Database=shop") == ["database=shop", "server=one"]


QUESTIONS = [
    lambda one: one.source_descriptor,
    lambda one: one.examine(),
    lambda one: one.open(),
    lambda one: one.parse("5"),
    lambda one: one.backlog({}),
    lambda one: one.report({}),
    lambda one: one.show_stream(),
    lambda one: one.create_stream(),
    lambda one: one.drop_stream(dry_run=True),
]


@pytest.mark.parametrize("ask", QUESTIONS)
def test_another_kind_of_database_is_refused(ask: Callable[[SqlServerChangeTrackingSource], object]) -> None:
    with pytest.raises(SourceConfigurationError, match="the URL is one of sqlite"):
        ask(made(url="sqlite://"))


def test_the_beginning_is_a_place_without_a_server() -> None:
    assert (made().parse(" beginning "), made().describe({})) == ({}, "beginning")


def test_a_place_is_described_by_its_version() -> None:
    checkpoint = Place(TrackingPosition(7, None, 7, 5).written()).checkpoint("change-tracking")
    assert made().describe(checkpoint) == "7"


@pytest.mark.parametrize("ask", QUESTIONS)
def test_a_setting_that_is_missing_is_an_error_of_the_source(
    ask: Callable[[SqlServerChangeTrackingSource], object],
) -> None:
    with pytest.raises(SourceConfigurationError, match="NOT_SET_ANYWHERE"):
        ask(made(url="%NOT_SET_ANYWHERE%"))


class Elsewhere(EngineProvider):
    """Engines of another server, whatever is asked for."""

    def get_engine(self, config: DbConfig) -> Engine:
        return super().get_engine(replace(config, connection_url=URL.replace("host", "other")))


def test_a_source_reads_over_the_engines_that_it_is_given() -> None:
    given, other = made(engine_provider=Elsewhere()), made(url=URL.replace("host", "other"))
    assert given.source_descriptor == other.source_descriptor != made().source_descriptor
