"""The statements of a source on databases that cannot be had here, and what is known of its columns there."""

from __future__ import annotations

import datetime as dt
import time
from contextlib import nullcontext
from dataclasses import replace
from types import NoneType, SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import (
    Column,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Table,
    UniqueConstraint,
    create_engine,
    quoted_name,
    text,
    types,
)
from sqlalchemy.dialects import mssql, mysql, postgresql

from azure_functions_db import SqlAlchemySource
from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_position
from azure_functions_db.sources.keyset import shape, values
from azure_functions_db.sources.keyset.definition import Partition
from azure_functions_db.sources.keyset.expressions import ENUM, SET
from azure_functions_db.sources.keyset.horizon import RowversionWatch, _clock
from azure_functions_db.sources.keyset.horizon_mysql import MysqlWatch
from azure_functions_db.sources.keyset.horizon_postgres import PostgresWatch
from azure_functions_db.sources.keyset.indexes import _ddl, _is_served
from azure_functions_db.sources.keyset.plan import Plan, typed_parameter
from azure_functions_db.sources.keyset.position import (
    BEGINNING,
    Bound,
    Position,
    _packed,
    checkpoint_after,
    position_in,
)
from azure_functions_db.sources.keyset.reader import Patience, watch_for
from azure_functions_db.sources.keyset.shape import Shape, _described, described_shape
from azure_functions_db.sources.keyset.values import Header
from tests.support.plans import ID, NEW, plan_of, sql, table

VERSIONS: Any = mssql


def test_a_cursor_key_or_share_without_an_order_is_refused() -> None:
    with pytest.raises(SourceConfigurationError, match="'c' cannot be"):
        plan_of(table(types.JSON()))
    with pytest.raises(SourceConfigurationError, match="'id' cannot be"):
        plan_of(table(ID, key=postgresql.JSONB()))
    with pytest.raises(SourceConfigurationError, match="'tags' cannot be"):
        plan_of(table(ID, Column("tags", types.JSON())), partition=(0, 2), partition_by="tags")
    with pytest.raises(SourceConfigurationError, match="'c' cannot be"):
        plan_of(table(types.NullType()))
    definition = SqlAlchemySource(url="sqlite://", query="SELECT 1", cursor_column="c", pk_columns=["id"])._definition
    untyped = described_shape(table(types.NullType()))
    Plan(definition, Shape(untyped.relation, untyped.types), NEW["postgresql"]())  # a query does not tell its types


def test_moments_of_mysql_are_read_in_utc_where_the_position_has_one() -> None:
    stamps = Column("seen", mysql.TIMESTAMP()), Column("day", mysql.DATETIME())
    assert plan_of(table(mysql.TIMESTAMP(), *stamps), "mysql").utc_columns == {"c", "seen"}
    stamps = Column("seen", mysql.TIMESTAMP()), Column("day", mysql.DATETIME())
    assert plan_of(table(mysql.DATETIME(), *stamps), "mysql").utc_columns == frozenset()
    assert plan_of(table(postgresql.TIMESTAMP())).utc_columns == frozenset()


class Lent:
    """A server of MySQL whose one session notes what it is told."""

    invalidated = False

    def __init__(self) -> None:
        self.dialect = NEW["mysql"]()
        self.engine = self
        self.said: list[str] = []

    def connect(self) -> Any:
        return nullcontext(self)

    def exec_driver_sql(self, statement: str) -> None:
        self.said.append(statement)


@pytest.mark.parametrize(("cursor", "is_lent_in_utc"), [(mysql.TIMESTAMP(), True), (mysql.DATETIME(), False)])
def test_a_session_speaks_utc_while_moments_are_read_and_its_own_zone_afterwards(
    cursor: Any, is_lent_in_utc: bool
) -> None:
    place: dict[str, Any] = {"url": "sqlite://", "cursor_column": "c", "pk_columns": ["id"]}
    relation, server = SqlAlchemySource(table=table(cursor), **place)._relation, Lent()
    relation.engine = lambda: cast("Any", server)
    with relation.connected():
        assert [statement.endswith("time_zone = '+00:00'") for statement in server.said] == [True] * is_lent_in_utc
    assert server.said[1:] == ["SET SESSION time_zone = @azfdb_zone"] * is_lent_in_utc


