"""One engine, and so one pool, for one configuration; Microsoft Entra tokens as the password of its connections."""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import Code, ConfigurationError, DbConnectionError, needing
from azure_functions_db.core.garbage import settle, uncollected
from azure_functions_db.core.secrets import masked, masked_value
from azure_functions_db.sql.failures import hide_values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from sqlalchemy import URL, Engine, ExceptionContext, Pool

    from azure_functions_db.core.config import DbConfig, TokenCredential


_LIBPQ = frozenset({"psycopg", "psycopg2"})
# Where systems keep the roots that they trust. A driver with an OpenSSL of its own does not know.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_ODBC_OPTION = re.compile(r"(?:^|;)\s*(?P<name>[^=;{}]+?)\s*=\s*(?P<value>\{(?:[^}]|\}\})*+\}|[^;]*+)")
_YES = frozenset({"yes", "true", "1", "mandatory", "strict"})
_NO = frozenset({"no", "false", "0"})
# Codes of MySQL: from here on they are the client's own, one of which says that there is no TLS.
_OF_CLIENT, _TLS_REFUSED = 2000, 2026


def can_verify(driver: str) -> bool:
    """Tell whether it is known how this driver is made to verify its server."""
    return driver in _LIBPQ or driver in {"pymysql", "pyodbc"}


def demand_verified_tls(driver: str, arguments: list[Any], parameters: dict[str, Any]) -> None:
    """Make a connection's parameters demand it; parameters that ask for less are refused."""
    if driver in _LIBPQ:
        _demand_of_libpq(parameters)
    elif driver == "pymysql":
        _demand_of_pymysql(parameters)
    else:
        _demand_of_odbc(arguments)


def _demand_of_libpq(parameters: dict[str, Any]) -> None:
    hosts = str(parameters.get("host") or "").split(",")
    if not all(host and host[0] not in "/@" for host in hosts):
        raise _refusal("a socket of this machine has no TLS: name the server's host")
    if parameters.setdefault("sslmode", "verify-full") != "verify-full":
        raise _refusal(f"sslmode={parameters['sslmode']} does not verify the server: leave it out, or set verify-full")
    parameters.setdefault("sslrootcert", os.environ.get("PGSSLROOTCERT") or _trusted_roots())
    # libpq prefers Kerberos' encryption to TLS where it finds a ticket.
    parameters["gssencmode"] = "disable"


def _demand_of_pymysql(parameters: dict[str, Any]) -> None:
    given = {name for name, value in parameters.items() if name.startswith("ssl") and value}
    if not given:
        parameters["ssl"] = ssl.create_default_context()
    elif "ssl" not in given:
        parameters.setdefault("ssl_verify_cert", True)
        parameters.setdefault("ssl_verify_identity", True)


def _demand_of_odbc(arguments: list[Any]) -> None:
    found = _ODBC_OPTION.finditer(arguments[0])
    given = [(option["name"].lower(), option["value"].strip("{} ").lower()) for option in found]
    for name, good in (("encrypt", _YES), ("trustservercertificate", _NO)):
        if bad := [value for option, value in given if option == name and value not in good]:
            raise _refusal(f"{name}={bad[0]} does not verify the server: leave it out")
    present = {name for name, _ in given}
    for name, value in (("Encrypt", "yes"), ("TrustServerCertificate", "no")):
        if name.lower() not in present:
            arguments[0] = f"{arguments[0].rstrip(';')};{name}={value}"


def connected_by_pymysql(driver: Any, arguments: list[Any], parameters: dict[str, Any], password: str) -> Any:
    """Return a connection that got its password when its server had shown who it is, and not before.

    Otherwise a server that offers no TLS would be sent the password as it is, if it asks for that.
    """
    connection = driver.connect(*arguments, **parameters | {"password": "", "defer_connect": True})
    handover = _Handover(connection, password)
    try:
        connection.connect()
    except driver.OperationalError as refused:
        if handover.is_done or refused.args[0] >= _OF_CLIENT:
            raise
    finally:
        handover.end()
    if not handover.is_done:
        if connection.open:  # an account without a password
            connection.close()
        raise driver.OperationalError(_TLS_REFUSED, "the server offers no TLS: the token was not sent to it")
    return connection


class _Handover:
    """Stands in for the TLS context of a connection, and gives it its password when TLS has begun."""

    def __init__(self, connection: Any, password: str) -> None:
        self.is_done = False
        self._connection = connection
        self._password = password
        if not (connection.ssl and _verifies(connection.ctx)):
            raise _refusal("its ssl options do not verify the server: give ssl_ca alone, or leave them all out")
        self._context = connection.ctx
        connection.ctx = self

    def wrap_socket(self, plain: Any, server_hostname: str | None = None) -> Any:
        """Begin TLS, as the connection asks its context to."""
        secured = self._context.wrap_socket(plain, server_hostname=server_hostname)
        self._connection.password = self._password.encode()
        self.is_done = True
        return secured

    def end(self) -> None:
        """Leave neither the password nor a trace of this in the connection."""
        self._connection.ctx, self._connection.password = self._context, b""


