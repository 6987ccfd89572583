"""Where a shop keeps its state and its quarantined rows, seen from outside: byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from azure.storage.blob import ContainerClient
from sqlalchemy import Connection, create_engine, text

from azure_functions_db import BlobCheckpointStore, FileStateStore, SqlStateStore

if TYPE_CHECKING:
    from azure_functions_db.state.store import DocumentStateStore


class Shelf(Protocol):
    """The state and the quarantine of one shop."""

    @property
    def store(self) -> DocumentStateStore:
        """The state store, with all rights."""

    def contents(self) -> dict[str, object]:
        """Everything that is kept, with what changes when it is written again."""


class Files:
    """Folders of files."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders

    @property
    def store(self) -> DocumentStateStore:
        return FileStateStore(self._folders[0])

    def contents(self) -> dict[str, object]:
        paths = [path for folder in self._folders for path in folder.rglob("*.json")]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


class Blobs:
    """A container of blobs."""

    def __init__(self, connection_string: str, container: str) -> None:
        self._client = ContainerClient.from_connection_string(connection_string, container)

    @property
    def store(self) -> DocumentStateStore:
        return BlobCheckpointStore(container_client=self._client)

    def contents(self) -> dict[str, object]:
        found = list(self._client.list_blobs())
        return {blob.name: (blob.etag, self._client.download_blob(blob.name).readall()) for blob in found}


class Tables:
    """Tables of a database."""

    def __init__(self, url: str, *tables: str) -> None:
        self._url = url
        self._tables = tables

    @property
    def store(self) -> DocumentStateStore:
        return SqlStateStore(url=self._url)

    def contents(self) -> dict[str, object]:
        engine = create_engine(self._url)
        try:
            with engine.connect() as connection:
                return {name: _rows(connection, name) for name in self._tables}
        finally:
            engine.dispose()


def _rows(connection: Connection, table: str) -> list[str]:
    return sorted(str(row) for row in connection.execute(text(f"SELECT * FROM {table}")))
