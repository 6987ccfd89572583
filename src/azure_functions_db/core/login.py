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

    scope = _SCOPES.get(engine.dialect.name)
    if scope is None:
        raise ConfigurationError(f"credential= does not work with the dialect {engine.dialect.name!r}")
    source = _default_credential() if credential == "default" else credential

    @event.listens_for(engine, "do_connect")
    def supply_token(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        token = _fresh_token(source, scope)
        if engine.dialect.name == "mssql":
            parameters["attrs_before"] = {_ODBC_ACCESS_TOKEN: _odbc_token(token)}
        else:
            parameters["password"] = token


def _fresh_token(credential: TokenCredential, scope: str) -> str:
    try:
        return str(credential.get_token(scope).token)
    except Exception as refused:
        raise DbConnectionError(f"No Entra token for the database: {type(refused).__name__}") from refused


def _odbc_token(token: str) -> bytes:
    encoded = token.encode("utf-16-le")
    return struct.pack(f"<I{len(encoded)}s", len(encoded), encoded)


def _default_credential() -> TokenCredential:
    try:
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError:
        raise ConfigurationError(
            'credential="default" needs the package azure-identity: pip install "azure-functions-db[identity]"'
        ) from None
    return DefaultAzureCredential()
