"""Places named by a URL: state stores, and sinks of quarantined rows; other packages add theirs by entry points."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.serializers import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from azure_functions_db.core.ports import QuarantineSink
    from azure_functions_db.state.store import DocumentStateStore

    OpenStore = Callable[[str, str | None], DocumentStateStore]
    OpenSink = Callable[[str], QuarantineSink]

STORES = "azure_functions_db.stores"
"""The group of entry points named by a URL's scheme: each a function of the URL and the app's name, or None."""
SINKS = "azure_functions_db.sinks"
"""The group of entry points named by a URL's scheme: each a function of the URL."""
_DEFAULT_SETTING = "AzureWebJobsStorage"
_TABLE = re.compile(r"(?:(?P<schema>\w+)\.)?(?P<table>\w+)")
_FORMS = (
    "azureblob://SETTING/CONTAINER, azuretable://SETTING/TABLE, cosmos://SETTING/DATABASE/CONTAINER, "
    "file:///DIRECTORY or a database URL such as postgresql+psycopg://user@host/name"
)


def store_at(url: str, app_name: str | None = None) -> DocumentStateStore:
    """Return the state store at a URL; nothing is contacted yet."""
    opened: OpenStore = _opener(url, _STORES, STORES, _sql_store)
    return opened(url, app_name)


def sink_at(url: str) -> QuarantineSink:
    """Return the sink of quarantined rows at a URL; nothing is contacted yet."""
    opened: OpenSink = _opener(url, _SINKS, SINKS, _sql_sink)
    return opened(url)


def _opener(url: str, ours: Mapping[str, Any], group: str, otherwise: Any) -> Any:
    """Return what opens URLs of this scheme; every other scheme is taken for a database's."""
    scheme, separator, _ = url.partition("://")
    if not separator and not re.fullmatch(r"%\w+%", url):
        raise ConfigurationError(f"--store and --quarantine take a URL: {_FORMS}")
    if scheme in ours:
        return ours[scheme]
    others = [entry for entry in entry_points(group=group) if entry.name == scheme]
    return others[0].load() if others else otherwise


def _blob_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.blob import BlobCheckpointStore

    return BlobCheckpointStore(**_storage(url, "container"), app_name=app_name)


def _table_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.table import TableStateStore

    return TableStateStore(**_storage(url, "table"), app_name=app_name)


def _cosmos_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.cosmos import CosmosStateStore

    parts = _parts(url)
    database, _, container = parts.path.strip("/").partition("/")
    if not (parts.netloc and database and container):
        raise ConfigurationError("A store in Cosmos DB is named by cosmos://SETTING/DATABASE/CONTAINER")
    return CosmosStateStore(connection=parts.netloc, database=database, container=container, app_name=app_name)


def _file_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.file import FileStateStore

    return FileStateStore(_existing_directory(url), app_name=app_name)


def _sql_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.sql import SqlStateStore

    return SqlStateStore(**database_at(url), app_name=app_name)


def _blob_sink(url: str) -> QuarantineSink:
    from azure_functions_db.quarantine.blob_sink import BlobQuarantine

    return BlobQuarantine(**_storage(url, "container"))


def _file_sink(url: str) -> QuarantineSink:
    from azure_functions_db.quarantine.file_sink import FileQuarantine

    return FileQuarantine(_existing_directory(url))


def _sql_sink(url: str) -> QuarantineSink:
    from azure_functions_db.quarantine.sql_sink import SqlQuarantine

    return SqlQuarantine(**database_at(url))


_STORES: dict[str, OpenStore] = {
    "azureblob": _blob_store,
    "azuretable": _table_store,
    "cosmos": _cosmos_store,
    "file": _file_store,
}
_SINKS: dict[str, OpenSink] = {"azureblob": _blob_sink, "file": _file_sink}


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # a bracket, which begins an address of IPv6 where it means anything
        raise ConfigurationError(f"--store and --quarantine take a URL: {_FORMS}") from None


def _storage(url: str, place: str) -> dict[str, Any]:
    parts = _parts(url)
    named = parts.path.strip("/")
    return {"connection": parts.netloc or _DEFAULT_SETTING, **({place: named} if named else {})}


def _existing_directory(url: str) -> str:
    path = unquote(expanded(url.removeprefix("file://")))
    with suppress(OSError):  # a name that no directory can have
        if Path(path).is_dir():
            return path
    raise ConfigurationError(f"There is no directory {shown(path)}")


def database_at(url: str) -> dict[str, Any]:
    """Return the arguments that a URL with an optional ``#schema.table`` stands for."""
    before, separator, after = url.rpartition("#")
    named = _TABLE.fullmatch(after) if separator else None
    if named is None:
        return {"url": url}
    return {"url": before, "table": named["table"], "schema": named["schema"]}
