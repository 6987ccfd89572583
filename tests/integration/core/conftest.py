"""What the tests of the core share: providers that clean up, and the words of each server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, Engine, text

from azure_functions_db.core.config import DbConfig
from azure_functions_db.core.engine import EngineProvider

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def provider() -> Iterator[EngineProvider]:
    """A provider that belongs to this test alone."""
    made = EngineProvider()
    yield made
    made.dispose_all()


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
    """An empty database on each kind of server."""
    url = request.getfixturevalue(f"{request.param}_database")
    if request.param == "postgres":
        return Server(url, "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:id, 5000)")
    return Server(url, "SELECT connection_id()", "KILL :id")
