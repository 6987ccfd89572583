"""Every store passes the shipped suite, on the real service it is made for."""

from __future__ import annotations

import json
import secrets
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from azure_functions_db import (
    BlobCheckpointStore,
    FileStateStore,
    LeaseConflictError,
    LostLeaseError,
    MemoryStateStore,
    SqlStateStore,
    TableStateStore,
)
from azure_functions_db.testing.stores import NewStore, StateStoreContract


class TestMemoryStateStore(StateStoreContract):
    @pytest.fixture
    def new_store(self) -> NewStore:
        return partial(MemoryStateStore, shared_with=MemoryStateStore())


class TestFileStateStore(StateStoreContract):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return partial(FileStateStore, tmp_path / "state")


class TestBlobCheckpointStore(StateStoreContract):
    @pytest.fixture
    def new_store(self, azurite: str, blob_container: str, monkeypatch: pytest.MonkeyPatch) -> NewStore:
        monkeypatch.setenv("AzureWebJobsStorage", azurite)
        return partial(BlobCheckpointStore, container=blob_container)


class TestBlobCheckpointStoreOfAClient(StateStoreContract):
    @pytest.fixture
    def new_store(self, azurite: str, blob_container: str) -> Iterator[NewStore]:
        from azure.storage.blob import ContainerClient

        with ContainerClient.from_connection_string(azurite, blob_container) as client:
            yield partial(BlobCheckpointStore, container_client=client)


class TestSqlStateStore(StateStoreContract):
    @pytest.fixture
    def new_store(self, database_url: str) -> NewStore:
        return partial(SqlStateStore, url=database_url)


class TestTableStateStore(StateStoreContract):
    @pytest.fixture
    def new_store(self, azurite: str, monkeypatch: pytest.MonkeyPatch) -> NewStore:
        monkeypatch.setenv("AzureWebJobsStorage", azurite)
        return partial(TableStateStore, table=f"test{secrets.token_hex(8)}")


class FiveMethods:
    """A user's own store: the five methods of the port, nothing inherited."""

    def __init__(self, state: dict[str, dict[str, Any]]) -> None:
        self._state = state
        self._lock = threading.Lock()

    def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:
        lease_id = uuid.uuid4().hex
        mine = self._state.setdefault(poller_name, {"checkpoint": "{}", "lease": lease_id})
        if mine["lease"] is None:
            mine["lease"] = lease_id
        if mine["lease"] != lease_id:
            raise LeaseConflictError("taken")
        return lease_id

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: float) -> None:
        self._held(poller_name, lease_id)

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        if self._state[poller_name]["lease"] == lease_id:
            self._state[poller_name]["lease"] = None

    def load_checkpoint(self, poller_name: str) -> dict[str, Any]:
        return dict(json.loads(self._state.get(poller_name, {"checkpoint": "{}"})["checkpoint"]))

    def commit_checkpoint(self, poller_name: str, checkpoint: dict[str, Any], lease_id: str) -> None:
        self._held(poller_name, lease_id)["checkpoint"] = json.dumps(checkpoint)

    def _held(self, poller_name: str, lease_id: str) -> dict[str, Any]:
        mine = self._state.get(poller_name, {"lease": None})
        if mine["lease"] != lease_id:
            raise LostLeaseError("lost")
        return mine


class TestAStoreOfFiveMethods(StateStoreContract):
    takes_clock = looks = checks_fingerprints = resets = False

    @pytest.fixture
    def new_store(self) -> NewStore:
        return partial(FiveMethods, {})
