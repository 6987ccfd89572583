"""Microsoft Entra tokens as the password of each new connection."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.errors import ConfigurationError, DbConnectionError

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


def log_in_with_tokens(engine: Engine, credential: TokenCredential | Literal["default"]) -> None:
    """Ask the credential for a token whenever the engine opens a connection."""
    from sqlalchemy import event

    dialect = engine.dialect
    if dialect.name not in _SCOPES or (dialect.name == "mssql" and dialect.driver != "pyodbc"):
        raise ConfigurationError(f"credential= does not work with {dialect.name}+{dialect.driver}")
    source = _default_credential() if isinstance(credential, str) else credential

    @event.listens_for(engine, "do_connect")
    def supply_token(_dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]) -> None:
        token = _fresh_token(source, _SCOPES[dialect.name])
        if dialect.name == "mssql":
            _give_odbc_token(arguments, parameters, token)
        else:
            parameters["password"] = token


def _fresh_token(credential: TokenCredential, scope: str) -> str:
    try:
        return str(credential.get_token(scope).token)
    except Exception as refused:
        raise DbConnectionError(f"No Entra token for the database: {type(refused).__name__}") from refused


def _give_odbc_token(arguments: list[Any], parameters: dict[str, Any], token: str) -> None:
    # SQLAlchemy asks for integrated security where the URL names no user; a token excludes that.
    arguments[0] = arguments[0].replace(";Trusted_Connection=Yes", "")
    encoded = token.encode("utf-16-le")
    packed = struct.pack(f"<I{len(encoded)}s", len(encoded), encoded)
    parameters["attrs_before"] = {**parameters.get("attrs_before", {}), _ODBC_ACCESS_TOKEN: packed}


def _default_credential() -> TokenCredential:
    try:
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError:
        raise ConfigurationError(
            'credential="default" needs the package azure-identity: pip install "azure-functions-db[identity]"'
        ) from None
    return DefaultAzureCredential()
