"""The real databases and the storage emulator that tests run against."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from azure_functions_db import EngineProvider
from tests.support.mongo import Stage, stage

if TYPE_CHECKING:
    from tools.services.server import Server

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Keep the collector away from what is loaded for all tests: to look through that took a twentieth of the time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the collector have it at the end, or else DuckDB complains that nobody has."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


def service(variable: str) -> str:
    """Where a service is; a test whose service is missing fails, it is never skipped."""
    value = os.environ.get(variable)
    if not value:
        pytest.fail(f'{variable} is not set: run `make test`, or `make up` and `eval "$(make env)"`', pytrace=False)
    return value


@pytest.fixture
def provider() -> Iterator[EngineProvider]:
    """Engines that belong to this test alone."""
    provider = EngineProvider()
    yield provider
    provider.dispose_all()


@contextmanager
def own_server(worker_id: str, kind: str) -> Iterator[str]:
    """The URL of a worker's own server: whatever runs anywhere on one holds back pollers of all its databases."""
    from tests.support.followers import started
    from tools.services.mariadb import MariaDb
    from tools.services.postgres import Postgres, Postgres18

    kinds: dict[str, type[Server]] = {"postgres": Postgres, "postgres18": Postgres18, "mariadb": MariaDb}
    setting = f"AZFDB_TEST_{kind.upper()}_URL"
    if worker_id in {"master", "gw0"}:
        yield service(setting)
        return
    service(setting)
    with started(kinds[kind]) as server:
        yield server.settings()[setting]


@pytest.fixture(scope="session")
def postgres_url(worker_id: str) -> Iterator[str]:
    """The superuser's URL of the PostgreSQL server."""
    with own_server(worker_id, "postgres") as url:
        yield url


@pytest.fixture(scope="session")
def postgres18_url(worker_id: str) -> Iterator[str]:
    """The superuser's URL of the newer PostgreSQL server."""
    with own_server(worker_id, "postgres18") as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url(worker_id: str) -> Iterator[str]:
    """The URL of a MariaDB user with all privileges."""
    with own_server(worker_id, "mariadb") as url:
        yield url


@pytest.fixture(scope="session")
def azurite() -> str:
    """A storage connection string with blob, queue and table endpoints."""
    return service("AZFDB_TEST_AZURITE")


@pytest.fixture(scope="session")
def cosmos_server() -> str:
    """The address of a server that speaks the protocol of Cosmos DB."""
    return service("AZFDB_TEST_COSMOS")


@contextmanager
def temporary_database(server: str, drop: str, options: str = "") -> Iterator[str]:
    """A new empty database on the server, by its URL; dropped afterwards whoever is still connected."""
    url = make_url(server)
    name = f"test_{secrets.token_hex(8)}"
    with _administrator(server).connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} {options}")
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with _administrator(server).connect() as connection:
            if url.get_backend_name() == "mysql":
                _end_sessions(connection, name)
            connection.exec_driver_sql(drop.format(name=name))


@cache
def _administrator(server: str) -> Engine:
    """Whoever makes and drops databases; most tests want one, and logging in takes longer than that."""
    return create_engine(server, isolation_level="AUTOCOMMIT", pool_pre_ping=True)


def _end_sessions(connection: Connection, database: str) -> None:
    """End whoever is still connected to a database of MariaDB: a transaction left open holds every poller back."""
    sessions = text("SELECT id FROM information_schema.processlist WHERE db = :name")
    for session in connection.execute(sessions, {"name": database}).scalars().all():
        with suppress(DBAPIError):  # it may have gone by itself
            connection.exec_driver_sql(f"KILL {session}")


def execute(url: URL, statement: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """The URL of a PostgreSQL database that belongs to this test alone."""
    with temporary_database(postgres_url, "DROP DATABASE {name} WITH (FORCE)") as url:
        yield url


@pytest.fixture
def postgres_log_database(postgres_url: str) -> Iterator[str]:
    """The URL of a PostgreSQL database whose log is read: a commit is in it when it returns."""
    from tests.support.slots import logged_database

    with logged_database(postgres_url) as url:
        yield url


@pytest.fixture
def mariadb_database(mariadb_url: str) -> Iterator[str]:
    """The URL of a MariaDB database that belongs to this test alone."""
    with temporary_database(mariadb_url, "DROP DATABASE {name}") as url:
        yield url


@pytest.fixture
def sqlite_database(tmp_path: Path) -> str:
    """The URL of a SQLite file that belongs to this test alone."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def sql_server(tmp_path: Path) -> Iterator[Any]:
    """A database of SQL Server: of a stand-in, or of the server that `AZFDB_TEST_SQLSERVER_URL` names."""
    from tests.support.sqlserver import RealServer, running

    if url := os.environ.get("AZFDB_TEST_SQLSERVER_URL"):
        drop = "ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE; DROP DATABASE {name}"
        with temporary_database(url, drop) as database, closing(RealServer(database)) as server:
            yield server
        return
    with running(tmp_path) as model:
        yield model


@pytest.fixture
def sql_server_database(sql_server: Any) -> str:
    """The URL of that database."""
    return str(sql_server.url())


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once for each kind."""
    return str(request.getfixturevalue(f"{request.param}_database"))


@pytest.fixture
def blob_container(azurite: str) -> Iterator[str]:
    """The name of a new blob container that belongs to this test alone."""
    from azure.storage.blob import BlobServiceClient

    name = f"test-{secrets.token_hex(8)}"
    with BlobServiceClient.from_connection_string(azurite) as client:
        client.create_container(name)
        yield name
        client.delete_container(name)


@pytest.fixture(scope="session")
def functions_runtime() -> Path:
    """The folder of the Functions Python runtime, to be put on the path of a process that drives an app."""
    folder = Path(sys.prefix) / "functions-runtime"
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: run `make venv`", pytrace=False)
    return folder


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the tests of a module on one worker where they share what takes long to make, such as a server."""
    used = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    if any(definitions[-1].scope == "module" for definitions in used):
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def mongo_stage() -> Iterator[Stage]:
    """What a MongoDB says in each test: a real one, or the recording of one."""
    with stage() as made:
        yield made


@pytest.fixture
def mongo_uri(mongo_stage: Stage, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of a MongoDB replica set."""
    # The name of its group stands behind a test's own when several run at once.
    with mongo_stage.front(request.node.nodeid.partition("@")[0]) as front:
        yield front.uri
