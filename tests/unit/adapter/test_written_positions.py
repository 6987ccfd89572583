"""A position as people read and type it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from azure_functions_db import SourceConfigurationError, SqlAlchemySource

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> SqlAlchemySource:
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (region text, id integer, at timestamp, PRIMARY KEY (region, id))")
        shop.execute("CREATE INDEX by_at ON orders (at, region, id)")
        shop.execute(
            "INSERT INTO orders VALUES ('north west', 1, '2026-01-01 10:00:00'), ('x', 2, '2026-01-02 10:00:00')"
        )
    shop.close()
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    return SqlAlchemySource(
        url=url, table="orders", cursor_column="at", pk_columns=["region", "id"], in_flight="ignore"
    )


def test_a_described_position_is_parsed_to_the_same_place(source: SqlAlchemySource) -> None:
    checkpoint = source.fetch_changes({}, 1).next_checkpoint
    text = source.describe(checkpoint)
    assert text == "'at=2026-01-01 10:00:00' 'region=north west' id=1"
    assert [row["id"] for row in source.fetch_changes(source.parse(text), 10).records] == [2]


def test_the_beginning_has_a_name(source: SqlAlchemySource) -> None:
    assert source.describe({}) == "beginning"
    assert len(source.fetch_changes(source.parse("beginning"), 10).records) == 2


@pytest.mark.parametrize("text", ["", "at=2026-01-01", "at=2026-01-01 id=1", "at=2026-01-01 region=x id=one", "'at=1"])
def test_what_is_no_position_is_refused(source: SqlAlchemySource, text: str) -> None:
    with pytest.raises(SourceConfigurationError):
        source.parse(text)


def test_examining_and_describing_consume_nothing(source: SqlAlchemySource) -> None:
    assert {finding.check for finding in source.examine()} == {finding.check for finding in source.checkup()}
    assert source.backlog({}).amount == 2
    assert len(source.fetch_changes({}, 10).records) == 2
