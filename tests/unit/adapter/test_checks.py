"""What an operator is told about a source, of tables in a database without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, make_url, types
from sqlalchemy.dialects import mysql, oracle, postgresql

from azure_functions_db import EngineProvider, SqlAlchemySource
from azure_functions_db.sources.keyset import checks
from tests.conftest import execute
from tests.support.plans import plan_of, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from azure_functions_db.core.types import Finding

KEYED = "id integer PRIMARY KEY, c integer NOT NULL, word text"


class Place:
    """A database, and what is found out about its tables."""

    def __init__(self, url: str, provider: EngineProvider) -> None:
        self.url = url
        self._provider = provider

    def run(self, *statements: str) -> None:
        for statement in statements:
            execute(make_url(self.url), statement)

    def source(self, **options: Any) -> SqlAlchemySource:
        named = {} if "query" in options else {"table": "orders"}
        place = {"url": self.url, "engine_provider": self._provider, "cursor_column": "c", "pk_columns": ["id"]}
        return SqlAlchemySource(**{**place, **named, **options})

    def found(self, check: str, **options: Any) -> list[Finding]:
        return [finding for finding in self.source(**options).examine() if finding.check == check]

    def told(self, check: str, **options: Any) -> tuple[str, str, str | None]:
        [finding] = self.found(check, **options)
        return finding.grade, finding.text, finding.remedy


@pytest.fixture
def place(sqlite_database: str, provider: EngineProvider) -> Place:
    return Place(sqlite_database, provider)


def test_an_index_that_is_missing_is_told_with_the_statement_that_makes_it(place: Place) -> None:
    place.run(f"CREATE TABLE orders ({KEYED})", "INSERT INTO orders VALUES (1, 1, 'a')")
    grade, words, remedy = place.told("index")
    assert grade == "warning"
    assert words.startswith("no index serves the poll; the plan says: S")
    assert remedy == "CREATE INDEX ix_orders_c_id ON orders (c, id)"
    assert place.told("index", query="SELECT * FROM orders")[0] == "note"
    place.run(remedy)
    assert place.told("index")[0] == "ok"


def test_how_the_page_behind_the_last_row_is_read_is_told(place: Place) -> None:
    place.run(f"CREATE TABLE orders ({KEYED})", "CREATE INDEX i ON orders (c, id)")
    assert place.told("index")[1] == "the poll is served; the plan says: SCAN orders USING INDEX i"
    place.run("INSERT INTO orders VALUES (1, 1, 'a')")
    assert place.told("index")[1] == "the poll is served; the plan says: SEARCH orders USING INDEX i (c>?)"


class Planner:
    """A server of PostgreSQL that tells how it would read a page."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines
        self.settings: list[str] = []

    def exec_driver_sql(self, statement: str) -> None:
        self.settings.append(statement)

    def execute(self, _statement: Any, _parameters: Any = None) -> Any:
        assert len(self.settings) == 2, "whatever is asked is asked of a planner that prefers an index"
        return SimpleNamespace(first=lambda: None, all=lambda: [(line,) for line in self._lines])


def test_a_small_table_of_postgresql_is_planned_like_a_large_one() -> None:
    shown = (
        "Limit  (cost=0.15..4.17 rows=100)",
        "  ->  Index Scan using i on orders  (cost=0.15..4.17)",
        "  Index Cond: ",
    )
    server: Any = Planner(*shown)
    assert checks.plan_words(plan_of(table(types.BigInteger())), server) == "Index Scan using i on orders"
    assert server.settings == ["SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"]


@pytest.mark.parametrize(
    ("index", "options", "is_served"),
    [
        ("CREATE INDEX i ON orders (c)", {}, True),  # the key is at its end
        ("CREATE INDEX i ON orders (word, c)", {}, False),
        ("CREATE INDEX i ON orders (c, word)", {}, False),
        ("CREATE INDEX i ON orders (c, id, word)", {}, True),
        ("CREATE INDEX i ON orders (c, id) WHERE word = 'a'", {}, False),
        ("CREATE INDEX i ON orders (c, id) WHERE word = 'a'", {"where": "word = 'a'"}, True),
        ("CREATE UNIQUE INDEX i ON orders (c)", {"pk_columns": ["word"]}, True),  # nothing is left to order
        ("CREATE INDEX i ON orders (c)", {"pk_columns": ["word"]}, False),
        ("CREATE UNIQUE INDEX i ON orders (word)", {"pk_columns": ["word"]}, False),
        ("SELECT 1", {"cursor_column": "id"}, True),
    ],
)
def test_an_index_serves_a_poll_that_goes_in_its_order(
    place: Place, caplog: pytest.LogCaptureFixture, index: str, options: dict[str, Any], is_served: bool
) -> None:
    place.run(f"CREATE TABLE orders ({KEYED})", index)
    assert (place.told("index", **options)[0] == "ok") is is_served
    place.source(**options).fetch_changes({}, 1)
    assert ("No index serves" in caplog.text) is not is_served


