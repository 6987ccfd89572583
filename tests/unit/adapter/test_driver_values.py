"""Values on their way from a driver into checkpoints and records, and back to the driver."""

from __future__ import annotations

import base64
import datetime as dt
import time
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pymysql
import pytest
from sqlalchemy import DateTime, Select, bindparam, column, select, types
from sqlalchemy.dialects import mysql, oracle, postgresql, sqlite
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import processors
from sqlalchemy.exc import DBAPIError

from azure_functions_db.core.errors import CursorSerializationError, SourceConfigurationError
from azure_functions_db.sources.keyset import page, values
from azure_functions_db.sources.keyset.expressions import ENUM, SET
from azure_functions_db.sources.keyset.position import BEGINNING
from azure_functions_db.sql.mysql_wire import PageCursor
from tests.support.plans import plan_of, table

DIALECTS: list[Any] = [postgresql.dialect, mysql.dialect, sqlite.dialect]
PSYCOPG: Any = PGDialect_psycopg
POSTGRES, MYSQL, SQLITE = (dialect() for dialect in DIALECTS)
NOON = dt.datetime(2026, 11, 17, 12, 30, 15, 123456)  # noqa: DTZ001 - a time without a zone is what many columns hold
EAST = dt.timezone(dt.timedelta(hours=2))
NAME = UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture
def _in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("kind", "dialect", "is_refused"),
    [
        (types.Integer(), POSTGRES, False),
        (types.JSON(), POSTGRES, True),
        (postgresql.JSONB(), POSTGRES, True),
        (postgresql.MONEY(), POSTGRES, True),
        (types.NullType(), POSTGRES, True),
        (types.NullType(), SQLITE, False),
        (types.Enum("a", "b"), POSTGRES, False),
        (types.Enum("a", "b"), MYSQL, True),
        (mysql.SET("a", "b"), MYSQL, True),
        (mysql.BIT(), MYSQL, True),
        (ENUM(), MYSQL, True),
        (SET(), MYSQL, True),
    ],
)
def test_a_column_without_an_order_that_a_checkpoint_can_hold_is_refused(
    kind: types.TypeEngine[Any], dialect: Any, is_refused: bool
) -> None:
    if is_refused:
        with pytest.raises(SourceConfigurationError, match="'c' cannot be a cursor or key"):
            values.require_orderable("c", kind, dialect, described=True)
    else:
        values.require_orderable("c", kind, dialect, described=True)


def test_a_type_that_a_query_does_not_tell_is_not_refused() -> None:
    values.require_orderable("c", types.NullType(), POSTGRES, described=False)


def test_only_a_float_of_mysql_is_read_in_more_digits_than_it_is_shown() -> None:
    number: Any = column("c")
    assert values.exact(number, mysql.FLOAT(), MYSQL) is not None
    assert values.exact(number, types.REAL(), MYSQL) is not None
    assert values.exact(number, mysql.DOUBLE(), MYSQL) is None
    assert values.exact(number, types.Integer(), MYSQL) is None
    assert values.exact(number, types.REAL(), POSTGRES) is None


def test_what_a_driver_gives_becomes_what_sqlalchemy_would_give_unless_that_is_less() -> None:
    assert values.converter(mysql.DOUBLE(asdecimal=True), MYSQL, None) is None, "it would be rounded"
    as_time = values.converter(mysql.TIME(), MYSQL, None)
    assert as_time is not None
    assert as_time(dt.timedelta(hours=1, microseconds=5)) == dt.time(1, 0, 0, 5)
    assert as_time(dt.timedelta()) == dt.time()
    assert as_time(dt.timedelta(days=1)) == "24:00:00.000000", "longer than any time of a day"
    assert as_time(-dt.timedelta(seconds=1)) == "-00:00:01.000000"
    assert as_time(None) is None
    as_moment = values.converter(types.DateTime(), SQLITE, None)
    assert as_moment is not None
    assert as_moment("2026-11-17 12:30:15.123456") == NOON
    assert values.converter(types.Float(asdecimal=True), SQLITE, None) is not None, "only MySQL's would be rounded"
    as_sqlites_time = values.converter(types.Time(), SQLITE, None)
    assert as_sqlites_time is not None
    assert as_sqlites_time("12:30:15") == dt.time(12, 30, 15)
    assert values.converter(types.Integer(), MYSQL, None) is None


