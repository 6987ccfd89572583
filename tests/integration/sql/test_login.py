"""Each new connection logs in with a fresh Microsoft Entra token as its password."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import struct
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pymysql
import pytest
from azure.identity import ManagedIdentityCredential
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from azure_functions_db.core.config import DbConfig
from azure_functions_db.core.errors import ConfigurationError, DbConnectionError
from tests.support.certificates import Authority, Certificate
from tests.support.rogues import Rogue, RogueMySql, RoguePostgres
from tests.support.told import whole_story
from tools.services.instance import ROOT, Instance, exclusive
from tools.services.mariadb import MariaDb
from tools.services.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from azure_functions_db.sql.engine import EngineProvider


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


class TlsPostgres(Postgres):
    """Shows a certificate."""

    certificate: ClassVar[Certificate]

    def prepare(self) -> None:
        super().prepare()
        for name, file in (("server.crt", self.certificate.file), ("server.key", self.certificate.key_file)):
            copied = self.data / name
            copied.touch(mode=0o600)
            copied.write_bytes(file.read_bytes())
            if self.user:
                shutil.chown(copied, self.user)

    def command(self) -> list[str]:
        return [*super().command(), "--ssl=on"]


class TlsMariaDb(MariaDb):
    """Shows a certificate."""

    certificate: ClassVar[Certificate]

    def command(self) -> list[str]:
        shown = self.certificate
        return [*super().command(), f"--ssl-cert={shown.file}", f"--ssl-key={shown.key_file}"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "Our own")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue("127.0.0.1")


@pytest.fixture(scope="module")
def tls_urls(certificate: Certificate) -> Iterator[dict[str, str]]:
    """The superusers' URLs of servers that show our certificate for 127.0.0.1."""
    TlsPostgres.certificate = TlsMariaDb.certificate = certificate
    with exclusive():
        instance = Instance(ROOT / f"tls-{os.getpid()}")
        instance.claim()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # an instance keeps the ids of processes only
            started = [instance.start_one(kind)[0] for kind in (TlsPostgres, TlsMariaDb)]
        yield {server.name: next(iter(server.settings().values())) for server in started}
    finally:
        instance.stop()


# How each driver is told whom to trust.
TRUST = {"postgres": "sslrootcert", "mariadb": "ssl_ca"}


def trusting(url: str, kind: str, authority: Authority) -> str:
    told = make_url(url).update_query_dict({TRUST[kind]: str(authority.file)})
    return told.render_as_string(hide_password=False)


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
        url = self._admin.url.set(username=self.name, query={})._replace(password=None)
        return url.render_as_string(hide_password=False)

    def drop(self) -> None:
        self._run(f"DROP ROLE {self.name}" if self._postgres else f"DROP USER {self.name}@'%'")
        self._admin.dispose()

    def _run(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement))