def test_a_unique_constraint_is_an_index_and_a_view_has_none_to_miss(place: Place) -> None:
    place.run(
        "CREATE TABLE orders (id integer, c integer, UNIQUE (c, id))", "CREATE VIEW shown AS SELECT * FROM orders"
    )
    assert place.told("index")[0] == "ok"
    place.run("CREATE TABLE others (id integer, c integer)", "CREATE VIEW seen AS SELECT * FROM others")
    assert place.told("index", table="seen")[0] == "ok"
    assert place.told("index", table="others")[0] == "warning"


@pytest.mark.parametrize(
    ("columns", "pk_columns", "remedy"),
    [
        (KEYED, ["id"], None),
        (KEYED, ["id", "word"], None),
        (KEYED, ["word"], "pk_columns=['id'], or a unique index on (word), NOT NULL"),
        (f"{KEYED}, code text NOT NULL UNIQUE", ["code"], None),
        (f"{KEYED}, code text UNIQUE", ["code"], "pk_columns=['id'], or a unique index on (code), NOT NULL"),
        (f"{KEYED}, code text NOT NULL", ["code"], "pk_columns=['id'], or a unique index on (code)"),
        ("id integer NOT NULL, c integer NOT NULL", ["id"], "a unique index on (id)"),
        (
            "id integer NOT NULL, c integer NOT NULL, word text",
            ["id", "word"],
            "a unique index on (id, word), NOT NULL",
        ),
    ],
)
def test_a_key_that_several_rows_may_share_is_told(
    place: Place, columns: str, pk_columns: list[str], remedy: str | None
) -> None:
    place.run(f"CREATE TABLE orders ({columns})")
    found = place.found("key", pk_columns=pk_columns)
    assert [finding.remedy for finding in found] == ([] if remedy is None else [remedy])
    for finding in found:
        assert ("or have NULL there" in finding.text) is (", NOT NULL" in str(remedy))


def test_of_a_view_or_a_query_nobody_knows_what_tells_its_rows_apart(place: Place) -> None:
    place.run(f"CREATE TABLE orders ({KEYED})", "CREATE VIEW seen AS SELECT * FROM orders")
    assert place.found("key", table="seen", pk_columns=["word"]) == []
    assert place.found("key", query="SELECT * FROM orders", pk_columns=["word"]) == []
    described = Table("orders", MetaData(), Column("id", Integer), Column("c", Integer), Column("word", String))
    assert place.found("key", table=described, pk_columns=["word"]) == [], "nor where the database is not asked"


def test_a_table_that_has_told_its_key_is_not_looked_for_among_tables(place: Place) -> None:
    """A server may know it by a name that is written otherwise."""
    place.run(f"CREATE TABLE orders ({KEYED})")
    nobody: Any = None
    [finding] = checks._key(place.source(pk_columns=["word"])._plan(), nobody)
    assert finding.grade == "warning"


def test_rows_that_are_never_delivered_are_counted(place: Place) -> None:
    place.run("CREATE TABLE orders (id integer PRIMARY KEY, c integer)")
    assert place.told("NULL cursors") == ("ok", "none", None)
    place.run("INSERT INTO orders VALUES (1, NULL), (2, NULL), (3, 1)")
    told = ("warning", "2 row(s) are never delivered", "fill c and declare it NOT NULL")
    assert place.told("NULL cursors") == told
    assert place.source().null_cursor_rows() == 2


