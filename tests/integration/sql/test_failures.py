"""Each meaning is checked against what the real drivers raise."""

from __future__ import annotations

import socket
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from azure_functions_db.sql.failures import (
    code_of,
    constraint_of,
    is_connection_failure,
    is_schema_change,
    is_transient,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Open(Protocol):
    def __call__(self, url: str | URL, **options: Any) -> Engine: ...


@pytest.fixture
def engine_of() -> Iterator[Open]:
    made: list[Engine] = []

    def open_engine(url: str | URL, **options: Any) -> Engine:
        made.append(create_engine(url, **options))
        return made[-1]

    yield open_engine
    for engine in made:
        engine.dispose()


@pytest.fixture
def engine(engine_of: Open, database_url: str) -> Engine:
    return engine_of(database_url)


@pytest.fixture(params=["postgres", "mariadb"])
def server_engine(request: pytest.FixtureRequest, engine_of: Open) -> Engine:
    return engine_of(request.getfixturevalue(f"{request.param}_database"))


def failure_of(engine: Engine, *statements: str) -> SQLAlchemyError:
    """Return the error that the last of the statements ends in."""
    *first, last = map(text, statements)
    if first:
        with engine.begin() as connection:
            for statement in first:
                connection.execute(statement)
    with pytest.raises(SQLAlchemyError) as caught, engine.begin() as connection:
        connection.execute(last)
    return caught.value


def meanings(error: SQLAlchemyError) -> tuple[bool, bool, bool]:
    return is_connection_failure(error), is_transient(error), is_schema_change(error)


LOGIN_REFUSED = (True, False, False)
UNREACHABLE = (True, True, False)
TRANSIENT = (False, True, False)
SCHEMA_CHANGED = (False, False, True)
NONE_OF_THEM = (False, False, False)


@pytest.mark.parametrize(
    "wrong",
    [{"password": "wrong"}, {"database": "no_such_database"}, {"username": "nobody", "password": "wrong"}],
    ids=["password", "database", "user"],
)
def test_a_refused_login_is_a_connection_failure_that_does_not_pass(
    engine_of: Open, server_engine: Engine, wrong: dict[str, Any]
) -> None:
    assert meanings(failure_of(engine_of(server_engine.url.set(**wrong)), "SELECT 1")) == LOGIN_REFUSED


def test_an_unreachable_server_may_come_back(engine_of: Open, server_engine: Engine) -> None:
    with socket.socket() as taken:  # bound but not listening: nobody else can answer there
        taken.bind(("127.0.0.1", 0))
        url = server_engine.url.set(host="127.0.0.1", port=taken.getsockname()[1])
        assert meanings(failure_of(engine_of(url), "SELECT 1")) == UNREACHABLE


def test_a_host_without_an_address_is_a_connection_failure(engine_of: Open, server_engine: Engine) -> None:
    url = server_engine.url.set(host="no-such-host.invalid")
    assert is_connection_failure(failure_of(engine_of(url), "SELECT 1"))


def test_a_session_that_was_ended_may_be_begun_again(server_engine: Engine) -> None:
    own_id, end = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:id)"),
        "mysql": ("SELECT connection_id()", "KILL :id"),
    }[server_engine.dialect.name]
    with server_engine.connect() as victim, server_engine.connect() as killer:
        killer.execute(text(end), {"id": victim.scalar(text(own_id))})
        with pytest.raises(DBAPIError) as caught:
            victim.execute(text("SELECT 1"))
    assert meanings(caught.value) == UNREACHABLE


