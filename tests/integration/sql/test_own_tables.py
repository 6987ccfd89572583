"""The library's own tables are made once however many want them, and keep names apart on every database."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, insert, select, text
from sqlalchemy.exc import DBAPIError

from azure_functions_db.sql.engine import EngineProvider, engine_getter
from azure_functions_db.sql.own_tables import OwnTable, exact_text, long_text

if TYPE_CHECKING:
    from collections.abc import Iterator


def columns(dialect: str) -> list[Column[Any]]:
    return [
        Column("name", exact_text(50, dialect), primary_key=True),
        Column("content", long_text(dialect), nullable=False),
    ]


@pytest.fixture
def provider() -> Iterator[EngineProvider]:
    provider = EngineProvider()
    yield provider
    provider.dispose_all()


def new_table(url: str, provider: EngineProvider) -> OwnTable:
    return OwnTable(engine_getter(url, None, provider), "azfdb_things", None, columns)


def test_a_table_is_made_once_by_many_at_the_same_time(database_url: str, provider: EngineProvider) -> None:
    tables = [new_table(database_url, provider) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(OwnTable.create_if_missing, tables))
    assert tables[0].exists()


def test_a_table_that_was_dropped_is_made_again(database_url: str, provider: EngineProvider) -> None:
    table = new_table(database_url, provider)
    table.create_if_missing()
    table.table.drop(table.engine)
    assert not table.exists()
    table.create_if_missing()
    assert table.exists()


def test_names_that_differ_in_case_are_two_and_texts_may_be_long(database_url: str, provider: EngineProvider) -> None:
    table = new_table(database_url, provider)
    table.ensure()
    rows = [{"name": name, "content": "x" * 100_000} for name in ("a", "A")]
    with table.engine.begin() as connection:
        connection.execute(insert(table.table), rows)
        kept = connection.execute(select(table.table.c.name, table.table.c.content)).all()
    assert {name for name, _ in kept} == {"a", "A"}
    assert {len(content) for _, content in kept} == {100_000}


def test_its_ddl_makes_it(database_url: str, provider: EngineProvider) -> None:
    table = new_table(database_url, provider)
    with table.engine.begin() as connection:
        connection.execute(text(table.ddl()))
    assert table.exists()


def test_a_database_that_refuses_says_so(sqlite_database: str, provider: EngineProvider) -> None:
    new_table(sqlite_database, provider).engine.connect().close()
    read_only = f"{sqlite_database.replace('sqlite:///', 'sqlite:///file:')}?mode=ro&uri=true"
    with pytest.raises(DBAPIError):
        new_table(read_only, provider).ensure()


LOADED = """
import sys
from azure_functions_db import SqlStateStore
from azure_functions_db.ledger import DeliveredLedger
from azure_functions_db.quarantine import SqlQuarantine

url = sys.argv[1]
SqlStateStore(url=url).acquire_lease("orders", 60)
SqlQuarantine(url=url).entries()
DeliveredLedger(url=url).ddl()
print(*{name.split(".")[2] for name in sys.modules if name.startswith("sqlalchemy.dialects.")} - {"_typing"})
"""


def test_no_dialect_is_loaded_but_that_of_the_database(sqlite_database: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, sqlite_database], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["sqlite"], done.stderr