@pytest.mark.usefixtures("_in_tokyo")
def test_a_moment_with_a_zone_is_told_to_mysql_in_utc_as_its_driver_would_leave_the_zone_out() -> None:
    aware = NOON.replace(tzinfo=EAST)
    told = [values.driver_value(value, types.DateTime(), MYSQL, None) for value in (aware, NOON, "noon")]
    assert told == [NOON - dt.timedelta(hours=2), NOON, "noon"]
    assert values.driver_value(aware, types.DateTime(), POSTGRES, None) is aware


def test_a_value_that_cannot_be_converted_stays_as_it_is() -> None:
    convert = values.lenient(dt.date.fromisoformat)
    assert (convert("2026-11-17"), convert("soon")) == (dt.date(2026, 11, 17), "soon")


def test_a_broken_text_is_read_as_bytes_where_the_driver_would_not_give_it_out() -> None:
    for dialect, kind in ((SQLITE, types.LargeBinary), (MYSQL, types.LargeBinary), (POSTGRES, types.Text)):
        assert type(values.as_text(column("c"), dialect).type) is kind


def test_a_checkpoint_holds_what_a_driver_gives() -> None:
    assert values.storable(bytearray(b"a")) == values.storable(memoryview(b"a")) == b"a"
    assert type(values.storable(bytearray(b"a"))) is bytes
    assert values.storable(dt.timedelta(hours=25, minutes=1, seconds=2, microseconds=3)) == "25:01:02.000003"
    assert values.storable(-dt.timedelta(minutes=90)) == "-01:30:00.000000"
    assert values.storable(dt.timedelta()) == "00:00:00.000000"
    for value in (None, "a", 1, 1.5, NOON, NOON.date(), NOON.time(), Decimal("1.10"), NAME, b"a"):
        assert values.storable(value) is value
    with pytest.raises(CursorSerializationError, match="A value of type dict"):
        values.storable({})


@pytest.mark.parametrize(
    ("written", "kind", "value"),
    [
        ("2026-11-17T12:30:15.123456", types.DateTime(), NOON),
        ("2026-11-17", types.Date(), NOON.date()),
        ("12:30:15.123456", types.Time(), NOON.time()),
        (str(NAME), types.Uuid(), NAME),
        ("7", types.BigInteger(), 7),
        ("1.5", types.Double(), 1.5),
        ("1.10", types.Numeric(), Decimal("1.10")),
        ("ff00", types.LargeBinary(), b"\xff\x00"),
        ("ff00", types.VARBINARY(), b"\xff\x00"),
        ("a", types.Text(), "a"),
        (7, types.Integer(), 7),
        (1.1, types.Numeric(), Decimal("1.1")),
        (1.5, types.Integer(), 1.5),
        (7, types.Numeric(), 7),
        (None, types.Numeric(), None),
    ],
    ids=repr,
)
def test_a_value_of_an_older_checkpoint_gets_its_columns_type_back(
    written: Any, kind: types.TypeEngine[Any], value: Any
) -> None:
    got = values.coerced(written, kind)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize("kind", [types.DateTime(), types.Integer(), types.Numeric(), types.LargeBinary()], ids=repr)
