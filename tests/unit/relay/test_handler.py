"""A relay on a broker in memory: what is sent again, for how long, and what ends it."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db import (
    BrokerUnavailableError,
    ConfigurationError,
    HandlerError,
    LostLeaseError,
    MemoryStateStore,
    RelayError,
    RowChange,
    RowsFailed,
    SourceDescriptor,
)
from azure_functions_db.relay import Delivery, Message, RelayHandler
from azure_functions_db.relay.handler import PerProcess
from tests.unit.trigger.poller import ListSource, poller, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db import PollContext

SOURCE = SourceDescriptor("orders", "list", "sha256:orders")


def changes(count: int) -> list[RowChange]:
    return [RowChange(None, "upsert", SOURCE, number, {"id": number}, None, {"id": number}) for number in range(count)]


class ListBroker:
    """Takes messages one by one, unless it is told what to raise before which."""

    def __init__(self, faults: dict[int, Exception | Callable[[], None]] | None = None) -> None:
        self.messages: list[Message] = []
        self.tries = self.closed = 0
        self._faults = faults or {}

    def send(self, delivery: Delivery) -> None:
        for message in delivery.waiting:
            delivery.check()
            fault = self._faults.get(self.tries)
            self.tries += 1
            if isinstance(fault, Exception):
                raise fault
            if fault is not None:
                fault()
            self.messages.append(message)
            delivery.confirm([message])

    def close(self) -> None:
        self.closed += 1

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.messages]


class DeadBroker(ListBroker):
    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure

    def send(self, delivery: Delivery) -> None:
        self.tries += 1
        raise self.failure


def test_only_what_the_broker_does_not_have_is_sent_again() -> None:
    events = changes(5)
    broker = ListBroker({2: BrokerUnavailableError("down"), 4: BrokerUnavailableError("down")})
    RelayHandler(broker)(events)
    assert broker.ids == [event.event_id for event in events]
    assert broker.closed == 2, "a broken connection is not used again"


def test_patience_ends() -> None:
    broker = DeadBroker(BrokerUnavailableError("down"))
    with pytest.raises(RelayError, match=r"down. 3 of 3 events were not confirmed in time and will come again"):
        RelayHandler(broker, patience_seconds=0.5)(changes(3))
    assert broker.tries > 1


def test_a_broker_that_wants_to_be_left_alone_for_longer_than_there_is_time_is_not_asked_again() -> None:
    broker = DeadBroker(BrokerUnavailableError("busy", retry_after_seconds=60))
    with pytest.raises(RelayError):
        RelayHandler(broker)(changes(3))
    assert broker.tries == 1


def test_the_time_budget_of_a_tick_ends_patience() -> None:
    broker = DeadBroker(BrokerUnavailableError("down"))
    trigger = poller(ListSource(3), time_budget_seconds=0.001)
    with pytest.raises(HandlerError, match="3 of 3 events"):
        run(trigger, RelayHandler(broker, patience_seconds=3600))
    assert broker.tries == 1


def test_a_failure_that_does_not_pass_is_told_at_once() -> None:
    broker = DeadBroker(RelayError("who are you?"))
    with pytest.raises(RelayError, match="who are you"):
        RelayHandler(broker)(changes(3))
    assert (broker.tries, broker.closed) == (1, 1)


def test_nothing_is_sent_once_the_lease_is_lost() -> None:
    store, stolen = MemoryStateStore(), threading.Event()
    broker = ListBroker({1: stolen.set})
    relay = RelayHandler(broker)

    def handler(events: list[RowChange], context: PollContext) -> None:
        relay(events, replace(context, lease_lost=stolen))

    with pytest.raises(LostLeaseError):
        run(poller(ListSource(5), store), handler)
    assert len(broker.messages) == 2
    assert store.load_checkpoint("orders") == {}


async def test_a_cancelled_call_has_stopped_sending_when_it_ends() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait()

    broker = ListBroker({0: hold})
    call = asyncio.ensure_future(RelayHandler(broker).send_async(changes(5)))
    await asyncio.to_thread(begun.wait)
    call.cancel()
    await asyncio.sleep(0)
    assert not call.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(broker.messages) == 1


async def test_an_async_call_names_rows_too() -> None:
    class Choosy(ListBroker):
        def send(self, delivery: Delivery) -> None:
            first, *others = delivery.waiting
            delivery.refuse(first, ValueError("not this one"))
            delivery.confirm(others)

    events = changes(3)
    with pytest.raises(RowsFailed) as failed:
        await RelayHandler(Choosy()).send_async(events)
    assert list(failed.value.failures) == [events[0].event_id]


def test_a_client_that_never_comes_back_is_left_behind_and_sends_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azure_functions_db.relay.handler._LEAST_SECONDS", 0.1)
    go_on, ended = threading.Event(), threading.Event()

    class Hanging(ListBroker):
        def send(self, delivery: Delivery) -> None:
            go_on.wait()
            try:
                super().send(delivery)
            finally:
                ended.set()

    broker = Hanging()
    with pytest.raises(RelayError, match="neither takes messages nor says why"):
        RelayHandler(broker, patience_seconds=0.1)(changes(3))
    go_on.set()
    ended.wait()
    assert broker.messages == []


def test_models_are_refused_with_what_to_give_instead() -> None:
    with pytest.raises(ConfigurationError, match=r"not instances of dict: give it context\.events"):
        RelayHandler(ListBroker())([{"id": 1}])  # type: ignore[list-item]


def test_a_truncation_has_no_key_and_is_sent_all_the_same() -> None:
    broker = ListBroker()
    RelayHandler(broker)([RowChange(None, "truncate", SOURCE, 1, {}, None, None)])
    assert [message.key for message in broker.messages] == ["orders"]


@pytest.mark.parametrize("wrong", [{"mode": "xml"}, {"patience_seconds": 0}])
def test_options_that_cannot_work_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RelayHandler(ListBroker(), **wrong)


def test_keys_of_other_types_and_numbers_do_not_meet() -> None:
    def key(**pk: Any) -> str:
        broker = ListBroker()
        RelayHandler(broker)([RowChange(None, "upsert", SOURCE, 1, pk, None, {})])
        return broker.messages[0].key

    assert len({key(a="1", b="2"), key(a="1,2"), key(a=1), key(a="1"), key(a=1, b=2)}) == 5
    assert key(a=b"\xff") == key(a=b"\xff")


def test_a_forked_child_does_not_use_its_parents_connection() -> None:
    client = PerProcess(object)
    parents = client.get()
    assert client.get() is parents
    child = os.fork()
    if child == 0:
        os._exit(0 if client.get() is not parents else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
