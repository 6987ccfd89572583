"""Places named by a URL on the command line: state stores, and sinks of quarantined rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.state.store import DocumentStateStore

_DEFAULT_SETTING = "AzureWebJobsStorage"
_TABLE = re.compile(r"(?:(?P<schema>\w+)\.)?(?P<table>\w+)")
_FORMS = (
    "azureblob://SETTING/CONTAINER, azuretable://SETTING/TABLE, file:///DIRECTORY or a database URL such as "
    "postgresql+psycopg://user@host/name"
)


def store_at(url: str, app_name: str | None) -> DocumentStateStore:
    """Return the state store at a URL; nothing is contacted yet."""
    match _kind(url):
        case "azureblob":
            from azure_functions_db.state.blob import BlobCheckpointStore

            return BlobCheckpointStore(**_storage(url, "container"), app_name=app_name)
        case "azuretable":
            from azure_functions_db.state.table import TableStateStore

            return TableStateStore(**_storage(url, "table"), app_name=app_name)
        case "file":
            from azure_functions_db.state.file import FileStateStore

            return FileStateStore(_existing_directory(url), app_name=app_name)
        case _:
            from azure_functions_db.state.sql import SqlStateStore

            return SqlStateStore(**database_at(url), app_name=app_name)


def sink_at(url: str) -> QuarantineSink:
    """Return the sink of quarantined rows at a URL; nothing is contacted yet."""
    match _kind(url):
        case "azureblob":
            from azure_functions_db.quarantine.blob_sink import BlobQuarantine

            return BlobQuarantine(**_storage(url, "container"))
        case "file":
            from azure_functions_db.quarantine.file_sink import FileQuarantine

            return FileQuarantine(_existing_directory(url))
        case _:
            from azure_functions_db.quarantine.sql_sink import SqlQuarantine

            return SqlQuarantine(**database_at(url))


def _kind(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator and not re.fullmatch(r"%\w+%", url):
        raise ConfigurationError(f"--store and --quarantine take a URL: {_FORMS}")
    return scheme


def _storage(url: str, place: str) -> dict[str, Any]:
    parts = urlsplit(url)
    named = parts.path.strip("/")
    return {"connection": parts.netloc or _DEFAULT_SETTING, **({place: named} if named else {})}


def _existing_directory(url: str) -> str:
    from pathlib import Path

    path = unquote(expanded(url.removeprefix("file://")))
    if not Path(path).is_dir():
        raise ConfigurationError(f"There is no directory {path}")
    return path


def database_at(url: str) -> dict[str, Any]:
    """Return the arguments that a URL with an optional ``#schema.table`` stands for."""
    before, separator, after = url.rpartition("#")
    named = _TABLE.fullmatch(after) if separator else None
    if named is None:
        return {"url": url}
    return {"url": before, "table": named["table"], "schema": named["schema"]}
