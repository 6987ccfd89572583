"""What a tick asks of its store, and what becomes of a tick in which each request fails in turn, in every way."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.data.tables import TableServiceClient
from azure.storage.blob import ContainerClient
from sqlalchemy import event

from azure_functions_db import (
    BlobCheckpointStore,
    CosmosStateStore,
    EngineProvider,
    FileStateStore,
    MemoryStateStore,
    SqlStateStore,
    TableStateStore,
)
from azure_functions_db.core.errors import DbError
from azure_functions_db.operations.doctor import _BATCH_REQUESTS, _IDLE_REQUESTS
from tests.support import cosmos
from tests.support.storage import FAULTS, PlannedFaults, Scene
from tests.unit.trigger.poller import run

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "stores.md"
COSTS = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\d) \| (\d) \| (\d) \|$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def container(azurite: str) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    with ContainerClient.from_connection_string(azurite, name) as client:
        client.create_container()
        yield name
        client.delete_container()


@pytest.fixture
def new_scene(azurite: str, container: str) -> Callable[[], Scene]:
    def new_scene() -> Scene:
        transport = PlannedFaults()
        faulty = ContainerClient.from_connection_string(azurite, container, transport=transport, retry_total=0)
        good = ContainerClient.from_connection_string(azurite, container)
        mine, theirs = (BlobCheckpointStore(container_client=each, app_name="faults") for each in (faulty, good))
        return Scene(transport, mine, theirs)

    return new_scene


# What a tick costs.


class Counted(PlannedFaults):
    """Counts what is asked of a store, by whatever way it is asked."""

    def count(self, *_: Any) -> None:
        self.requests += 1


def counted_calls(store: Any, counted: Counted) -> Any:
    """Return a store in this process whose calls of its backend are counted, as there are no requests."""
    for name in ("read", "create", "replace"):
        setattr(store._backend, name, _counted(getattr(store._backend, name), counted))
    return store


def _counted(call: Callable[..., Any], counted: Counted) -> Callable[..., Any]:
    def called(*given: Any) -> Any:
        counted.count()
        return call(*given)

    return called


@pytest.fixture
def new_store(
    request: pytest.FixtureRequest, tmp_path: Path, provider: EngineProvider
) -> Callable[[str, Counted], Any]:
    def new_store(kind: str, counted: Counted) -> Any:
        match kind:
            case "BlobCheckpointStore":
                azurite, name = request.getfixturevalue("azurite"), request.getfixturevalue("container")
                client = ContainerClient.from_connection_string(azurite, name, transport=counted)
                return BlobCheckpointStore(container_client=client, app_name="costs")
            case "TableStateStore":
                service = TableServiceClient.from_connection_string(request.getfixturevalue("azurite"))
                table = f"t{uuid.uuid4().hex[:12]}"
                service.create_table(table)
                again = TableServiceClient.from_connection_string(request.getfixturevalue("azurite"), transport=counted)
                return TableStateStore(table_client=again.get_table_client(table), app_name="costs")
            case "CosmosStateStore":
                request.getfixturevalue("cosmos_server")
                return CosmosStateStore(container_client=cosmos.container("state", _cosmos(counted)), app_name="costs")
            case "SqlStateStore":
                store = SqlStateStore(url=request.getfixturevalue("postgres_database"), engine_provider=provider)
                event.listen(store._backend.engine, "before_cursor_execute", counted.count)
                return store
            case "FileStateStore":
                return counted_calls(FileStateStore(tmp_path / "state"), counted)
            case _:
                return counted_calls(MemoryStateStore(), counted)

    return new_store


def _cosmos(counted: Counted) -> Any:
    class Transport(cosmos.CosmosTransport):
        def next_fault(self) -> str | None:
            counted.count()
            return None

    return Transport()


@pytest.mark.parametrize(("kind", "idle", "one_batch", "further"), COSTS)
def test_a_tick_costs_what_the_page_of_its_store_says(
    new_store: Callable[[str, Counted], Any], kind: str, idle: str, one_batch: str, further: str
) -> None:
    counted = Counted()
    store = new_store(kind, counted)
    scene = Scene(counted, store, store, rows=45)
    handled, costs = [], []
    for _ in range(4):
        counted.requests = 0
        handled.append(run(scene.mine, scene.collected))
        costs.append(counted.requests)
    # The first tick of all also finds that there is no document, and looks for one of an older layout.
    assert handled == [20, 20, 5, 0]
    assert costs[1:] == [int(one_batch) + int(further), int(one_batch), int(idle)]


def test_the_page_tells_of_every_store_what_doctor_counts_with() -> None:
    assert {kind for kind, *_ in COSTS} == {
        "BlobCheckpointStore",
        "CosmosStateStore",
        "FileStateStore",
        "MemoryStateStore",
        "SqlStateStore",
        "TableStateStore",
    }
    assert {tuple(map(int, costs)) for _, *costs in COSTS} == {(_IDLE_REQUESTS, _BATCH_REQUESTS, 1)}


# What fails.


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_no_failing_request_loses_a_row_or_stalls_the_next_tick(
    new_scene: Callable[[], Scene], fault: str, length: int
) -> None:
    for first in range(1, 6):
        new_scene().check_after(fault, range(first, first + length))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("length", [1, 3])
def test_a_lease_that_could_not_be_released_does_not_stall_its_own_instance(
    new_scene: Callable[[], Scene], fault: str, length: int
) -> None:
    scene = new_scene()

    def fail(_events: list[RowChange]) -> None:
        scene.transport.plan(fault, range(1, 1 + length))
        raise ValueError

    with suppress(DbError):
        run(scene.mine, fail)
    scene.transport.plan("", range(0))
    assert scene.tick() == 20
