"""A tick on real blob storage in which each single request fails in turn, in every way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from azure.storage.blob import ContainerClient

from azure_functions_db.core.errors import DbError
from azure_functions_db.state.blob import BlobCheckpointStore
from azure_functions_db.trigger.poll import PollTrigger
from tests.support.storage import FAULTS, PlannedFaults
from tests.unit.trigger.poller import Collected, ListSource, run

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange


@pytest.fixture(scope="module")
def container(azurite: str) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    with ContainerClient.from_connection_string(azurite, name) as client:
        client.create_container()
        yield name
        client.delete_container()


class Scene:
    """One poller that works through a faulty client, and a competitor with a good one."""

    def __init__(self, azurite: str, container: str) -> None:
        self.name = uuid.uuid4().hex
        self.transport = PlannedFaults()
        self.source = ListSource(25)
        self.collected, self.intruder = Collected(), Collected()
        self.held_back = 0
        client = ContainerClient.from_connection_string(azurite, container, transport=self.transport, retry_total=0)
        self.mine = self._poller(BlobCheckpointStore(container_client=client, app_name="faults"))
        other = ContainerClient.from_connection_string(azurite, container)
        self.theirs = self._poller(BlobCheckpointStore(container_client=other, app_name="faults"))

    def _poller(self, store: BlobCheckpointStore) -> PollTrigger:
        return PollTrigger(
            name=self.name,
            source=self.source,
            checkpoint_store=store,
            batch_size=10,
            max_batches_per_tick=2,
            lease_ttl_seconds=60,
        )

    def handler(self, events: list[RowChange]) -> None:
        assert run(self.theirs, self.intruder) == 0, "two holders at once"
        self.collected(events)

    def tick(self) -> int:
        return run(self.mine, self.handler)


def clean_requests(scene: Scene) -> int:
    scene.tick()
    return scene.transport.requests


def test_a_tick_of_two_batches_costs_four_requests_and_an_idle_one_costs_one(azurite: str, container: str) -> None:
    scene = Scene(azurite, container)
    # The first tick of all finds no document, and looks for one of an older layout.
    assert clean_requests(scene) == 5
    scene.transport.plan("", range(0))
    assert scene.tick() == 5
    assert scene.transport.requests == 3
    scene.transport.plan("", range(0))
    assert scene.tick() == 0
    assert scene.transport.requests == 1


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_no_failing_request_loses_a_row_or_stalls_the_next_tick(
    azurite: str, container: str, fault: str, length: int
) -> None:
    for first in range(1, 6):
        scene = Scene(azurite, container)
        scene.transport.plan(fault, range(first, first + length))
        with suppress(DbError):
            scene.tick()
        scene.transport.plan("", range(0))
        for _ in range(3):
            scene.tick()
        assert sorted(set(scene.collected.ids)) == list(range(25)), f"request {first}"
        assert scene.intruder.batches == []
        assert run(scene.theirs, scene.intruder) == 0, "the competitor finds nothing left and nothing held"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("length", [1, 3])
def test_a_lease_that_could_not_be_released_does_not_stall_its_own_instance(
    azurite: str, container: str, fault: str, length: int
) -> None:
    scene = Scene(azurite, container)

    def fail(_events: list[RowChange]) -> None:
        scene.transport.plan(fault, range(1, 1 + length))
        raise ValueError

    with suppress(DbError):
        run(scene.mine, fail)
    scene.transport.plan("", range(0))
    assert scene.tick() == 20