def test_why_a_value_that_was_passed_does_not_come_again_is_told(place: Place) -> None:
    place.run(f"CREATE TABLE orders ({KEYED})")
    assert place.told("cursor values")[1].startswith("read again")
    assert place.told("cursor values", cursor_column="id")[1].startswith("unique")
    assert place.told("cursor values", in_flight="ignore")[:2] == (
        "note",
        'read once: in_flight="ignore" is plain polling',
    )
    keys = "WITH RECURSIVE keys (key) AS (SELECT 1 UNION ALL SELECT key + 1 FROM keys LIMIT 1000)"
    place.run(f"INSERT INTO orders {keys} SELECT key, 5, '' FROM keys")
    assert place.told("cursor values")[0] == "ok"
    place.run("INSERT INTO orders VALUES (2000, 5, '')")
    grade, words, _ = place.told("cursor values")
    assert grade == "warning"
    assert "more than 1,000 rows have the newest value" in words
    assert place.told("cursor values", in_flight="ignore")[0] == "note"
    assert place.told("cursor values", cursor_column="id")[0] == "ok", "a value that one row has is no crowd"
    place.run("CREATE TABLE others (id integer PRIMARY KEY, c integer)")
    place.run(
        "CREATE TRIGGER stamped AFTER INSERT ON orders BEGIN "
        "UPDATE orders SET c = (SELECT MAX( c ) FROM orders) + 1; END",
        "CREATE TRIGGER other AFTER INSERT ON orders BEGIN SELECT 1; END",
    )
    assert "a trigger takes max() + 1" in place.told("cursor values")[1]
    assert place.told("cursor values", table="others")[0] == "ok"
    assert "a trigger takes" not in place.told("cursor values", query="SELECT * FROM orders")[1]


@pytest.mark.parametrize(
    ("kind", "dialect", "grade", "words"),
    [
        (mysql.DATETIME(), "mysql", "warning", "whole seconds"),
        (mysql.DATETIME(fsp=6), "mysql", "ok", "microseconds"),
        (mysql.DATETIME(fsp=3), "mariadb", "ok", "milliseconds"),
        (mysql.DATETIME(fsp=2), "mariadb", "ok", "2 digits of a second"),
        (postgresql.TIMESTAMP(), "postgresql", "note", "microseconds, without a time zone"),
        (postgresql.TIMESTAMP(timezone=True), "postgresql", "ok", "microseconds"),
        (postgresql.TIMESTAMP(timezone=True, precision=0), "postgresql", "warning", "whole seconds"),
        (types.DateTime(), "sqlite", "ok", "microseconds"),
        (types.Date(), "postgresql", "warning", "whole days"),
        (types.BigInteger(), "postgresql", "ok", "exact"),
        (types.Float(), "postgresql", "note", "only grows"),
        (types.Text(), "postgresql", "warning", "collation"),
        (types.Enum("a"), "postgresql", "ok", ""),
        (types.LargeBinary(), "postgresql", "ok", ""),
    ],
    ids=repr,
)
def test_a_cursor_is_judged_by_its_type(kind: types.TypeEngine[Any], dialect: str, grade: str, words: str) -> None:
    judged, remark = checks._judged(kind, dialect)
    assert judged == grade
    assert words in remark
    assert bool(words) is bool(remark)


def test_a_cursor_is_shown_as_the_database_writes_it(place: Place) -> None:
    place.run("CREATE TABLE orders (id integer PRIMARY KEY, c integer, word varchar(5), other geometry)")
    assert place.told("cursor") == ("ok", "c INTEGER: exact", None)
    grade, words, remedy = place.told("cursor", cursor_column="word")
    assert (grade, words.startswith("word VARCHAR(5): text"), remedy is None) == ("warning", True, False)
    assert place.told("cursor", cursor_column="other")[1] == "other NUMERIC", "of which there is nothing to say"
    computed = "SELECT id, 'v' || word AS made FROM orders"
    assert place.told("cursor", query=computed, cursor_column="made")[1] == "made NULLTYPE", "of which no type is known"


def test_a_distance_from_the_clock_is_no_finding_where_no_session_has_a_zone(place: Place) -> None:
    place.run("CREATE TABLE orders (id integer PRIMARY KEY, c datetime)")
    assert place.found("settling", settle_seconds=5) == []


@pytest.mark.parametrize(
    ("dialect", "kind", "settle_seconds", "offset", "is_told"),
    [
        ("postgresql", postgresql.TIMESTAMP(), 5, 32400, True),
        ("postgresql", postgresql.TIMESTAMP(), 5, 0, False),
        ("postgresql", postgresql.TIMESTAMP(), None, 32400, False),
        ("postgresql", postgresql.TIMESTAMP(timezone=True), 5, 32400, False),
        ("mysql", mysql.DATETIME(), 5, 32400, True),
        ("mysql", mysql.TIMESTAMP(), 5, 32400, False),
    ],
)
def test_a_distance_from_the_clock_of_another_zone_is_told(
    dialect: str, kind: Any, settle_seconds: float | None, offset: int, is_told: bool
) -> None:
    session: Any = SimpleNamespace(exec_driver_sql=lambda _: SimpleNamespace(scalar_one=lambda: offset))
    found = checks._settling(plan_of(table(kind), dialect, settle_seconds=settle_seconds), session)
    assert ["is +9 h from UTC" in finding.text for finding in found] == ([True] if is_told else [])