def _verifies(context: ssl.SSLContext) -> bool:
    return context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname


def _trusted_roots() -> str:
    found = ssl.get_default_verify_paths().cafile or next((path for path in _BUNDLES if Path(path).is_file()), None)
    return found or "system"


def _refusal(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"With credential=, the server has to prove who it is before it gets a token: {reason} "
        "(allow_unverified_tls=True sends it to anybody)"
    )


_OPEN_SOURCE_SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
_SCOPES = {
    "postgresql": _OPEN_SOURCE_SCOPE,
    "mysql": _OPEN_SOURCE_SCOPE,
    "mariadb": _OPEN_SOURCE_SCOPE,
    "mssql": "https://database.windows.net/.default",
}
# The ODBC driver takes a token before it connects, under this attribute (SQL_COPT_SS_ACCESS_TOKEN).
_ODBC_ACCESS_TOKEN = 1256


def log_in_with_tokens(
    engine: Engine, credential: TokenCredential | Literal["default"], *, allow_unverified_tls: bool = False
) -> None:
    """Ask the credential for a token whenever the engine opens a connection."""
    from sqlalchemy import event

    dialect = engine.dialect
    if dialect.name not in _SCOPES or (dialect.name == "mssql" and dialect.driver != "pyodbc"):
        raise ConfigurationError(f"credential= does not work with {dialect.name}+{dialect.driver}")
    if not (allow_unverified_tls or can_verify(dialect.driver)):
        raise ConfigurationError(
            f"It is not known how {dialect.driver} is made to verify its server: use another driver with credential=, "
            "or allow_unverified_tls=True with settings of your own"
        )
    source = _default_credential() if isinstance(credential, str) else credential

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        if not allow_unverified_tls:
            demand_verified_tls(dialect.driver, arguments, parameters)
        token = _fresh_token(source, _SCOPES[dialect.name])
        # The engine keeps the parameters it was given; the token is not to stay among them.
        if dialect.name == "mssql":
            return dialect.connect(*_without_integrated_login(arguments), **_with_odbc_token(parameters, token))
        if dialect.driver == "pymysql" and not allow_unverified_tls:
            return connected_by_pymysql(dialect.loaded_dbapi, arguments, parameters, token)
        return dialect.connect(*arguments, **parameters | {"password": token})


def _fresh_token(credential: TokenCredential, scope: str) -> str:
    try:
        return str(credential.get_token(scope).token)
    except Exception as refused:
        raise DbConnectionError(f"No Entra token for the database: {type(refused).__name__}") from refused


def _without_integrated_login(arguments: list[Any]) -> list[Any]:
    # SQLAlchemy asks for integrated security where the URL names no user; a token excludes that.
    return [arguments[0].replace(";Trusted_Connection=Yes", ""), *arguments[1:]]


def _with_odbc_token(parameters: dict[str, Any], token: str) -> dict[str, Any]:
    encoded = token.encode("utf-16-le")
    packed = struct.pack(f"<I{len(encoded)}s", len(encoded), encoded)
    return {**parameters, "attrs_before": {**parameters.get("attrs_before", {}), _ODBC_ACCESS_TOKEN: packed}}


def _default_credential() -> TokenCredential:
    with needing('credential="default"', "azure-identity", "identity"):
        from azure.identity import DefaultAzureCredential
    return DefaultAzureCredential()


class EngineProvider:
    """Makes engines when they are first wanted and hands out the same one ever after.

    Safe to use from many threads. After a fork the child starts with empty pools of its own.
    """

    def __init__(self) -> None:
        self._engines: dict[Hashable, Engine] = {}
        self._lock = threading.Lock()
        _providers.add(self)

    def get_engine(self, config: DbConfig) -> Engine:
        """Return the engine of this configuration; no connection is made yet."""
        resolved = config if config.is_literal else config.resolved()
        key = _key(resolved)
        engine = self._engines.get(key)
        if engine is not None:
            return engine
        with self._lock:
            if key not in self._engines:
                self._engines[key] = _new_engine(resolved)
            return self._engines[key]

    def dispose_all(self) -> None:
        """Close every pool; engines are made anew when they are wanted again."""
        with self._lock:
            engines = list(self._engines.values())
            self._engines.clear()
        for engine in engines:
            engine.dispose()

    def _leave_parent(self) -> None:
        # Another thread of the parent may have held the lock: here nobody would ever open it.
        self._lock = threading.Lock()
        for engine in self._engines.values():
            _parents_pools.append(engine.pool)
            engine.dispose(close=False)


