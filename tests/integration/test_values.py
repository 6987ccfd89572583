"""Records hold what SQLAlchemy itself would hand out, whatever way their rows took: column by column, every type."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, Table, create_engine, exc, select, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from azure_functions_db.core.types import CheckpointJson

PREPARED = {
    "postgres": [
        "CREATE TYPE mood AS ENUM ('sad', 'fine')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN price AS numeric(10, 2)",
    ],
    "mariadb": [],
    "sqlite": [],
}
COLUMNS = {
    "postgres": [
        ("boolean", "true"), ("smallint", "-1"), ("bigint", "9223372036854775807"), ("numeric", "1.10"),
        ("numeric", "'NaN'"), ("numeric", "'Infinity'"), ("real", "0.1"), ("double precision", "-0.0"),
        ("double precision", "'-Infinity'"), ("money", "12.34"), ("char(5)", "'a'"), ("varchar(9)", "'é%s'"),
        ("text", "E'a\\nb'"), ("bytea", r"'\x00ff'"), ('"char"', "'x'"), ("name", "'n'"), ("date", "'2024-02-29'"),
        ("time", "'10:00:01.5'"), ("timetz", "'10:00+02'"), ("timestamp(0)", "'2026-01-01'"),
        ("timestamptz", "'2026-10-25 02:30+02'"), ("interval", "'1 mon 2 days 03:04:05.6'"),
        ("uuid", "'00000000-0000-0000-0000-0000000000ff'"), ("json", "'{\"a\": 1.10}'"), ("json", "'null'"),
        ("jsonb", "'[1, null, \"x\"]'"), ("xml", "'<a/>'"), ("inet", "'10.0.0.1/24'"), ("cidr", "'10.0.0.0/8'"),
        ("macaddr", "'08:00:2b:01:02:03'"), ("bit(3)", "B'101'"), ("varbit", "B'1'"), ("int[]", "'{1,NULL}'"),
        ("int[][]", "'{{1,2},{3,4}}'"), ("text[]", "'{a,NULL}'"), ("numeric[]", "'{1.10}'"), ("mood[]", "'{sad}'"),
        ("timestamptz[]", "'{2026-01-01}'"), ("int4range", "'[1,5)'"), ("tstzrange", "'[2026-01-01,)'"),
        ("daterange", "'empty'"), ("int4multirange", "'{[1,3)}'"), ("mood", "'fine'"), ("pair", "row(1, 'x')"),
        ("price", "1.5"), ("point", "'(1,2)'"), ("tsvector", "'a b'"), ("oid", "5"), ("pg_lsn", "'0/5'"),
        ("jsonb", "NULL"), ("text", "NULL"),
    ],
    "mariadb": [
        ("tinyint(1)", "1"), ("boolean", "true"), ("bigint unsigned", "18446744073709551615"),
        ("decimal(10,3)", "1.1"), ("float", "0.1"), ("bit(1)", "b'1'"), ("bit(10)", "b'1010101010'"),
        ("date", "'2024-02-29'"), ("datetime(6)", "'2026-01-01 00:00:00.000001'"),
        ("timestamp(6) NULL", "'2026-01-01'"),
        ("time(6)", "'10:00:00.5'"), ("year", "2026"), ("char(5)", "'a'"), ("varchar(9)", "'é%s'"), ("longtext", "'x'"),
        ("binary(4)", "x'01'"), ("varbinary(9)", "x'00ff'"), ("blob", "x'00'"), ("enum('b','a')", "'a'"),
        ("set('x','y')", "'x,y'"), ("set('x','y')", "''"), ("uuid", "'123e4567-e89b-12d3-a456-426614174000'"),
        ("inet6", "'::1'"), ("geometry", "ST_GeomFromText('POINT(1 2)')"), ("int", "NULL"),
    ],
    "sqlite": [
        ("integer", "1"), ("integer", "'abc'"), ("text", "'x'"), ("real", "1"), ("numeric(10, 2)", "1.1"),
        ("blob", "x'00ff'"), ("boolean", "1"), ("boolean", "0"), ("date", "'2024-02-29'"),
        ("datetime", "'2026-01-01T00:00:00'"), ("datetime", "'2026-01-01 00:00:00.5'"), ("time", "'10:00:00'"),
        ("json", "'{\"a\": 1}'"), ("bigint", "9223372036854775807"), ("float", "1"), ("json", "NULL"), ("date", "NULL"),
    ],
}  # fmt: skip


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'values.db'}"
    return str(request.getfixturevalue(f"{kind}_database"))


def as_sqlalchemy_gives_them(url: str, table: str) -> list[dict[str, Any]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = Table(table, MetaData(), autoload_with=connection)
        rows = [dict(row) for row in connection.execute(select(found).order_by(found.c.id)).mappings()]
    engine.dispose()
    return rows


def as_the_source_gives_them(url: str, engines: EngineProvider, table: str, count: int) -> list[dict[str, Any]]:
    source = SqlAlchemySource(
        url=url, table=table, cursor_column="id", pk_columns=["id"], in_flight="ignore", engine_provider=engines
    )
    checkpoint, records = CheckpointJson(), list[dict[str, Any]]()
    for _ in range(count):
        result = source.fetch_changes(checkpoint, 1)
        checkpoint = result.next_checkpoint
        records += [dict(record) for record in result.records]
    return records


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_value_is_the_one_that_sqlalchemy_gives(url: str, kind: str) -> None:
    engine, engines = create_engine(url), EngineProvider()
    with engine.begin() as connection:
        for statement in PREPARED[kind]:
            connection.execute(text(statement))
        for number, (declared, value) in enumerate(COLUMNS[kind]):
            row = value.replace(":", "\\:")
            connection.execute(text(f"CREATE TABLE t{number} (id int PRIMARY KEY, x {declared})"))
            connection.execute(text(f"INSERT INTO t{number} VALUES (1, {row}), (2, {row}), (3, {row})"))
    engine.dispose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.SAWarning)  # of types that SQLAlchemy does not know
        told = {
            f"{declared} {value}": (
                [(type(row["x"]), repr(row["x"])) for row in as_the_source_gives_them(url, engines, f"t{number}", 3)],
                [(type(row["x"]), repr(row["x"])) for row in as_sqlalchemy_gives_them(url, f"t{number}")],
            )
            for number, (declared, value) in enumerate(COLUMNS[kind])
        }
    engines.dispose_all()
    assert {name: ours for name, (ours, _) in told.items()} == {name: theirs for name, (_, theirs) in told.items()}