def test_triggers_are_looked_for_in_sqlite_only() -> None:
    nobody: Any = None
    assert not checks._takes_the_highest_and_one_more(plan_of(table(types.Integer())), nobody)


def test_a_database_that_cannot_be_asked_how_it_reads_a_page_is_not_asked(
    tmp_path: Path, provider: EngineProvider
) -> None:
    place = Place(f"duckdb:///{tmp_path / 'rows.duckdb'}", provider)
    place.run(f"CREATE TABLE orders ({KEYED})")
    assert place.told("index") == ("ok", "the poll is served", None)


def test_tables_of_tombstones_that_nobody_reads_are_pointed_out(place: Place) -> None:
    place.run(
        f"CREATE TABLE orders ({KEYED}, gone integer)",
        "CREATE TABLE order_tombstones (id integer PRIMARY KEY, at integer)",
        "CREATE TABLE deleted_customers (id integer PRIMARY KEY)",
        "CREATE TABLE orders_archive (id integer PRIMARY KEY)",
        "CREATE TABLE removed_orders (id text PRIMARY KEY)",
        "CREATE TABLE orders_deleted (number integer PRIMARY KEY)",
        "CREATE TABLE deleted_orders (id integer PRIMARY KEY)",
    )
    told = sorted(finding.text.partition(" ")[0] for finding in place.found("deletes"))
    assert told == ["deleted_orders", "order_tombstones"]
    assert place.found("deletes", deleted_column="gone") == []
    assert place.found("deletes", query="SELECT * FROM orders") == []
    told = sorted(finding.text.partition(" ")[0] for finding in place.found("deletes", pk_columns=["id", "c"]))
    assert told == [], "a table without all of the key cannot say which row has gone"
    assert place.found("deletes", table="deleted_orders", cursor_column="id") == [], "nor is it one of its own"


def test_late_commits_are_told_with_the_reason_where_there_is_one() -> None:
    assert (checks.late_commits("exact").grade, checks.late_commits("exact", "why").text.find("why")) == ("ok", -1)
    assert checks.late_commits("settled").text.endswith("from the clock")
    assert checks.late_commits("settled", "it hides them").text.endswith("from the clock (it hides them)")
    assert checks.late_commits("none").grade == "warning"
    assert checks.late_commits("none", "it hides them").text.endswith("can be missed (it hides them)")


@pytest.mark.parametrize(
    ("name", "words"), [("mssql", "stand-in"), ("oracle", "no Oracle has run them"), ("sqlite", "")]
)
def test_what_the_tests_have_not_seen_is_said(name: str, words: str) -> None:
    dialect: Any = SimpleNamespace(name=name)
    found = list(checks.tested_against(dialect))
    assert [words in finding.text for finding in found] == ([True] if words else [])


def test_a_plan_is_told_in_the_words_that_matter() -> None:
    said: Callable[..., str] = checks._said
    assert said("postgresql", ["  ->  Index Scan using i on t  (cost=0.1..2 rows=1)"]) == "Index Scan using i on t"
    assert said("postgresql", ["Sort  (cost=1..2)"]) == "Sort"
    assert said("postgresql", ["  Index Cond: (c > 1)"]) == ""
    columns = {"type": "range", "key": "i", "rows": 3, "Extra": "Using where"}
    assert said("mysql", SimpleNamespace(_mapping=columns)) == "range on i, about 3 rows, Using where"
    columns = {"type": "ALL", "key": None, "rows": 3, "Extra": ""}
    assert said("mariadb", SimpleNamespace(_mapping=columns)) == "ALL on no index, about 3 rows"


def test_a_type_without_a_name_in_sql_is_no_mistake() -> None:
    plan: Any = SimpleNamespace(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]
    assert not checks._compiles(types.NullType(), plan)
    assert checks._compiles(types.Integer(), plan)
    assert checks._fraction(oracle.DATE(), "oracle") == 6
