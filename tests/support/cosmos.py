"""Containers of the Cosmos DB server that tests run against, with its faults put right and others made."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import requests
from azure.core.pipeline.transport import RequestsTransport, RequestsTransportResponse
from azure.cosmos import ContainerProxy, CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosResourceExistsError, CosmosResourceNotFoundError

from azure_functions_db import CosmosStateStore
from azure_functions_db.state.cosmos import PARTITION_KEY
from tests.support.storage import PlannedFaults

# The server checks no signature, but the client wants a key of the right form to sign with.
KEY = "a2V5IG9mIGEgdGVzdCBzZXJ2ZXI="
DATABASE = "azfdb"
FAULTS = ["error", "timeout", "reply lost", "refused", "throttled"]


class CosmosTransport(PlannedFaults):
    """Answers as Cosmos DB does where the server does not: 404 for a missing item, 429 when that is planned.

    Only requests for items are counted and fail: the client asks for its account and its container once.
    """

    wait_ms = "10"

    def send(self, request: Any, **options: Any) -> Any:
        if "/docs" not in request.url:
            return RequestsTransport.send(self, request, **options)
        return _corrected(request, super().send(request, **options))

    def answer(self, request: Any, fault: str) -> Any:
        """Return what the service answers where a fault is neither a lost request nor a lost reply."""
        if fault == "throttled":
            return answer(request, 429, {"x-ms-retry-after-ms": self.wait_ms, "x-ms-substatus": "3200"})
        return super().answer(request, fault)


def client(transport: RequestsTransport | None = None, **options: Any) -> CosmosClient:
    """Return a client of the server."""
    transport = transport or CosmosTransport()
    return CosmosClient(
        os.environ["AZFDB_TEST_COSMOS"], KEY, transport=transport, enable_endpoint_discovery=False, **options
    )


def container(name: str, transport: RequestsTransport | None = None, **options: Any) -> ContainerProxy:
    """Return a container for state, made if it is not there."""
    with client() as maker:
        with suppress(CosmosResourceExistsError):  # another process may be faster
            maker.create_database_if_not_exists(DATABASE)
        with suppress(CosmosResourceExistsError):
            maker.get_database_client(DATABASE).create_container_if_not_exists(name, PartitionKey(PARTITION_KEY))
    return client(transport, **options).get_database_client(DATABASE).get_container_client(name)


def connection_to_new(name: str) -> str:
    """Return a connection string, for an account with a new container of that name."""
    with client() as maker, suppress(CosmosResourceNotFoundError):
        maker.get_database_client(DATABASE).delete_container(name)
    container(name)
    return f"AccountEndpoint={os.environ['AZFDB_TEST_COSMOS']}/;AccountKey={KEY}"


def install() -> None:
    """Let every client of this process be answered as Cosmos DB does."""
    send = RequestsTransport.send

    def corrected(self: RequestsTransport, request: Any, **options: Any) -> Any:
        return _corrected(request, send(self, request, **options))

    RequestsTransport.send = corrected


class TestServerStore(CosmosStateStore):
    """The store on a container of the server, for those who know it by name only."""

    __test__ = False

    def __init__(self, *, container_name: str, **options: Any) -> None:
        super().__init__(container_client=container(container_name), **options)


def _corrected(request: Any, response: Any) -> Any:
    if request.method == "GET" and response.status_code == 500 and b"reading 'app'" in response.body():
        return answer(request, 404, {})
    return response


def answer(request: Any, status: int, headers: dict[str, str]) -> RequestsTransportResponse:
    response = requests.Response()
    response.status_code, response.raw, response._content = status, None, b'{"code": "test", "message": "test"}'
    response.headers.update(headers)
    return RequestsTransportResponse(request, response)
