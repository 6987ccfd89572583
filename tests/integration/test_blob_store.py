"""State in blobs: the requests it costs, answers that get lost, settings, older documents, secrets."""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import ContainerClient, ExponentialRetry, LinearRetry

from azure_functions_db import (
    BlobCheckpointStore,
    ConfigurationError,
    DbError,
    LeaseConflictError,
    LostLeaseError,
    StateStoreError,
)
from azure_functions_db.azure import ByConnectionString, ByIdentity, storage_account
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.quarantine import BlobQuarantine
from tests.support.storage import Refusing
from tests.support.told import whole_story

POLLER = "orders"
FIRST, SECOND = {"cursor": [1]}, {"cursor": [2]}
NO_RETRY = LinearRetry(backoff=0, retry_total=0)


def makes_container(request: Any) -> bool:
    return request.method == "PUT" and "restype=container" in request.url


class Wire(RequestsTransport):  # type: ignore[misc]  # the SDK does not tell its type
    """Counts the requests that really go out, and can lose answers."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.answers_to_lose = 0

    def send(self, request: Any, **options: Any) -> Any:
        self.requests.append(request.method)
        response = super().send(request, **options)
        if request.method == "PUT" and self.answers_to_lose:
            self.answers_to_lose -= 1
            raise ServiceResponseError("the connection broke before an answer came")
        return response

    def counted(self) -> int:
        count = len(self.requests)
        self.requests.clear()
        return count


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def container(azurite: str, blob_container: str, wire: Wire) -> Iterator[ContainerClient]:
    retries = ExponentialRetry(initial_backoff=0, increment_base=0, retry_total=2, random_jitter_range=0)
    with ContainerClient.from_connection_string(
        azurite, blob_container, transport=wire, retry_policy=retries
    ) as client:
        yield client


@pytest.fixture
def store(container: ContainerClient) -> BlobCheckpointStore:
    return BlobCheckpointStore(container_client=container, app_name="shop")


def put(container: ContainerClient, path: str, document: dict[str, Any]) -> None:
    container.upload_blob(path, json.dumps(document).encode(), overwrite=True)


class TestRequests:
    def test_each_step_costs_what_it_must(self, store: BlobCheckpointStore, wire: Wire) -> None:
        store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
        wire.counted()
        lease_id = store.acquire_lease(POLLER, 60)
        assert wire.counted() == 2
        store.load_checkpoint(POLLER)
        assert wire.counted() == 0
        store.commit_checkpoint(POLLER, FIRST, lease_id)
        assert wire.counted() == 1
        store.renew_lease(POLLER, lease_id, 60)
        assert wire.counted() == 1
        store.commit_checkpoint(POLLER, SECOND, lease_id)
        assert wire.counted() == 1
        store.release_lease(POLLER, lease_id)
        assert wire.counted() == 1

    def test_a_tick_that_looks_first_costs_one_request_or_three(self, store: BlobCheckpointStore, wire: Wire) -> None:
        store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
        wire.counted()
        state = store.look(POLLER)
        assert wire.counted() == 1
        store._lease(POLLER, store.take(state, 60).lease_id).commit(FIRST, release=True)
        assert wire.counted() == 2

    def test_a_new_poller_costs_one_more_look_for_an_older_document(
        self, store: BlobCheckpointStore, wire: Wire
    ) -> None:
        store.acquire_lease(POLLER, 60)
        assert wire.counted() == 3

    def test_a_held_lease_is_noticed_in_one_request(self, store: BlobCheckpointStore, wire: Wire) -> None:
        store.acquire_lease(POLLER, 60)
        wire.counted()
        with pytest.raises(LeaseConflictError):
            store.acquire_lease(POLLER, 60)
        assert wire.counted() == 1


class TestALostAnswer:
    """The write took effect, the answer got lost, the SDK tries again and is refused by its own write."""

    def test_acquire_holds_the_lease(self, store: BlobCheckpointStore, wire: Wire) -> None:
        wire.answers_to_lose = 1
        lease_id = store.acquire_lease(POLLER, 60)
        store.release_lease(POLLER, lease_id)
        wire.answers_to_lose = 1
        assert store.acquire_lease(POLLER, 60).endswith(":2")
        assert wire.answers_to_lose == 0

    def test_commit_is_committed(self, store: BlobCheckpointStore, wire: Wire) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        wire.answers_to_lose = 1
        store.commit_checkpoint(POLLER, FIRST, lease_id)
        wire.answers_to_lose = 1
        store.renew_lease(POLLER, lease_id, 60)
        wire.answers_to_lose = 1
        store._lease(POLLER, lease_id).commit(SECOND, release=True)
        assert wire.answers_to_lose == 0
        assert store.load_checkpoint(POLLER) == SECOND

    def test_commit_is_committed_even_if_the_sdk_gives_up(self, store: BlobCheckpointStore, wire: Wire) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        wire.answers_to_lose = 3
        store.commit_checkpoint(POLLER, FIRST, lease_id)
        assert wire.answers_to_lose == 0
        assert store.load_checkpoint(POLLER) == FIRST


class TestAnOlderDocument:
    """As version 0.8 wrote it: no app in the path, the cursor a list, its own kind of fingerprint."""

    OLD: ClassVar[dict[str, Any]] = {
        "version": 1,
        "poller_name": POLLER,
        "source_fingerprint": "sha256:computed-in-another-way",
        "checkpoint": {"cursor": ["2026-01-01T00:00:00+00:00", 12], "batch_id": "x"},
        "lease": {
            "owner_id": "0e7435aa4cb6458e835c078b912ef2a5",
            "fencing_token": 7,
            "acquired_at": "2026-01-01T19:44:15.056375+00:00",
            "heartbeat_at": "2026-01-01T19:44:15.088924+00:00",
            "expires_at": "2026-01-01T19:44:15.133101+00:00",
        },
    }

    def test_is_carried_over_without_replay(self, store: BlobCheckpointStore, container: ContainerClient) -> None:
        put(container, "state/orders.json", self.OLD)
        assert store.load_checkpoint(POLLER) == self.OLD["checkpoint"]
        state = store.look(POLLER, "sha256:ours", self.OLD["source_fingerprint"])
        assert state.checkpoint == self.OLD["checkpoint"]
        lease_id = store.take(state, 60).lease_id
        assert lease_id.endswith(":8")
        store._lease(POLLER, lease_id).commit(SECOND, release=True)
        assert sorted(container.list_blob_names()) == ["state/orders.json", "state/shop/orders.json"]
        assert json.loads(container.download_blob("state/orders.json").readall()) == self.OLD
        carried = store.inspect(POLLER)
        assert carried is not None
        assert (carried["checkpoint"], carried["source_fingerprint"]) == (SECOND, "sha256:ours")

    def test_waits_for_its_living_owner(self, store: BlobCheckpointStore, container: ContainerClient) -> None:
        later = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=60)).isoformat()
        put(container, "state/orders.json", self.OLD | {"lease": self.OLD["lease"] | {"expires_at": later}})
        with pytest.raises(LeaseConflictError):
            store.acquire_lease(POLLER, 60)
        assert list(container.list_blob_names()) == ["state/orders.json"]

    def test_that_was_claimed_by_this_app_is_its_own_whatever_its_fingerprint(
        self, store: BlobCheckpointStore, container: ContainerClient
    ) -> None:
        put(container, "state/orders.json", self.OLD)
        container.get_blob_client("state/orders.json").set_blob_metadata({"carried_over_by": "shop"})
        assert store.look(POLLER, "sha256:ours").checkpoint == self.OLD["checkpoint"]

    def test_is_asked_for_once(self, store: BlobCheckpointStore, wire: Wire) -> None:
        store.look(POLLER)
        wire.counted()
        store.look(POLLER)
        assert wire.counted() == 1

    def test_is_not_looked_for_where_its_path_would_be_another_apps(
        self, store: BlobCheckpointStore, container: ContainerClient
    ) -> None:
        put(container, "state/other/orders.json", self.OLD | {"poller_name": "other/orders"})
        assert store.look("other/orders").checkpoint == {}

    def test_that_cannot_be_claimed_is_not_taken_over(self, azurite: str, blob_container: str) -> None:
        wire = Refusing(lambda request: "comp=metadata" in request.url, 403, "AuthorizationPermissionMismatch")
        with ContainerClient.from_connection_string(azurite, blob_container, transport=wire) as client:
            put(client, "state/orders.json", self.OLD)
            with pytest.raises(StateStoreError, match="it refuses access"):
                BlobCheckpointStore(container_client=client).acquire_lease(POLLER, 60)
            assert list(client.list_blob_names()) == ["state/orders.json"]

    def test_of_a_damaged_kind_is_refused(self, store: BlobCheckpointStore, container: ContainerClient) -> None:
        put(container, "state/orders.json", {"version": 1})
        with pytest.raises(StateStoreError):
            store.acquire_lease(POLLER, 60)


class TestTheDocument:
    def test_lies_at_the_documented_path(self, store: BlobCheckpointStore, container: ContainerClient) -> None:
        store.acquire_lease(POLLER, 60)
        store.acquire_lease("ord/ers ä", 60)
        expected = ["state/shop/ord%2Fers%20%C3%A4.json", "state/shop/orders.json"]
        assert list(container.list_blob_names()) == expected

    def test_deleted_under_a_lease_is_a_lost_lease(
        self, store: BlobCheckpointStore, container: ContainerClient
    ) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        container.delete_blob("state/shop/orders.json")
        with pytest.raises(LostLeaseError, match="vanished"):
            store.commit_checkpoint(POLLER, FIRST, lease_id)

    @pytest.mark.parametrize("content", [b"", b"{", b'{"version": 99, "poller_name": "orders"}'])
    def test_that_makes_no_sense_is_left_alone(
        self, store: BlobCheckpointStore, container: ContainerClient, content: bytes
    ) -> None:
        container.upload_blob("state/shop/orders.json", content)
        with pytest.raises(StateStoreError, match="Nothing was overwritten"):
            store.acquire_lease(POLLER, 60)
        assert container.download_blob("state/shop/orders.json").readall() == content

    def test_is_not_taken_for_absent_because_something_else_is(self) -> None:
        with Server(404, b"<html>Our proxy knows no such page</html>") as (url, _):
            client = ContainerClient(url, "c", credential="QUFB", retry_policy=NO_RETRY)
            with client, pytest.raises(StateStoreError, match="HTTP 404"):
                BlobCheckpointStore(container_client=client).load_checkpoint(POLLER)

    def test_is_not_taken_for_forgotten_when_it_could_not_be_removed(self, azurite: str, blob_container: str) -> None:
        wire = Refusing(lambda request: request.method == "DELETE", 403, "AuthorizationPermissionMismatch")
        with ContainerClient.from_connection_string(azurite, blob_container, transport=wire) as client:
            store = BlobCheckpointStore(container_client=client)
            store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
            with pytest.raises(StateStoreError, match="it refuses access"):
                store.forget(POLLER)


class TestTheContainer:
    @pytest.fixture
    def missing(self, azurite: str, blob_container: str, wire: Wire) -> Iterator[ContainerClient]:
        with ContainerClient.from_connection_string(azurite, f"{blob_container}-2", transport=wire) as client:
            yield client
            client.delete_container()

    def test_is_made_when_it_is_missing(self, missing: ContainerClient) -> None:
        store = BlobCheckpointStore(container_client=missing)
        assert store.load_checkpoint(POLLER) == {}
        store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
        assert store.load_checkpoint(POLLER) == FIRST

    def test_that_is_missing_holds_no_pollers_and_is_named(self, missing: ContainerClient) -> None:
        store = BlobCheckpointStore(container_client=missing)
        assert store.poller_names() == []
        with pytest.raises(ConfigurationError, match=f"There is no container {missing.container_name} here"):
            store.check_place()
        store.acquire_lease(POLLER, 60)
        store.check_place()
        assert store.poller_names() == [POLLER]

    def test_that_another_instance_makes_at_the_same_moment_is_used(self, azurite: str, blob_container: str) -> None:
        class Rival(RequestsTransport):  # type: ignore[misc]  # the SDK does not tell its type
            def send(self, request: Any, **options: Any) -> Any:
                if makes_container(request):
                    super().send(request, **options)
                return super().send(request, **options)

        name = f"{blob_container}-2"
        with ContainerClient.from_connection_string(azurite, name, transport=Rival()) as client:
            BlobCheckpointStore(container_client=client).acquire_lease(POLLER, 60)
            client.delete_container()

    def test_that_is_being_deleted_is_told_as_that(self, azurite: str, blob_container: str) -> None:
        wire = Refusing(makes_container, 409, "ContainerBeingDeleted")
        with ContainerClient.from_connection_string(azurite, f"{blob_container}-2", transport=wire) as client:
            store = BlobCheckpointStore(container_client=client)
            with pytest.raises(StateStoreError, match="ContainerBeingDeleted, HTTP 409"):
                store.acquire_lease(POLLER, 60)

    def test_is_not_made_because_something_else_is_missing(self, azurite: str, blob_container: str) -> None:
        wire = Refusing(lambda request: request.method == "PUT", 404)
        client = ContainerClient.from_connection_string(azurite, blob_container, transport=wire)
        with client, pytest.raises(StateStoreError, match="HTTP 404"):
            BlobCheckpointStore(container_client=client).acquire_lease(POLLER, 60)
        assert "PUT orders.json" in wire.requests
        assert f"PUT {blob_container}" not in wire.requests

    def test_is_not_taken_for_empty_because_something_else_is_missing(self, azurite: str) -> None:
        wire = Refusing(lambda _: True, 404, "ResourceNotFound")
        client = ContainerClient.from_connection_string(azurite, "c", transport=wire, retry_policy=NO_RETRY)
        with client, pytest.raises(StateStoreError, match="HTTP 404"):
            BlobCheckpointStore(container_client=client).poller_names()

    def test_removed_under_a_lease_is_a_lost_lease(self, missing: ContainerClient) -> None:
        store = BlobCheckpointStore(container_client=missing)
        lease_id = store.acquire_lease(POLLER, 60)
        missing.delete_container()
        with pytest.raises(LostLeaseError):
            store.commit_checkpoint(POLLER, FIRST, lease_id)
        missing.create_container()


class TestSettings:
    def test_the_connection_is_read_when_it_is_first_needed(
        self, azurite: str, blob_container: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = BlobCheckpointStore(connection="STATE", container="%STATE_CONTAINER%")
        monkeypatch.setenv("STATE", azurite)
        monkeypatch.setenv("STATE_CONTAINER", blob_container)
        store.acquire_lease(POLLER, 60)

    def test_the_prefix_of_functions_may_be_left_out(self) -> None:
        found = storage_account("Storage", "blob", {"AzureWebJobsStorage": "AccountName=a;AccountKey=b"})
        assert found == ByConnectionString("AccountName=a;AccountKey=b")

    def test_the_emulators_short_form_is_understood(self) -> None:
        found = storage_account("S", "blob", {"S": "UseDevelopmentStorage=true"})
        assert isinstance(found, ByConnectionString)
        client = ContainerClient.from_connection_string(found.connection_string, "c")
        assert client.url == "http://127.0.0.1:10000/devstoreaccount1/c"

    def test_a_missing_setting_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match="STATE_X__accountName") as refused:
            BlobCheckpointStore(connection="STATE_X").load_checkpoint(POLLER)
        assert refused.value.setting == "STATE_X"

    @pytest.mark.parametrize(
        ("settings", "uri", "credential"),
        [
            ({"S__accountName": "acc"}, "https://acc.blob.core.windows.net", "DefaultAzureCredential"),
            ({"S__blobServiceUri": "https://x.example/"}, "https://x.example/", "DefaultAzureCredential"),
            ({"S__serviceUri": "https://x.example/"}, "https://x.example/", "DefaultAzureCredential"),
            (
                {"S__accountName": "acc", "S__credential": "managedidentity", "S__clientId": "me"},
                "https://acc.blob.core.windows.net",
                "ManagedIdentityCredential",
            ),
            (
                {"S__accountName": "acc", "S__tenantId": "t", "S__clientId": "me", "S__clientSecret": "hush"},
                "https://acc.blob.core.windows.net",
                "ClientSecretCredential",
            ),
        ],
    )
    def test_identity_based_settings(self, settings: dict[str, str], uri: str, credential: str) -> None:
        found = storage_account("S", "blob", settings)
        assert isinstance(found, ByIdentity)
        assert (found.endpoint, type(found.credential).__name__) == (uri, credential)
        assert "hush" not in repr(found)

    def test_an_unknown_kind_of_credential_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="managedidentity"):
            storage_account("S", "blob", {"S__accountName": "a", "S__credential": "magic"})

    def test_the_managed_identity_is_the_named_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        token = b'{"access_token": "a-token", "expires_on": "4102444800", "token_type": "Bearer"}'
        with Server(200, token) as (url, asked):
            monkeypatch.setenv("IDENTITY_ENDPOINT", url)
            monkeypatch.setenv("IDENTITY_HEADER", "header")
            settings = {"S__accountName": "a", "S__credential": "managedidentity", "S__clientId": "client-7"}
            found = storage_account("S", "blob", settings)
            assert isinstance(found, ByIdentity)
            assert found.credential.get_token("https://storage.azure.com/.default").token == "a-token"
            assert "client_id=client-7" in asked[0]


class Server:
    """A web server on loopback that answers every question in the same way."""

    def __init__(self, status: int, body: bytes) -> None:
        self._answer = status, body

    def __enter__(self) -> tuple[str, list[str]]:
        asked: list[str] = []
        status, body = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}/path", asked

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class TestSecrets:
    SECRET = "c2VjcmV0LWtleQ=="

    def everything_shown(self, attempt: Callable[[], object]) -> str:
        """All that a person could see of a failure: the whole chain, suppressed parts included."""
        with pytest.raises(DbError) as failed:
            attempt()
        shown = [repr(failed.value), "".join(traceback.format_exception(failed.value))]
        error: BaseException | None = failed.value
        while error is not None:
            shown += [repr(error), str(error)]
            error = error.__cause__ or error.__context__
        return "".join(shown)

    def test_an_account_key_is_never_shown(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        text = f"AccountName=a;AccountKey={self.SECRET};BlobEndpoint=http://127.0.0.1:1/a"
        with ContainerClient.from_connection_string(text, "c", retry_policy=NO_RETRY) as client:
            store = BlobCheckpointStore(container_client=client)
            shown = self.everything_shown(lambda: store.load_checkpoint(POLLER))
        assert self.SECRET not in shown + repr(store) + caplog.text

    def test_a_damaged_connection_string_is_not_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STATE", f"Name=a;AccountKey={self.SECRET};")
        store = BlobCheckpointStore(connection="STATE")
        assert self.SECRET not in self.everything_shown(lambda: store.load_checkpoint(POLLER))

    def test_a_connection_string_in_the_wrong_place_is_not_repeated(self) -> None:
        text = f"AccountName=a;AccountKey={self.SECRET}"
        assert self.SECRET not in self.everything_shown(
            lambda: BlobCheckpointStore(connection=text).load_checkpoint(POLLER)
        )

    def test_a_signed_url_is_never_shown(self) -> None:
        url = f"http://127.0.0.1:1/a/c?sv=2024-11-04&sp=rw&sig={self.SECRET}"
        with ContainerClient.from_container_url(url, retry_policy=NO_RETRY) as client:
            store = BlobCheckpointStore(container_client=client)
            shown = self.everything_shown(lambda: store.load_checkpoint(POLLER))
        assert "c2VjcmV0" not in shown + repr(store)

    def test_an_error_that_shows_a_signed_url_is_no_cause(self) -> None:
        class Talkative(RequestsTransport):  # type: ignore[misc]  # the SDK does not tell its type
            def send(self, request: Any, **_: Any) -> Any:
                raise ServiceRequestError("no route") from OSError(f"no route to {request.url}")

        url = f"http://127.0.0.1:1/a/c?sv=2024-11-04&sp=rw&sig={self.SECRET}"
        with ContainerClient.from_container_url(url, retry_policy=NO_RETRY, transport=Talkative()) as client:
            shown = self.everything_shown(lambda: BlobCheckpointStore(container_client=client).load_checkpoint(POLLER))
        assert "c2VjcmV0" not in shown

    @pytest.mark.parametrize("act", ["put", "entries", "remove"])
    def test_not_even_the_context_of_a_quarantine_s_error_shows_a_signed_url(self, act: str) -> None:
        class Talkative(RequestsTransport):  # type: ignore[misc]  # the SDK does not tell its type
            def send(self, request: Any, **_: Any) -> Any:
                raise ServiceRequestError(f"no route to {request.url}")

        url = f"http://127.0.0.1:1/a/c?sv=2024-11-04&sp=rw&sig={self.SECRET}"
        with ContainerClient.from_container_url(url, retry_policy=NO_RETRY, transport=Talkative()) as client:
            sink = BlobQuarantine(container_client=client)
            row = QuarantinedRow("orders", "e1", {}, "ValueError", "bad", 1, "b1", dt.datetime.now(dt.UTC))
            arguments: dict[str, tuple[Any, ...]] = {"put": ([row],), "entries": (), "remove": ("orders", "e1")}
            with pytest.raises(StateStoreError) as failed:
                getattr(sink, act)(*arguments[act])
        assert "c2VjcmV0" not in whole_story(failed.value)
        assert "no route to" in whole_story(failed.value)

    def test_a_refused_login_says_so(self, azurite: str, blob_container: str) -> None:
        forged = azurite.replace("AccountKey=", "AccountKey=AAAA")
        with ContainerClient.from_connection_string(forged, blob_container) as client:
            store = BlobCheckpointStore(container_client=client)
            with pytest.raises(StateStoreError, match="HTTP 403"):
                store.load_checkpoint(POLLER)
