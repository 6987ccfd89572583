"""State in Azure Cosmos DB: one item per poller, written only against its ETag."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from azure_functions_db.azure import ByConnectionString, ByIdentity, asked, connection_at
from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError, StateStoreError, needing
from azure_functions_db.core.types import Finding
from azure_functions_db.state.backend import Stored, poller_of
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from azure.cosmos import ContainerProxy, CosmosClient

    from azure_functions_db.state.backend import DocumentName, Version

T = TypeVar("T")

PARTITION_KEY: Final = "/app"
_LARGEST = 2 * 1024 * 1024 - 4096  # an item has 2 MB, our other fields included
_NEVER = -1
_TAKEN, _CHANGED, _ABSENT = 409, 412, 404
# The SDK's own patience (a minute for an answer, half of one for a throttled container) outlasts a short lease.
_PATIENCE = {"connection_timeout": 5, "read_timeout": 15, "retry_throttle_backoff_max": 15}


class CosmosBackend:
    """Items keyed by poller, partitioned by app; the container has to be there."""

    def __init__(self, connect: Callable[[], ContainerProxy]) -> None:
        self._connect = connect

    @cached_property
    def _container(self) -> ContainerProxy:
        container = self._connect()
        _check(container)  # the SDK would read its properties now anyway, and keeps them
        return container

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""
        return _asked(name, lambda: self._read(name))

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""
        return _asked(name, lambda: self._create(_item(name, content)))

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""
        return _asked(name, lambda: self._replace(_item(name, content), version))

    def delete(self, name: DocumentName, version: Version) -> bool:
        """Remove the version that was read; False when it is no longer the current one."""
        return _asked(name, lambda: self._delete(name, version))

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
        return _asked(None, lambda: self._pollers(app))

    def now(self) -> dt.datetime | None:
        """Return the service's own time."""
        return _asked(None, self._time)

    def checkup(self) -> list[Finding]:
        """Return whether conditional writes can be relied on: not where several regions accept writes."""
        return _asked(None, self._examined)

    def _read(self, name: DocumentName) -> Stored | None:
        item = _unless({_ABSENT}, lambda: self._container.read_item(_key(name.poller), partition_key=_key(name.app)))
        return None if item is None else Stored(str(item.get("document", "")).encode(), str(item["_etag"]))

    def _create(self, item: dict[str, Any]) -> Version | None:
        return _etag(_unless({_TAKEN}, lambda: self._container.create_item(item)))

    def _replace(self, item: dict[str, Any], version: Version) -> Version | None:
        from azure.core import MatchConditions

        condition: dict[str, Any] = {"etag": str(version), "match_condition": MatchConditions.IfNotModified}
        replace = self._container.replace_item
        return _etag(_unless({_CHANGED, _ABSENT}, lambda: replace(item["id"], item, **condition)))

    def _delete(self, name: DocumentName, version: Version) -> bool:
        from azure.core import MatchConditions

        condition: dict[str, Any] = {"etag": str(version), "match_condition": MatchConditions.IfNotModified}

        def delete() -> dict[str, Any]:
            self._container.delete_item(_key(name.poller), partition_key=_key(name.app), **condition)
            return {}

        return _unless({_CHANGED, _ABSENT}, delete) is not None

    def _pollers(self, app: str) -> list[str]:
        query = "SELECT c.id FROM c WHERE c.app = @app"
        parameters: list[dict[str, object]] = [{"name": "@app", "value": _key(app)}]
        found = self._container.query_items(query, parameters=parameters, partition_key=_key(app))
        return [_unkey(item["id"]) for item in found]

    def _time(self) -> dt.datetime | None:
        dates: list[str | None] = []
        self._container.read(response_hook=lambda headers, _: dates.append(headers.get("Date")))
        return next(map(parsedate_to_datetime, filter(None, dates)), None)

    def _examined(self) -> list[Finding]:
        account = self._container.client_connection.GetDatabaseAccount()
        if account._EnableMultipleWritableLocations:  # noqa: SLF001 - the SDK has no public name for it
            text = "several regions of the account accept writes: two instances could hold one lease"
            return [Finding("state account", "error", text, "keep state in an account with a single write region")]
        return [Finding("state account", "ok", "one region accepts writes")]


