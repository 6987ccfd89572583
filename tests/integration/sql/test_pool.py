"""A connection that died while it was idle is never handed out, and a busy pool pays nothing for that."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL, Engine, create_engine, make_url, text

from azure_functions_db.core.config import DbConfig
from azure_functions_db.sql.engine import check_idle_connections
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.sql.engine import EngineProvider
    from tests.integration.sql.conftest import Server


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


def test_a_busy_pool_says_nothing_to_the_server_that_a_plain_engine_does_not(
    server: Server, provider: EngineProvider
) -> None:
    said = {}
    with proxied(server) as (proxy, url):
        for name, engine in {
            "plain": create_engine(url),
            "ours": provider.get_engine(DbConfig(connection_url=url.render_as_string(hide_password=False))),
        }.items():
            use(engine)
            before = proxy.bytes_sent
            for _ in range(10):
                use(engine)
            said[name] = proxy.bytes_sent - before
            engine.dispose()
    assert said["ours"] == said["plain"] > 0


def test_a_connection_that_died_without_a_word_is_replaced(server: Server, clock: Clock) -> None:
    with proxied(server) as (proxy, url):
        engine = create_engine(url)
        check_idle_connections(engine, 30, clock)
        with engine.connect() as connection:
            lost = server.session_of(connection)
        proxy.forget()
        clock.now += 31
        with engine.connect() as connection:
            assert server.session_of(connection) != lost
        engine.dispose()


@contextmanager
def proxied(server: Server) -> Iterator[tuple[Proxy, URL]]:
    """The server behind a proxy, and its URL there."""
    url = make_url(server.url)
    with Proxy(url.host or "", url.port or 0) as proxy:
        yield proxy, url.set(port=proxy.port)


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


def test_sqlite_has_no_socket_and_works_all_the_same(provider: EngineProvider, sqlite_database: str) -> None:
    engine = create_engine(sqlite_database)
    clock = Clock()
    check_idle_connections(engine, 30, clock)
    for _ in range(3):
        use(engine)
        clock.now += 31
    engine.dispose()
