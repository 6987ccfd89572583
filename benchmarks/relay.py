"""A hundred thousand changes from PostgreSQL through a relay, beside the clients alone with the same messages.

The broker is the one of the tests, on loopback in a process of its own. Then once more while it is
killed and started again three times: every event must be there, each row's changes in order.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from azure.eventhub import EventData, EventHubProducerClient
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from common import databases, report_turns
from sqlalchemy import create_engine, text

from azure_functions_db import MemoryStateStore, PollTrigger, SqlAlchemySource
from azure_functions_db.relay import EventHubRelay, RelayHandler, ServiceBusRelay
from tests.support import padding
from tests.support.broker import PARTITIONS, Broker, running_broker
from tests.support.waiting import wait_for

ROWS = int(os.environ.get("AZFDB_RELAY_ROWS", "100000"))
TURNS, BATCH, KEYS = 10, 1000, 1000
TURN = ROWS // TURNS
TABLE = """
CREATE TABLE changes AS SELECT number AS version, number % {keys} AS id, 'order ' || number AS name,
    now() AS placed_at, number * 1.25 AS price, repeat('x', 100) AS note FROM generate_series(1, {rows}) number
"""


def fill(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(TABLE.format(keys=KEYS, rows=ROWS)))
        connection.execute(text("CREATE UNIQUE INDEX ON changes (version, id)"))
    engine.dispose()


def poller(url: str, batches: int) -> PollTrigger:
    source = SqlAlchemySource(url=url, table="changes", cursor_column="version", pk_columns=["id"], in_flight="ignore")
    return PollTrigger(
        name="changes",
        source=source,
        checkpoint_store=MemoryStateStore(),
        batch_size=BATCH,
        max_batches_per_tick=batches,
    )


def body_of_a_message(url: str, broker: Broker, relay: RelayHandler) -> bytes:
    """Return the body of a message as the relay sends it; the connections are made by now."""
    one = poller(url, 1)
    one.run(timer=None, handler=relay)
    return str(broker.received()[0]["body"]).encode()


@contextmanager
def hub_alone(broker: Broker) -> Iterator[object]:
    """What the client of Event Hubs does by itself with as many messages, a partition after the other."""
    client = EventHubProducerClient.from_connection_string(broker.connection_string, eventhub_name="hub")

    def send(body: bytes, count: int) -> None:
        for turn in range(count // BATCH):
            for partition in range(PARTITIONS):
                batch = client.create_batch(partition_id=str(partition))
                for number in range(BATCH // PARTITIONS):
                    data = EventData(body)
                    data.message_id, data.content_type = f"{turn}-{partition}-{number}", "application/cloudevents+json"
                    try:
                        batch.add(data)
                    except ValueError:
                        client.send_batch(batch)
                        batch = client.create_batch(partition_id=str(partition))
                        batch.add(data)
                client.send_batch(batch)

    with client:
        yield send


@contextmanager
def queue_alone(broker: Broker) -> Iterator[object]:
    """What the client of Service Bus does by itself with as many messages."""

    def send(body: bytes, count: int) -> None:
        batch = sender.create_message_batch()
        for number in range(count):
            kind = "application/cloudevents+json"
            data = ServiceBusMessage(body, message_id=str(number), session_id=str(number % KEYS), content_type=kind)
            try:
                batch.add_message(data)
            except MessageSizeExceededError:
                sender.send_messages(batch)
                batch = sender.create_message_batch()
                batch.add_message(data)
        sender.send_messages(batch)

    client = ServiceBusClient.from_connection_string(broker.connection_string)
    with client, client.get_queue_sender("orders") as sender:
        yield send


def side_by_side(name: str, url: str, broker: Broker, relay: RelayHandler, alone: object) -> None:
    body = body_of_a_message(url, broker, relay)
    trigger = poller(url, TURN // BATCH)
    ours, baseline = [], []
    alone(body, BATCH)  # type: ignore[operator]
    for _ in range(TURNS):
        began = time.perf_counter()
        handled = trigger.run(timer=None, handler=relay)
        ours.append((time.perf_counter() - began) / handled)
        began = time.perf_counter()
        alone(body, TURN)  # type: ignore[operator]
        baseline.append((time.perf_counter() - began) / TURN)
    # At least half as fast as the client alone.
    report_turns("relay", f"{name}, {ROWS:,} changes beside the client alone", ours, baseline, target=2.0)
    relay.close()


def restarted(url: str, broker: Broker, relay: RelayHandler) -> None:
    """Relay everything while the broker is killed three times, and judge what has arrived."""
    file = broker.folder / "received"
    trigger = poller(url, ROWS // BATCH)
    began = time.perf_counter()
    stream = threading.Thread(target=lambda: trigger.run(timer=None, handler=relay))
    stream.start()
    for _ in range(3):
        before = file.stat().st_size
        wait_for(lambda least=before + ROWS * 100: file.stat().st_size > least, 300, "the stream has stopped")  # type: ignore[misc]
        broker.kill()
        broker.start()
    stream.join()
    seconds = time.perf_counter() - began
    relay.close()
    rows = [json.loads(each["body"])["data"]["after"] for each in broker.received()]
    of_key: dict[int, dict[int, None]] = {}
    for row in rows:
        of_key.setdefault(row["id"], {})[row["version"]] = None
    missing = ROWS - sum(map(len, of_key.values()))
    overtaken = sum(list(versions) != sorted(versions) for versions in of_key.values())
    line = {"benchmark": "relay", "case": f"{ROWS:,} changes, broker killed three times", "ratio": None, "target": None}
    facts = {"missing": missing, "keys_out_of_order": overtaken, "duplicates": len(rows) - ROWS + missing}
    print(json.dumps({**line, **facts, "ours_ms": round(seconds * 1000)}), flush=True)
    assert not missing
    assert not overtaken


def main() -> None:
    padding.install()
    with databases() as urls:
        url = urls["postgres"]
        fill(url)
        Path(urls["sqlite"].removeprefix("sqlite:///")).touch()
        for name, relay_to, alone in (
            ("Event Hubs", lambda: EventHubRelay(connection="BROKER", event_hub="hub"), hub_alone),
            ("Service Bus", lambda: ServiceBusRelay(connection="BROKER", queue="orders"), queue_alone),
        ):
            with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder)) as broker:
                os.environ["BROKER"] = broker.connection_string
                with alone(broker) as send:
                    side_by_side(name, url, broker, relay_to(), send)
        with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder)) as broker:
            os.environ["BROKER"] = broker.connection_string
            restarted(url, broker, EventHubRelay(connection="BROKER", event_hub="hub"))


if __name__ == "__main__":
    main()