_providers: weakref.WeakSet[EngineProvider] = weakref.WeakSet()
# The parent's connections must be neither used nor closed by the child, and some drivers say
# goodbye to the server when a connection is garbage collected: so they are kept.
_parents_pools: list[Pool] = []


def _after_fork() -> None:
    for provider in list(_providers):
        provider._leave_parent()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def default_provider() -> EngineProvider:
    """Return the process-wide provider that everything uses unless it is given another."""
    return EngineProvider()


def engine_getter(
    url: str | None, db_config: DbConfig | None, engine_provider: EngineProvider | None
) -> Callable[[], Engine]:
    """Return what gives the engine of a database; the arguments are checked now, the engine is made when wanted."""
    config = config_of(url, db_config)
    return lambda: (engine_provider or default_provider()).get_engine(config)


class _Same:
    """Stands for an object that cannot be hashed; equal only to itself, which it keeps alive."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


_plain_options = attrgetter(
    "connection_url", "pool_size", "max_overflow", "pool_timeout", "pool_recycle", "echo", "idle_check_seconds"
)


def _key(config: DbConfig) -> Hashable:
    # Asked for by every new reader: most configurations are plain values only.
    if config.connect_args or config.engine_kwargs or config.credential is not None:
        return _frozen(vars(config))
    plain: Hashable = _plain_options(config)
    return plain


def _frozen(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return _frozen_parts(value)
    return (type(value), value)


def _frozen_parts(value: Any) -> Hashable:
    match value:
        case Mapping():
            return frozenset((key, _frozen(inner)) for key, inner in value.items())
        case list() | tuple():
            return tuple(_frozen(inner) for inner in value)
        case set():
            return frozenset(value)
        case _:
            return _Same(value)


def parsed_url(connection_url: str) -> URL:
    """Return the parsed URL; a text that is none is refused without being repeated."""
    url = _parsed_or_none(connection_url)
    # A stray at sign puts the end of the password into the host, and so into drivers' messages.
    if url is None or (url.password and "@" in f"{url.host}{url.database}{''.join(url.query)}"):
        raise ConfigurationError(
            "The database URL cannot be read; it should look like dialect+driver://user:password@host:port/name "
            "with special characters of the password percent-encoded; a setting is written %NAME%",
            code=Code.URL_UNREADABLE,
        )
    if url.drivername.startswith("sqlite") and url.host:
        raise ConfigurationError(
            "A SQLite URL has three slashes before a relative path and four before an absolute one: sqlite:///shop.db",
            code=Code.URL_UNREADABLE,
        )
    return url


def _parsed_or_none(connection_url: str) -> URL | None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(connection_url)
    except (ArgumentError, ValueError):
        return None


def _new_engine(config: DbConfig) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    from azure_functions_db.sql.dialects import greeted
    from azure_functions_db.sql.transactions import allow_single_statements

    url = parsed_url(config.connection_url)
    try:
        with uncollected:
            engine = create_engine(greeted(url), **_engine_options(config, url))
            settle()
    except NoSuchModuleError:
        raise ConfigurationError(
            f"SQLAlchemy knows no dialect {url.drivername!r}: {_driver_advice(url, None)}", code=Code.PACKAGE_MISSING
        ) from None
    except ImportError as missing:
        raise ConfigurationError(
            f"The driver of {url.drivername!r} cannot be loaded ({missing}): {_driver_advice(url, missing.name)}",
            code=Code.PACKAGE_MISSING,
        ) from None
    except (ArgumentError, TypeError, ValueError) as refused:
        raise ConfigurationError(f"The engine refused its options: {masked(str(refused))}") from None
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"{url.drivername!r} is an async driver: async functions work here with plain drivers, too, such as "
            f"{_DRIVERS.get(engine.dialect.name, ('sqlite',))[0]}://",
            code=Code.URL_UNREADABLE,
        )
    engine.url = _without_secret_options(url)
    _hide_values_in_errors(engine)
    check_idle_connections(engine, config.idle_check_seconds)
    allow_single_statements(engine, config)
    if config.credential is not None:
        log_in_with_tokens(engine, config.credential, allow_unverified_tls=config.allow_unverified_tls)
    return engine


# The drivers that this library is tested with, and the extra that installs each.
_DRIVERS = {
    "postgres": ("postgresql+psycopg", "postgres"),
    "postgresql": ("postgresql+psycopg", "postgres"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mysql"),
    "mssql": ("mssql+pyodbc", "mssql"),
    "sqlserver": ("mssql+pyodbc", "mssql"),
}


def _driver_advice(url: URL, package: str | None) -> str:
    known = _DRIVERS.get(url.drivername.partition("+")[0])
    if known is None:
        return "is its package installed?" if package is None else f"pip install {package}"
    name, extra = known
    install = f'pip install "azure-functions-db[{extra}]"'
    return install if url.drivername == name else f"write {name}:// and {install}"


def _hide_values_in_errors(engine: Engine) -> None:
    from sqlalchemy import event

    @event.listens_for(engine, "handle_error")
    def hide(context: ExceptionContext) -> None:
        if context.sqlalchemy_exception is not None:
            hide_values(context.original_exception)
            hide_values(context.sqlalchemy_exception)


def _without_secret_options(url: URL) -> URL:
    # Connections are made from the URL as it was given. This one is for people: SQLAlchemy hides
    # the password when it shows a URL, but not one among the options (odbc_connect, ?password=).
    return url.set(query={name: cast(str, masked_value(name, value)) for name, value in url.query.items()})


def _engine_options(config: DbConfig, url: URL) -> dict[str, Any]:
    from azure_functions_db.sql.transactions import engine_options

    options: dict[str, Any] = {
        "echo": config.echo,
        # Row values do not belong into messages and logs.
        "hide_parameters": True,
        **engine_options(url.get_driver_name(), config),
    }
    return options | _pool_options(config, url) | dict(config.engine_kwargs)


def _pool_options(config: DbConfig, url: URL) -> dict[str, Any]:
    """Return the options that this kind of pool knows."""
    from sqlalchemy.engine.default import DefaultDialect
    from sqlalchemy.pool import QueuePool, SingletonThreadPool

    if "pool" in config.engine_kwargs:
        return {}
    dialect = cast(type[DefaultDialect], url.get_dialect())
    kind = config.engine_kwargs.get("poolclass") or dialect.get_pool_class(url)
    options: dict[str, Any] = {"pool_recycle": config.pool_recycle}
    if issubclass(kind, QueuePool | SingletonThreadPool):
        options["pool_size"] = config.pool_size
    if issubclass(kind, QueuePool):
        options |= {"max_overflow": config.max_overflow, "pool_timeout": config.pool_timeout}
    return options


_IDLE_SINCE = "azfdb_idle_since"
# A connection that a network device has forgotten swallows what is sent, for many minutes.
_ANSWER_WITHIN_MS = 5_000


def check_idle_connections(engine: Engine, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Ping a connection before use when it was idle for long, when its socket has news, or when another has died.

    A server that ends a session says so on the socket. Looking costs no round trip, so a
    restarted server or a terminated session is noticed even on a busy pool.
    """
    from sqlalchemy import event
    from sqlalchemy.exc import InvalidatePoolError

    last_death = float("-inf")

    @event.listens_for(engine, "invalidate")
    def mourn(_connection: Any, _record: Any, _error: Any) -> None:
        # What ended this connection has most likely ended its neighbours too.
        nonlocal last_death
        last_death = clock()

    @event.listens_for(engine, "checkin")
    def remember(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = clock()

    @event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, _proxy: Any) -> None:
        idle_since = record.info.get(_IDLE_SINCE)
        if idle_since is None:
            return
        descriptor = _descriptor(connection)
        is_old = clock() - idle_since > idle_seconds or idle_since <= last_death
        if (is_old or _has_news(descriptor)) and not _answers(engine, connection, descriptor):
            raise InvalidatePoolError


