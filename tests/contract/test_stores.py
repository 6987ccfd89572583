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
    CosmosStateStore,
    EngineProvider,
    FileStateStore,
    LeaseConflictError,
    LostLeaseError,
    MemoryStateStore,
    SqlStateStore,
    TableStateStore,
)
from azure_functions_db.state.backend import DocumentName, Stored, document_name
from azure_functions_db.testing.stores import Delete, NewStore, StateStoreContract
from tests.support import cosmos


class BackendContract:
    """What every place for documents does about a write that comes too late: it says no, and changes nothing."""

    @pytest.fixture
    def name(self, new_store: NewStore) -> DocumentName:
        return document_name(new_store()._app_name, "orders")

    def test_a_document_is_made_once(self, new_store: NewStore, name: DocumentName) -> None:
        place = new_store()._backend
        version = place.create(name, b"first")
        assert version is not None
        assert place.create(name, b"second") is None
        assert place.read(name) == Stored(b"first", version)

    def test_only_the_version_that_was_read_is_replaced_or_removed(
        self, new_store: NewStore, name: DocumentName
    ) -> None:
        place = new_store()._backend
        first = place.create(name, b"first")
        second = place.replace(name, b"second", first)
        assert second not in {first, None}
        assert (place.replace(name, b"third", first), place.delete(name, first)) == (None, False)
        assert place.read(name) == Stored(b"second", second)
        assert place.delete(name, second)
        assert (place.replace(name, b"third", second), place.read(name)) == (None, None)


class TestMemoryStateStore(StateStoreContract, BackendContract):
    @pytest.fixture
    def new_store(self) -> NewStore:
        return partial(MemoryStateStore, shared_with=MemoryStateStore(app_name="app"), app_name="app")

    @pytest.fixture
    def delete(self, new_store: NewStore) -> Delete:
        documents = new_store()._backend._documents
        return lambda poller_name: documents.pop(DocumentName("app", poller_name))


class TestFileStateStore(StateStoreContract, BackendContract):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return partial(FileStateStore, tmp_path / "state", app_name="app")

    @pytest.fixture
    def delete(self, tmp_path: Path) -> Delete:
        return lambda poller_name: (tmp_path / "state" / "app" / f"{poller_name}.json").unlink()


class TestBlobCheckpointStore(StateStoreContract, BackendContract):
    @pytest.fixture
    def new_store(self, azurite: str, monkeypatch: pytest.MonkeyPatch) -> NewStore:
        monkeypatch.setenv("AzureWebJobsStorage", azurite)
        return partial(BlobCheckpointStore, container="contract", app_name=a_new_app())

    @pytest.fixture
    def delete(self, new_store: NewStore) -> Delete:
        store = new_store()
        return lambda poller_name: store._backend._container.delete_blob(f"state/{store._app_name}/{poller_name}.json")


class TestSqlStateStore(StateStoreContract, BackendContract):
    @pytest.fixture(params=["sqlite_database", "postgres_url", "mariadb_url", "sql_server_database"])
    def new_store(self, request: pytest.FixtureRequest) -> Iterator[NewStore]:
        url = request.getfixturevalue(request.param)
        provider = EngineProvider()
        yield partial(SqlStateStore, url=url, table="contract_state", app_name=a_new_app(), engine_provider=provider)
        provider.dispose_all()

    @pytest.fixture
    def delete(self, new_store: NewStore) -> Delete:
        store = new_store()
        backend = store._backend

        def delete(poller_name: str) -> None:
            own = backend._is(document_name(store._app_name, poller_name))
            with backend.engine.begin() as connection:
                connection.execute(backend.table.delete().where(own))

        return delete


class TestTableStateStore(StateStoreContract, BackendContract):
    @pytest.fixture
    def new_store(self, azurite: str, monkeypatch: pytest.MonkeyPatch) -> NewStore:
        monkeypatch.setenv("AzureWebJobsStorage", azurite)
        return partial(TableStateStore, table="contract", app_name=a_new_app())

    @pytest.fixture
    def delete(self, new_store: NewStore) -> Delete:
        store = new_store()
        return lambda poller_name: store._backend._table.delete_entity(store._app_name, poller_name)


class TestCosmosStateStore(StateStoreContract, BackendContract):
    @pytest.fixture
    def new_store(self, cosmos_server: str) -> NewStore:
        return partial(CosmosStateStore, container_client=cosmos.container("contract"), app_name=a_new_app())

    @pytest.fixture
    def delete(self, new_store: NewStore) -> Delete:
        store = new_store()
        return lambda poller_name: store._backend._container.delete_item(poller_name, store._app_name)


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
        if self._state.get(poller_name, {"lease": lease_id})["lease"] not in {lease_id, None}:
            raise LostLeaseError("lost")
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

    @pytest.fixture
    def delete(self, new_store: NewStore) -> Delete:
        return new_store()._state.pop  # type: ignore[no-any-return]
