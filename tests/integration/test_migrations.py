"""A cursor column that a migration changes while a poller runs: no row is lost, none comes for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import DbConfig, SqlAlchemySource

if TYPE_CHECKING:
    from azure_functions_db.core.types import CheckpointJson

CHANGES: dict[str, tuple[str, str, str, Callable[[int], str]]] = {
    "more digits": ("numeric(10, 2)", "1", "numeric(12, 4)", lambda n: f"100 + {n} / 10000.0"),
    "fractions of a second": ("timestamp(0)", "'2025-01-01'", "timestamp", lambda n: f"'2026-01-01 00:00:00.0{n}7'"),
    "a wider float": ("real", "1", "double precision", lambda n: f"1000 + {n} / 1000.0"),
    "a narrower float": ("double precision", "1", "real", lambda n: f"1000 + {n} / 1000.0"),
    "a zone": ("timestamp", "'2025-01-01'", "timestamptz", lambda n: f"'2026-01-01 00:00:00.0{n}7'"),
    "another type": (
        "varchar(36)",
        "'00000000-0000-0000-0000-000000000000'",
        "uuid USING changed::uuid",
        lambda n: f"'ffffffff-0000-0000-0000-0000000000{n}'",
    ),
}  # fmt: skip


@pytest.fixture
def execute(postgres_database: str) -> Iterator[Callable[[str], None]]:
    engine = create_engine(postgres_database)

    def execute(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement.replace(":", r"\:")))

    yield execute
    engine.dispose()


class Reader:
    """Reads row by row from where it stands."""

    def __init__(self, source: SqlAlchemySource) -> None:
        self._source = source
        self._checkpoint: CheckpointJson = {}

    def read(self, most: int) -> list[int]:
        found = list[int]()
        for _ in range(most):
            result = self._source.fetch_changes(self._checkpoint, 1)
            self._checkpoint = result.next_checkpoint
            found += [record["id"] for record in result.records]
        return found


@pytest.mark.parametrize("prepares", [True, False], ids=["prepared", "through a pooler"])
@pytest.mark.parametrize("of", [{"table": "things"}, {"query": "SELECT * FROM things"}], ids=["table", "query"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_row_comes_once_when_the_cursor_gets(
    postgres_database: str, execute: Callable[[str], None], change: str, of: dict[str, Any], prepares: bool
) -> None:
    before, value, after, later = CHANGES[change]
    execute(f"CREATE TABLE things (id int PRIMARY KEY, changed {before} NOT NULL)")
    execute(f"INSERT INTO things SELECT n, {value} FROM generate_series(1, 9) AS n")
    arguments: dict[str, Any] = {} if prepares else {"prepare_threshold": None}
    config = DbConfig(connection_url=postgres_database, connect_args=arguments)
    reader = Reader(SqlAlchemySource(db_config=config, cursor_column="changed", pk_columns=["id"], **of))
    assert reader.read(7) == [1, 2, 3, 4, 5, 6, 7]
    execute(f"ALTER TABLE things ALTER changed TYPE {after}")
    for number in range(20, 26):
        execute(f"INSERT INTO things VALUES ({number}, {later(number)})")
    assert reader.read(12) == [8, 9, 20, 21, 22, 23, 24, 25]
