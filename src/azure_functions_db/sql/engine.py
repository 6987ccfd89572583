"""One engine, and so one pool, for one configuration."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from azure_functions_db.core.codes import Code
from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.secrets import masked, masked_value
from azure_functions_db.sql.failures import hide_values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from sqlalchemy import URL, Engine, ExceptionContext, Pool

    from azure_functions_db.core.config import DbConfig


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

    from azure_functions_db.sql.autocommit import allow_single_statements
    from azure_functions_db.sql.login import log_in_with_tokens

    url = parsed_url(config.connection_url)
    try:
        engine = create_engine(url, **_engine_options(config, url))
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
    from azure_functions_db.sql.autocommit import engine_options

    options: dict[str, Any] = {
        "echo": config.echo,
        # Row values do not belong into messages and logs.
        "hide_parameters": True,
        "connect_args": dict(config.connect_args or {}),
        **engine_options(url.get_driver_name()),
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
