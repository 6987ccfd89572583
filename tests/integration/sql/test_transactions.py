"""Parts that know nothing of each other share one transaction."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine, text

from azure_functions_db.sql.transactions import ambient_connection, ambient_transaction

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
    yield made
    made.dispose()


def write(engine: Engine, number: int) -> None:
    """Write as a part would that knows only the engine."""
    connection = ambient_connection(engine)
    assert connection is not None
    connection.execute(text("INSERT INTO t VALUES (:n)"), {"n": number})


def numbers(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT n FROM t ORDER BY n")))


def test_what_several_parts_wrote_is_committed_together(engine: Engine) -> None:
    with ambient_transaction(engine):
        write(engine, 1)
        write(engine, 2)
    assert numbers(engine) == [1, 2]


def test_an_exception_takes_back_what_all_parts_wrote(engine: Engine) -> None:
    def fail() -> None:
        with ambient_transaction(engine):
            write(engine, 1)
            write(engine, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert numbers(engine) == []


def test_there_is_none_before_after_and_on_another_engine(engine: Engine) -> None:
    other = create_engine("sqlite://")
    assert ambient_connection(engine) is None
    with ambient_transaction(engine) as connection:
        assert ambient_connection(engine) is connection
        assert ambient_connection(other) is None
        with ambient_transaction(other) as second:
            assert ambient_connection(engine) is connection
            assert ambient_connection(other) is second
    assert ambient_connection(engine) is None
    other.dispose()


def test_another_thread_joins_only_with_the_context(engine: Engine) -> None:
    found = {}

    def look(name: str) -> None:
        found[name] = ambient_connection(engine)

    with ambient_transaction(engine) as connection:
        with_context = threading.Thread(target=copy_context().run, args=(look, "with"))
        without = threading.Thread(target=look, args=("without",))
        for thread in (with_context, without):
            thread.start()
            thread.join(10)
    assert found == {"with": connection, "without": None}
