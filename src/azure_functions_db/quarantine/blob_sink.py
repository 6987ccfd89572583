"""Quarantine in Azure Blob Storage: one blob per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db.azure.storage import BlobFolder
from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.quarantine.entry import decoded, encoded, folder_of, is_at, oldest_first, path_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self._blobs = BlobFolder("quarantine", app_name, container_client or (connection, container), _failed)

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        self._blobs.write({path_of(row.poller_name, row.event_id): encoded(row).encode() for row in rows})

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        names = self._blobs.names("" if poller_name is None else folder_of(poller_name))
        contents = [(name, self._blobs.read(name)) for name in names]
        return oldest_first(
            [
                decoded(content, f"The blob {name}", is_at(name))
                for name, content in contents
                if content is not None  # removed by somebody else meanwhile
            ]
        )

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read."""
        return len(self._blobs.names(folder_of(poller_name)))

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        self._blobs.remove(path_of(poller_name, event_id))


def _failed(reason: str) -> StateStoreError:
    return StateStoreError(f"The quarantine in blob storage failed: {reason}", unreachable=True)