@pytest.fixture(params=["postgres", "mariadb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def role(kind: str, tls_urls: dict[str, str]) -> Iterator[Role]:
    made = Role(tls_urls[kind])
    yield made
    made.drop()


@pytest.fixture
def app_url(kind: str, role: Role, authority: Authority) -> str:
    return trusting(role.url, kind, authority)


@pytest.fixture
def app(app_url: str, credential: ManagedIdentityCredential, provider: EngineProvider) -> Engine:
    return provider.get_engine(DbConfig(connection_url=app_url, credential=credential))


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
    app_url: str, role: Role, endpoint: IdentityEndpoint, provider: EngineProvider
) -> None:
    role.set_password(endpoint.token)
    engine = provider.get_engine(DbConfig(connection_url=app_url, credential="default"))
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


ROGUES: dict[str, type[Rogue]] = {"postgres": RoguePostgres, "mariadb": RogueMySql}
TOKEN = "token-" + secrets.token_hex(16)


class Credential:
    """Hands out the same token every time, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    def get_token(self, *_scopes: str) -> Any:
        self.asked += 1
        return SimpleNamespace(token=TOKEN)


def refused(provider: EngineProvider, url: str, **options: Any) -> str:
    """Try to log in with the token; return everything that is told of the failure."""
    config = DbConfig(connection_url=url, **{"credential": Credential(), **options})
    with pytest.raises((OperationalError, ConfigurationError)) as caught:
        log_in(provider.get_engine(config))
    told = whole_story(caught.value)
    assert TOKEN not in told
    return told


@pytest.mark.parametrize("tls", ["none", "somebody else's", "ours"])
def test_a_server_that_cannot_prove_who_it_is_gets_no_token(
    kind: str, tls: str, authority: Authority, certificate: Certificate, tmp_path: Path, provider: EngineProvider
) -> None:
    other = Authority(tmp_path, "Somebody else").issue("127.0.0.1")
    shown = {"none": None, "somebody else's": other, "ours": certificate}[tls]
    with ROGUES[kind](shown) as rogue:
        refused(provider, trusting(rogue.url, kind, authority))
    # Control: this is how a server asks, and one that has a good certificate is given the token.
    assert (TOKEN.encode() in rogue.got) is (tls == "ours")


@pytest.mark.parametrize("tls", [False, True])
def test_who_opts_out_sends_the_token_to_anybody(
    kind: str, tls: bool, certificate: Certificate, provider: EngineProvider
) -> None:
    with ROGUES[kind](certificate if tls else None) as rogue:
        refused(provider, rogue.url, allow_unverified_tls=True)
    assert TOKEN.encode() in rogue.got


def test_what_the_system_trusts_is_trusted_and_nobody_else(
    kind: str, authority: Authority, certificate: Certificate, provider: EngineProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ROGUES[kind](certificate) as rogue:
        refused(provider, rogue.url)
        assert TOKEN.encode() not in rogue.got
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        refused(provider, rogue.url)
        assert TOKEN.encode() in rogue.got


def test_a_certificate_for_another_name_is_not_taken(
    kind: str, role: Role, authority: Authority, provider: EngineProvider
) -> None:
    role.set_password(TOKEN)
    elsewhere = make_url(role.url).set(host="localhost").render_as_string(hide_password=False)
    assert "localhost" in refused(provider, trusting(elsewhere, kind, authority))
    config = DbConfig(connection_url=trusting(role.url, kind, authority), credential=Credential())
    assert role.name in log_in(provider.get_engine(config))


def test_a_real_server_without_tls_is_refused(
    kind: str, authority: Authority, provider: EngineProvider, request: pytest.FixtureRequest
) -> None:
    role = Role(request.getfixturevalue(f"{kind}_url"))
    try:
        role.set_password(TOKEN)
        assert "SSL" in refused(provider, trusting(role.url, kind, authority))
        config = DbConfig(connection_url=role.url, credential=Credential(), allow_unverified_tls=True)
        assert role.name in log_in(provider.get_engine(config))
    finally:
        role.drop()


class Lax(pymysql.connections.Connection):
    """PyMySQL as older releases are: goes on in clear where the server offers no TLS."""

    _ssl_required = property(lambda _self: False, lambda _self, _value: None)


def test_an_older_driver_that_goes_on_without_tls_has_no_token_to_send(
    authority: Authority, provider: EngineProvider, mariadb_url: str
) -> None:
    driver = SimpleNamespace(**{**vars(pymysql), "connect": Lax})
    with RogueMySql(None) as rogue:
        refused(provider, trusting(rogue.url, "mariadb", authority), engine_kwargs={"module": driver})
        assert TOKEN.encode() not in rogue.got
    role = Role(mariadb_url)
    try:
        # With a password, which is refused; and without one, which lets everybody in.
        for password in (TOKEN, ""):
            role.set_password(password)
            told = refused(provider, trusting(role.url, "mariadb", authority), engine_kwargs={"module": driver})
            assert "offers no TLS" in told
    finally:
        role.drop()


def test_the_token_is_not_kept_in_engine_or_connection(app_url: str, role: Role, provider: EngineProvider) -> None:
    role.set_password(TOKEN)
    engine = provider.get_engine(DbConfig(connection_url=app_url, credential=Credential()))
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        assert TOKEN.encode() not in (getattr(raw, "password", None) or b"")
    kept: Any = engine.pool._creator
    cells = [cell.cell_contents for cell in kept.__closure__]
    assert TOKEN not in repr(cells)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("postgresql+psycopg://app@db.example/shop?sslmode=require", {}),
        ("postgresql+psycopg://app@db.example/shop?sslmode=verify-ca", {}),
        ("postgresql+psycopg://app@db.example/shop", {"connect_args": {"sslmode": "prefer"}}),
        ("postgresql+psycopg://app@/shop?host=/var/run/postgresql", {}),
        ("postgresql+psycopg://app@/shop", {}),
        ("mysql+pymysql://app@db.example/shop", {"connect_args": {"ssl": {"check_hostname": False}}}),
        ("mysql+pymysql://app@db.example/shop", {"connect_args": {"ssl": {"verify_mode": "none"}}}),
        ("mysql+pymysql://app@db.example/shop", {"connect_args": {"ssl_disabled": True}}),
        ("mysql+pymysql://app@db.example/shop", {"connect_args": {"ssl_verify_cert": False, "ssl_key": "key"}}),
    ],
)
def test_options_that_verify_less_are_refused_before_a_token_is_fetched(
    url: str, options: dict[str, Any], provider: EngineProvider
) -> None:
    told = refused(provider, url, **options)
    assert "allow_unverified_tls=True" in told


@pytest.mark.parametrize("option", ["Encrypt=no", "encrypt={optional}", "TrustServerCertificate=yes"])
def test_sql_server_options_that_verify_less_are_refused(option: str, provider: EngineProvider) -> None:
    odbc, credential = Odbc(), Credential()
    url = f"mssql+pyodbc://server/orders?driver=ODBC+Driver+17+for+SQL+Server&{option}"
    refused(provider, url, engine_kwargs={"module": odbc}, credential=credential)
    assert odbc.asked is None
    assert credential.asked == 0


def test_sql_server_is_verified_whatever_its_driver_does_by_itself(provider: EngineProvider) -> None:
    odbc = Odbc()
    config = DbConfig(
        connection_url="mssql+pyodbc://server/orders?driver=ODBC+Driver+17+for+SQL+Server&APP={Encrypt=no;x}",
        credential=Credential(),
        engine_kwargs={"module": odbc},
    )
    for _ in range(2):
        with pytest.raises(LookupError, match="no server here"):
            provider.get_engine(config).connect()
        assert odbc.asked is not None
        assert odbc.asked[0].endswith(";Encrypt=yes;TrustServerCertificate=no")
        assert odbc.asked[0].count("TrustServerCertificate") == 1


def test_a_driver_that_nobody_knows_to_verify_is_refused(provider: EngineProvider) -> None:
    config = DbConfig(
        connection_url="mysql+mysqldb://server/orders",
        credential=Credential(),
        engine_kwargs={"module": SimpleNamespace(paramstyle="format", version_info=(2, 2, 0), __version__="2.2.0")},
    )
    with pytest.raises(ConfigurationError, match="mysqldb"):
        provider.get_engine(config)
