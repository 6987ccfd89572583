"""Each new connection logs in with a fresh Microsoft Entra token as its password."""

from __future__ import annotations

import json
import logging
import secrets
import struct
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.identity import ManagedIdentityCredential
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from azure_functions_db.core.config import DbConfig
from azure_functions_db.core.errors import ConfigurationError, DbConnectionError
from tests.support.told import whole_story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.core.engine import EngineProvider


class IdentityEndpoint(ThreadingHTTPServer):
    """The loopback endpoint at which App Service and Functions hand out managed identity tokens."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.token = "first-" + secrets.token_hex(16)
        self.lifetime = 3600
        self.secret = secrets.token_hex(8)
        self.requests: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/msi/token"


class _Answer(BaseHTTPRequestHandler):
    server: IdentityEndpoint

    def do_GET(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.requests.append(asked)
        known = self.headers.get("X-IDENTITY-HEADER") == self.server.secret
        expires_on = str(int(time.time()) + self.server.lifetime)
        answer = {"access_token": self.server.token, "expires_on": expires_on, "token_type": "Bearer"}
        body = json.dumps(answer if known else {}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[IdentityEndpoint]:
    server = IdentityEndpoint()
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("IDENTITY_ENDPOINT", server.url)
    monkeypatch.setenv("IDENTITY_HEADER", server.secret)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def credential(endpoint: IdentityEndpoint) -> Iterator[ManagedIdentityCredential]:
    with ManagedIdentityCredential() as made:
        yield made


class Role:
    """A database user whose password the test sets to the token of the hour."""

    def __init__(self, admin_url: str) -> None:
        self._admin = create_engine(admin_url, isolation_level="AUTOCOMMIT")
        self.name = f"app_{secrets.token_hex(4)}"
        self._postgres = self._admin.dialect.name == "postgresql"
        if self._postgres:
            self._run(f"CREATE ROLE {self.name} LOGIN")
        else:
            self._run(f"CREATE USER {self.name}@'%'")
            self._run(f"GRANT SELECT ON {self._admin.url.database}.* TO {self.name}@'%'")

    def set_password(self, password: str) -> None:
        if self._postgres:
            self._run(f"ALTER ROLE {self.name} PASSWORD '{password}'")
        else:
            self._run(f"SET PASSWORD FOR {self.name}@'%' = PASSWORD('{password}')")

    @property
    def url(self) -> str:
        url = self._admin.url.set(username=self.name)._replace(password=None)
        return url.render_as_string(hide_password=False)

    def drop(self) -> None:
        self._run(f"DROP ROLE {self.name}" if self._postgres else f"DROP USER {self.name}@'%'")
        self._admin.dispose()

    def _run(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement))


@pytest.fixture(params=["postgres", "mariadb"])
def role(request: pytest.FixtureRequest) -> Iterator[Role]:
    made = Role(request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.drop()


@pytest.fixture
def app(role: Role, credential: ManagedIdentityCredential, provider: EngineProvider) -> Engine:
    return provider.get_engine(DbConfig(connection_url=role.url, credential=credential))


def log_in(engine: Engine) -> str:
    with engine.connect() as connection:
        return str(connection.scalar(text("SELECT current_user")))


def test_the_token_of_a_managed_identity_is_the_password(app: Engine, role: Role, endpoint: IdentityEndpoint) -> None:
    role.set_password(endpoint.token)
    assert role.name in log_in(app)
    assert endpoint.requests[0]["resource"] == "https://ossrdbms-aad.database.windows.net"


def test_no_token_is_fetched_before_a_connection_is_wanted(app: Engine, endpoint: IdentityEndpoint) -> None:
    assert endpoint.requests == []


def test_a_pooled_connection_needs_no_new_token(app: Engine, role: Role, endpoint: IdentityEndpoint) -> None:
    role.set_password(endpoint.token)
    log_in(app)
    endpoint.token = "another"
    log_in(app)
    assert len(endpoint.requests) == 1


def test_a_token_that_ran_out_is_fetched_anew_for_the_next_connection(
    app: Engine, role: Role, endpoint: IdentityEndpoint
) -> None:
    endpoint.lifetime = 1  # azure-identity keeps no token that is about to run out
    role.set_password(endpoint.token)
    with app.connect():
        endpoint.token = "second-" + secrets.token_hex(16)
        role.set_password(endpoint.token)
        log_in(app)
    assert len(endpoint.requests) == 2


def test_a_refused_token_is_never_told(
    app: Engine, role: Role, endpoint: IdentityEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    role.set_password("something else")
    with pytest.raises(OperationalError) as caught:
        log_in(app)
    assert endpoint.requests
    assert endpoint.token not in whole_story(caught.value)
    assert endpoint.token not in caplog.text


def test_an_accepted_token_is_never_told(
    app: Engine, role: Role, endpoint: IdentityEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    role.set_password(endpoint.token)
    log_in(app)
    assert caplog.text
    for shown in (caplog.text, repr(app), repr(app.url), str(app.url), repr(app.pool)):
        assert endpoint.token not in shown


def test_an_identity_that_gets_no_token_is_a_connection_error(app: Engine, endpoint: IdentityEndpoint) -> None:
    endpoint.secret = "changed"
    with pytest.raises(DbConnectionError, match="No Entra token"):
        log_in(app)


def test_the_default_credential_is_azure_identitys(
    role: Role, endpoint: IdentityEndpoint, provider: EngineProvider
) -> None:
    role.set_password(endpoint.token)
    engine = provider.get_engine(DbConfig(connection_url=role.url, credential="default"))
    assert role.name in log_in(engine)


def test_a_database_without_entra_logins_is_refused(provider: EngineProvider, credential: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite\+pysqlite"):
        provider.get_engine(DbConfig(connection_url="sqlite://", credential=credential))


class Odbc:
    """Stands for pyodbc, whose server cannot be had here; keeps what it was asked to connect with."""

    paramstyle = "qmark"
    version = "5.0"
    Error = OSError
    Cursor = SimpleNamespace()

    def __init__(self) -> None:
        self.asked: tuple[str, dict[str, Any]] | None = None

    def connect(self, connection_string: str, **options: Any) -> Any:
        self.asked = connection_string, options
        raise LookupError("no server here")


def test_sql_server_gets_the_token_as_a_connection_attribute(provider: EngineProvider) -> None:
    odbc = Odbc()
    config = DbConfig(
        connection_url="mssql+pyodbc://server/orders?driver=ODBC+Driver+18+for+SQL+Server",
        connect_args={"attrs_before": {113: 5}},
        credential=SimpleNamespace(get_token=lambda scope: SimpleNamespace(token=f"token for {scope}")),
        engine_kwargs={"module": odbc},
    )
    with pytest.raises(LookupError, match="no server here"):
        provider.get_engine(config).connect()
    assert odbc.asked is not None
    connection_string, options = odbc.asked
    encoded = "token for https://database.windows.net/.default".encode("utf-16-le")
    assert options["attrs_before"] == {113: 5, 1256: struct.pack("<I", len(encoded)) + encoded}
    assert "Trusted_Connection" not in connection_string


def test_sql_server_by_another_driver_is_refused(provider: EngineProvider) -> None:
    config = DbConfig(
        connection_url="mssql+pymssql://server/orders",
        credential=SimpleNamespace(get_token=print),
        engine_kwargs={"module": SimpleNamespace(paramstyle="pyformat", __version__="2.3.0", Binary=bytes)},
    )
    with pytest.raises(ConfigurationError, match=r"mssql\+pymssql"):
        provider.get_engine(config)
