"""State in Azure Tables: one entity per poller, written only against its ETag."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.azure import asked, error_code, service_time, storage_client
from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import StateStoreError, needing
from azure_functions_db.state.backend import Stored, poller_of
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from azure.data.tables import TableClient

    from azure_functions_db.state.backend import DocumentName, Version

# A text property holds 32 Ki characters and an entity 1 MiB, in UTF-16; documents are ASCII.
_PIECE = 32 * 1024
_MOST_PIECES = 15
# The client raises `ResourceNotFoundError` for these codes only, whatever else is answered with 404.
_ABSENT = {"ResourceNotFound", "TableNotFound", "EntityNotFound"}
_CHANGED = {"UpdateConditionNotSatisfied", "ConditionNotMet", *_ABSENT}


class TableBackend:
    """Entities keyed by app and poller; the table is made when it turns out to be missing."""

    def __init__(self, connect: Callable[[], TableClient]) -> None:
        self._connect = connect

    @cached_property
    def _table(self) -> TableClient:
        return self._connect()

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""
        return asked(poller_of(name.poller), lambda: self._read(name))

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""
        return asked(poller_of(name.poller), lambda: self._create(_entity(name, content)))

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""
        return asked(poller_of(name.poller), lambda: self._replace(_entity(name, content), version))

    def delete(self, name: DocumentName, version: Version) -> bool:
        """Remove the version that was read; False when it is no longer the current one."""
        return asked(poller_of(name.poller), lambda: self._delete(name, version))

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
        return asked(None, lambda: self._pollers(app))

    def missing_place(self) -> str | None:
        """Return the name of what is not there yet; None where it is."""
        is_there = asked(None, self._is_there)
        return None if is_there else f"table {self._table.table_name}"

    def now(self) -> dt.datetime | None:
        """Return the service's own time."""
        return asked(None, lambda: service_time(self._ask_for_nothing))

    def _ask_for_nothing(self, hook: Callable[[Any], None]) -> list[Any]:
        nobody = "PartitionKey eq '' and RowKey eq ''"
        return list(self._table.query_entities(nobody, raw_response_hook=hook))

    def _read(self, name: DocumentName) -> Stored | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            entity = self._table.get_entity(_key(name.app), _key(name.poller))
        except ResourceNotFoundError:
            return None
        return Stored(_content(entity), str(entity.metadata["etag"]))

    def _create(self, entity: dict[str, str]) -> Version | None:
        from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

        try:
            return _answered({"EntityAlreadyExists"}, lambda: self._table.create_entity(entity))
        except ResourceNotFoundError as failure:
            if error_code(failure) != "TableNotFound":
                raise
        with suppress(ResourceExistsError):
            self._table.create_table()
        return _answered({"EntityAlreadyExists"}, lambda: self._table.create_entity(entity))

    def _replace(self, entity: dict[str, str], version: Version) -> Version | None:
        from azure.core import MatchConditions
        from azure.data.tables import UpdateMode

        condition = MatchConditions.IfNotModified
        return _answered(
            _CHANGED,
            lambda: self._table.update_entity(
                entity, mode=UpdateMode.REPLACE, etag=str(version), match_condition=condition
            ),
        )

    def _delete(self, name: DocumentName, version: Version) -> bool:
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError

        key = {"PartitionKey": _key(name.app), "RowKey": _key(name.poller)}
        try:
            self._table.delete_entity(key, etag=str(version), match_condition=MatchConditions.IfNotModified)
        except HttpResponseError as failure:
            if error_code(failure) not in _CHANGED:
                raise
            return False
        return True

    def _is_there(self) -> bool:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            self._ask_for_nothing(lambda _response: None)
        except ResourceNotFoundError:
            return False
        return True

    def _pollers(self, app: str) -> list[str]:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            entities = self._table.query_entities(
                "PartitionKey eq @app", parameters={"app": _key(app)}, select=["RowKey"]
            )
            return [_unkey(entity["RowKey"]) for entity in entities]
        except ResourceNotFoundError:
            return []


class TableStateStore(DocumentStateStore):
    """Keeps state in an Azure table.

    Give a ``table_client``, or let ``connection`` name the app setting of the storage account:
    a connection string, or identity-based settings as Functions itself reads them.
    """

    def __init__(
        self,
        *,
        table_client: TableClient | None = None,
        connection: str = "AzureWebJobsStorage",
        table: str = "azfdbstate",
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        def connect() -> TableClient:
            with needing("TableStateStore", "azure-data-tables", "tables"):
                from azure.data.tables import TableClient

            return table_client or storage_client(TableClient, connection, "table", expanded(table))

        super().__init__(TableBackend(connect), source_fingerprint=source_fingerprint, app_name=app_name, clock=clock)


def _key(encoded: str) -> str:
    # A percent sign in a key is decoded once too often on its way through a URL.
    return encoded.replace("%", "=")


def _unkey(key: str) -> str:
    return key.replace("=", "%")


def _entity(name: DocumentName, content: bytes) -> dict[str, str]:
    text = content.decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    if len(pieces) > _MOST_PIECES:
        raise StateStoreError(
            f"The state of poller {poller_of(name.poller)!r} is too large for an Azure table: "
            f"{len(text)} of {_PIECE * _MOST_PIECES} characters",
            poller_name=poller_of(name.poller),
        )
    documents = {f"document{index}": piece for index, piece in enumerate(pieces)}
    return {"PartitionKey": _key(name.app), "RowKey": _key(name.poller), **documents}


def _content(entity: Mapping[str, Any]) -> bytes:
    pieces = (entity.get(f"document{index}") for index in range(_MOST_PIECES))
    return "".join(piece for piece in pieces if isinstance(piece, str)).encode()


def _answered(refusals: set[str], work: Callable[[], Mapping[str, Any]]) -> Version | None:
    from azure.core.exceptions import HttpResponseError

    try:
        return str(work()["etag"])
    except HttpResponseError as failure:
        if error_code(failure) not in refusals:
            raise
        return None
