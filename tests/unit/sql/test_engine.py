from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.pool import NullPool, QueuePool, SingletonThreadPool, StaticPool

from azure_functions_db.core.config import DbConfig
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.sql.engine import EngineProvider, _frozen, default_provider
from tests.support.told import whole_story


def test_fifty_threads_get_one_engine(provider: EngineProvider, sqlite_database: str) -> None:
    start = Barrier(50)

    def wanted(_: int) -> Engine:
        start.wait()
        return provider.get_engine(DbConfig(connection_url=sqlite_database))

    with ThreadPoolExecutor(50) as threads:
        engines = set(threads.map(wanted, range(50)))
    assert len(engines) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"pool_size": 6},
        {"echo": True},
        {"connect_args": {"timeout": 9}},
        {"engine_kwargs": {"execution_options": {"isolation_level": "SERIALIZABLE"}}},
        {"engine_kwargs": {"json_serializer": {}.get}},
    ],
)
def test_another_configuration_is_another_engine(
    provider: EngineProvider, sqlite_database: str, other: dict[str, Any]
) -> None:
    one = provider.get_engine(DbConfig(connection_url=sqlite_database))
    assert provider.get_engine(DbConfig(connection_url=sqlite_database, **other)) is not one


def test_the_same_effective_configuration_is_the_same_engine(
    provider: EngineProvider, sqlite_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZFDB_ENGINE_URL", sqlite_database)
    by_setting = DbConfig(connection_url="%AZFDB_ENGINE_URL%", connect_args={"timeout": 9, "uri": False})
    by_value = DbConfig(connection_url=sqlite_database, connect_args={"uri": False, "timeout": 9})
    assert provider.get_engine(by_setting) is provider.get_engine(by_value)


class Unhashable:
    """An option that can only be told from another by being another object."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def test_an_option_that_cannot_be_hashed_is_never_mistaken_for_a_later_one() -> None:
    # Each is gone before the next one comes, which may then be put at the same address.
    keys = {_frozen({"option": Unhashable()}) for _ in range(5)}
    assert len(keys) == 5


def test_the_default_provider_is_one_for_the_process() -> None:
    assert default_provider() is default_provider()


def test_after_dispose_all_engines_are_made_anew(provider: EngineProvider, sqlite_database: str) -> None:
    config = DbConfig(connection_url=sqlite_database)
    engine = provider.get_engine(config)
    closed = []
    event.listen(engine, "close", lambda *_: closed.append(1))
    with engine.connect():
        pass
    provider.dispose_all()
    assert closed == [1]
    assert provider.get_engine(config) is not engine


def test_every_option_reaches_a_queue_pool(provider: EngineProvider, sqlite_database: str) -> None:
    config = DbConfig(
        connection_url=sqlite_database,
        pool_size=2,
        max_overflow=3,
        pool_timeout=0.5,
        pool_recycle=77,
        echo=True,
        engine_kwargs={"pool_use_lifo": True, "isolation_level": "SERIALIZABLE"},
    )
    engine = provider.get_engine(config)
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    assert (pool.size(), pool._max_overflow, pool._timeout, pool._recycle) == (2, 3, 0.5, 77)
    assert pool._pool.use_lifo
    assert engine.echo
    assert engine.dialect._on_connect_isolation_level == "SERIALIZABLE"


def test_options_reach_an_in_memory_database_as_far_as_it_has_them(provider: EngineProvider) -> None:
    pool = provider.get_engine(DbConfig(connection_url="sqlite://", pool_size=3, pool_recycle=77)).pool
    assert isinstance(pool, SingletonThreadPool)
    assert (pool.size, pool._recycle) == (3, 77)


@pytest.mark.parametrize("pool_class", [NullPool, StaticPool])
def test_options_reach_pools_that_have_no_size(provider: EngineProvider, pool_class: Any) -> None:
    pool = provider.get_engine(DbConfig(connection_url="sqlite://", engine_kwargs={"poolclass": pool_class})).pool
    assert isinstance(pool, pool_class)
    assert pool._recycle == 3600


def test_a_pool_of_ones_own_is_taken_as_it_is(provider: EngineProvider) -> None:
    import sqlite3

    creator: Any = partial(sqlite3.connect, ":memory:")
    own = QueuePool(creator, pool_size=1)
    assert provider.get_engine(DbConfig(connection_url="sqlite://", engine_kwargs={"pool": own})).pool is own


def test_a_creator_of_ones_own_keeps_the_pool_options(provider: EngineProvider) -> None:
    import sqlite3

    config = DbConfig(
        connection_url="sqlite:///x.db", pool_size=2, engine_kwargs={"creator": lambda: sqlite3.connect(":memory:")}
    )
    pool = provider.get_engine(config).pool
    assert isinstance(pool, QueuePool)
    assert pool.size() == 2


def test_connect_args_reach_the_driver(provider: EngineProvider, sqlite_database: str) -> None:
    import sqlite3

    class OwnConnection(sqlite3.Connection):
        """A connection that can be recognised."""

    engine = provider.get_engine(DbConfig(connection_url=sqlite_database, connect_args={"factory": OwnConnection}))
    with engine.connect() as connection:
        assert isinstance(connection.connection.dbapi_connection, OwnConnection)


def test_row_values_stay_out_of_messages(provider: EngineProvider) -> None:
    engine = provider.get_engine(DbConfig(connection_url="sqlite://"))
    with engine.connect() as connection, pytest.raises(Exception, match="nowhere") as caught:
        connection.execute(text("INSERT INTO nowhere VALUES (:value)"), {"value": "private"})
    assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://ann:hunter2@host:port/db",
        "postgresql+psycopg://ann:pa@hunter2@host/db",
        "postgresql+psycopg://ann:pa@ss/hunter2@host/db",
        "post gres://ann:hunter2@host/db",
        "nosuchdialect://ann:hunter2@host/db",
        "postgresql+nosuchdriver://ann:hunter2@host/db",
        "oracle+oracledb://ann:hunter2@host/db",
        "mysql+pymysql://ann:hunter2@host/db?connect_timeout=soon",
        "mssql+nosuchdriver:///?odbc_connect=UID%3Dsa%3BPWD%3Dhunter2",
    ],
)
def test_an_engine_that_cannot_be_made_is_explained_without_the_password(provider: EngineProvider, url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        provider.get_engine(DbConfig(connection_url=url))
    assert "hunter2" not in whole_story(caught.value)


def test_an_unknown_engine_option_is_a_configuration_error(provider: EngineProvider) -> None:
    with pytest.raises(ConfigurationError, match="no_such_option"):
        provider.get_engine(DbConfig(connection_url="sqlite://", engine_kwargs={"no_such_option": 1}))


def test_making_an_engine_connects_to_nothing(provider: EngineProvider) -> None:
    provider.get_engine(DbConfig(connection_url="postgresql+psycopg://ann@127.0.0.1:1/nowhere"))
    assert "psycopg" in sys.modules


def test_nothing_is_collected_while_an_engine_is_made() -> None:
    collecting: list[bool] = []

    class Watching(NullPool):
        def __init__(self, *given: Any, **named: Any) -> None:
            collecting.append(gc.isenabled())
            super().__init__(*given, **named)

    EngineProvider().get_engine(DbConfig(connection_url="sqlite://", engine_kwargs={"poolclass": Watching}))
    assert (collecting, gc.isenabled()) == ([False], True)


def test_an_engine_that_cannot_be_made_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ConfigurationError):
        EngineProvider().get_engine(DbConfig(connection_url="nosuch://host/name"))
    assert gc.isenabled()
