"""A connection that died while it was idle is never handed out, and a busy pool pays nothing for that."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from azure_functions_db.core.engine import EngineProvider
from azure_functions_db.core.pool import check_idle_connections

from .conftest import Server


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(server: Server, clock: Clock) -> Iterator[Engine]:
    """An engine whose idle check follows the test's own clock."""
    engine = create_engine(server.url)
    check_idle_connections(engine, 30, clock)
    yield engine
    engine.dispose()


@pytest.fixture
def pings(watched: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each connection that was pinged."""
    seen: list[Any] = []
    ping = watched.dialect.do_ping

    def noted(connection: Any) -> bool:
        seen.append(connection)
        return ping(connection)

    monkeypatch.setattr(watched.dialect, "do_ping", noted)
    return seen


def round_trips(engine: Engine) -> int:
    """Return how many statements the server has seen from the one pooled session."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.commit()
            raise NotImplementedError
        return int(connection.execute(text("SHOW SESSION STATUS LIKE 'Questions'")).one()[1])


def use(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))


def test_a_session_that_the_server_ended_is_replaced_without_an_error(server: Server, provider: EngineProvider) -> None:
    engine, killer = server.engine(provider), server.engine(provider, pool_size=1)
    with engine.connect() as connection:
        ended = server.session_of(connection)
    with killer.connect() as connection:
        server.end(connection, ended)
    with engine.connect() as connection:
        assert server.session_of(connection) != ended


def test_all_sessions_of_a_pool_may_have_been_ended(server: Server, provider: EngineProvider) -> None:
    engine, killer = server.engine(provider), server.engine(provider, pool_size=1)
    with engine.connect() as one, engine.connect() as other, engine.connect() as third:
        ended = {server.session_of(connection) for connection in (one, other, third)}
    with killer.connect() as connection:
        for session in ended:
            server.end(connection, session)
    with engine.connect() as one, engine.connect() as other, engine.connect() as third:
        assert ended.isdisjoint(server.session_of(connection) for connection in (one, other, third))


def test_a_busy_pool_sends_no_ping(watched: Engine, clock: Clock, pings: list[Any]) -> None:
    for _ in range(20):
        use(watched)
        clock.now += 29
    assert pings == []


def test_a_connection_that_lay_idle_for_long_is_pinged_once(watched: Engine, clock: Clock, pings: list[Any]) -> None:
    use(watched)
    clock.now += 31
    use(watched)
    use(watched)
    assert len(pings) == 1


def test_a_new_connection_is_not_pinged(watched: Engine, clock: Clock, pings: list[Any]) -> None:
    clock.now += 1000
    use(watched)
    assert pings == []


def test_a_connection_that_died_without_a_word_is_replaced(
    server: Server, watched: Engine, clock: Clock, pings: list[Any]
) -> None:
    with watched.connect() as connection:
        lost = server.session_of(connection)
        driver: Any = connection.connection.dbapi_connection
        descriptor = driver.fileno() if hasattr(driver, "fileno") else driver._sock.fileno()
    # Only our own side is shut, so that the socket shows nothing to read until it is used.
    with socket.socket(fileno=descriptor) as own_end:
        own_end.shutdown(socket.SHUT_WR)
        own_end.detach()
    clock.now += 31
    with watched.connect() as connection:
        assert server.session_of(connection) != lost


def test_a_ping_is_given_up_after_seconds_and_not_after_the_systems_minutes(
    watched: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: list[int] = []
    ping = watched.dialect.do_ping

    def noted(connection: Any) -> bool:
        patience.append(user_timeout(connection))
        return ping(connection)

    monkeypatch.setattr(watched.dialect, "do_ping", noted)
    use(watched)
    clock.now += 31
    with watched.connect() as connection:
        assert patience == [5000]
        assert user_timeout(connection.connection.dbapi_connection) == 0


def user_timeout(connection: Any) -> int:
    descriptor = connection.fileno() if hasattr(connection, "fileno") else connection._sock.fileno()
    with socket.socket(fileno=descriptor) as same:
        value = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        same.detach()
    return value


def test_a_server_that_is_gone_is_an_error_of_the_driver(server: Server, watched: Engine, clock: Clock) -> None:
    use(watched)
    watched.dispose()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = create_engine(watched.url.set(port=taken.getsockname()[1]))
        check_idle_connections(gone, 30, clock)
        with pytest.raises(Exception, match="refused|2003"):
            use(gone)


def test_sqlite_has_no_socket_and_works_all_the_same(provider: EngineProvider, sqlite_database: str) -> None:
    engine = create_engine(sqlite_database)
    clock = Clock()
    check_idle_connections(engine, 30, clock)
    for _ in range(3):
        use(engine)
        clock.now += 31
    engine.dispose()
