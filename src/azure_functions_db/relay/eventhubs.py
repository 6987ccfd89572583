"""The relay into Azure Event Hubs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError, needing
from azure_functions_db.core.types import Finding
from azure_functions_db.relay.amqp import OPTIONS, AmqpBroker, Failures, connected, properties_of
from azure_functions_db.relay.handler import RelayHandler, TooLargeError, packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient

    from azure_functions_db.relay.handler import Delivery
    from azure_functions_db.relay.messages import CloudEventOf, KeyOf, Message, Mode


class EventHubRelay(RelayHandler):
    """Sends each batch to an event hub, and returns when the hub has it.

    All changes of a row go to one partition, so that they stay in order.
    ``connection`` names an app setting: a connection string, or identity-based settings
    (``{connection}__fullyQualifiedNamespace`` and so on) as Functions itself reads them.
    ``client_options`` go to the SDK's client, for web sockets or a proxy.
    """

    def __init__(
        self,
        *,
        connection: str,
        event_hub: str | None = None,
        mode: Mode = "structured",
        key: KeyOf | None = None,
        event: CloudEventOf | None = None,
        patience_seconds: float = 30.0,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        def connect() -> Hub:
            name = None if event_hub is None else expanded(event_hub)
            return Hub(_client(connection, name, {**OPTIONS, **(client_options or {})}))

        broker = AmqpBroker("Event Hubs", _failures, connect)
        super().__init__(broker, mode=mode, key=key, event=event, patience_seconds=patience_seconds)


class Hub:
    """A connected event hub and its partitions; the messages of a key go to one of them, in batches that fit."""

    def __init__(self, client: EventHubProducerClient) -> None:
        self._client = client

    @cached_property
    def _partitions(self) -> Sequence[str]:
        return self._client.get_partition_ids()

    def send(self, delivery: Delivery) -> None:
        """Send what waits, partition by partition."""
        of_partition: dict[str, list[Message]] = {}
        for message in delivery.waiting:
            index = partition_index(message.key, len(self._partitions))
            of_partition.setdefault(self._partitions[index], []).append(message)
        for partition, messages in of_partition.items():
            self._send_to(partition, messages, delivery)

    def checkup(self) -> Iterator[Finding]:
        """Ask the hub for its partitions, and what it takes."""
        name, count = self._client.eventhub_name, len(self._partitions)
        yield Finding("relay", "ok", f"event hub {name} answers")
        yield Finding("relay order", "ok", f"the changes of a row stay in order, in one of {count} partition(s)")
        yield Finding("relay size", "ok", f"batches and events up to {self._largest(self._partitions[0]):,} bytes")

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _largest(self, partition: str) -> int:
        return int(self._client.create_batch(partition_id=partition).max_size_in_bytes)

    def _send_to(self, partition: str, messages: Sequence[Message], delivery: Delivery) -> None:
        for batch, taken in packed(messages, lambda: self._client.create_batch(partition_id=partition), _added):
            if batch is None:
                delivery.refuse(taken[0], TooLargeError(taken[0], self._largest(partition), "the event hub"))
                continue
            delivery.check()
            self._client.send_batch(batch, timeout=delivery.send_seconds)
            delivery.confirm(taken)


def partition_index(key: str, partitions: int) -> int:
    """Return which partition a key belongs to, today and in every other process."""
    return crc32(key.encode(errors="backslashreplace")) % partitions


def _client(connection: str, event_hub: str | None, options: Mapping[str, Any]) -> EventHubProducerClient:
    with needing("EventHubRelay", "azure-eventhub", "eventhubs"):
        from azure.eventhub import EventHubProducerClient

    def by_identity(namespace: str, credential: Any) -> EventHubProducerClient:
        if event_hub is None:
            raise ConfigurationError(f"EventHubRelay needs event_hub= with the settings {connection}__…")
        return EventHubProducerClient(namespace, event_hub, credential, **options)

    return connected(
        connection,
        "Event Hubs, or names no hub (event_hub=)",
        lambda text: EventHubProducerClient.from_connection_string(text, eventhub_name=event_hub, **options),
        by_identity,
    )


def _added(batch: EventDataBatch, message: Message) -> bool:
    try:
        batch.add(_event_data(message))
    except ValueError:
        return False
    return True


def _event_data(message: Message) -> EventData:
    from azure.eventhub import EventData

    data = EventData(message.body)
    data.message_id, data.content_type = message.id, message.content_type
    if message.attributes:
        data.properties = properties_of(message)
    return data


def _failures() -> Failures:
    with needing("EventHubRelay", "azure-eventhub", "eventhubs"):
        from azure.eventhub.exceptions import AuthenticationError, EventHubError
    return Failures((AuthenticationError,), (EventHubError, OSError))
