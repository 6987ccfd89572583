"""Microsoft Entra tokens as the password of each new connection."""

from __future__ import annotations

import os
import re
import ssl
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.codes import Code
from azure_functions_db.core.errors import ConfigurationError, DbConnectionError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from azure_functions_db.core.config import TokenCredential

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
    try:
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError:
        raise ConfigurationError(
            'credential="default" needs the package azure-identity: pip install "azure-functions-db[identity]"',
            code=Code.PACKAGE_MISSING,
        ) from None
    return DefaultAzureCredential()
