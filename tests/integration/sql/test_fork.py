"""After a fork, parent and child each have connections of their own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db.core.config import DbConfig
from azure_functions_db.sql.reflection import _cache_of, table_of

if TYPE_CHECKING:
    from azure_functions_db.sql.engine import EngineProvider
    from tests.integration.sql.conftest import Server

fork = multiprocessing.get_context("fork")
# Python 3.12 and later warn of forking beside threads, which is just what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def outcome_in_child(work: Any) -> Any:
    """Return what the work gives in a forked child."""
    here, there = fork.Pipe()
    child = fork.Process(target=lambda pipe: pipe.send(work()), args=(there,))
    child.start()
    try:
        assert here.poll(20), "the child hangs"
        return here.recv()
    finally:
        child.join(1)
        child.kill()  # nothing to it where the child has ended


def session(server: Server, provider: EngineProvider) -> int:
    with server.engine(provider).connect() as connection:
        return server.session_of(connection)


def test_parent_and_child_keep_working_on_sessions_of_their_own(server: Server, provider: EngineProvider) -> None:
    parents = session(server, provider)

    def in_child() -> int:
        childs = session(server, provider)
        provider.dispose_all()
        gc.collect()
        return childs

    assert outcome_in_child(in_child) != parents
    assert session(server, provider) == parents


def test_a_child_that_touches_nothing_leaves_the_parents_session_alone(
    server: Server, provider: EngineProvider
) -> None:
    parents = session(server, provider)

    def in_child() -> None:
        gc.collect()

    outcome_in_child(in_child)
    assert session(server, provider) == parents


def test_a_child_says_no_goodbye_on_its_parents_connection(provider: EngineProvider, sqlite_database: str) -> None:
    goodbyes = []

    class Polite(sqlite3.Connection):
        """A connection that takes its leave when it is thrown away, as those of some drivers do."""

        def __del__(self) -> None:
            goodbyes.append(os.getpid())

    config = DbConfig(connection_url=sqlite_database, connect_args={"factory": Polite})
    provider.get_engine(config).connect().close()

    def in_child() -> list[int]:
        provider.get_engine(config).connect().close()
        gc.collect()
        return goodbyes

    assert outcome_in_child(in_child) == []


def test_an_engine_that_was_at_hand_before_the_fork_works_in_the_child(
    server: Server, provider: EngineProvider
) -> None:
    engine = server.engine(provider)
    with engine.connect() as connection:
        parents = server.session_of(connection)

    def in_child() -> int:
        with engine.connect() as connection:
            return server.session_of(connection)

    assert outcome_in_child(in_child) != parents


def test_locks_that_other_threads_held_do_not_stop_the_child(database_url: str, provider: EngineProvider) -> None:
    engine = provider.get_engine(DbConfig(connection_url=database_url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
    another = DbConfig(connection_url=database_url, pool_size=1)
    cache = _cache_of(engine)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with provider._lock, cache._lock:
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    try:
        assert outcome_in_child(partial(column_names, engine)) == ["n"]
        assert outcome_in_child(lambda: column_names(provider.get_engine(another))) == ["n"]
    finally:
        done.set()
        holder.join(10)


def column_names(engine: Engine) -> list[str]:
    return table_of(engine, "t").columns.keys()
