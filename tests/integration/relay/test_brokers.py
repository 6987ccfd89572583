"""Relays into brokers that speak AMQP, with the clients of Event Hubs and Service Bus themselves."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import socket
import subprocess
import sys
import threading
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cloudevents.core.bindings.amqp import AMQPMessage, from_amqp_event

from azure_functions_db import (
    ConfigurationError,
    FileQuarantine,
    HandlerError,
    MemoryStateStore,
    PollTrigger,
    RelayError,
    RowChange,
    RowsFailed,
    SourceDescriptor,
)
from azure_functions_db.relay import EventHubRelay, ServiceBusRelay
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.unit.trigger.poller import ListSource, poller, run

if TYPE_CHECKING:
    from tests.integration.relay.conftest import NewRelay

SOURCE = SourceDescriptor("shop.orders", "sqlalchemy", "sha256:orders")
LARGEST = 1024 * 1024
# The clients leave sockets of lost connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def change(number: int, key: int | None = None, **row: Any) -> RowChange:
    key = number if key is None else key
    cursor = dt.datetime(2026, 11, 16, 12, 0, 0, number, tzinfo=dt.UTC)
    return RowChange(None, "upsert", SOURCE, cursor, {"id": key}, None, {"id": key, "number": number, **row})


def parsed(received: dict[str, Any]) -> Any:
    """Return the event as the official parser reads it."""
    properties = {"content-type": received["content_type"], "message-id": received["id"]}
    return from_amqp_event(AMQPMessage(properties, received["properties"], received["body"].encode()))


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_what_arrives_is_a_cloudevent_to_the_official_parser(broker: Broker, new_relay: NewRelay, mode: str) -> None:
    sent = change(1, price=Decimal("1.50"), name="Größe \ud800", at=dt.date(2026, 1, 1), blob=b"\x00\xff", none=None)
    new_relay(mode=mode)([sent])
    [received] = broker.received()
    assert received["id"] == sent.event_id
    assert received["content_type"].startswith(
        "application/cloudevents" if mode == "structured" else "application/json"
    )
    event = parsed(received)
    assert event.get_id() == sent.event_id
    assert event.get_source() == "azure-functions-db/sqlalchemy/shop.orders"
    assert event.get_type() == "azure-functions-db.row.upsert"
    assert event.get_subject() == "id=1"
    assert event.get_time() == sent.cursor
    assert event.get_data() == sent.to_json()


def test_the_changes_of_a_row_stay_together_and_in_order(broker: Broker, new_relay: NewRelay) -> None:
    relay = new_relay()
    for start in range(0, 300, 100):
        relay([change(number, key=number % 7) for number in range(start, start + 100)])
    received = [(json.loads(each["body"])["data"]["after"], each) for each in broker.received()]
    assert len(received) == 300
    for key in range(7):
        of_key = [(row["number"], each) for row, each in received if row["id"] == key]
        assert [number for number, _ in of_key] == sorted(number for number, _ in of_key)
        assert len({(each["address"], each["session"]) for _, each in of_key}) == 1


def test_order_may_be_kept_by_something_else_than_the_row(broker: Broker, new_relay: NewRelay) -> None:
    new_relay(key=lambda event: event.after["customer"])([change(number, customer="c1") for number in range(20)])
    received = broker.received()
    assert [json.loads(each["body"])["data"]["after"]["number"] for each in received] == list(range(20))
    assert len({(each["address"], each["session"]) for each in received}) == 1


def test_an_event_may_be_given_another_form(broker: Broker, new_relay: NewRelay) -> None:
    def ordered(change: RowChange) -> dict[str, Any]:
        return change.to_cloudevent() | {"type": "com.example.ordered", "data": change.after}

    new_relay(event=ordered)([change(1)])
    event = parsed(broker.received()[0])
    assert (event.get_type(), event.get_data()) == ("com.example.ordered", {"id": 1, "number": 1})


def test_a_batch_larger_than_a_message_is_sent_in_parts(broker: Broker, new_relay: NewRelay) -> None:
    new_relay(key=lambda _: "one")([change(number, text="x" * 100_000) for number in range(30)])
    received = broker.received()
    assert [json.loads(each["body"])["data"]["after"]["number"] for each in received] == list(range(30))


@pytest.mark.parametrize("over", [0, 100, 600])
def test_an_event_that_only_just_fits_is_sent_and_one_that_does_not_is_named(
    broker: Broker, new_relay: NewRelay, over: int
) -> None:
    fits, too_large = change(1, text="x" * (LARGEST - 4096)), change(2, text="x" * (LARGEST - over))
    with pytest.raises(RowsFailed) as failed:
        new_relay()([fits, too_large, change(3)])
    assert list(failed.value.failures) == [too_large.event_id]
    assert "too large" in str(failed.value.failures[too_large.event_id])
    assert {each["id"] for each in broker.received()} == {fits.event_id, change(3).event_id}


def test_an_event_of_two_megabytes_goes_into_quarantine_and_the_rest_flows(
    broker: Broker, new_relay: NewRelay, tmp_path: Path
) -> None:
    source, store = ListSource(10), MemoryStateStore()
    source.rows[4]["text"] = "x" * 2_000_000
    sink = FileQuarantine(tmp_path / "aside")
    trigger = poller(source, store, quarantine=sink, max_attempts=1)
    assert run(trigger, new_relay()) == 9
    [aside] = sink.entries("orders")
    assert aside.event["pk"] == {"id": 4}
    assert aside.error_type == "TooLargeError"
    assert re.search(r"too large for .*: 2,000,\d{3} bytes, at most 1,048,576", aside.error)
    assert {json.loads(each["body"])["data"]["pk"]["id"] for each in broker.received()} == {*range(10)} - {4}
    source.rows.append({"id": 11, "version": 11})
    assert run(trigger, new_relay()) == 1


def test_an_event_that_is_no_json_is_named(broker: Broker, new_relay: NewRelay) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    good, bad = change(1), change(2, deep=deep)
    with pytest.raises(RowsFailed) as failed:
        new_relay()([good, bad])
    assert list(failed.value.failures) == [bad.event_id]
    assert [each["id"] for each in broker.received()] == [good.event_id]


@pytest.mark.parametrize("fault", ["busy", "lose", "keep and lose"])
def test_a_failure_that_passes_loses_nothing_and_a_duplicate_has_the_same_id(
    broker: Broker, new_relay: NewRelay, fault: str
) -> None:
    events = [change(number) for number in range(20)]
    broker.plan(fault, fault, fault)
    new_relay()(events)
    received = [each["id"] for each in broker.received()]
    assert set(received) == {event.event_id for event in events}
    assert len(received) > 20 if fault == "keep and lose" else len(received) == 20


def test_the_checkpoint_stays_while_the_broker_says_no(broker: Broker, new_relay: NewRelay) -> None:
    source, store = ListSource(10), MemoryStateStore()
    trigger = poller(source, store)
    broker.plan(*["busy"] * 50)
    with pytest.raises(HandlerError, match="10 of 10 events were not confirmed in time"):
        run(trigger, new_relay(patience_seconds=0.5))
    assert "cursor" not in store.load_checkpoint("orders")
    broker.plan()
    assert run(trigger, new_relay()) == 10
    assert len(broker.received()) == 10


class WatchingStore(MemoryStateStore):
    """Looks at each commit whether the broker has everything that the checkpoint passes."""

    broker: Broker
    commits = 0

    def take(self, *arguments: Any, **options: Any) -> Any:
        held = super().take(*arguments, **options)
        commit = held.commit

        def watched(checkpoint: Any, **how: Any) -> bool:
            passed = checkpoint["cursor"]["tiebreaker"]["id"] if isinstance(checkpoint["cursor"], dict) else 0
            has = {json.loads(each["body"])["data"]["pk"]["id"] for each in self.broker.received()}
            assert has >= set(range(passed + 1)), "the checkpoint moves before the broker has said yes"
            self.commits += 1
            return commit(checkpoint, **how)

        held.commit = watched  # type: ignore[method-assign]
        return held


def test_the_checkpoint_never_moves_before_the_broker_has_said_yes(broker: Broker, new_relay: NewRelay) -> None:
    store = WatchingStore()
    store.broker = broker
    broker.plan("busy", "lose", "keep and lose", "busy", "lose")
    trigger = poller(ListSource(60), store, batch_size=10, max_batches_per_tick=10)
    assert run(trigger, new_relay()) == 60
    assert store.commits == 6


def test_a_broker_that_is_not_there_is_told_and_the_batch_comes_again(broker: Broker, new_relay: NewRelay) -> None:
    store = MemoryStateStore()
    trigger = poller(ListSource(5), store)
    broker.kill()
    with pytest.raises(HandlerError, match="does not answer"):
        run(trigger, new_relay(patience_seconds=0.5))
    assert "cursor" not in store.load_checkpoint("orders")
    broker.start()
    assert run(trigger, new_relay()) == 5


@pytest.mark.parametrize("torn", [b"", b"17", b"17 amqps://somewhere\nnot all"])
def test_a_relay_outlives_a_broker_that_is_restarted_between_two_batches(
    broker: Broker, new_relay: NewRelay, torn: bytes
) -> None:
    """What the kill has torn of a message that nobody has accepted yet was never received."""
    relay = new_relay()
    relay([change(1)])
    broker.kill()
    with (broker.folder / "received").open("ab") as received:
        received.write(torn)
    broker.start()
    relay([change(2)])
    assert {each["id"] for each in broker.received()} == {change(1).event_id, change(2).event_id}


def test_a_broker_killed_three_times_in_a_stream_gets_everything_in_order(broker: Broker, new_relay: NewRelay) -> None:
    rows = 3000
    source = ListSource()
    source.rows = [{"id": number % 50, "version": number} for number in range(rows)]
    trigger = poller(source, MemoryStateStore(), batch_size=100, max_batches_per_tick=1000)
    ticks = threading.Thread(target=run, args=(trigger, new_relay()))
    ticks.start()
    for _ in range(3):
        before = _size(broker)
        wait_for(lambda least=before + 200_000: _size(broker) > least, 60, "the stream has stopped")  # type: ignore[misc]
        broker.kill()
        broker.start()
    ticks.join()
    received = [json.loads(each["body"])["data"]["after"] for each in broker.received()]
    assert {row["version"] for row in received} == set(range(rows))
    for _, of_key in groupby(sorted(received, key=lambda row: row["id"]), lambda row: row["id"]):
        first_seen = list(dict.fromkeys(row["version"] for row in of_key))
        assert first_seen == sorted(first_seen), "a change overtook an earlier one of its row"


def _size(broker: Broker) -> int:
    file = broker.folder / "received"
    return file.stat().st_size if file.exists() else 0


async def test_an_async_trigger_awaits_the_relay(broker: Broker, new_relay: NewRelay) -> None:
    relay = new_relay()

    async def handler(events: list[RowChange], context: Any) -> None:
        await relay.send_async(events, context)

    trigger = PollTrigger(name="orders", source=ListSource(5), checkpoint_store=MemoryStateStore())
    assert await trigger.run_async(timer=None, handler=handler) == 5
    assert len(broker.received()) == 5


def test_a_partitioned_queue_gets_one_session_in_a_batch(broker: Broker) -> None:
    relay = ServiceBusRelay(connection="BROKER", queue="orders", partitioned=True)
    relay([change(number, key=number % 3) for number in range(9)])
    relay.close()
    assert [each["session"] for each in broker.received()] == ["[0]"] * 3 + ["[1]"] * 3 + ["[2]"] * 3


def test_a_key_longer_than_a_session_may_be_is_hashed(broker: Broker) -> None:
    relay = ServiceBusRelay(connection="BROKER", queue="orders", key=lambda _: "k" * 500)
    relay([change(1), change(2)])
    relay.close()
    [session] = {each["session"] for each in broker.received()}
    assert len(session) == 64


@pytest.mark.parametrize("relay", [EventHubRelay, ServiceBusRelay])
def test_a_broker_that_listens_and_never_answers_does_not_stop_a_tick_for_ever(
    relay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("azure_functions_db.relay.handler._LEAST_SECONDS", 0.5)
    place = {"event_hub": "hub"} if relay is EventHubRelay else {"queue": "orders"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("BROKER", Broker(port, Path()).connection_string)
        with pytest.raises(RelayError, match="neither takes messages nor says why"):
            relay(connection="BROKER", patience_seconds=0.5, **place)([change(1)])


@pytest.mark.parametrize(
    ("relay", "package"),
    [
        (EventHubRelay(connection="NOWHERE", event_hub="hub"), "azure.eventhub"),
        (ServiceBusRelay(connection="NOWHERE", queue="q"), "azure.servicebus"),
    ],
)
class TestSettings:
    def test_a_missing_setting_is_named(self, relay: Any, package: str) -> None:
        with pytest.raises(
            ConfigurationError, match=r"no app setting NOWHERE .* and no NOWHERE__fullyQualifiedNamespace"
        ):
            relay([change(1)])

    def test_a_damaged_connection_string_is_not_repeated(
        self, relay: Any, package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NOWHERE", "Endpoint=sb://x;SharedAccessKey=hush")
        with pytest.raises(ConfigurationError, match="NOWHERE is no connection string") as refused:
            relay([change(1)])
        assert "hush" not in repr(refused.value) + repr(refused.value.__context__)

    def test_an_identity_reaches_the_namespace_that_the_settings_name(
        self, relay: Any, package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[tuple[Any, ...]] = []

        class Client:
            def __init__(self, *given: Any, **_: Any) -> None:
                made.append(given)
                raise OSError("not really")

        name = "EventHubProducerClient" if "eventhub" in package else "ServiceBusClient"
        monkeypatch.setattr(f"{package}.{name}", Client)
        monkeypatch.setenv("NOWHERE__fullyQualifiedNamespace", "shop.servicebus.windows.net")
        monkeypatch.setenv("NOWHERE__credential", "managedidentity")
        monkeypatch.setenv("NOWHERE__clientId", "me")
        relay._patience = 0.01
        with pytest.raises(RelayError):
            relay([change(1)])
        namespace, *_, credential = made[0]
        assert namespace == "shop.servicebus.windows.net"
        assert type(credential).__name__ == "ManagedIdentityCredential"


@pytest.mark.parametrize("wrong", [{}, {"queue": "a", "topic": "b"}])
def test_a_service_bus_relay_has_one_destination(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="exactly one of queue= and topic="):
        ServiceBusRelay(connection="BROKER", **wrong)  # type: ignore[arg-type]


def test_doctor_asks_the_broker_what_is_there_and_sends_nothing(broker: Broker, new_relay: NewRelay) -> None:
    broker.limit(LARGEST // 2)
    found = {finding.check: finding for finding in new_relay().checkup()}
    assert {finding.grade for finding in found.values()} == {"ok"}
    assert "answers" in found["relay"].text
    assert f"up to {LARGEST // 2:,}" in found["relay size"].text
    assert re.search("4 partition|one session", found["relay order"].text)
    assert broker.received() == []


def test_doctor_is_told_that_a_broker_does_not_answer(broker: Broker, new_relay: NewRelay) -> None:
    relay = new_relay()
    broker.kill()
    [finding] = relay.checkup()
    assert (finding.check, finding.grade) == ("relay", "error")
    assert "c2VjcmV0" not in finding.text
    broker.start()
    assert relay.checkup()[0].grade == "ok"


def test_doctor_is_told_that_a_setting_is_missing() -> None:
    [finding] = EventHubRelay(connection="NOWHERE", event_hub="hub").checkup()
    assert finding.grade == "error"
    assert "NOWHERE" in finding.text


def test_doctor_finds_the_relays_that_a_handler_names(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "function_app.py").write_text(APP)
    (tmp_path / "state").mkdir()
    told = subprocess.run(
        [str(Path(sys.executable).with_name("azfdb")), "doctor", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        poller["poller"]: [each["grade"] for each in poller["findings"] if each["check"] == "relay"]
        for poller in json.loads(told.stdout)["pollers"]
    }
    assert found == {"publish": ["ok"], "keep": [], "late": ["ok"]}
    assert broker.received() == []


APP = """
from __future__ import annotations
import azure.functions as func
from azure_functions_db import DbBindings, FileStateStore
from azure_functions_db.relay import EventHubRelay, ServiceBusRelay
from azure_functions_db.testing.stream import MemoryLog, MemoryStreamSource
from tests.support import padding

padding.install()
app = func.FunctionApp()
db = DbBindings()
hub = EventHubRelay(connection="BROKER", event_hub="hub")
queue = ServiceBusRelay(connection="BROKER", queue="orders")
options = {"arg_name": "events", "source": MemoryStreamSource(MemoryLog()), "checkpoint_store": FileStateStore("state")}

@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(name="publish", **options)
def publish(timer: func.TimerRequest, events, context) -> None:
    hub(events, context)

@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(name="keep", **options)
def keep(timer: func.TimerRequest, events) -> None:
    pass

@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(name="late", **options)
async def late(timer: func.TimerRequest, events, context) -> None:
    await queue.send_async(events, context)
"""
