"""State in Azure tables: what fits, what does not, and a table that is not there."""

from __future__ import annotations

import datetime as dt
import secrets
import sys
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.pipeline.transport import RequestsTransport
from azure.data.tables import TableClient

from azure_functions_db import ConfigurationError, LostLeaseError, StateStoreError, TableStateStore
from tests.support.storage import Refusing

POLLER = "orders"


@pytest.fixture
def client(azurite: str) -> TableClient:
    return TableClient.from_connection_string(azurite, f"test{secrets.token_hex(8)}")


@pytest.fixture
def store(client: TableClient) -> TableStateStore:
    return TableStateStore(table_client=client, app_name="shop")


def test_a_document_larger_than_a_property_is_split(store: TableStateStore) -> None:
    large = {"cursor": ["x" * 480_000]}
    lease_id = store.acquire_lease(POLLER, 60)
    store.commit_checkpoint(POLLER, large, lease_id)
    assert TableStateStore(table_client=store._backend._table, app_name="shop").load_checkpoint(POLLER) == large  # type: ignore[attr-defined]
    store.commit_checkpoint(POLLER, {"cursor": [1]}, lease_id)
    assert store.look(POLLER).checkpoint == {"cursor": [1]}


def test_a_document_larger_than_an_entity_is_refused_with_its_size(store: TableStateStore) -> None:
    lease_id = store.acquire_lease(POLLER, 60)
    with pytest.raises(StateStoreError, match=r"too large for an Azure table: \d+ of 491520"):
        store.commit_checkpoint(POLLER, {"cursor": ["x" * 500_000]}, lease_id)
    store.commit_checkpoint(POLLER, {"cursor": [1]}, lease_id)


def test_a_missing_table_holds_no_pollers_and_is_made_on_demand(store: TableStateStore) -> None:
    assert store.poller_names() == []
    assert store.load_checkpoint(POLLER) == {}
    with pytest.raises(ConfigurationError, match=r"There is no table test\w+ here"):
        store.check_place()
    store.acquire_lease(POLLER, 60)
    store.check_place()
    assert store.poller_names() == [POLLER]


def makes_table(request: Any) -> bool:
    return bool(request.method == "POST" and request.url.endswith("/Tables"))


def refusing(azurite: str, wire: RequestsTransport) -> TableStateStore:
    client = TableClient.from_connection_string(azurite, f"test{secrets.token_hex(8)}", transport=wire, retry_total=0)
    return TableStateStore(table_client=client, app_name="shop")


def test_a_table_that_another_instance_makes_at_the_same_moment_is_used(azurite: str) -> None:
    class Rival(RequestsTransport):  # type: ignore[misc]  # the SDK does not tell its type
        def send(self, request: Any, **options: Any) -> Any:
            if makes_table(request):
                super().send(request, **options)
            return super().send(request, **options)

    refusing(azurite, Rival()).acquire_lease(POLLER, 60)


def test_a_table_that_is_being_deleted_is_told_as_that(azurite: str) -> None:
    store = refusing(azurite, Refusing(makes_table, 409, "TableBeingDeleted"))
    with pytest.raises(StateStoreError, match="TableBeingDeleted, HTTP 409"):
        store.acquire_lease(POLLER, 60)


def test_no_table_is_made_because_something_else_is_missing(azurite: str) -> None:
    wire = Refusing(lambda request: request.method == "POST", 404, "ResourceNotFound")
    with pytest.raises(StateStoreError, match="HTTP 404"):
        refusing(azurite, wire).acquire_lease(POLLER, 60)
    assert "POST Tables" not in wire.requests


@pytest.mark.parametrize(
    "act", [TableStateStore.poller_names, TableStateStore.check_place, lambda store: store.load_checkpoint(POLLER)]
)
def test_a_table_is_not_taken_for_missing_because_something_else_is(
    azurite: str, act: Callable[[TableStateStore], object]
) -> None:
    with pytest.raises(StateStoreError, match="HTTP 404"):
        act(refusing(azurite, Refusing(lambda _: True, 404, "AccountNotFound")))


def test_a_state_is_not_taken_for_forgotten_when_it_could_not_be_removed(azurite: str) -> None:
    wire = Refusing(lambda request: request.method == "DELETE", 403, "AuthorizationPermissionMismatch")
    store = refusing(azurite, wire)
    store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
    with pytest.raises(StateStoreError, match="it refuses access"):
        store.forget(POLLER)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.data.tables", None)
    with pytest.raises(ConfigurationError, match=r'TableStateStore needs .*azure-functions-db\[tables\]"'):
        TableStateStore(connection="STATE").load_checkpoint(POLLER)


def test_a_deleted_entity_or_table_is_a_lost_lease(store: TableStateStore, client: TableClient) -> None:
    lease_id = store.acquire_lease(POLLER, 60)
    client.delete_entity("shop", POLLER)
    with pytest.raises(LostLeaseError):
        store.renew_lease(POLLER, lease_id, 60)
    lease_id = store.acquire_lease(POLLER, 60)
    client.delete_table()
    with pytest.raises(LostLeaseError):
        store.commit_checkpoint(POLLER, {"cursor": [1]}, lease_id)


def test_a_damaged_connection_string_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE", "Name=a;AccountKey=hush;")
    with pytest.raises(ConfigurationError) as refused:
        TableStateStore(connection="STATE").load_checkpoint(POLLER)
    assert "hush" not in repr(refused.value) + repr(refused.value.__context__)


def test_the_services_own_time_is_told_with_and_without_a_table(store: TableStateStore) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=60)
    for _ in range(2):
        told = store.storage_time()
        assert told is not None
        assert told > before
        store.poller_names()
        store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