class CosmosStateStore(DocumentStateStore):
    """Keeps state in a Cosmos DB container that is partitioned by ``/app``.

    Give a ``container_client``, or let ``connection`` name the app setting of the account: a
    connection string, or identity-based settings (``{connection}__accountEndpoint`` and so on) as
    Functions itself reads them. The account must have a single write region.
    """

    def __init__(
        self,
        *,
        container_client: ContainerProxy | None = None,
        connection: str | None = None,
        database: str = "azfdb",
        container: str = "state",
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        match container_client, connection:
            case None, str() as setting:
                self._cosmos = CosmosBackend(lambda: _container(setting, expanded(database), expanded(container)))
            case given, None if given is not None:
                self._cosmos = CosmosBackend(lambda: given)
            case _:
                raise ConfigurationError("CosmosStateStore needs exactly one of container_client= and connection=")
        super().__init__(self._cosmos, source_fingerprint=source_fingerprint, app_name=app_name, clock=clock)

    def checkup(self) -> Iterable[Finding]:
        """Return what an operator should know of the account."""
        return self._cosmos.checkup()


def _asked(name: DocumentName | None, work: Callable[[], T]) -> T:
    return asked(poller_of(name.poller) if name else None, work, "Cosmos DB")


def _container(connection: str, database: str, container: str) -> ContainerProxy:
    return _client(connection).get_database_client(database).get_container_client(container)


def _client(connection: str) -> CosmosClient:
    with needing("CosmosStateStore", "azure-cosmos", "cosmos"):
        from azure.cosmos import CosmosClient
    match connection_at(connection, "accountEndpoint"):
        case ByConnectionString(text):
            try:
                return CosmosClient.from_connection_string(text, **_options(_endpoint(text)))
            except (ValueError, KeyError):
                raise ConfigurationError(
                    f"The app setting {connection} is no connection string of Cosmos DB", setting=connection
                ) from None
        case ByIdentity(endpoint, credential):
            return CosmosClient(endpoint, credential, **_options(endpoint))


def _endpoint(connection_string: str) -> str:
    parts = dict(part.split("=", 1) for part in connection_string.split(";") if "=" in part)
    return parts["AccountEndpoint"]


def _options(endpoint: str) -> dict[str, Any]:
    # An emulator announces itself by an address that is valid inside its container only.
    is_emulator = urlsplit(endpoint).hostname in {"localhost", "127.0.0.1", "::1"}
    return {**_PATIENCE, "enable_endpoint_discovery": not is_emulator}


def _check(container: ContainerProxy) -> None:
    from azure.cosmos.exceptions import CosmosResourceNotFoundError

    try:
        paths = container.read()["partitionKey"]["paths"]
    except CosmosResourceNotFoundError:
        raise StateStoreError(
            f"There is no container {container.id!r} in this database of Cosmos DB. Create it: az cosmosdb sql "
            f"container create --name {container.id} --partition-key-path {PARTITION_KEY} …",
            unreachable=True,
        ) from None
    if paths != [PARTITION_KEY]:
        raise ConfigurationError(
            f"The container {container.id!r} is partitioned by {', '.join(paths)}; state wants one that is "
            f"partitioned by {PARTITION_KEY}"
        )


def _unless(refusals: set[int], work: Callable[[], Any]) -> Any:
    """Return the item that the service answers with; None for an answer that says no."""
    from azure.cosmos.exceptions import CosmosHttpResponseError

    try:
        return work()
    except CosmosHttpResponseError as failure:
        # A sub-status says that something else is missing: the container, or this session's last write.
        if failure.status_code not in refusals or failure.sub_status:
            raise
        return None


def _etag(item: Any) -> Version | None:
    return None if item is None else str(item["_etag"])


def _item(name: DocumentName, content: bytes) -> dict[str, Any]:
    if len(content) > _LARGEST:
        raise StateStoreError(
            f"The state of poller {poller_of(name.poller)!r} is too large for an item of Cosmos DB: "
            f"{len(content)} of {_LARGEST} bytes",
            poller_name=poller_of(name.poller),
        )
    # A text, because Cosmos keeps numbers as floats; and never to be cleared away by a container's time to live.
    return {"id": _key(name.poller), "app": _key(name.app), "document": content.decode(), "ttl": _NEVER}


def _key(encoded: str) -> str:
    # Not every client of Cosmos can ask for an id with a percent sign in it.
    return encoded.replace("%", "=")


def _unkey(key: str) -> str:
    return key.replace("=", "%")
