"""State in Azure Blob Storage: one blob per poller, written only against its ETag."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.azure import asked, blob_container, error_code, service_time
from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.config import expanded
from azure_functions_db.state.backend import Stored, poller_of
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from azure.storage.blob import ContainerClient, StorageStreamDownloader

    from azure_functions_db.state.backend import DocumentName, Version

_SUFFIX = ".json"
_ABSENT = {"BlobNotFound", "ContainerNotFound"}
_CLAIM = "carried_over_by"
"""The metadata of an older document that names the app which has carried it over."""


class BlobBackend:
    """Blobs at ``state/{app}/{poller}.json``; the container is made when it turns out to be missing."""

    def __init__(self, connect: Callable[[], ContainerClient], *, carry_over: bool | None = None) -> None:
        self._connect = connect
        self._carry_over = carry_over
        self._not_in_old_place: set[str] = set()

    @cached_property
    def _container(self) -> ContainerClient:
        return self._connect()

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""
        return asked(poller_of(name.poller), lambda: self._read(_path(name)) or self._read_old(name))

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""
        return asked(poller_of(name.poller), lambda: self._create(_path(name), content))

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""
        return asked(poller_of(name.poller), lambda: self._replace(_path(name), content, version))

    def delete(self, name: DocumentName, version: Version) -> bool:
        """Remove the version that was read; False when it is no longer the current one."""
        return asked(poller_of(name.poller), lambda: self._delete(_path(name), version))

    def claim(self, name: DocumentName, origin: Version) -> bool:
        """Mark the document of release 0.8 as this app's; False where it has changed or another app was faster."""
        return asked(poller_of(name.poller), lambda: self._claim(name, origin))

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
        prefix = f"state/{app}/"
        paths = asked(None, lambda: self._paths(prefix))
        return [path.removeprefix(prefix).removesuffix(_SUFFIX) for path in paths]

    def missing_place(self) -> str | None:
        """Return the name of what is not there yet; None where it is."""
        is_there = asked(None, self._container.exists)
        return None if is_there else f"container {self._container.container_name}"

    def now(self) -> dt.datetime | None:
        """Return the service's own time."""
        return asked(None, lambda: service_time(lambda hook: self._container.exists(raw_response_hook=hook)))

    def _paths(self, prefix: str) -> list[str]:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return list(self._container.list_blob_names(name_starts_with=prefix))
        except ResourceNotFoundError as failure:
            if error_code(failure) not in _ABSENT:
                raise
            return []

    def _read(self, path: str) -> Stored | None:
        download = self._download(path)
        return None if download is None else Stored(download.readall(), download.properties.etag)

    def _download(self, path: str) -> StorageStreamDownloader[bytes] | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return self._container.download_blob(path)
        except ResourceNotFoundError as failure:
            if error_code(failure) not in _ABSENT:
                raise
            return None

    def _read_old(self, name: DocumentName) -> Stored | None:
        """Read the document of release 0.8, which had no app in its path; the first app carries it over."""
        poller_name = poller_of(name.poller)
        if self._carry_over is False or poller_name in self._not_in_old_place or "/" in poller_name:
            return None
        old = self._download(_old_path(name))
        claimed_by = None if old is None else old.properties.metadata.get(_CLAIM)
        if old is None or claimed_by not in {None, name.app}:
            self._not_in_old_place.add(poller_name)
            return None
        in_doubt = claimed_by is None and self._carry_over is None
        return Stored(old.readall(), None, origin=old.properties.etag, told_by_fingerprint=in_doubt)

    def _claim(self, name: DocumentName, origin: Version) -> bool:
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError

        old = self._container.get_blob_client(_old_path(name))
        try:
            old.set_blob_metadata({_CLAIM: name.app}, etag=str(origin), match_condition=MatchConditions.IfNotModified)
        except HttpResponseError as failure:
            if error_code(failure) not in {"ConditionNotMet", *_ABSENT}:
                raise
            return False
        return True

    def _create(self, path: str, content: bytes) -> Version | None:
        from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

        try:
            return self._upload(path, content, {"BlobAlreadyExists"}, overwrite=False)
        except ResourceNotFoundError as failure:
            if error_code(failure) != "ContainerNotFound":
                raise
        try:
            self._container.create_container()
        except ResourceExistsError as failure:
            if error_code(failure) != "ContainerAlreadyExists":
                raise
        return self._upload(path, content, {"BlobAlreadyExists"}, overwrite=False)

    def _replace(self, path: str, content: bytes, version: Version) -> Version | None:
        from azure.core import MatchConditions

        condition = {"overwrite": True, "etag": version, "match_condition": MatchConditions.IfNotModified}
        return self._upload(path, content, {"ConditionNotMet", *_ABSENT}, **condition)

    def _delete(self, path: str, version: Version) -> bool:
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError

        try:
            self._container.delete_blob(path, etag=str(version), match_condition=MatchConditions.IfNotModified)
        except HttpResponseError as failure:
            if error_code(failure) not in {"ConditionNotMet", *_ABSENT}:
                raise
            return False
        return True

    def _upload(self, path: str, content: bytes, refusals: set[str], **condition: Any) -> Version | None:
        from azure.core.exceptions import HttpResponseError

        try:
            answer = self._container.get_blob_client(path).upload_blob(content, **condition)
        except HttpResponseError as failure:
            if error_code(failure) not in refusals:
                raise
            return None
        return str(answer["etag"])


class BlobCheckpointStore(DocumentStateStore):
    """Keeps state in a blob container, at ``state/{app_name}/{poller_name}.json``.

    Give a ``container_client``, or let ``connection`` name the app setting of the storage
    account: a connection string, or identity-based settings as Functions itself reads them.
    ``app_name`` is the Function app's own name by default. Nothing is contacted before the
    first use.

    A poller without a state goes on from what release 0.8 has left at ``state/{poller_name}.json``, if that is of
    the same source and no other app has carried it over; ``carry_over`` says that it is this app's own whatever
    its fingerprint (True), or that it is to be left alone (False).
    """

    def __init__(
        self,
        *,
        container_client: ContainerClient | None = None,
        connection: str = "AzureWebJobsStorage",
        container: str = "db-state",
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        carry_over: bool | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        def connect() -> ContainerClient:
            return container_client or blob_container(connection, expanded(container))

        backend = BlobBackend(connect, carry_over=carry_over)
        super().__init__(backend, source_fingerprint=source_fingerprint, app_name=app_name, clock=clock)


def _old_path(name: DocumentName) -> str:
    return f"state/{poller_of(name.poller)}{_SUFFIX}"


def _path(name: DocumentName) -> str:
    return f"state/{name.app}/{name.poller}{_SUFFIX}"
