"""What a source reads, on every database that the tests have."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import logging
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Engine, event, inspect, text

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    FetchError,
    PollTrigger,
    RowChange,
    SourceConfigurationError,
    SqlAlchemySource,
)
from azure_functions_db.sources.keyset.definition import Partition
from azure_functions_db.sources.keyset.position import Position
from azure_functions_db.state.memory import MemoryStateStore
from tests.conftest import temporary_database

if TYPE_CHECKING:
    from azure_functions_db.core.ports import ChangeReader
    from azure_functions_db.sources.keyset.plan import Plan

NewSource = Callable[..., SqlAlchemySource]


@pytest.fixture(scope="module")
def servers(postgres_url: str, mariadb_url: str) -> Iterator[dict[str, str]]:
    """A database of this module on each server; the tests clear away their tables."""
    with (
        temporary_database(postgres_url, "DROP DATABASE {name} WITH (FORCE)") as postgres,
        temporary_database(mariadb_url, "DROP DATABASE {name}") as mariadb,
    ):
        yield {"postgres": postgres, "mariadb": mariadb}


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "duckdb"])
def url(request: pytest.FixtureRequest, tmp_path: Path, servers: dict[str, str]) -> str:
    files = {"sqlite": f"sqlite:///{tmp_path / 'test.db'}", "duckdb": f"duckdb:///{tmp_path / 'test.duckdb'}"}
    return {**servers, **files}[request.param]


@pytest.fixture
def engine(url: str, provider: EngineProvider) -> Iterator[Engine]:
    engine = provider.get_engine(DbConfig(connection_url=url))
    yield engine
    if engine.dialect.name in {"postgresql", "mysql"}:
        quote = engine.dialect.identifier_preparer.quote_identifier
        with engine.begin() as connection:
            for table in inspect(connection).get_table_names():
                connection.exec_driver_sql(f"DROP TABLE {quote(table)}")
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql("DROP TYPE IF EXISTS mood")


@pytest.fixture
def new_source(url: str, provider: EngineProvider) -> NewSource:
    def new_source(**arguments: Any) -> SqlAlchemySource:
        defaults: dict[str, Any] = {"cursor_column": "c", "pk_columns": ["id"], "in_flight": "ignore"}
        if "query" not in arguments:
            defaults["table"] = "t"
        return SqlAlchemySource(url=url, engine_provider=provider, **{**defaults, **arguments})

    return new_source


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement.replace(":", "\\:")))


def everything(source: ChangeReader, limit: int) -> list[dict[str, Any]]:
    """Every record, page by page, with the checkpoint going through JSON each time."""
    records: list[dict[str, Any]] = []
    checkpoint: dict[str, Any] = {}
    for _ in range(1000):
        result = source.fetch_changes(json.loads(json.dumps(checkpoint)), limit)
        records += result.records
        checkpoint = result.next_checkpoint
        if not result.more:
            return records
    raise AssertionError("the source never ends")


# Cursor types. Each value has two rows, so that every page of one row ends inside a tie.

TYPES: dict[str, dict[str, tuple[str, list[str]]]] = {
    "integer": {"*": ("bigint", ["-5", "0", "7", "9007199254740993"])},
    "text": {"*": ("varchar(20)", ["'Äpfel'", "'Zug'", "'a b'", "'o''clock'"])},
    "double": {"*": ("double precision", ["-0.1", "0.1", "0.30000000000000004", "1e300"])},
    "real": {"sqlite": ("real", ["0.1", "0.7", "1.1"]), "*": ("real", ["0.1", "0.7", "1.1", "16777216"])},
    "decimal": {"*": ("decimal(20, 6)", ["-1.5", "0.000001", "1.1", "12345678901234.567891"])},
    "date": {"*": ("date", ["'1999-12-31'", "'2026-01-01'"])},
    "time": {"*": ("time", ["'00:00:01'", "'23:59:59'"]), "mysql": ("time(6)", ["'00:00:01.5'", "'25:00:00'"])},
    "timestamp": {
        "*": ("timestamp", ["'2026-01-01 00:00:00.000001'", "'2026-01-01 00:00:00.5'", "'2026-01-02 00:00:00'"]),
        "mysql": ("datetime(6)", ["'2026-01-01 00:00:00.000001'", "'2026-01-01 00:00:00.5'"]),
    },
    "timestamp with T": {
        "sqlite": ("datetime", ["'2026-01-01T00:00:00'", "'2026-01-01T00:00:00.5'", "'2026-01-02T00:00:00Z'"]),
        "*": ("varchar(40)", ["'2026-01-01T00:00:00'", "'2026-01-01T00:00:01'"]),
    },
    "timestamp with zone": {
        "postgresql": ("timestamptz", ["'2026-03-29 02:30:00+02'", "'2026-03-29 02:30:00+01'"]),
        "*": ("timestamp", ["'2026-01-01 00:00:00'"]),
    },
    "time with zone": {"postgresql": ("timetz", ["'10:00:00+02'", "'10:00:00+01'"]), "*": ("bigint", ["1"])},
    "uuid": {
        "postgresql": ("uuid", [f"'{uuid.UUID(int=5)}'", f"'{uuid.UUID(int=1 << 120)}'"]),
        "duckdb": ("uuid", [f"'{uuid.UUID(int=5)}'", f"'{uuid.UUID(int=1 << 120)}'"]),
        "*": ("char(36)", [f"'{uuid.UUID(int=5)}'", f"'{uuid.UUID(int=1 << 120)}'"]),
    },
    "bytes": {
        "postgresql": ("bytea", [r"'\x00'", r"'\x00ff'", r"'\x2725'"]),
        "duckdb": ("blob", [r"'\x00'", r"'\x00\xff'"]),
        "sqlite": ("blob", ["x'00'", "x'00ff'", "x'2725'"]),
        "*": ("varbinary(20)", ["x'00'", "x'00ff'", "x'2725'"]),
    },
    "boolean": {"*": ("boolean", ["false", "true"])},
    "char": {"*": ("char(5)", ["'a'", "'b'"])},
    "enum": {"postgresql": ("mood", ["'sad'", "'happy'"]), "*": ("bigint", ["1"])},
}


@pytest.mark.parametrize("mode", ["table", "query"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_cursor_of_any_type_compares_exactly(engine: Engine, new_source: NewSource, kind: str, mode: str) -> None:
    declared, values = TYPES[kind].get(engine.dialect.name) or TYPES[kind]["*"]
    if declared == "mood":
        run(engine, "CREATE TYPE mood AS ENUM ('sad', 'happy')")
    run(engine, f"CREATE TABLE t (id integer PRIMARY KEY, c {declared})")
    run(
        engine,
        *(f"INSERT INTO t VALUES ({i}, {value})" for i, value in enumerate(sorted(values * 2, key=values.index))),
    )
    source = new_source(**({"query": "SELECT id, c FROM t"} if mode == "query" else {}))
    source.validate()
    assert sorted(record["id"] for record in everything(source, 1)) == list(range(2 * len(values)))
    in_order = [record["id"] for record in everything(source, 100)]
    assert [record["id"] for record in everything(source, 3)] == in_order
    # One reader remembers where its last page has ended; that must be what the checkpoint says.
    assert [record["id"] for record in everything(source.open(), 1)] == in_order


def test_a_record_has_the_values_that_sqlalchemy_would_give(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c timestamp, d decimal(10, 2), n varchar(10))",
        "INSERT INTO t VALUES (1, '2026-01-01 10:00:00', 1.50, NULL)",
    )
    (record,) = everything(new_source(), 5)
    # As a cursor, MariaDB's TIMESTAMP is a moment, and is handed out as one.
    zone = dt.UTC if engine.dialect.name in {"mysql", "mariadb"} else None
    assert record == {"id": 1, "c": dt.datetime(2026, 1, 1, 10, tzinfo=zone), "d": Decimal("1.50"), "n": None}
    assert isinstance(record["d"], Decimal)


def test_single_precision_is_read_as_exactly_as_it_is_compared(mariadb_database: str, provider: EngineProvider) -> None:
    engine = provider.get_engine(DbConfig(connection_url=mariadb_database))
    values = "(1, 16777215), (2, 16777214), (3, 0.1), (4, 0.1000001)"
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c float)", f"INSERT INTO t VALUES {values}")
    source = SqlAlchemySource(
        url=mariadb_database, table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider
    )
    assert [record["id"] for record in everything(source, 1)] == [3, 4, 2, 1]
    assert [record["id"] for record in everything(source.open(), 1)] == [3, 4, 2, 1]
    assert set(everything(source, 1)[0]) == {"id", "c"}


@pytest.mark.parametrize(
    ("database", "kind", "value"),
    [
        ("postgres", "json", "'{}'"),
        ("postgres", "jsonb", "'{}'"),
        ("postgres", "integer[]", "'{1}'"),
        ("postgres", "interval", "'1 day'"),
        ("postgres", "point", "'(1,2)'"),
        ("mariadb", "enum('b', 'a')", "'a'"),
        ("sqlite", "json", "'{}'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_a_type_without_a_usable_order_is_refused(
    request: pytest.FixtureRequest, provider: EngineProvider, database: str, kind: str, value: str
) -> None:
    url = request.getfixturevalue(f"{database}_database")
    run(
        provider.get_engine(DbConfig(connection_url=url)),
        f"CREATE TABLE t (id integer PRIMARY KEY, c {kind})",
        f"INSERT INTO t VALUES (1, {value})",
    )
    source = SqlAlchemySource(url=url, table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider)
    with pytest.raises(SourceConfigurationError, match="'c' cannot be a cursor"):
        source.validate()


# Keys, ties and filters


def test_ties_are_split_by_a_key_of_several_columns(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (region varchar(10), id integer, c integer, PRIMARY KEY (region, id))",
        *(f"INSERT INTO t VALUES ('{region}', {i}, 1)" for region in ("north", "South", "west") for i in range(4)),
    )
    records = everything(new_source(pk_columns=["region", "id"]), 5)
    assert len({(record["region"], record["id"]) for record in records}) == len(records) == 12


@pytest.mark.parametrize("of", [{}, {"query": "SELECT * FROM t"}], ids=["table", "query"])
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_rows_whose_key_is_partly_null_are_not_lost(
    engine: Engine, new_source: NewSource, limit: int, of: dict[str, Any]
) -> None:
    run(engine, "CREATE TABLE t (n int NOT NULL, c int NOT NULL, a varchar(9), b int)")
    keys = itertools.product((1, 2), ("NULL", "'x'", "'y'"), ("NULL", "1", "2"))
    rows = [f"({n}, {c}, {a}, {b})" for n, (c, a, b) in enumerate(keys)]
    run(engine, f"INSERT INTO t VALUES {', '.join(rows)}")
    records = everything(new_source(pk_columns=["a", "b"], **of), limit)
    assert sorted(record["n"] for record in records) == list(range(len(rows)))


def test_a_condition_stays_a_unit(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c integer, a integer)",
        *(f"INSERT INTO t VALUES ({i}, {i}, {i % 3})" for i in range(12)),
    )
    source = new_source(where="a = 0 OR a = :other -- and ;) so on", parameters={"other": 1})
    assert [record["id"] for record in everything(source, 3)] == [i for i in range(12) if i % 3 < 2]


def test_a_query_is_wrapped_whole(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c integer, a integer)",
        *(f"INSERT INTO t VALUES ({i}, {i}, {i % 3})" for i in range(12)),
    )
    query = "SELECT id, c FROM t WHERE a = :a OR a = 1 -- these;\n;  "
    source = new_source(query=query, parameters={"a": 0}, where="id <> 3")
    assert [record["id"] for record in everything(source, 2)] == [0, 1, 4, 6, 7, 9, 10]


def test_rows_without_a_cursor_are_left_out_and_counted(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c integer)",
        "INSERT INTO t VALUES (1, 5), (2, NULL), (3, NULL), (4, 1)",
    )
    source = new_source()
    assert [record["id"] for record in everything(source, 1)] == [4, 1]
    assert source.null_cursor_rows() == 2


def test_a_projection_keeps_what_events_need(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c integer, a integer, b integer, gone integer, made integer)",
        "INSERT INTO t VALUES (1, 2, 3, 4, 5, 6)",
    )
    source = new_source(columns=["b"], deleted_column="gone", created_column="made")
    assert everything(source, 5) == [{"b": 4, "c": 2, "id": 1, "made": 6, "gone": 5}]
    assert source.capability().detects_deletes
    assert source.capability().distinguishes_insert


NAMES = [
    'plain"quote',
    "back`tick",
    "sp ace",
    "per%cent",
    "per%(name)s",
    "co:lon",
    "do.t",
    "UPPER",
    "select",
    "Ünï",
    "semi;--",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_will_do(engine: Engine, new_source: NewSource, name: str) -> None:
    quote = engine.dialect.identifier_preparer.quote_identifier
    table, cursor, key = quote(f"t {name}"), quote(f"c {name}"), quote(name)
    with engine.begin() as connection:
        for statement in (
            f"CREATE TABLE {table} ({key} integer PRIMARY KEY, {cursor} integer)",
            f"INSERT INTO {table} VALUES (1, 7), (2, 7), (3, 8)",
        ):
            connection.exec_driver_sql(statement)
    source = new_source(table=f"t {name}", cursor_column=f"c {name}", pk_columns=[name], where="1 = 1")
    assert everything(source, 1) == [{name: i, f"c {name}": c} for i, c in ((1, 7), (2, 7), (3, 8))]
    projected = new_source(table=f"t {name}", cursor_column=f"c {name}", pk_columns=[name], columns=[name])
    assert len(everything(projected, 2)) == 3


# Where to begin


def test_a_source_begins_where_it_is_told(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c integer)",
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 2), (4, 3)",
    )
    assert [record["id"] for record in new_source(start_at=2).fetch_changes({}, 9).records] == [2, 3, 4]
    assert [record["id"] for record in new_source(start_at=(2, 2)).fetch_changes({}, 9).records] == [3, 4]
    assert list(new_source(start_at=9).fetch_changes({}, 9).records) == []
    known = new_source().fetch_changes({}, 1).next_checkpoint
    assert [record["id"] for record in new_source(start_at=3).fetch_changes(known, 9).records] == [2, 3, 4]


def test_now_is_the_moment_of_the_first_look_also_for_the_next_process(engine: Engine, new_source: NewSource) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    first = new_source(start_at="now").fetch_changes({}, 9)
    assert list(first.records) == []
    run(engine, "INSERT INTO t VALUES (3, 3)")
    later = new_source(start_at="now").fetch_changes(first.next_checkpoint, 9)
    assert [record["id"] for record in later.records] == [3]


def test_now_in_an_empty_table_is_a_position_too(engine: Engine, new_source: NewSource) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer)")
    first = new_source(start_at="now").fetch_changes({}, 9)
    run(engine, "INSERT INTO t VALUES (1, 1)")
    later = new_source(start_at="now").fetch_changes(json.loads(json.dumps(first.next_checkpoint)), 9)
    assert [record["id"] for record in later.records] == [1]


def test_a_checkpoint_of_an_older_version_goes_on(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c timestamp)",
        *(f"INSERT INTO t VALUES ({i}, '2026-01-01 00:00:0{i // 2}')" for i in range(6)),
    )
    source = new_source()
    result = source.fetch_changes({"cursor": ["2026-01-01T00:00:01", 2]}, 9)
    assert [record["id"] for record in result.records] == [3, 4, 5]
    idle = source.fetch_changes({"cursor": ["2026-01-01T00:00:02", 5]}, 9)
    assert idle.next_checkpoint == {"cursor": ["2026-01-01T00:00:02", 5]}


def test_partitions_share_every_row_once(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id varchar(20) PRIMARY KEY, n integer, c integer)",
        *(f"INSERT INTO t VALUES ('key {i}', {i - 20}, {i})" for i in range(60)),
    )
    for pk in ("id", "n"):
        whole = new_source(pk_columns=[pk])
        shares = [[record["n"] for record in everything(whole.partitioned(i, 3), 4)] for i in range(3)]
        assert sorted(n for share in shares for n in share) == list(range(-20, 40))
        assert all(len(share) > 5 for share in shares)


@pytest.mark.parametrize("key", [["n"], ["n", "m"]])
def test_a_row_whose_key_is_null_belongs_to_one_share(key: list[str], engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c integer, n integer, m integer)",
        "INSERT INTO t VALUES (0, 0, NULL, NULL), (1, 1, 1, NULL), (2, 2, 2, 2)",
    )
    shares = [everything(new_source(pk_columns=key, partition=(share, 3)), 1) for share in range(3)]
    assert sorted(record["id"] for share in shares for record in share) == [0, 1, 2]


def test_a_rare_share_behind_thousands_of_others_rows_is_found_in_two_ticks(
    engine: Engine, new_source: NewSource
) -> None:
    share = Partition(0, 2)
    names = [f"key {number}" for number in range(13_000)]
    others = [name for name in names if not share.takes([name])][:6_000]
    ours = next(name for name in names if share.takes([name]))
    run(engine, "CREATE TABLE t (id varchar(20) PRIMARY KEY, c integer)")
    rows = ", ".join(f"('{name}', {number})" for number, name in enumerate([*others, ours]))
    run(engine, f"INSERT INTO t VALUES {rows}", "CREATE INDEX by_c ON t (c, id)")
    source = new_source(partition=(0, 2))
    poller = PollTrigger(name="p", source=source, checkpoint_store=MemoryStateStore(), batch_size=10)
    found: list[RowChange] = []
    for _ in range(2):
        poller.run(timer=None, handler=found.extend)
    assert [change.pk["id"] for change in found] == [ours]


# A changing schema


def test_a_new_column_is_seen_without_a_restart(engine: Engine, new_source: NewSource) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer)", "INSERT INTO t VALUES (1, 1)")
    source = new_source()
    seen = [source.fetch_changes({}, 5) for _ in range(7)]  # often enough for a driver to prepare the statement
    run(engine, "ALTER TABLE t ADD COLUMN d decimal(10, 2)", "INSERT INTO t VALUES (2, 2, 1.5)")
    records = source.fetch_changes(seen[-1].next_checkpoint, 5).records
    assert records == [{"id": 2, "c": 2, "d": Decimal("1.50")}]


def test_a_dropped_column_is_gone_from_the_records(engine: Engine, new_source: NewSource) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer, d integer)", "INSERT INTO t VALUES (1, 1, 1)")
    source = new_source()
    for _ in range(7):
        source.fetch_changes({}, 5)
    run(engine, "ALTER TABLE t DROP COLUMN d")
    assert source.fetch_changes({}, 5).records == [{"id": 1, "c": 1}]


def test_a_dropped_column_that_is_asked_for_is_an_error_of_the_definition(
    engine: Engine, new_source: NewSource
) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer, d integer)", "INSERT INTO t VALUES (1, 1, 1)")
    source = new_source(columns=["d"])
    source.fetch_changes({}, 5)
    run(engine, "ALTER TABLE t DROP COLUMN d")
    with pytest.raises(SourceConfigurationError, match=r"['\"]d['\"]"):
        source.fetch_changes({}, 5)


# Bad input


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"table": "nowhere"}, "nowhere"),
        ({"table": "t; DROP TABLE t"}, "DROP TABLE"),
        ({"schema": "nowhere"}, "t|nowhere"),
        ({"cursor_column": "nothing"}, "'nothing'.*'id'"),
        ({"pk_columns": ["nothing"]}, "'nothing'"),
        ({"columns": ["nothing"]}, "'nothing'"),
        ({"deleted_column": "nothing"}, "'nothing'"),
        ({"where": "nothing = 1"}, "nothing"),
        ({"where": "id = = 1"}, "syntax|="),
        ({"query": "SELECT id FROM t"}, "'c'"),
        ({"query": "SELEC id, c FROM t"}, "syntax|SELEC"),
    ],
)
def test_a_definition_that_does_not_fit_says_why(
    engine: Engine, new_source: NewSource, changes: dict[str, Any], reason: str
) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer)", "INSERT INTO t VALUES (1, 1)")
    source = new_source(**changes)
    with pytest.raises(SourceConfigurationError, match=reason):
        source.validate()
    with pytest.raises(SourceConfigurationError, match=reason):
        source.fetch_changes({}, 5)
    assert len(everything(new_source(), 5)) == 1


def test_a_page_has_at_least_one_row(new_source: NewSource) -> None:
    with pytest.raises(SourceConfigurationError, match="at least one row"):
        new_source().fetch_changes({}, 0)


@pytest.mark.parametrize("server", ["postgres_url", "mariadb_url"])
def test_an_unreachable_database_may_come_back(request: pytest.FixtureRequest, server: str) -> None:
    from sqlalchemy import make_url

    url = make_url(request.getfixturevalue(server)).set(port=1).render_as_string(hide_password=False)
    provider = EngineProvider()
    source = SqlAlchemySource(url=url, table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider)
    with pytest.raises(FetchError, match="cannot be reached") as failed:
        source.fetch_changes({}, 1)
    assert failed.value.transient
    provider.dispose_all()


@pytest.mark.parametrize("server", ["postgres_url", "mariadb_url"])
def test_a_wrong_password_does_not_pass_by_itself_and_is_not_shown(request: pytest.FixtureRequest, server: str) -> None:
    from sqlalchemy import make_url

    url = make_url(request.getfixturevalue(server)).set(password="sesame-7").render_as_string(hide_password=False)
    provider = EngineProvider()
    source = SqlAlchemySource(url=url, table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider)
    with pytest.raises(FetchError, match="refuses the login: check user, password") as failed:
        source.fetch_changes({}, 1)
    assert not failed.value.transient
    error: BaseException | None = failed.value
    while error is not None:
        assert "sesame-7" not in f"{error!s}{error!r}"
        error = error.__cause__ or error.__context__
    provider.dispose_all()


# Indexes


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"])
def test_a_missing_index_is_told_once_with_the_statement_that_helps(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, provider: EngineProvider, database: str
) -> None:
    url = request.getfixturevalue(f"{database}_database")
    engine = provider.get_engine(DbConfig(connection_url=url))
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer)")

    def warned(**arguments: Any) -> list[str]:
        caplog.clear()
        source = SqlAlchemySource(url=url, table="t", pk_columns=["id"], engine_provider=provider, **arguments)
        for _ in range(2):
            source.fetch_changes({}, 1)
        return [record.getMessage() for record in caplog.records if "index" in record.getMessage().lower()]

    with caplog.at_level(logging.WARNING):
        (message,) = warned(cursor_column="c")
        assert warned(cursor_column="id") == []
        run(engine, message[message.index("CREATE INDEX") :])
        assert warned(cursor_column="c") == []


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"])
def test_a_page_is_an_index_range_wherever_it_begins(
    request: pytest.FixtureRequest, provider: EngineProvider, database: str
) -> None:
    url = request.getfixturevalue(f"{database}_database")
    engine = provider.get_engine(DbConfig(connection_url=url))
    # SQLite makes no such range where the key is the row's own number.
    run(engine, "CREATE TABLE t (id integer NOT NULL, c integer, pad varchar(100))", "CREATE INDEX i ON t (c, id)")
    with engine.begin() as connection:
        rows = [{"id": i, "c": i // 1000, "pad": "x" * 100} for i in range(20_000)]  # long ties
        connection.execute(text("INSERT INTO t VALUES (:id, :c, :pad)"), rows)
    source = SqlAlchemySource(
        url=url, table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider, in_flight="ignore"
    )
    if database == "postgres":
        run(engine, "ANALYZE t")
    last = source.fetch_changes({"cursor": [19, 19_899]}, 10)
    assert [record["id"] for record in last.records] == list(range(19_900, 19_910))
    assert _rows_touched(engine, source) < 200


NEAR_THE_END = Position((19, 19_899))


def _rows_touched(engine: Engine, source: SqlAlchemySource) -> int:
    """How many rows the database looks at for a page near the end."""
    plan = source._plan()
    with engine.connect() as connection:
        match engine.dialect.name:
            case "mysql":
                connection.execute(text("FLUSH STATUS"))
                connection.execute(plan.page(NEAR_THE_END), _values(plan)).fetchall()
                status = connection.execute(text("SHOW STATUS LIKE 'Handler_read%'")).all()
                return sum(int(count) for _, count in status)
            case "sqlite":
                shown = _explained(connection, plan, "EXPLAIN QUERY PLAN")
                assert shown[0][3] == "SEARCH t USING INDEX i ((c,id)>(?,?))", shown
                assert len(shown) == 1, shown  # no sorting
                return 11
            case _:
                shown = _explained(connection, plan, "EXPLAIN (ANALYZE, FORMAT JSON)")[0][0]
                scan = shown[0]["Plan"]["Plans"][0]
                assert scan["Node Type"] == "Index Scan", shown
                assert "ROW(c, id) > ROW(" in scan["Index Cond"], shown
                return int(scan["Actual Rows"]) + int(scan.get("Rows Removed by Filter", 0))


def _explained(connection: Connection, plan: Plan, explain: str) -> Any:
    @event.listens_for(connection, "before_cursor_execute", retval=True)
    def ask(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_others: Any) -> tuple[str, Any]:
        return f"{explain} {statement}", parameters

    return connection.execute(plan.page(NEAR_THE_END), _values(plan)).cursor.fetchall()


def _values(plan: Plan) -> dict[str, Any]:
    return {**plan.parameters(NEAR_THE_END), "azfdb_limit": 11}


def test_columns_of_one_name_are_refused(postgres_database: str, provider: EngineProvider) -> None:
    query = "SELECT 1 AS id, 2 AS c, 3 AS id"
    source = SqlAlchemySource(
        url=postgres_database, query=query, cursor_column="c", pk_columns=["id"], engine_provider=provider
    )
    with pytest.raises(SourceConfigurationError, match="several columns named 'id'"):
        source.validate()


def test_a_value_that_is_not_of_its_declared_type_comes_as_it_is(
    sqlite_database: str, provider: EngineProvider
) -> None:
    engine = provider.get_engine(DbConfig(connection_url=sqlite_database))
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c datetime)",
        "INSERT INTO t VALUES (1, 'soon'), (2, '2026-01-01')",
    )
    source = SqlAlchemySource(
        url=sqlite_database, table="t", cursor_column="c", pk_columns=["id"], engine_provider=provider
    )
    assert [record["c"] for record in everything(source, 5)] == [dt.datetime(2026, 1, 1), "soon"]  # noqa: DTZ001
