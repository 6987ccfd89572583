"""State in Cosmos DB: requests that fail in every way, throttling, and what an operator sees."""

from __future__ import annotations

import datetime as dt
import json
import secrets
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import PartitionKey

from azure_functions_db import ConfigurationError, CosmosStateStore, LostLeaseError, StateStoreError
from azure_functions_db.operations.pollers import store_at
from tests.support import cosmos
from tests.support.cosmos import FAULTS, CosmosTransport
from tests.support.storage import Scene

POLLER = "orders"
pytestmark = pytest.mark.usefixtures("cosmos_server")


@pytest.fixture
def app() -> str:
    return f"app-{secrets.token_hex(8)}"


@pytest.fixture
def transport() -> CosmosTransport:
    return CosmosTransport()


@pytest.fixture
def store(app: str, transport: CosmosTransport) -> CosmosStateStore:
    return CosmosStateStore(container_client=cosmos.container("state", transport), app_name=app)


def new_scene() -> Scene:
    transport = CosmosTransport()
    # Whether the client or this library tries again must make no difference: here the client does not.
    patience = {"retry_total": 0, "retry_connect": 0, "retry_read": 0, "retry_status": 0}
    containers = cosmos.container("state", transport, **patience), cosmos.container("state")
    mine, theirs = (CosmosStateStore(container_client=each, app_name="faults") for each in containers)
    return Scene(transport, mine, theirs)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_no_failing_request_loses_a_row_or_stalls_the_next_tick(fault: str, length: int) -> None:
    for first in range(1, 5):
        new_scene().check_after(fault, range(first, first + length))


def test_a_throttled_container_is_waited_for(store: CosmosStateStore, transport: CosmosTransport) -> None:
    transport.plan("throttled", range(1, 6))
    lease_id = store.acquire_lease(POLLER, 60)
    transport.plan("throttled", range(1, 6))
    store.commit_checkpoint(POLLER, {"cursor": [1]}, lease_id)
    assert transport.requests == 6
    assert store.look(POLLER).checkpoint == {"cursor": [1]}


def test_throttling_without_end_is_an_error_that_says_so(store: CosmosStateStore, transport: CosmosTransport) -> None:
    transport.plan("throttled", range(1, 1000))
    with pytest.raises(StateStoreError, match=r"Cosmos DB failed on the state of poller 'orders'.*429"):
        store.load_checkpoint(POLLER)


def test_what_is_read_is_what_was_written_to_the_last_byte(store: CosmosStateStore, app: str) -> None:
    odd = {"cursor": [2**63 + 1, 1.0, 0.1, "größer \u2028 \U0001f600"]}
    store.commit_checkpoint(POLLER, odd, store.acquire_lease(POLLER, 60))
    other = CosmosStateStore(container_client=cosmos.container("state"), app_name=app)
    assert other.load_checkpoint(POLLER) == odd
    assert [type(part) for part in other.load_checkpoint(POLLER)["cursor"]] == [int, float, float, str]


@pytest.mark.parametrize("name", ["a/b", "ünïcode", "100%", "a=b", "q?x#y", "back\\slash"])
def test_a_poller_may_have_any_name(store: CosmosStateStore, name: str) -> None:
    store.commit_checkpoint(name, {"cursor": [1]}, store.acquire_lease(name, 60))
    assert store.poller_names() == [name]
    assert store.load_checkpoint(name) == {"cursor": [1]}


def test_a_state_is_never_cleared_away_by_the_containers_time_to_live(store: CosmosStateStore, app: str) -> None:
    store.acquire_lease(POLLER, 60)
    assert cosmos.container("state").read_item(POLLER, app)["ttl"] == -1


def test_a_document_larger_than_an_item_is_refused_with_its_size(store: CosmosStateStore) -> None:
    lease_id = store.acquire_lease(POLLER, 60)
    with pytest.raises(StateStoreError, match=r"too large for an item of Cosmos DB: \d+ of 2093056"):
        store.commit_checkpoint(POLLER, {"cursor": ["x" * 2_100_000]}, lease_id)
    store.commit_checkpoint(POLLER, {"cursor": [1]}, lease_id)


def test_a_deleted_item_is_a_lost_lease(store: CosmosStateStore, app: str) -> None:
    lease_id = store.acquire_lease(POLLER, 60)
    cosmos.container("state").delete_item(POLLER, app)
    with pytest.raises(LostLeaseError):
        store.renew_lease(POLLER, lease_id, 60)


def test_a_missing_container_is_named_with_what_makes_it() -> None:
    missing = cosmos.client().get_database_client("azfdb").get_container_client("nowhere")
    with pytest.raises(StateStoreError, match=r"no container 'nowhere'.*--partition-key-path /app"):
        CosmosStateStore(container_client=missing).load_checkpoint(POLLER)


