"""Tables are read once, and again when a migration has changed them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, Table, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.sql import reflection as tables
from azure_functions_db.sql.reflection import refreshed, table_of, table_with, unknown_columns, with_current_table
from azure_functions_db.sql.transactions import ambient_transaction

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    run(made, "CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)", "INSERT INTO orders VALUES (1, 10)")
    yield made
    made.dispose()


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each table that was read from the database's catalogue."""
    seen: list[str] = []
    reflected = tables._reflected

    def noted(engine: Engine, name: str, schema: str | None) -> Table:
        seen.append(name)
        return reflected(engine, name, schema)

    monkeypatch.setattr(tables, "_reflected", noted)
    return seen


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def rows(engine: Engine) -> list[dict[str, Any]]:
    """Read the table by the names of its columns as they are known."""

    def read(table: Table) -> list[dict[str, Any]]:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(select(table)).mappings()]

    return with_current_table(engine, "orders", None, read)


def test_a_table_is_read_once_however_many_threads_want_it(engine: Engine, readings: list[str]) -> None:
    start = Barrier(8)

    def wanted(_: int) -> Table:
        start.wait()
        return table_of(engine, "orders")

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(wanted, range(8)))
    assert len(found) == 1
    assert readings == ["orders"]


def test_an_unknown_table_is_named(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="no table 'nowhere'") as caught:
        table_of(engine, "nowhere")
    assert caught.value.table == "nowhere"


def test_a_table_that_was_unknown_is_found_once_it_is_there(engine: Engine) -> None:
    with pytest.raises(ConfigurationError):
        table_of(engine, "late")
    run(engine, "CREATE TABLE late (id INTEGER PRIMARY KEY)")
    assert table_of(engine, "late").columns.keys() == ["id"]


def test_a_schema_tells_tables_of_one_name_apart(postgres_database: str) -> None:
    engine = create_engine(postgres_database)
    run(engine, "CREATE SCHEMA other", "CREATE TABLE t (here INTEGER)", "CREATE TABLE other.t (there INTEGER)")
    assert table_of(engine, "t").columns.keys() == ["here"]
    assert table_of(engine, "t", "other").columns.keys() == ["there"]
    with pytest.raises(ConfigurationError, match=r"no table 'other\.x'"):
        table_of(engine, "x", "other")
    run(engine, "DROP SCHEMA other CASCADE")
    engine.dispose()


def test_a_dropped_column_heals(engine: Engine, readings: list[str]) -> None:
    assert rows(engine) == [{"id": 1, "total": 10}]
    run(engine, "ALTER TABLE orders DROP COLUMN total")
    assert rows(engine) == [{"id": 1}]
    assert rows(engine) == [{"id": 1}]
    assert readings == ["orders", "orders"]


def test_a_renamed_column_heals(engine: Engine) -> None:
    rows(engine)
    run(engine, "ALTER TABLE orders RENAME COLUMN total TO amount")
    assert rows(engine) == [{"id": 1, "amount": 10}]


def test_an_added_column_is_found_when_it_is_asked_for(engine: Engine, readings: list[str]) -> None:
    table_of(engine, "orders")
    run(engine, "ALTER TABLE orders ADD COLUMN note VARCHAR(20)")
    assert unknown_columns(table_with(engine, "orders", None, ["id", "note"]), ["note"]) == []
    table_with(engine, "orders", None, ["id", "note"])
    assert readings == ["orders", "orders"]


def test_columns_that_are_nowhere_are_told_in_their_order(engine: Engine) -> None:
    table = table_with(engine, "orders", None, ["zig", "id", "zag"])
    assert unknown_columns(table, ["zig", "id", "zag"]) == ["zig", "zag"]


def test_many_threads_that_notice_a_migration_read_the_table_once_more(engine: Engine, readings: list[str]) -> None:
    old = table_of(engine, "orders")
    run(engine, "ALTER TABLE orders ADD COLUMN note VARCHAR(20)")
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: refreshed(engine, old), range(8)))
    assert len(found) == 1
    assert readings == ["orders", "orders"]


def test_a_failure_that_no_migration_explains_is_not_tried_again(engine: Engine) -> None:
    tries: list[Table] = []

    def work(table: Table) -> None:
        tries.append(table)
        run(engine, "SELECT no_such_column FROM orders")

    with pytest.raises(DBAPIError):
        with_current_table(engine, "orders", None, work)
    assert len(tries) == 1


def test_an_error_of_another_kind_is_not_tried_again(engine: Engine, readings: list[str]) -> None:
    with pytest.raises(DBAPIError):
        with_current_table(engine, "orders", None, lambda _: run(engine, "INSERT INTO orders VALUES (1, 1)"))
    assert readings == ["orders"]


def test_a_table_that_was_dropped_is_named(engine: Engine) -> None:
    rows(engine)
    run(engine, "DROP TABLE orders")
    with pytest.raises(ConfigurationError, match="no table 'orders'"):
        rows(engine)


def test_inside_a_shared_transaction_no_second_connection_is_taken(engine: Engine) -> None:
    taken = []
    event.listen(engine, "checkout", lambda *_: taken.append(1))
    with ambient_transaction(engine):
        table_of(engine, "orders")
    assert taken == [1]


def test_work_inside_a_shared_transaction_is_not_done_twice(engine: Engine) -> None:
    table_of(engine, "orders")
    run(engine, "ALTER TABLE orders DROP COLUMN total")
    tries: list[Table] = []

    def work(table: Table) -> None:
        tries.append(table)
        connection.execute(select(table))

    with pytest.raises(DBAPIError), ambient_transaction(engine) as connection:
        with_current_table(engine, "orders", None, work)
    assert len(tries) == 1