def test_a_value_that_does_not_fit_its_column_is_refused_without_being_shown(kind: types.TypeEngine[Any]) -> None:
    with pytest.raises(CursorSerializationError, match=f"no value of type {values.type_name(kind)}") as told:
        values.coerced("secret", kind)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("value", "sample", "kept"),
    [
        (NOON, None, "2026-11-17 12:30:15.123456"),
        (NOON, "2000-01-01 00:00:00", "2026-11-17 12:30:15"),
        (NOON, "2000-01-01T00:00:00.000", "2026-11-17T12:30:15.123"),
        (NOON.replace(tzinfo=dt.UTC), "2000-01-01T00:00:00.000Z", "2026-11-17T12:30:15.123Z"),
        (NOON.replace(tzinfo=dt.UTC), "2000-01-01T00:00:00Z", "2026-11-17T12:30:15Z"),
        (NOON.replace(tzinfo=dt.UTC), "2000-01-01 00:00:00.000000", "2026-11-17 12:30:15.123456"),
        (NOON.replace(tzinfo=dt.UTC), "2000-01-01T00:00:00.000+00:00", "2026-11-17T12:30:15.123+00:00"),
        (NOON.replace(tzinfo=dt.UTC), "2000-01-01T00:00:00-05:00", "2026-11-17T07:30:15-05:00"),
        (NOON.replace(tzinfo=EAST), "2000-01-01T00:00:00Z", "2026-11-17T10:30:15Z"),
        (NOON.replace(tzinfo=EAST), "2000-01-01 00:00:00", "2026-11-17 10:30:15"),
        (NOON, "2000-01-01 00:00:00-05:00", "2026-11-17 12:30:15-05:00"),
        (NOON.replace(tzinfo=dt.UTC), 1.5, 1794918615.123456),
        (NOON.replace(tzinfo=EAST), 1.5, 1794911415.123456),
        (NOON, 1.5, 1794918615.123456),
        (NOON.date(), None, "2026-11-17"),
        (NOON.time(), None, "12:30:15.123456"),
        (Decimal("1.5"), None, 1.5),
        (7, None, 7),
    ],
    ids=repr,
)
def test_sqlite_keeps_a_value_in_the_form_that_its_writers_have_chosen(value: Any, sample: Any, kept: Any) -> None:
    got = values.driver_value(value, types.DateTime(), SQLITE, sample)
    assert (got, type(got)) == (kept, type(kept))
    assert values.driver_value(value, types.DateTime(), POSTGRES, sample) is value


@pytest.mark.usefixtures("_in_tokyo")
def test_a_time_without_a_zone_is_counted_in_utc_wherever_the_machine_is() -> None:
    assert values.driver_value(NOON, types.DateTime(), SQLITE, 1.5) == 1794918615.123456


def test_a_uuid_is_kept_as_its_column_writes_it() -> None:
    for dialect in (SQLITE, MYSQL):
        assert values.driver_value(NAME, types.CHAR(32), dialect) == NAME.hex
        assert values.driver_value(NAME, types.CHAR(36), dialect) == str(NAME)
    assert values.driver_value(NAME, types.Uuid(), POSTGRES) is NAME


def test_a_row_that_went_through_json_has_the_types_of_its_columns_again() -> None:
    kinds: dict[str, Any] = {"at": types.DateTime(), "bytes": types.LargeBinary(), "n": types.Integer()}
    row = {
        "at": NOON.isoformat(),
        "bytes": base64.b64encode(b"\xff").decode(),
        "n": "7",
        "more": "as it is",
        "no": None,
    }
    expected = {"at": NOON, "bytes": b"\xff", "n": 7, "more": "as it is", "no": None}
    assert values.revived_row(row, kinds, strict=True) == expected
    assert values.revived_row({"bytes": None, "at": NOON}, kinds, strict=True) == {"bytes": None, "at": NOON}
    broken: dict[str, Any] = {"at": "soon", "bytes": "no base64!", "n": 7}
    assert values.revived_row(broken, kinds, strict=False) == broken
    for name in ("at", "bytes"):
        with pytest.raises(SourceConfigurationError, match=f"is no value of {name}"):
            values.revived_row({name: broken[name]}, kinds, strict=True)


def described(*names: str, code: Any = None) -> list[tuple[Any, ...]]:
    return [(name, code, None, None, None, None, None) for name in names]


