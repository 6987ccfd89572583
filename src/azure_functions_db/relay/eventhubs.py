"""The relay into Azure Event Hubs."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from azure_functions_db.azure.storage import ByConnectionString, ByIdentity, connection_at
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import BrokerUnavailableError, ConfigurationError, RelayError, masked_error
from azure_functions_db.relay.handler import PerProcess, RelayHandler, TooLargeError, first_line, packed
from azure_functions_db.relay.messages import amqp_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient

    from azure_functions_db.relay.handler import Delivery
    from azure_functions_db.relay.messages import CloudEventOf, KeyOf, Message, Mode

# The client answers a lost link by itself once; whatever lasts longer is waited for by the handler.
_OPTIONS: Final = {"retry_total": 1, "retry_backoff_factor": 0.1}


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
        def connect() -> EventHubProducerClient:
            name = None if event_hub is None else expanded(event_hub)
            return _client(connection, name, {**_OPTIONS, **(client_options or {})})

        super().__init__(EventHubBroker(connect), mode=mode, key=key, event=event, patience_seconds=patience_seconds)


class EventHubBroker:
    """Sends the messages of a key to one partition, in batches that fit."""

    def __init__(self, connect: Callable[[], EventHubProducerClient]) -> None:
        self._hub = PerProcess(lambda: Hub(connect()))

    def send(self, delivery: Delivery) -> None:
        """Send what waits, partition by partition."""
        with _translated():
            self._hub.get().send(delivery)

    def close(self) -> None:
        """Let go of the connection."""
        if hub := self._hub.drop():
            hub.close()


class Hub:
    """A connected event hub and its partitions."""

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

    def close(self) -> None:
        """Close the client; a broken one may fail at that, which changes nothing."""
        with suppress(Exception):
            self._client.close()

    def _send_to(self, partition: str, messages: Sequence[Message], delivery: Delivery) -> None:
        for batch, taken in packed(messages, lambda: self._client.create_batch(partition_id=partition), _added):
            if batch is None:
                limit = self._client.create_batch(partition_id=partition).max_size_in_bytes
                delivery.refuse(taken[0], TooLargeError(taken[0], limit, "the event hub"))
                continue
            delivery.check()
            self._client.send_batch(batch, timeout=delivery.send_seconds)
            delivery.confirm(taken)


def partition_index(key: str, partitions: int) -> int:
    """Return which partition a key belongs to, today and in every other process."""
    return crc32(key.encode(errors="backslashreplace")) % partitions


def _client(connection: str, event_hub: str | None, options: Mapping[str, Any]) -> EventHubProducerClient:
    try:
        from azure.eventhub import EventHubProducerClient
    except ModuleNotFoundError:
        raise ConfigurationError(
            'EventHubRelay needs the package azure-eventhub: pip install "azure-functions-db[eventhubs]"'
        ) from None
    match connection_at(connection, "fullyQualifiedNamespace"):
        case ByConnectionString(text):
            try:
                return EventHubProducerClient.from_connection_string(text, eventhub_name=event_hub, **options)
            except ValueError:
                raise ConfigurationError(
                    f"The app setting {connection} is no connection string of Event Hubs, or names no hub (event_hub=)",
                    setting=connection,
                ) from None
        case ByIdentity(namespace, credential):
            if event_hub is None:
                raise ConfigurationError(f"EventHubRelay needs event_hub= with the settings {connection}__…")
            return EventHubProducerClient(namespace, event_hub, credential, **options)


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
        data.properties = amqp_properties(message)
    return data


@contextmanager
def _translated() -> Iterator[None]:
    from azure.eventhub.exceptions import AuthenticationError, EventHubError

    try:
        yield
    except AuthenticationError as failure:
        error: RelayError = RelayError(f"Event Hubs refuses access: {first_line(failure)}")
        cause: Exception = failure
    except (EventHubError, OSError) as failure:
        error, cause = BrokerUnavailableError(f"Event Hubs did not take the batch: {first_line(failure)}"), failure
    else:
        return
    # Raised out here, so that an error that could show a connection string is not even its context.
    raise error from masked_error(cause)