def test_a_moment_of_mysql_is_written_with_its_zone_and_read_as_a_session_in_utc_tells_it() -> None:
    plan = plan_of(table(mysql.TIMESTAMP(), Column("seen", mysql.TIMESTAMP())), "mysql")
    told, nobody = dt.datetime(2026, 1, 1, 12), cast("Any", None)  # noqa: DTZ001 - by a session in UTC
    written = checkpoint_after(plan, Position((told, 7)))
    assert deserialize_position(written["cursor"], ["id"]) == (told.replace(tzinfo=dt.UTC), 7)
    position = position_in(plan, written, nobody)
    assert position is not None
    assert position.values == (told, 7)
    header = Header(("id", "c", "seen", "new"), (None, None, None, None))
    moment = told.replace(tzinfo=dt.UTC)
    assert plan.records(header, [(1, told, told, "x")]) == [{"id": 1, "c": moment, "seen": moment, "new": "x"}]


def test_a_page_ends_at_its_bound_or_just_below_it() -> None:
    plan = plan_of(table(ID))
    assert "orders.c <= " in sql(plan.page(BEGINNING, Bound(5)), plan)
    assert "orders.c < " in sql(plan.page(BEGINNING, Bound(5, inclusive=False)), plan)
    assert "<" not in sql(plan.page(BEGINNING), plan)
    assert plan.page(BEGINNING, Bound(5)) is plan.page(BEGINNING, Bound(6)), "a statement is made once"
    assert "orders.c >= " in sql(plan.page(Position((5,), inclusive=True)), plan)
    assert "(orders.c, orders.id) > " in sql(plan.page(Position((5, 1))), plan)
    assert "orders.c IS NOT NULL" in sql(plan.page(BEGINNING), plan)
    assert "IS NOT NULL" not in sql(plan.page(Position((5, 1))), plan), "nothing but what an index has"
    sqlite = plan_of(table(ID, Column("code", types.Text())), "sqlite", pk_columns=["code"])
    assert "(orders.c, orders.code) > " in sql(sqlite.page(Position((5, "a"))), sqlite), "NULL comes first there"


@pytest.mark.parametrize(
    ("dialect", "nullable", "crawls"),
    [("mysql", False, True), ("mssql", False, True), ("postgresql", False, False), ("postgresql", True, True)],
)
def test_a_page_that_begins_at_the_first_row_of_a_tie_is_looked_for_in_it(
    dialect: str, nullable: bool, crawls: bool
) -> None:
    described = table(ID, Column("code", types.Text(), nullable=nullable))
    plan = plan_of(described, dialect, pk_columns=["code"])
    assert plan.crawls_in_ties is crawls
    assert not plan_of(table(ID), dialect, pk_columns=["c"]).crawls_in_ties, "a cursor alone has no ties"
    assert not plan_of(described, "sqlite", pk_columns=["code"]).crawls_in_ties
    rest = sql(plan.rest_of_tie(Position((5, "a"))), plan)
    assert "orders.code > " in rest
    assert "orders.c > " not in rest, "nothing behind the value"
    assert "orders.code IS NULL" not in rest, "what would keep an index from leading to the row"
    assert ("orders.c >= " in rest and "orders.c <= " in rest) is (dialect == "mysql"), "or it would walk through all"
    assert plan.rest_of_tie(Position((5, "a")), Bound(5)) is plan.rest_of_tie(Position((6, "b")), Bound(6))


