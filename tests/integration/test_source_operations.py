"""What a source offers to operators: stretches, counts, typed rows, a check-up."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, text
from sqlalchemy.dialects import mssql, postgresql

from azure_functions_db import EngineProvider, SourceConfigurationError, SqlAlchemySource
from azure_functions_db.sources.keyset.shape import described_shape

NOON = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - the columns have no zone
TYPES = {
    "sqlite": ("DATETIME", "BLOB"),
    "postgresql": ("TIMESTAMP", "BYTEA"),
    "mysql": ("DATETIME(6)", "BLOB"),
}


def minute(number: int) -> dt.datetime:
    return NOON + dt.timedelta(minutes=number)


@pytest.fixture
def source(database_url: str) -> Iterator[SqlAlchemySource]:
    """Ten rows, one a minute."""
    engine = create_engine(database_url)
    moment, binary = TYPES[engine.dialect.name]
    with engine.begin() as connection:
        connection.execute(
            text(f"CREATE TABLE readings (id INTEGER PRIMARY KEY, at {moment}, amount DECIMAL(9, 2), raw {binary})")
        )
        rows = [{"id": n, "at": minute(n).isoformat(sep=" ", timespec="microseconds")} for n in range(10)]
        connection.execute(text("INSERT INTO readings (id, at) VALUES (:id, :at)"), rows)
    engine.dispose()
    engines = EngineProvider()
    yield SqlAlchemySource(
        url=database_url, table="readings", cursor_column="at", pk_columns=["id"], engine_provider=engines
    )
    engines.dispose_all()


def ids(source: Any, checkpoint: dict[str, Any] | None = None, limit: int = 100) -> list[int]:
    return [record["id"] for record in source.fetch_changes(checkpoint or {}, limit).records]


def test_a_stretch_has_both_its_ends_and_goes_on_from_a_checkpoint(source: SqlAlchemySource) -> None:
    stretch = source.ranged(minute(2), minute(6))
    first = stretch.fetch_changes({}, 2)
    assert [record["id"] for record in first.records] == [2, 3]
    assert ids(stretch, first.next_checkpoint) == [4, 5, 6]
    assert stretch.count_changes({}) == 5
    assert stretch.count_changes(first.next_checkpoint) == 3
    assert ids(source) == list(range(10)), "the source itself is as it was"
    assert stretch.source_descriptor == source.source_descriptor, "events keep their ids"


def test_a_stretch_may_be_open_and_shared_out(source: SqlAlchemySource) -> None:
    assert ids(source.ranged(None, minute(1))) == [0, 1]
    assert ids(source.ranged(minute(8), None)) == [8, 9]
    shares = [ids(source.ranged(minute(1), minute(8)).partitioned(index, 3)) for index in range(3)]
    assert sorted(number for share in shares for number in share) == list(range(1, 9))


def test_counting_can_stop_early(source: SqlAlchemySource) -> None:
    assert source.count_changes({}) == 10
    assert source.count_changes({}, most=4) == 4


def test_a_row_from_json_has_its_types_again(source: SqlAlchemySource) -> None:
    written = {"id": 7, "at": "2026-01-01T12:07:00", "amount": "1.50", "raw": "AAE=", "other": "x"}
    typed = source.revived(written)
    assert typed == {"id": 7, "at": minute(7), "amount": Decimal("1.50"), "raw": b"\x00\x01", "other": "x"}
    assert source.revived({"at": "soon"}) == {"at": "soon"}
    with pytest.raises(SourceConfigurationError, match="'soon' is no value of at"):
        source.revived({"at": "soon"}, strict=True)


def test_a_check_up_names_what_is_missing(source: SqlAlchemySource) -> None:
    found = {finding.check: finding for finding in source.checkup()}
    assert found["index"].grade == "warning"
    assert found["index"].remedy is not None
    assert found["index"].remedy.startswith("CREATE INDEX")
    assert "readings" in found["index"].text or "no index" in found["index"].text
    assert (found["NULL cursors"].grade, found["database clock"].grade) == ("ok", "ok")
    assert "microseconds" in found["cursor"].text


@pytest.mark.parametrize(
    ("declared", "grade", "word"),
    [
        ("DATETIME", "warning", "whole seconds"),
        ("DATETIME(3)", "ok", "milliseconds"),
        ("DATE", "warning", "whole days"),
        ("VARCHAR(30)", "warning", "collation"),
        ("DOUBLE", "note", "floating point"),
        ("BIGINT", "ok", "exact"),
    ],
)
def test_a_check_up_judges_the_cursor(mariadb_database: str, declared: str, grade: str, word: str) -> None:
    engines = EngineProvider()
    engine = create_engine(mariadb_database)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE marks (id INTEGER PRIMARY KEY, mark {declared})"))
    engine.dispose()
    source = SqlAlchemySource(
        url=mariadb_database, table="marks", cursor_column="mark", pk_columns=["id"], engine_provider=engines
    )
    [cursor] = [finding for finding in source.checkup() if finding.check == "cursor"]
    engines.dispose_all()
    assert cursor.grade == grade
    assert word in cursor.text


def key_finding(url: str, *statements: str) -> str | None:
    """Return what a check-up says about the key ``code`` of a table."""
    engines, engine = EngineProvider(), create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
    source = SqlAlchemySource(
        url=url, table="parts", cursor_column="version", pk_columns=["code"], engine_provider=engines
    )
    found = {finding.check: finding for finding in source.checkup()}
    engines.dispose_all()
    return f"{found['key'].text} → {found['key'].remedy}" if "key" in found else None


@pytest.mark.parametrize(
    "unique",
    [
        ["CREATE TABLE parts (version INTEGER, code VARCHAR(20){}, UNIQUE (code))"],
        ["CREATE TABLE parts (version INTEGER, code VARCHAR(20){})", "CREATE UNIQUE INDEX by_code ON parts (code)"],
    ],
    ids=["constraint", "index"],
)
def test_a_unique_column_is_a_key_where_it_is_never_null(database_url: str, unique: list[str]) -> None:
    said = key_finding(database_url, *(each.format("") for each in unique))
    assert said == (
        "several rows may share a value of code, or have NULL there: of those with one cursor value, one is read"
        " → a unique index on (code), NOT NULL"
    )
    table = ["DROP TABLE parts", *(each.format(" NOT NULL") for each in unique)]
    assert key_finding(database_url, *table) is None


def test_a_primary_key_is_a_key_whatever_is_said_of_null(database_url: str) -> None:
    assert key_finding(database_url, "CREATE TABLE parts (version INTEGER, code INTEGER PRIMARY KEY)") is None


def test_to_sql_server_null_is_a_value_that_a_unique_column_has_once() -> None:
    shape = described_shape(Table("parts", MetaData(), Column("code", Integer, unique=True)))
    assert shape.is_key(["code"], mssql.dialect())  # type: ignore[no-untyped-call]
    assert not shape.is_key(["code"], postgresql.dialect())  # type: ignore[no-untyped-call]
