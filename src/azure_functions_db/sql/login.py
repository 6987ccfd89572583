"""Microsoft Entra tokens as the password of each new connection."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.errors import ConfigurationError, DbConnectionError
from azure_functions_db.sql.tls import can_verify, connected_by_pymysql, demand_verified_tls

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from azure_functions_db.core.config import TokenCredential

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
            'credential="default" needs the package azure-identity: pip install "azure-functions-db[identity]"'
        ) from None
    return DefaultAzureCredential()
