"""Which database a binding talks to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from azure_functions_db.core.config import DbConfig, config_of
from azure_functions_db.core.secrets import MASK

if TYPE_CHECKING:
    from azure_functions_db.sql.engine import EngineProvider

_SHOWABLE = re.compile(r"%\w+%|[\w+.-]+://.*", re.DOTALL)
# Greedy, because a password that somebody forgot to encode may hold any character.
_USER_INFO = re.compile(r"(?<=://).*@", re.DOTALL)
_PARAMETERS = re.compile(r"[?#;].*", re.DOTALL)


class ClientOptions(TypedDict):
    """What every reader and writer of a table is made with."""

    db_config: DbConfig
    table: Any
    schema: str | None
    engine_provider: EngineProvider | None


@dataclass(frozen=True, slots=True)
class Database:
    """A database, and the table in it that a binding was given."""

    config: DbConfig
    table: str | None
    schema: str | None
    provider: EngineProvider | None

    def client_options(self) -> ClientOptions:
        """Return the arguments that open a reader or writer here."""
        return {
            "db_config": self.config,
            "table": self.table,
            "schema": self.schema,
            "engine_provider": self.provider,
        }

    def described(self) -> dict[str, Any]:
        """Return the place without anybody's credentials."""
        place = {"url": without_credentials(self.config.connection_url), "table": self.table, "schema": self.schema}
        return {name: value for name, value in place.items() if value is not None}


def database_of(
    url: str | None,
    db_config: DbConfig | None,
    table: str | None,
    schema: str | None,
    provider: EngineProvider | None,
) -> Database:
    """Return the database that a decorator was given."""
    return Database(config_of(url, db_config), table, schema, provider)


def without_credentials(url: str) -> str:
    """Return a URL without user, password and parameters; ``%NAME%`` settings stay as they are written."""
    return _PARAMETERS.sub("", _USER_INFO.sub("", url)) if _SHOWABLE.fullmatch(url) else MASK
