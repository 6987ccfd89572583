"""Quarantine in Azure Blob Storage: one blob per row."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from azure_functions_db.azure.storage import blob_container, failure_told
from azure_functions_db.core.config import encoded_app, encoded_name, expanded
from azure_functions_db.core.errors import StateStoreError, masked_error
from azure_functions_db.quarantine.entry import decoded, encoded, folder_of, is_at, oldest_first, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from azure.storage.blob import ContainerClient

    from azure_functions_db.core.types import QuarantinedRow


class BlobQuarantine:
    """Keeps rows in a container, at ``quarantine/{app_name}/{poller_name}/{event_id}.json``.

    Give a ``container_client``, or let ``connection`` name the app setting of the storage account
    as for `BlobCheckpointStore`. The container is made when it turns out to be missing.
    """

    def __init__(
        self,
        *,
        container_client: ContainerClient | None = None,
        connection: str = "AzureWebJobsStorage",
        container: str = "db-quarantine",
        app_name: str | None = None,
    ) -> None:
        if app_name:
            encoded_name("app_name", app_name)
        self._given = container_client
        self._connection = connection
        self._container_name = container
        self._app_name = app_name

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        from azure.core.exceptions import ResourceNotFoundError

        with _translated():
            try:
                self._upload(rows)
            except ResourceNotFoundError:
                self._make_container()
                self._upload(rows)

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        from azure.core.exceptions import ResourceNotFoundError

        prefix = self._root + ("" if poller_name is None else folder_of(poller_name))
        with _translated():
            try:
                names = list(self._container.list_blob_names(name_starts_with=prefix))
            except ResourceNotFoundError:
                return []
            contents = [(name, self._container.download_blob(name).readall()) for name in names]
        return oldest_first(
            [decoded(content, f"The blob {name}", is_at(name.removeprefix(self._root))) for name, content in contents]
        )

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read."""
        from azure.core.exceptions import ResourceNotFoundError

        with _translated():
            try:
                return sum(
                    1 for _ in self._container.list_blob_names(name_starts_with=self._root + folder_of(poller_name))
                )
            except ResourceNotFoundError:
                return 0

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        from azure.core.exceptions import ResourceNotFoundError

        with _translated():
            try:
                self._container.delete_blob(self._root + path_of(poller_name, event_id))
            except ResourceNotFoundError:
                return

    @property
    def _root(self) -> str:
        return f"quarantine/{encoded_app(self._app_name)}/"

    @cached_property
    def _container(self) -> ContainerClient:
        return self._given or blob_container(self._connection, expanded(self._container_name))

    def _upload(self, rows: Sequence[QuarantinedRow]) -> None:
        for row in rows:
            path = self._root + path_of(row.poller_name, row.event_id)
            self._container.upload_blob(path, encoded(row).encode(), overwrite=True)

    def _make_container(self) -> None:
        from azure.core.exceptions import ResourceExistsError

        try:
            self._container.create_container()
        except ResourceExistsError:
            return


@contextmanager
def _translated() -> Iterator[None]:
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        reason = failure_told(error, _code_of(error))
        refused = StateStoreError(f"The quarantine in blob storage failed: {reason}", unreachable=True)
        try:
            raise refused from masked_error(error)
        finally:
            # The error itself could show a signed URL to whoever follows the chain.
            refused.__context__ = None


def _code_of(error: object) -> str:
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or type(error).__name__)
