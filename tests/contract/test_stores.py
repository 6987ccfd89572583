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
    EngineProvider,
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
    def new_store(self, azurite: str, monkeypatch: pytest.MonkeyPatch) -> NewStore:
        monkeypatch.setenv("AzureWebJobsStorage", azurite)
        return partial(BlobCheckpointStore, container="contract", app_name=a_new_app())


class TestSqlStateStore(StateStoreContract):
    @pytest.fixture(params=["sqlite", "postgres", "mariadb"])
    def new_store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewStore]:
        urls = {"sqlite": f"sqlite:///{tmp_path}/state.db"}
        url = urls.get(request.param) or request.getfixturevalue(f"{request.param}_url")
        provider = EngineProvider()
        yield partial(SqlStateStore, url=url, table="contract_state", app_name=a_new_app(), engine_provider=provider)
        provider.dispose_all()


class TestTableStateStore(StateStoreContract):
    @pytest.fixture
    def new_store(self, azurite: str, monkeypatch: pytest.MonkeyPatch) -> NewStore:
        monkeypatch.setenv("AzureWebJobsStorage", azurite)
        return partial(TableStateStore, table="contract", app_name=a_new_app())


def a_new_app() -> str:
    """Two apps in one place never meet: an app's name is all the isolation that a test needs."""
    return f"app-{secrets.token_hex(8)}"


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