def test_the_columns_of_a_record_are_those_that_were_asked_for_and_those_that_are_shown() -> None:
    columns = Column("word", types.Text()), Column("secret", types.Text())
    assert plan_of(table(ID, *columns), columns=["word"]).own_columns == ("word", "c", "id")
    known = described_shape(table(ID, Column("word", types.Text()), Column("secret", types.Text())))
    definition = SqlAlchemySource(url="sqlite://", table="orders", cursor_column="c", pk_columns=["secret"])._definition
    for hidden, shown in (({"word"}, ("id", "c", "secret")), ({"secret"}, ("id", "c", "word", "secret"))):
        plan = Plan(definition, replace(known, hidden=frozenset(hidden)), NEW["mysql"]())
        assert plan.own_columns == shown


def test_rows_of_other_columns_or_types_than_before_do_not_fit_a_plan() -> None:
    plan = plan_of(table(ID), columns=["id"])
    known, others = Header(("id", "c"), (20, 20)), Header(("id", "c"), (20, 1700))
    assert (plan.fits(known), plan.fits(others), plan.fits(Header(("id",), (20,)))) == (True, True, False)
    plan.records(known, [(1, 5)])
    assert (plan.fits(known), plan.fits(others)) == (True, False)


def test_a_row_that_is_read_alone_ends_at_the_same_bound_and_has_its_exact_position() -> None:
    plan = plan_of(table(mysql.FLOAT()), "mysql")
    whole, one = (sql(plan.next_row(BEGINNING, names, None), plan) for names in (["id", "c"], ["c"]))
    assert ("azfdb_exact0" in whole, "azfdb_exact0" in one) == (True, False)
    assert "azfdb_exact0" in sql(plan.page(BEGINNING), plan)
    assert "orders.c <" not in whole
    assert "orders.c <= " in sql(plan.next_row(BEGINNING, ["c"], Bound(5)), plan)
    assert "orders.c < " in sql(plan.next_row(BEGINNING, ["c"], Bound(5, inclusive=False)), plan)


@pytest.mark.parametrize(
    ("cursor", "more", "dialect", "options", "recurrence"),
    [
        (ID, (), "postgresql", {}, "read again"),
        (ID, (), "postgresql", {"in_flight": "ignore"}, "ignored"),
        (ID, (), "postgresql", {"pk_columns": ["c"]}, "unique"),
        (ID, (UniqueConstraint("c"),), "postgresql", {}, "unique"),
        (ID, (Index("i", "c", unique=True),), "postgresql", {}, "unique"),
        (ID, (Index("i", "c"),), "postgresql", {}, "read again"),
        (ID, (Index("i", "c", unique=True, postgresql_where="id > 1"),), "postgresql", {}, "read again"),
        (ID, (UniqueConstraint("c", "id"),), "postgresql", {}, "read again"),
        (ID, (ForeignKeyConstraint(["c"], ["others.id"]),), "postgresql", {}, "read again"),
        (ID, (Index("i", "c", text("abs(id)"), unique=True),), "postgresql", {}, "read again"),
        (ID, (Index("i", text("abs(c)"), unique=True),), "postgresql", {}, "read again"),
        (ID, (), "mssql", {}, "read again"),
        (mysql.TIMESTAMP(), (), "mysql", {}, "ripens"),
        (VERSIONS.ROWVERSION(), (), "mssql", {}, "unique"),
        (VERSIONS.TIMESTAMP(), (), "mssql", {}, "unique"),
        (postgresql.TIMESTAMP(), (), "postgresql", {}, "ripens"),
        (types.DateTime(), (), "mssql", {}, "read again"),
        (mysql.DATETIME(), (), "mysql", {}, "ripens"),
        (types.Date(), (), "postgresql", {}, "read again"),
        (postgresql.TIMESTAMP(), (), "postgresql", {"reflected": False}, "read again"),
    ],
)
def test_a_value_that_may_come_again_is_read_again(
    cursor: Any, more: tuple[Any, ...], dialect: str, options: dict[str, Any], recurrence: str
) -> None:
    plan = plan_of(table(cursor, *more), dialect, **options)
    assert plan.recurrence == recurrence
    assert plan.reads_again is (recurrence == "read again")