def test_a_container_partitioned_otherwise_is_refused() -> None:
    cosmos.container("state")
    database = cosmos.client().get_database_client("azfdb")
    database.create_container_if_not_exists("otherwise", PartitionKey("/tenant"))
    with pytest.raises(ConfigurationError, match="partitioned by /tenant"):
        CosmosStateStore(container_client=database.get_container_client("otherwise")).load_checkpoint(POLLER)


def test_a_session_that_is_behind_is_not_taken_for_a_missing_document(
    store: CosmosStateStore, transport: CosmosTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CosmosTransport, "answer", lambda _, request, __: cosmos.answer(request, 404, {"x-ms-substatus": "1002"})
    )
    transport.plan("behind", range(1, 1000))
    with pytest.raises(StateStoreError, match="404"):
        store.load_checkpoint(POLLER)


def test_a_refused_request_is_not_taken_for_a_missing_document(
    store: CosmosStateStore, transport: CosmosTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CosmosTransport, "answer", lambda _, request, __: cosmos.answer(request, 403, {}))
    transport.plan("forbidden", range(1, 1000))
    with pytest.raises(StateStoreError, match="it refuses access"):
        store.load_checkpoint(POLLER)


def test_a_setting_with_a_connection_string_is_all_it_needs(
    cosmos_server: str, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE", f"AccountEndpoint={cosmos_server};AccountKey={cosmos.KEY};")
    cosmos.container("state")
    assert CosmosStateStore(connection="STATE", app_name=app).poller_names() == []


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.cosmos", None)
    with pytest.raises(ConfigurationError, match=r'CosmosStateStore needs .*azure-functions-db\[cosmos\]"'):
        CosmosStateStore(connection="STATE").load_checkpoint(POLLER)


def test_a_damaged_connection_string_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE", "Name=a;AccountKey=hush;")
    with pytest.raises(ConfigurationError, match="no connection string of Cosmos DB") as refused:
        CosmosStateStore(connection="STATE").load_checkpoint(POLLER)
    assert "hush" not in repr(refused.value) + repr(refused.value.__context__)


@pytest.mark.parametrize("wrong", [{}, {"connection": "STATE", "container_client": object()}])
def test_a_store_needs_one_container(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="exactly one of"):
        CosmosStateStore(**wrong)


def test_an_identity_reaches_the_account_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "azure.cosmos.CosmosClient.__init__", lambda _, *given, **options: made.append((*given, options))
    )
    monkeypatch.setenv("STATE__accountEndpoint", "https://shop.documents.azure.com:443/")
    monkeypatch.setenv("STATE__credential", "managedidentity")
    with suppress(AttributeError):  # the client was not really made
        CosmosStateStore(connection="STATE").load_checkpoint(POLLER)
    [(endpoint, credential, options)] = made
    assert endpoint == "https://shop.documents.azure.com:443/"
    assert type(credential).__name__ == "ManagedIdentityCredential"
    assert options["enable_endpoint_discovery"]


def test_the_services_own_time_is_told(store: CosmosStateStore) -> None:
    told = store.storage_time()
    assert told is not None
    assert abs(told - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=10)


def test_a_service_that_tells_no_time_is_none_to_compare_clocks_with(app: str) -> None:
    class Timeless(CosmosTransport):
        def send(self, request: Any, **options: Any) -> Any:
            response = super().send(request, **options)
            response.headers.pop("Date", None)
            return response

    store = CosmosStateStore(container_client=cosmos.container("state", Timeless()), app_name=app)
    assert store.storage_time() is None


def test_doctor_is_told_that_one_region_accepts_writes(store: CosmosStateStore) -> None:
    [finding] = store.checkup()
    assert (finding.check, finding.grade) == ("state account", "ok")


def test_doctor_refuses_an_account_with_several_write_regions(
    store: CosmosStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = store._cosmos._container.client_connection.GetDatabaseAccount()
    account._EnableMultipleWritableLocations = True
    monkeypatch.setattr(
        "azure.cosmos._cosmos_client_connection.CosmosClientConnection.GetDatabaseAccount", lambda *_, **__: account
    )
    [finding] = store.checkup()
    assert finding.grade == "error"


def test_the_command_line_reads_a_store_by_its_url(
    cosmos_server: str, store: CosmosStateStore, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit_checkpoint(POLLER, {"cursor": [1]}, store.acquire_lease(POLLER, 60))
    monkeypatch.setenv("COSMOS", f"AccountEndpoint={cosmos_server};AccountKey={cosmos.KEY};")
    command = [str(Path(sys.executable).with_name("azfdb")), "status", "--json", "--app-name", app]
    told = subprocess.run(
        [*command, "--store", "cosmos://COSMOS/azfdb/state"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert POLLER in json.dumps(json.loads(told.stdout))


@pytest.mark.parametrize("url", ["cosmos://COSMOS", "cosmos://COSMOS/database", "cosmos:///a/b"])
def test_a_url_without_its_parts_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="cosmos://SETTING/DATABASE/CONTAINER"):
        store_at(url)
