"""What a process that has just started sends before it has its first row, by the account of the servers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text

from azure_functions_db import DbConfig, DbReader, EngineProvider, MemoryStateStore, PollTrigger, SqlAlchemySource

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine


def run(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def orders(url: str, stamp: str = "TIMESTAMP NOT NULL") -> None:
    run(
        url,
        f"CREATE TABLE orders (id INTEGER PRIMARY KEY, total NUMERIC(10, 2), note VARCHAR(20), updated_at {stamp})",
        "CREATE INDEX ix_orders ON orders (updated_at, id)",
        "INSERT INTO orders VALUES (1, 9.5, 'first', '2026-01-01 00:00:00')",
    )


def listening(provider: EngineProvider, url: str, listen: Callable[[Any], None]) -> Engine:
    """Return the engine that everything will use; each of its connections is handed over as soon as it is open."""
    engine = provider.get_engine(DbConfig(connection_url=url))

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        connection = dialect.connect(*arguments, **parameters)
        listen(connection)
        return connection

    return engine


@pytest.fixture
def postgres_log(postgres_database: str, provider: EngineProvider) -> list[str]:
    """The statements that PostgreSQL writes into its log, which it is told to send to the client as well."""
    name = postgres_database.rpartition("/")[2]
    orders(postgres_database, "TIMESTAMPTZ NOT NULL")
    run(
        postgres_database,
        *(f"ALTER DATABASE {name} SET {one}" for one in ("log_statement = 'all'", "client_min_messages = log")),
    )
    log: list[str] = []
    listening(
        provider,
        postgres_database,
        lambda connection: connection.add_notice_handler(lambda notice: log.append(notice.message_primary)),
    )
    return log


def tick(url: str, provider: EngineProvider, **options: Any) -> list[Any]:
    source = SqlAlchemySource(
        url=url, engine_provider=provider, table="orders", cursor_column="updated_at", pk_columns=["id"], **options
    )
    handled: list[Any] = []
    trigger = PollTrigger(name="orders", source=source, checkpoint_store=MemoryStateStore())
    trigger.run(timer=None, handler=handled.extend)
    return handled


def read(url: str, provider: EngineProvider) -> Any:
    row = DbReader(url=url, table="orders", engine_provider=provider).get(pk={"id": 1})
    return row and row["note"]


def test_postgres_gives_the_first_row_for_three_statements(
    postgres_database: str, provider: EngineProvider, postgres_log: list[str]
) -> None:
    assert read(postgres_database, provider) == "first"
    assert len(postgres_log) == 3, postgres_log
    assert read(postgres_database, provider) == "first"
    assert len(postgres_log) == 4, postgres_log


def test_the_first_tick_on_postgres_sends_five_statements(
    postgres_database: str, provider: EngineProvider, postgres_log: list[str]
) -> None:
    assert len(tick(postgres_database, provider)) == 1
    assert len(postgres_log) == 5, postgres_log


def test_it_sends_no_more_where_rows_are_left_behind_that_nobody_is_told_of(
    postgres_database: str, provider: EngineProvider, postgres_log: list[str]
) -> None:
    run(postgres_database, "INSERT INTO orders VALUES (2, 9.5, 'second', '2026-01-01 00:00:00')")
    postgres_log.clear()
    source = SqlAlchemySource(
        url=postgres_database, engine_provider=provider, table="orders", cursor_column="id", pk_columns=["id"]
    )
    trigger = PollTrigger(name="orders", source=source, checkpoint_store=MemoryStateStore(), batch_size=1)
    assert trigger.run(timer=None, handler=lambda _events: None) == 1
    assert len(postgres_log) == 5, postgres_log


def test_a_condition_costs_one_more_because_the_planner_is_asked_what_it_reads(
    postgres_database: str, provider: EngineProvider, postgres_log: list[str]
) -> None:
    assert len(tick(postgres_database, provider, where="total > 1")) == 1
    assert len(postgres_log) == 6, postgres_log


def test_mariadb_gives_the_first_row_for_four_statements(mariadb_database: str, provider: EngineProvider) -> None:
    orders(mariadb_database)
    opened: list[Any] = []
    listening(provider, mariadb_database, opened.append)
    assert read(mariadb_database, provider) == "first"
    assert questions(opened) == 4


def test_the_first_tick_on_mariadb_describes_its_table_once(mariadb_database: str, provider: EngineProvider) -> None:
    orders(mariadb_database, "DATETIME(6) NOT NULL")
    opened: list[Any] = []
    listening(provider, mariadb_database, opened.append)
    assert len(tick(mariadb_database, provider, in_flight="ignore")) == 1
    assert questions(opened) == 5


def questions(opened: list[Any]) -> int:
    """Return how many statements MariaDB has counted in the only session there was."""
    [connection] = opened
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
        return int(cursor.fetchone()[1]) - 1


def test_sqlite_reads_no_more_of_its_catalogue_than_sqlalchemy_does(
    sqlite_database: str, provider: EngineProvider
) -> None:
    orders(sqlite_database)
    log: list[str] = []
    listening(provider, sqlite_database, lambda connection: connection.set_trace_callback(log.append))
    assert read(sqlite_database, provider) == "first"
    described = len(log)
    assert len(tick(sqlite_database, provider)) == 1
    assert not [one for one in log[described:] if "PRAGMA" in one or "sqlite_master" in one]
