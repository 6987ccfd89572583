"""From the second page on, PostgreSQL's values travel in their binary form: nobody may notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import SqlAlchemySource
from azure_functions_db.core.types import CheckpointJson, RawRecord

COLUMNS = {
    "flag": ("boolean", "true"),
    "small": ("smallint", "-32768"),
    "big": ("bigint", "9223372036854775807"),
    "words": ("text", "E'caf\\u00e9 \\n \\U0001F600'"),
    "short": ("varchar(9)", "'%s :x'"),
    "raw": ("bytea", r"'\x00ff'"),
    "ratio": ("double precision", "0.1"),
    "day": ("date", "'0001-01-01'"),
    "local": ("timestamp", "'2026-03-29 02:30:00.000001'"),
    "moment": ("timestamptz", "'2026-03-29 02:30:00.999999+05:30'"),
    "uuid": ("uuid", "'00000000-0000-0000-0000-0000000000ff'"),
    "nothing": ("text", "NULL"),
}
ODD = {"rounded": ("real", "0.1"), "price": ("numeric", "1.10"), "document": ("jsonb", "'{\"a\": [1]}'")}


@pytest.fixture
def execute(postgres_database: str) -> Iterator[Callable[[str], None]]:
    engine = create_engine(postgres_database)

    def execute(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement.replace(":", r"\:")))

    yield execute
    engine.dispose()


def fill(execute: Callable[[str], None], columns: dict[str, tuple[str, str]]) -> None:
    declared = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    values = ", ".join(value for _, value in columns.values())
    execute(f"CREATE TABLE things (id int PRIMARY KEY, {declared})")
    execute(f"INSERT INTO things SELECT n, {values} FROM generate_series(1, 4) AS n")


def read_one_by_one(source: SqlAlchemySource, count: int) -> list[RawRecord]:
    checkpoint, found = CheckpointJson(), list[RawRecord]()
    for _ in range(count):
        result = source.fetch_changes(checkpoint, 1)
        checkpoint = result.next_checkpoint
        found += result.records
    return found


def new_source(url: str) -> SqlAlchemySource:
    return SqlAlchemySource(url=url, table="things", cursor_column="id", pk_columns=["id"])


@pytest.mark.parametrize("columns", [COLUMNS, ODD])
def test_every_page_holds_the_same_values(
    postgres_database: str, execute: Callable[[str], None], columns: dict[str, tuple[str, str]]
) -> None:
    fill(execute, columns)
    first, *others = read_one_by_one(new_source(postgres_database), 4)
    assert len(others) == 3
    for other in others:
        assert {**other, "id": 1} == first
        assert [type(value) for value in other.values()] == [type(value) for value in first.values()]


def test_a_column_of_another_kind_that_a_migration_adds_is_read_right(
    postgres_database: str, execute: Callable[[str], None]
) -> None:
    fill(execute, COLUMNS)
    source = new_source(postgres_database)
    checkpoint = source.fetch_changes({}, 1).next_checkpoint
    assert source.fetch_changes(checkpoint, 1).records[0]["id"] == 2
    execute("CREATE TYPE mood AS ENUM ('fine')")
    execute("ALTER TABLE things ADD COLUMN mood mood DEFAULT 'fine'")
    [record] = source.fetch_changes(checkpoint, 1).records
    assert record["mood"] == "fine"