def test_of_a_query_or_a_table_without_a_key_nobody_knows_whether_a_value_comes_again() -> None:
    definition = SqlAlchemySource(url="sqlite://", query="SELECT 1", cursor_column="c", pk_columns=["id"])._definition
    for kind in (ID, postgresql.TIMESTAMP()):
        known = described_shape(table(kind))
        plan = Plan(definition, Shape(known.relation, known.types), NEW["postgresql"]())
        assert plan.recurrence == "read again"
        assert plan.may_lack_cursor
        assert plan.crawls_in_ties, "its key may be null as well"
    keyless = Table("orders", MetaData(), Column("id", ID), Column("c", postgresql.TIMESTAMP()))
    assert plan_of(keyless).recurrence == "read again"


@pytest.mark.parametrize(("dialect", "is_key"), [("postgresql", False), ("mssql", True)])
def test_null_is_a_value_like_any_other_to_sql_server_only(dialect: str, is_key: bool) -> None:
    shape = described_shape(table(ID, Column("code", ID), UniqueConstraint("code")))
    assert shape.is_key(["code"], NEW[dialect]()) is is_key
    assert shape.is_key(["code", "id"], NEW[dialect]())


def test_a_rule_lets_rows_repeat_where_one_of_its_columns_may_be_null() -> None:
    columns = Column("code", types.Text()), Column("place", types.Text(), nullable=False)
    described = described_shape(table(ID, *columns, UniqueConstraint("code", "place")))
    assert not described.is_key(["code", "place"], NEW["postgresql"]())


class Shown:
    """A server of MySQL that shows the columns of a table."""

    def __init__(self, **extras: str) -> None:
        self.dialect = NEW["mysql"]()
        self._extras = extras

    def exec_driver_sql(self, statement: str) -> Any:
        assert statement == "SHOW COLUMNS FROM orders"
        rows = [SimpleNamespace(Field=name, Extra=extra) for name, extra in self._extras.items()]
        return SimpleNamespace(all=lambda: rows)