def _answers(engine: Engine, connection: Any, descriptor: int | None) -> bool:
    with _impatient(descriptor):
        try:
            return engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error:
            return False


def _descriptor(connection: Any) -> int | None:
    # psycopg tells its descriptor; PyMySQL keeps its socket to itself; others have none to show.
    owner = connection if hasattr(connection, "fileno") else getattr(connection, "_sock", None)
    try:
        return None if owner is None else int(owner.fileno())
    except Exception:  # noqa: BLE001 - a closed connection has many ways to say so
        return None


def _has_news(descriptor: int | None) -> bool:
    """Tell whether something unasked-for waits on the connection's socket."""
    if descriptor is None or descriptor < 0:
        return False
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


@contextmanager
def _impatient(descriptor: int | None) -> Iterator[None]:
    """Give a connection up after seconds without an acknowledgment, where the system can do that."""
    if descriptor is None or descriptor < 0 or not hasattr(socket, "TCP_USER_TIMEOUT"):
        yield
        return
    with socket.socket(fileno=os.dup(descriptor)) as same_connection:
        _set_user_timeout(same_connection, _ANSWER_WITHIN_MS)
        try:
            yield
        finally:
            _set_user_timeout(same_connection, 0)


def _set_user_timeout(connection: socket.socket, milliseconds: int) -> None:
    with suppress(OSError):  # not a TCP connection, or already closed
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