def test_a_result_has_the_names_that_the_dialect_writes_and_none_of_them_twice() -> None:
    assert values.header_of(SQLITE, described("id", "ID")).names == ("id", "ID")
    upper: Any = oracle.dialect
    assert values.header_of(upper(), described("ID", "Total")).names == ("id", "Total")
    with pytest.raises(SourceConfigurationError, match=r"several columns named 'c', 'id'\n"):
        values.header_of(SQLITE, described("id", "c", "id", "word", "c"))
    duckdb: Any = SimpleNamespace(requires_name_normalize=False, name="duckdb")
    assert values.header_of(duckdb, described("id", code=int)).codes == (str(int),)
    assert values.header_of(SQLITE, described("id", code=int)).codes == (int,)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_records_are_made_alike_by_compiled_and_by_generated_code(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    if not is_compiled:
        monkeypatch.setattr(values, "speedups", None)
    converters = [None, processors.str_to_datetime, str.upper, processors.int_to_boolean, lambda value: value is None]
    build = values.row_builder(["id", "it's", "word", "flag", "lacks"], converters, unused=1)
    rows = [(1, "2026-11-17 12:30:15.123456", "a", 1, "a", "left out"), (2, None, "b", None, None, "left out")]
    assert build(rows) == [
        {"id": 1, "it's": NOON, "word": "A", "flag": True, "lacks": False},
        {"id": 2, "it's": None, "word": "B", "flag": None, "lacks": True},
    ]
    assert values.row_builder(["id"], [None])([(7,)]) == [{"id": 7}]


def test_a_statement_is_sent_straight_to_the_driver_unless_a_value_needs_converting_first() -> None:
    limit = bindparam("n", type_=types.Integer, literal_execute=True)
    plain: Select[Any] = select(column("c")).where(column("c") > bindparam("after"), column("d") == "x").limit(limit)
    sent = values.compiled_statement(plain, SQLiteDialect_pysqlite(), {"n": 5})
    assert sent is not None
    assert ("LIMIT 5" in sent.text, sent.positions is not None) == (True, True)
    assert "x" in sent.constants.values()
    assert "after" not in sent.constants
    named = values.compiled_statement(plain, MySQLDialect_pymysql(), {"n": 5})
    assert named is not None
    assert "LIMIT 5" in named.text
    converted: Select[Any] = select(column("c")).where(column("c", DateTime()) > bindparam("after", type_=DateTime()))
    assert values.compiled_statement(converted, SQLiteDialect_pysqlite(), {}) is None
    both = converted.where(column("d", types.Integer()) > bindparam("other", type_=types.Integer()))
    assert values.compiled_statement(both, SQLiteDialect_pysqlite(), {}) is None


def test_only_a_moment_gets_a_zone() -> None:
    assert values.aware_utc(NOON) == NOON.replace(tzinfo=dt.UTC)
    assert values.aware_utc(NOON.date()) == NOON.date()


class Wire:
    """A driver's connection that notes how it is used."""

    failure: Exception | None = None

    def __init__(self, dialect: Any = None) -> None:
        self.dialect = dialect or MySQLDialect_pymysql(dbapi=pymysql)
        self.engine = self.connection = self.dbapi_connection = self
        self.description = [("c", 12)]
        self.cursors: list[dict[str, Any]] = []
        self.open = 0

    def cursor(self, **form: Any) -> Wire:
        self.cursors.append(form)
        self.open += 1
        return self

    def execute(self, _text: str, sent: Any) -> None:
        self.sent = sent
        if self.failure is not None:
            raise self.failure

    def fetchall(self) -> list[Any]:
        return [(5,)]

    def close(self) -> None:
        self.open -= 1


def sent(wire: Any, *positions: str, **how: bool) -> Any:
    statement = values.CompiledStatement("SELECT c", {"kind": "x"}, positions or None)
    assert values.rows_of(wire, statement, {"after": 4}, **how) == (values.Header(("c",), (12,)), [(5,)])
    return wire.sent


def test_a_driver_gets_parameters_by_their_names_or_by_their_places() -> None:
    assert sent(Wire()) == {"kind": "x", "after": 4}
    assert sent(Wire(), "after", "kind", "after") == [4, "x", 4]


def test_only_a_driver_that_has_a_binary_form_is_asked_for_it() -> None:
    wire = Wire()
    sent(wire)
    sent(wire, binary=True)
    assert wire.cursors == [{}, {"binary": True}]


def test_no_cursor_is_left_open_also_where_a_statement_fails() -> None:
    wire = Wire()
    sent(wire)
    assert wire.open == 0
    wire.failure = pymysql.err.ProgrammingError(1064, "no")
    with pytest.raises(DBAPIError, match="no"):
        sent(wire)
    assert wire.open == 0


def test_a_connection_that_has_been_closed_is_the_drivers_failure() -> None:
    class Closed(Wire):
        def cursor(self, **form: Any) -> Wire:
            raise pymysql.err.InterfaceError(0, "closed")

    with pytest.raises(DBAPIError, match="closed"):
        sent(Closed())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads a page on a wire, whose columns are of these types."""
    monkeypatch.setattr(page, "has_left_transactions", lambda _: True)
    plan = plan_of(table(types.BigInteger()))

    def read(wire: Any, *codes: int) -> Any:
        wire.description = list(zip(("id", "c"), codes, strict=True))
        return page._plain_rows(wire, plan, BEGINNING, 5, None)

    return read


def test_pymysql_is_read_by_its_packets(read: Any) -> None:
    wire = Wire()
    assert read(wire, 3, 12) == (values.Header(("id", "c"), (3, 12)), [(5,)])
    assert wire.cursors == [{"cursor": PageCursor}]


def test_psycopg_is_read_in_its_binary_form_as_long_as_all_columns_are_the_same_in_it(read: Any) -> None:
    wire: Any = Wire(PSYCOPG())
    plain: dict[str, bool] = {}
    binary, big, real = {"binary": True}, 20, 700
    for columns, asked in (
        ((big, big), [plain]),
        ((big, big), [binary]),
        ((big, real), [binary, plain]),
        ((big, real), [plain]),
        ((big, big), [plain]),
        ((big, big), [binary]),
    ):
        wire.cursors.clear()
        assert read(wire, *columns) == (values.Header(("id", "c"), columns), [(5,)])
        assert wire.cursors == asked


class Zoned:
    """A session of MySQL that has left its own zone for UTC."""

    def __init__(self, answer: Any = None, *, is_lost: bool = False) -> None:
        self.answer = answer
        self.invalidated = is_lost
        self.asked: list[Any] = []

    def exec_driver_sql(self, statement: str, parameters: Any = None) -> Any:
        self.asked.append(parameters or statement)
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(scalar_one=lambda: self.answer)

    def invalidate(self, _failure: Exception) -> None:
        self.invalidated = True


def test_a_moment_without_a_zone_is_told_in_utc_by_the_session_whose_it_is() -> None:
    session: Any = Zoned(answer=NOON)
    assert values.naive_utc(7, session) == 7
    assert values.naive_utc(NOON.replace(tzinfo=EAST), session) == NOON - dt.timedelta(hours=2)
    assert session.asked == []
    local = NOON + dt.timedelta(hours=9)
    assert values.naive_utc(local, session) == NOON
    assert session.asked == [(local,)]
    unknown: Any = Zoned(answer=None)
    with pytest.raises(CursorSerializationError, match="cannot tell what 2026-11-17 12:30"):
        values.naive_utc(NOON, unknown)


def test_a_session_that_keeps_the_wrong_zone_is_not_lent_again() -> None:
    refused = DBAPIError("SET", None, pymysql.err.OperationalError(2013, "lost"))
    broken: Any = Zoned(answer=refused)
    values._return(broken)
    assert broken.invalidated
    lost: Any = Zoned(is_lost=True)
    values._return(lost)
    assert lost.asked == [], "or it would be opened again"
