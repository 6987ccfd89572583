"""Every value of the log is the one that `SqlAlchemySource` and `DbReader` give for the same column."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, exc, text

from azure_functions_db import DbConfig, DbReader, EngineProvider, MySqlBinlogSource, SqlAlchemySource
from tests.conftest import temporary_database
from tests.integration.binlog_servers import KINDS, OwnServer, own_server

DOCUMENT = '{"a": 1.10, "b": [1, 2, null, true, "x"], "c": {"d": -1}, "e": 18446744073709551615, "f": 1e20, "é": "ü"}'
BOTH = [
    ("double", "0.1"), ("double(10,3)", "12345.6789"), ("double", "-1.7976931348623157e308"), ("float", "0.1"),
    ("float", "16777217"), ("float", "1e-30"), ("float", "3.4e38"), ("float(10,3)", "12345.678"),
    ("decimal(65,30)", "-1.1"), ("decimal(5,0)", "-99999"), ("decimal(3,3)", "-0.001"), ("decimal(10,3)", "0"),
    ("decimal(65,30)", "12345678901234567890123456789012345.123456789012345678901234567891"),
    ("decimal(18,9)", "-123456789.000000001"), ("time(3)", "'10:00:00.5'"), ("time(5)", "'23:59:59.99999'"),
    ("time", "'-26:00:01'"), ("time", "'-00:00:01'"), ("time(1)", "'-01:00:00.5'"), ("time(6)", "'838:59:59'"),
    ("bit(1)", "b'1'"), ("bit(10)", "b'1010101010'"), ("bit(64)", "18446744073709551615"), ("year", "2026"),
    ("year", "0"), ("year", "1901"), ("enum('b','a','é')", "'é'"), ("enum('b','a')", "''"),
    ("set('x','y')", "'x,y'"), ("set('x','y')", "''"), ("geometry", "ST_GeomFromText('POINT(1 2)')"),
    ("point", "ST_GeomFromText('POINT(1 2)')"), ("date", "'0000-00-00'"), ("date", "'9999-12-31'"),
    ("datetime", "'0000-00-00'"), ("datetime(3)", "'2026-00-00'"), ("datetime(1)", "'2026-01-02 03:04:05.6'"),
    ("datetime(6)", "'9999-12-31 23:59:59.999999'"), ("timestamp NULL", "'0000-00-00'"),
    ("timestamp(2) NULL", "'2026-01-02 03:04:05.67'"), ("timestamp(6) NULL", "'2026-06-05 01:02:03.000004'"),
    ("json", f"'{DOCUMENT}'"), ("json", "'null'"), ("json", "'[]'"), ("json", "NULL"), ("json", "'\"x\"'"),
    ("json", "'12'"), ("binary(4)", "x'01'"), ("binary(4)", "x''"), ("binary(16)", "x'01020304'"),
    ("varbinary(3)", "x'00'"), ("char(5) CHARACTER SET latin1", "'é '"), ("char(5) CHARACTER SET latin1", "x'8141'"),
    ("char(255)", "'é'"), ("varchar(300)", "'abc'"), ("varchar(5000)", "'d'"), ("char(9) COLLATE utf8mb4_bin", "'ß'"),
    ("text CHARACTER SET ucs2", "'ü'"), ("text CHARACTER SET utf16", "'😀'"), ("text CHARACTER SET utf32", "'😀'"),
    ("text CHARACTER SET utf16le", "'😀'"), ("varchar(9) CHARACTER SET sjis", "'日本'"),
    ("varchar(9) CHARACTER SET gbk", "'中文'"), ("varchar(9) CHARACTER SET koi8r", "'да'"), ("tinytext", "'x'"),
    ("mediumtext", "'y'"), ("tinyblob", "x'00'"), ("mediumblob", "x'01'"), ("longblob", "x'ff'"),
    ("tinyint(1)", "1"), ("tinyint unsigned zerofill", "200"), ("tinyint", "-1"), ("smallint unsigned", "65535"),
    ("mediumint unsigned", "16777215"), ("mediumint", "-8388608"), ("int unsigned", "4294967295"), ("int", "-5"),
    ("bigint", "-9223372036854775808"), ("bigint unsigned", "18446744073709551615"), ("int", "NULL"),
    ("int AS (1 + 1) VIRTUAL", "DEFAULT"), ("int AS (1 + 1) STORED", "DEFAULT"), ("int INVISIBLE", "5"),
]  # fmt: skip
OWN = {
    "mariadb": [
        ("uuid", "'123e4567-e89b-12d3-a456-426614174000'"), ("uuid", "'01890a5d-ac96-774b-bcce-b302099a8057'"),
        ("uuid", "'f81d4fae-7dec-41d0-a765-00a0c91e6bf6'"), ("uuid", "'00000000-0000-0000-0000-000000000000'"),
        ("uuid", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"), ("uuid", "'123e4567-e89b-82d3-a456-426614174000'"),
        ("uuid", "'123e4567-e89b-62d3-a456-426614174000'"), ("inet6", "'::1'"), ("inet6", "'2001:db8::ff00:42:8329'"),
        ("inet6", "'::ffff:1.2.3.4'"), ("inet6", "'::1.2.3.4'"), ("inet4", "'1.2.3.4'"),
        ("varchar(9) COLLATE uca1400_ai_ci", "'ß'"),
    ],
    "mysql": [
        ("json", "json_array(cast('2026-01-02' AS date), cast('10:00:01.5' AS time(6)), cast('-10:00:01' AS time))"),
        ("json", "json_array(cast('2026-01-02 03:04:05' AS datetime), cast(1.10 AS decimal(5,2)), x'00ff')"),
        ("json", "json_array(cast(1 AS decimal), cast(-1.5 AS decimal(65,30)), b'1')"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(KINDS.keys() & OWN.keys()))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[OwnServer]:
    with own_server(kind) as server:
        yield server


def shown(row: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    values = (row or {}).items()
    return [
        (name, type(value).__name__, repr(sorted(value) if isinstance(value, set) else value)) for name, value in values
    ]


def test_every_value_is_what_other_readers_give_for_the_same_column(
    server: OwnServer, kind: str, provider: EngineProvider
) -> None:
    columns = BOTH + OWN[kind]
    with temporary_database(server.url, "DROP DATABASE {name}") as url, warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.SAWarning)  # of types that SQLAlchemy does not know
        engine = create_engine(url, connect_args={"init_command": "SET sql_mode = ''"})
        tables = [f"t{number}" for number in range(len(columns))]
        with engine.begin() as connection:
            for table, (declared, _) in zip(tables, columns, strict=True):
                # A year and an unsigned number before it: signs are told by the place among the numbers.
                others = "id int PRIMARY KEY, y year DEFAULT 2000, u int unsigned DEFAULT 4000000000"
                connection.exec_driver_sql(f"CREATE TABLE {table} ({others}, x {declared})")
        config = DbConfig(connection_url=url)
        options: dict[str, Any] = {"db_config": config, "engine_provider": provider, "undecodable": "text"}
        stream = MySqlBinlogSource(**options, tables=tables, snapshot="never")
        start = stream.fetch_changes({}, 1).next_checkpoint
        with engine.begin() as connection:
            for table, (_, value) in zip(tables, columns, strict=True):
                connection.exec_driver_sql(f"INSERT INTO {table} (id, x) VALUES (1, {value})")
        engine.dispose()
        streamed = stream.fetch_changes(start, 1000).records
        snapshot = MySqlBinlogSource(**options, tables=tables, snapshot="only").open()
        checkpoint: dict[str, Any] = {}
        for table, change, (declared, value) in zip(tables, streamed, columns, strict=True):
            polled = SqlAlchemySource(
                **options, table=table, cursor_column="id", pk_columns=["id"], in_flight="ignore"
            ).fetch_changes({}, 1)
            page = snapshot.fetch_changes(checkpoint, 1)
            checkpoint = page.next_checkpoint
            wanted = shown(dict(polled.records[0]))
            assert shown(change.after) == wanted, (declared, value)
            assert shown(page.records[0].after) == wanted, (declared, value)
            if declared in AS_THE_DRIVER_GIVES_THEM or "INVISIBLE" in declared or declared.startswith("time"):
                continue
            with DbReader(url=url, engine_provider=provider, table=table) as reader:
                assert shown(reader.get(pk={"id": 1})) == wanted, (declared, value)


AS_THE_DRIVER_GIVES_THEM: set[str] = set()


def test_a_time_that_is_none_of_a_day_is_told_and_its_row_goes_aside(
    server: OwnServer, provider: EngineProvider
) -> None:
    with temporary_database(server.url, "DROP DATABASE {name}") as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE t (id int PRIMARY KEY, x time)"))
        source = MySqlBinlogSource(url=url, tables=["t"], snapshot="never", engine_provider=provider)
        start = source.fetch_changes({}, 1).next_checkpoint
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1, '10:00'), (2, '25:00:00'), (3, NULL)")
        engine.dispose()
        page = source.fetch_changes(start, 10)
        assert list(page.undecodable) == [1]
        assert page.records[1].after == {"id": 2, "x": "25:00:00.000000"}