def test_an_exhausted_pool_is_a_connection_failure_that_passes(engine_of: Open, database_url: str) -> None:
    engine = engine_of(database_url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect():
        error = failure_of(engine, "SELECT 1")
    assert meanings(error) == UNREACHABLE


def test_a_file_that_cannot_be_opened_is_a_connection_failure(engine_of: Open, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("This is no database. " * 100)
    missing = failure_of(engine_of(f"sqlite:///{tmp_path}/no/such/folder/a.db"), "SELECT 1")
    foreign = failure_of(engine_of(f"sqlite:///{tmp_path}/notes.txt"), "SELECT * FROM sqlite_master")
    assert is_connection_failure(missing)
    assert is_connection_failure(foreign)


def crossing_updates(engine: Engine) -> list[SQLAlchemyError]:
    """Return what happens to two transactions that lock the same two rows in opposite order."""
    with engine.begin() as setup:
        setup.execute(text("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)"))
        setup.execute(text("INSERT INTO accounts VALUES (1, 0), (2, 0)"))
    both_hold_one = [Event(), Event()]
    failures: list[SQLAlchemyError] = []

    def pay(first: int, second: int) -> None:
        update = text("UPDATE accounts SET balance = balance + 1 WHERE id = :id")
        try:
            with engine.begin() as connection:
                connection.execute(update, {"id": first})
                both_hold_one[first - 1].set()
                both_hold_one[second - 1].wait(10)
                connection.execute(update, {"id": second})
        except SQLAlchemyError as error:
            failures.append(error)

    threads = [Thread(target=pay, args=order) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return failures


def test_a_deadlock_is_transient(server_engine: Engine) -> None:
    assert [meanings(error) for error in crossing_updates(server_engine)] == [TRANSIENT]


def test_a_serialization_failure_is_transient(engine_of: Open, postgres_database: str) -> None:
    engine = engine_of(postgres_database, isolation_level="SERIALIZABLE")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
    count_and_add = "INSERT INTO t SELECT count(*) FROM t"
    with engine.connect() as one, engine.connect() as other:
        one.execute(text(count_and_add))
        other.execute(text(count_and_add))
        one.commit()
        with pytest.raises(OperationalError) as caught:
            other.commit()
    assert meanings(caught.value) == TRANSIENT


@pytest.mark.parametrize(
    ("database", "impatience", "lock"),
    [
        ("postgres_database", "SET lock_timeout = 1", "LOCK TABLE t"),
        ("postgres_database", "SELECT 1", "LOCK TABLE t NOWAIT"),
        ("mariadb_database", "SET innodb_lock_wait_timeout = 1", "UPDATE t SET n = 2"),
        ("sqlite_database", "PRAGMA busy_timeout = 1", "UPDATE t SET n = 2"),
    ],
)
def test_a_lock_that_is_not_had_in_time_is_transient(
    engine_of: Open, request: pytest.FixtureRequest, database: str, impatience: str, lock: str
) -> None:
    engine = engine_of(request.getfixturevalue(database))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    with engine.connect() as holder:
        holder.execute(text(lock))
        with engine.connect() as waiter:
            waiter.execute(text(impatience))
            with pytest.raises(DBAPIError) as caught:
                waiter.execute(text(lock))
    assert meanings(caught.value) == TRANSIENT


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT no_such_column FROM t",
        "SELECT * FROM no_such_table",
        "INSERT INTO t (no_such_column) VALUES (1)",
        "UPDATE t SET no_such_column = 1",
        "INSERT INTO no_such_table VALUES (1)",
    ],
)
def test_a_missing_table_or_column_is_a_schema_change(engine: Engine, statement: str) -> None:
    assert meanings(failure_of(engine, "CREATE TABLE t (n INTEGER)", statement)) == SCHEMA_CHANGED


def test_a_prepared_statement_whose_result_has_changed_is_a_schema_change(
    engine_of: Open, postgres_database: str
) -> None:
    engine = engine_of(postgres_database, connect_args={"prepare_threshold": 0})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
    with engine.connect() as reader, engine.connect() as migration:
        reader.execute(text("SELECT * FROM t"))
        reader.commit()
        migration.execute(text("ALTER TABLE t ADD COLUMN m INTEGER"))
        migration.commit()
        with pytest.raises(DBAPIError) as caught:
            reader.execute(text("SELECT * FROM t"))
    assert meanings(caught.value) == SCHEMA_CHANGED


@pytest.mark.parametrize("statement", ["SELEC 1", "INSERT INTO t VALUES (1, 2, 3, 4)"])
def test_a_mistake_is_none_of_these(engine: Engine, statement: str) -> None:
    assert meanings(failure_of(engine, "CREATE TABLE t (n INTEGER)", statement)) == NONE_OF_THEM


CONSTRAINED = (
    "CREATE TABLE parents (id INTEGER PRIMARY KEY)",
    """CREATE TABLE children (
        id INTEGER PRIMARY KEY, name VARCHAR(80) NOT NULL, age INTEGER, parent INTEGER,
        CONSTRAINT unique_name UNIQUE (name),
        CONSTRAINT age_is_positive CHECK (age > 0),
        CONSTRAINT has_parent FOREIGN KEY (parent) REFERENCES parents (id))""",
    "INSERT INTO children (id, name) VALUES (1, 'ann'), (2, 'CONSTRAINT `x` for key ''y''')",
)


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ("(3, 'ann', NULL, NULL)", "unique_name"),
        ("(3, 'CONSTRAINT `x` for key ''y''', NULL, NULL)", "unique_name"),
        ("(3, 'bob', -1, NULL)", "age_is_positive"),
        ("(3, 'bob', NULL, 99)", "has_parent"),
        ("(3, NULL, NULL, NULL)", None),
    ],
    ids=["unique", "misleading value", "check", "foreign key", "not null"],
)
def test_a_violated_constraint_is_named(server_engine: Engine, values: str, constraint: str | None) -> None:
    error = failure_of(server_engine, *CONSTRAINED, f"INSERT INTO children VALUES {values}")
    assert constraint_of(error) == constraint
    assert meanings(error) == NONE_OF_THEM


def test_sqlite_names_its_check_constraints_only(engine_of: Open, sqlite_database: str) -> None:
    engine = engine_of(sqlite_database)
    check = failure_of(engine, *CONSTRAINED, "INSERT INTO children VALUES (3, 'bob', -1, NULL)")
    unique = failure_of(engine, "INSERT INTO children VALUES (3, 'ann', NULL, NULL)")
    assert constraint_of(check) == "age_is_positive"
    assert constraint_of(unique) is None


def test_the_databases_own_code_is_told(engine: Engine) -> None:
    code = code_of(failure_of(engine, "SELECT * FROM no_such_table"))
    assert code == {"postgresql": "42P01", "mysql": "1146", "sqlite": "SQLITE_ERROR"}[engine.dialect.name]
