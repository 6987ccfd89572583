"""A broker of its own for each test, and relays into it."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from azure_functions_db.relay import EventHubRelay, RelayHandler, ServiceBusRelay
from tests.support import padding
from tests.support.broker import Broker, running_broker

NewRelay = Callable[..., RelayHandler]


@pytest.fixture(autouse=True)
def nothing_is_left_for_other_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait for senders that were left behind, and close what Azure's clients leave open when their broker dies."""
    connect, made = socket.create_connection, weakref.WeakSet[socket.socket]()

    def noted(*given: Any, **named: Any) -> socket.socket:
        connected = connect(*given, **named)
        made.add(connected)
        return connected

    monkeypatch.setattr(socket, "create_connection", noted)
    yield
    for thread in threading.enumerate():
        if thread.name == "azfdb-relay":
            thread.join()
    for each in made:
        each.close()


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    padding.install()
    folder = tmp_path / "broker"
    folder.mkdir()
    with running_broker(folder) as broker:
        monkeypatch.setenv("BROKER", broker.connection_string)
        yield broker


@pytest.fixture(params=["event hub", "queue", "topic"])
def new_relay(request: pytest.FixtureRequest, broker: Broker) -> Iterator[NewRelay]:
    """Makes relays into the same place, as several instances have them."""
    made: list[RelayHandler] = []

    def new(**options: Any) -> RelayHandler:
        match request.param:
            case "event hub":
                made.append(EventHubRelay(connection="BROKER", event_hub="hub", **options))
            case "queue":
                made.append(ServiceBusRelay(connection="BROKER", queue="orders", **options))
            case _:
                made.append(ServiceBusRelay(connection="BROKER", topic="orders", **options))
        return made[-1]

    yield new
    for relay in made:
        relay.close()
