"""What the tests of the core share: providers that clean up, and the words of each server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, Engine, MetaData, create_engine, text

from azure_functions_db.core.config import DbConfig
from tests.conftest import temporary_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.sql.engine import EngineProvider


@dataclass(frozen=True)
class Server:
    """A database on a server, with the server's words for its sessions."""

    url: str
    own_session: str
    end_session: str

    def engine(self, provider: EngineProvider, **options: object) -> Engine:
        return provider.get_engine(DbConfig(connection_url=self.url, **options))  # type: ignore[arg-type]

    def session_of(self, connection: Connection) -> int:
        return int(connection.scalar(text(self.own_session)))

    def end(self, killer: Connection, session: int) -> None:
        killer.execute(text(self.end_session), {"id": session})


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each kind of server, at a database where nothing is kept."""
    url = request.getfixturevalue(f"{request.param}_url")
    if request.param == "postgres":
        return Server(url, "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:id, 5000)")
    return Server(url, "SELECT connection_id()", "KILL :id")


@pytest.fixture(scope="module")
def postgres_of_module(postgres_url: str) -> Iterator[str]:
    with temporary_database(postgres_url, "DROP DATABASE {name} WITH (FORCE)") as url:
        yield url


@pytest.fixture(scope="module")
def mariadb_of_module(mariadb_url: str) -> Iterator[str]:
    with temporary_database(mariadb_url, "DROP DATABASE {name}") as url:
        yield url


@pytest.fixture
def postgres_database(postgres_of_module: str) -> Iterator[str]:
    """An empty database: the module's own, swept after each test, which is much faster than a new one."""
    yield postgres_of_module
    drop_all_tables(postgres_of_module)


@pytest.fixture
def mariadb_database(mariadb_of_module: str) -> Iterator[str]:
    """See `postgres_database`."""
    yield mariadb_of_module
    drop_all_tables(mariadb_of_module)


def drop_all_tables(url: str) -> None:
    engine, tables = create_engine(url), MetaData()
    tables.reflect(engine)
    tables.drop_all(engine)
    engine.dispose()