@pytest.mark.parametrize("extra", ["INVISIBLE", "DEFAULT_GENERATED on update CURRENT_TIMESTAMP invisible"])
def test_a_column_of_mysql_that_a_star_does_not_bring_is_asked_for_by_its_name(
    monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    server: Any = Shown(id="auto_increment", c=extra, word="")
    monkeypatch.setattr(shape, "catalog_connection", nullcontext)
    described = table(ID, Column("word", types.Text()))
    assert plan_with(shape._shape_of(server, described), server.dialect).own_columns == ("id", "word", "c")


def plan_with(shown: Shape, dialect: Any, **options: Any) -> Plan:
    place: dict[str, Any] = {"url": "sqlite://", "table": "orders", "cursor_column": "c", "pk_columns": ["id"]}
    return Plan(SqlAlchemySource(**{**place, **options})._definition, shown, dialect)


def test_a_name_with_backticks_is_read_as_the_table_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = Shown()
    monkeypatch.setattr(shape, "catalog_connection", nullcontext)
    shown = shape._shape_of(server, table(ID, Column("it``s", types.Text())))  # as SQLAlchemy finds it in the DDL
    plan = plan_with(shown, server.dialect, pk_columns=["it`s"])
    assert plan.own_columns == ("id", "c", "it`s")
    page = sql(plan.page(Position((5, "a"))), plan)
    assert "orders.`it``s` > " in page
    assert "orders.`it``s` IS NOT NULL" in page, "nobody knows that it cannot be NULL"


def test_a_name_that_has_to_be_quoted_stays_so() -> None:
    named = Column(quoted_name("c", quote=True), ID)
    engine: Any = SimpleNamespace(dialect=NEW["oracle"]())
    shown = shape._shape_of(engine, Table("orders", MetaData(), Column("id", ID, primary_key=True), named))
    plan = plan_with(shown, engine.dialect)
    assert 'orders."c"' in sql(plan.page(BEGINNING), plan), "to Oracle it is another one than c"


class Result:
    """What a driver tells of a result without rows: name, code and sizes of its columns, and maybe flags."""

    def __init__(self, code: Any, precision: int | None, scale: int | None, **more: Any) -> None:
        self.description = [("c", code, None, None, precision, scale, None)]
        vars(self).update(more)


def fields(*flags: int) -> SimpleNamespace:
    return SimpleNamespace(fields=[SimpleNamespace(flags=flag) for flag in flags])


@pytest.mark.parametrize(
    ("dialect", "result", "kind", "resolution"),
    [
        ("postgresql", Result(1114, 3, None), postgresql.TIMESTAMP, 0.001),
        ("postgresql", Result(1114, None, None), postgresql.TIMESTAMP, 0.000001),
        ("postgresql", Result(20, 8, None), types.BigInteger, None),
        ("postgresql", Result(1700, 8, 2), types.Numeric, None),
        ("postgresql", Result(-1, None, None), types.NullType, None),
        ("mysql", Result(12, None, 6), mysql.DATETIME, 0.000001),
        ("mysql", Result(12, None, 0), mysql.DATETIME, 1.0),
        ("mysql", Result(12, None, 31), mysql.DATETIME, 1.0),
        ("mysql", Result(246, 10, 2), types.Numeric, None),
        ("mysql", Result(254, None, 0), types.String, None),
        ("mysql", Result(254, None, 0, description_flags=[256]), ENUM, None),
        ("mysql", Result(254, None, 0, _result=fields(256)), ENUM, None),
        ("mysql", Result(254, None, 0, _result=fields(2048)), SET, None),
        ("mysql", Result(254, None, 0, _result=fields(1)), types.String, None),
        ("duckdb", Result("TIMESTAMP", None, None), types.DateTime, None),
        ("duckdb", Result("BIGINT", None, None), types.BigInteger, None),
    ],
)
def test_the_columns_of_a_query_are_of_the_types_that_its_driver_tells(
    dialect: str, result: Any, kind: type[Any], resolution: float | None
) -> None:
    connection: Any = SimpleNamespace(dialect=SimpleNamespace(name=dialect, requires_name_normalize=False))
    [found] = _described(connection, result).values()
    assert type(found) is kind
    assert values.resolution(found) == resolution
    assert (getattr(found, "precision", None) is None) or resolution, "a number has all the digits that it has"


def test_a_share_is_picked_by_the_database_where_it_can_count() -> None:
    region = Column("region", types.Text())
    plan = plan_of(table(ID, region), partition=(1, 3))
    assert "% " in sql(plan.page(BEGINNING), plan)
    assert plan.partitions_in_sql
    by_text = plan_of(table(ID, Column("region", types.Text())), partition=(1, 3), partition_by="region")
    assert not by_text.partitions_in_sql
    assert "%%" not in sql(by_text.page(BEGINNING), by_text)
    both = plan_of(table(ID), partition=(1, 3), partition_by=["id", "c"])
    assert not both.partitions_in_sql


@pytest.mark.parametrize(
    ("kind", "dialect", "written"),
    [
        (types.Numeric(10, 2), "postgresql", "CAST(%(v)s AS NUMERIC)"),
        (postgresql.TIMESTAMP(precision=0), "postgresql", "CAST(%(v)s AS TIMESTAMP WITHOUT TIME ZONE)"),
        (postgresql.TIMESTAMP(timezone=True), "postgresql", "CAST(%(v)s AS TIMESTAMP WITH TIME ZONE)"),
        (postgresql.TIME(timezone=True, precision=0), "postgresql", "CAST(%(v)s AS TIME WITH TIME ZONE)"),
        (types.REAL(), "postgresql", "CAST(%(v)s AS REAL)"),
        (types.Date(), "postgresql", "CAST(%(v)s AS DATE)"),
        (types.BigInteger(), "postgresql", "%(v)s"),
        (types.Numeric(10, 2), "mssql", "CAST(:v AS NUMERIC(10, 2))"),
        (types.Numeric(10, 2), "mysql", "%s"),
    ],
    ids=repr,
)
def test_a_value_is_compared_in_its_columns_type_with_all_digits(kind: Any, dialect: str, written: str) -> None:
    made = NEW[dialect]()
    assert str(typed_parameter("v", kind, made).compile(dialect=made)) == written


def test_only_a_column_that_may_be_null_is_counted() -> None:
    assert not plan_of(table(ID)).may_lack_cursor
    nullable = Table("orders", MetaData(), Column("id", ID, primary_key=True), Column("c", ID))
    assert plan_of(nullable).may_lack_cursor


def test_a_float_of_mysql_is_read_beside_its_rounded_self() -> None:
    assert list(plan_of(table(mysql.FLOAT()), "mysql").exact) == ["c"]
    assert plan_of(table(mysql.DOUBLE()), "mysql").exact == {}


@pytest.mark.parametrize(
    ("dialect", "cursor", "watch"),
    [
        ("mssql", VERSIONS.ROWVERSION(), RowversionWatch),
        ("mssql", VERSIONS.TIMESTAMP(), RowversionWatch),
        ("mssql", ID, NoneType),
        ("oracle", ID, NoneType),
        ("postgresql", ID, PostgresWatch),
        ("mysql", ID, MysqlWatch),
    ],
)
def test_who_is_running_is_asked_in_the_way_of_each_database(
    dialect: str, cursor: Any, watch: type, caplog: pytest.LogCaptureFixture
) -> None:
    patience = Patience(1.0, 300.0, None, time.monotonic, time.sleep)
    plan = plan_of(table(cursor), dialect)
    assert type(watch_for("orders", plan, patience)) is watch
    assert ("does not show its running transactions" in caplog.text) is (watch is NoneType)
    assert watch_for("orders", plan_of(table(cursor), dialect, in_flight="ignore"), patience) is None


@pytest.mark.parametrize(
    ("dialect", "cursor", "options", "moments"),
    [
        ("mysql", ID, {"partition": (0, 2), "partition_by": "paid_at"}, ["paid_at"]),
        ("mysql", ID, {"partition": (0, 2)}, []),
        ("mysql", ID, {}, []),
        ("mysql", types.TIMESTAMP, {"partition": (0, 2), "partition_by": "paid_at"}, []),
        ("postgresql", ID, {"partition": (0, 2), "partition_by": "paid_at"}, []),
    ],
    ids=["a share by a moment", "by the key", "no share", "a session in UTC", "PostgreSQL"],
)
def test_a_share_by_a_timestamp_of_mysql_is_told_by_a_number_that_no_session_changes(
    dialect: str, cursor: Any, options: dict[str, Any], moments: list[str]
) -> None:
    plan = plan_of(table(cursor, Column("paid_at", types.TIMESTAMP)), dialect, **options)
    assert list(plan.exact) == moments
    assert [sql(moment, plan) for moment in plan.exact.values()] == ["unix_timestamp(orders.paid_at)"] * len(moments)


NOON = dt.datetime(2026, 11, 17, 12)  # noqa: DTZ001 - a time without a zone is what many columns hold


@pytest.mark.parametrize(
    ("dialect", "cursor", "value", "asks"),
    [
        ("postgresql", types.DateTime(), NOON.replace(tzinfo=dt.UTC), True),
        ("postgresql", types.DateTime(timezone=True), NOON, True),
        ("postgresql", types.DateTime(), NOON, False),
        ("postgresql", types.DateTime(timezone=True), NOON.replace(tzinfo=dt.UTC), False),
        ("postgresql", types.DateTime(), NOON.date(), False),
        ("postgresql", types.String(), NOON.replace(tzinfo=dt.UTC), False),
        ("mysql", types.DateTime(), NOON.replace(tzinfo=dt.UTC), False),
    ],
)
def test_only_postgresql_is_asked_what_a_moment_is_without_its_zone_or_with_one(
    dialect: str, cursor: Any, value: Any, asks: bool
) -> None:
    answer = SimpleNamespace(scalar_one=lambda: "as it is told")
    connection = cast(Any, SimpleNamespace(execute=lambda *_: answer))
    assert plan_of(table(cursor), dialect).as_told("c", value, connection) == ("as it is told" if asks else value)
    assert plan_of(table(cursor), dialect, reflected=False).as_told("c", value, connection) == value


def test_a_moment_beyond_the_calendar_of_utc_has_a_share_and_a_mark() -> None:
    last = dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    assert [Partition(share, 2).takes([last]) for share in range(2)].count(True) == 1
    assert _packed(last) == b"m9999-12-31T23:00:00-05:00"


def test_nothing_is_read_from_the_lowest_active_row_version_on() -> None:
    with create_engine("sqlite://").connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.create_function("MIN_ACTIVE_ROWVERSION", 0, lambda: 42)
        watch = RowversionWatch()
        assert watch.look(connection, plan_of(table(VERSIONS.ROWVERSION()), "mssql"), BEGINNING)
    assert (watch.bound, watch.includes_bound, watch.is_settled) == (41, True, True)


@pytest.mark.parametrize(
    ("dialect", "index", "is_served"),
    [
        ("mysql", Index("i", "c"), True),  # which ends with the primary key
        ("postgresql", Index("i", "c"), False),
        ("postgresql", Index("i", "c", unique=True), True),
        ("postgresql", Index("i", "c", "id", "word", unique=True), True),
        ("postgresql", Index("i", text("abs(c)"), "id"), False),
    ],
)
def test_an_index_serves_a_poll_by_the_rules_of_its_database(dialect: str, index: Index, is_served: bool) -> None:
    described = table(ID, Column("word", types.Text()), index)
    assert _is_served(described, plan_of(described, dialect)) is is_served


@pytest.mark.parametrize(("dialect", "name"), [("mysql", "50%"), ("postgresql", "50%"), ("sqlite", "50%%")])
def test_the_statement_of_a_missing_index_is_as_one_types_it(dialect: str, name: str) -> None:
    plan = plan_of(Table(name, MetaData(), Column("id", ID, primary_key=True), Column("c", ID)), dialect)
    engine: Any = SimpleNamespace(dialect=plan.dialect)
    quote = plan.dialect.identifier_preparer.initial_quote
    assert f"ON {quote}{name}{quote} (c, id)" in _ddl(engine, plan)


class Clock:
    """A database that is asked for its time, and says noon."""

    def __init__(self, dialect: str, answer: Any) -> None:
        self.dialect = NEW[dialect]()
        self._answer = answer

    def execute(self, statement: Any) -> Any:
        self.asked = str(statement.compile(dialect=self.dialect)).removeprefix("SELECT ")
        return SimpleNamespace(scalar_one=lambda: self._answer)


@pytest.mark.parametrize(
    ("dialect", "aware", "asked"),
    [
        ("postgresql", True, "clock_timestamp() AS"),
        ("postgresql", False, "CAST(clock_timestamp() AS TIMESTAMP WITHOUT TIME ZONE)"),
        ("mssql", True, "sysdatetimeoffset()"),
        ("mssql", False, "sysdatetime()"),
        ("mysql", False, "now("),
        ("oracle", True, "CURRENT_TIMESTAMP AS"),
        ("oracle", False, "CAST(CURRENT_TIMESTAMP AS DATE)"),
    ],
)
def test_a_clock_is_asked_for_the_kind_of_time_that_a_column_holds(dialect: str, aware: bool, asked: str) -> None:
    noon = dt.datetime(2026, 11, 17, 12)  # noqa: DTZ001 - as it is told
    for answer in (noon, str(noon)):
        connection: Any = Clock(dialect, answer)
        assert _clock(connection, aware=aware) == noon
        assert connection.asked.startswith(asked)
