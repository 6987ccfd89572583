"""The relays into Azure Event Hubs and Azure Service Bus, and what these brokers share."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar
from zlib import crc32

from azure_functions_db.azure import ByConnectionString, ByIdentity, connection_at
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import BrokerUnavailableError, ConfigurationError, RelayError, masked_error, needing
from azure_functions_db.core.types import Finding
from azure_functions_db.relay.handler import PerProcess, RelayHandler, TooLargeError, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient
    from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender

    from azure_functions_db.relay.handler import CloudEventOf, Delivery, KeyOf, Message, Mode


T = TypeVar("T")


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
            return Hub(_hub_client(connection, name, {**OPTIONS, **(client_options or {})}))

        broker = AmqpBroker("Event Hubs", _hub_failures, connect)
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
        for batch, taken in packed(messages, lambda: self._client.create_batch(partition_id=partition), _hub_takes):
            if batch is None:
                delivery.refuse(taken[0], TooLargeError(taken[0], self._largest(partition), "the event hub"))
                continue
            delivery.check()
            self._client.send_batch(batch, timeout=delivery.send_seconds)
            delivery.confirm(taken)


def partition_index(key: str, partitions: int) -> int:
    """Return which partition a key belongs to, today and in every other process."""
    return crc32(key.encode(errors="backslashreplace")) % partitions


def _hub_client(connection: str, event_hub: str | None, options: Mapping[str, Any]) -> EventHubProducerClient:
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


def _hub_takes(batch: EventDataBatch, message: Message) -> bool:
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


def _hub_failures() -> Failures:
    with needing("EventHubRelay", "azure-eventhub", "eventhubs"):
        from azure.eventhub.exceptions import AuthenticationError, EventHubError
    return Failures((AuthenticationError,), (EventHubError, OSError))


_LONGEST_SESSION = 128


class ServiceBusRelay(RelayHandler):
    """Sends each batch to a queue or a topic, and returns when Service Bus has it.

    The changes of a row are one session, so that a queue or subscription with sessions hands them out
    in order; the id of a message is that of its event, for the detection of duplicates.
    ``connection`` names an app setting: a connection string, or identity-based settings
    (``{connection}__fullyQualifiedNamespace`` and so on) as Functions itself reads them.
    ``partitioned`` is for a partitioned queue or topic, which takes no batch of several sessions.
    ``client_options`` go to the SDK's client, for web sockets or a proxy.
    """

    def __init__(
        self,
        *,
        connection: str,
        queue: str | None = None,
        topic: str | None = None,
        partitioned: bool = False,
        mode: Mode = "structured",
        key: KeyOf | None = None,
        event: CloudEventOf | None = None,
        patience_seconds: float = 30.0,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        if (queue is None) == (topic is None):
            raise ConfigurationError("ServiceBusRelay needs exactly one of queue= and topic=")

        def connect() -> Entity:
            client = _bus_client(connection, {**OPTIONS, **(client_options or {})})
            if queue is not None:
                return Entity(client, client.get_queue_sender(expanded(queue)), partitioned=partitioned)
            return Entity(client, client.get_topic_sender(expanded(str(topic))), partitioned=partitioned)

        broker = AmqpBroker("Service Bus", _bus_failures, connect)
        super().__init__(broker, mode=mode, key=key, event=event, patience_seconds=patience_seconds)


class Entity:
    """A connected queue or topic; messages go there in their order, in batches that fit."""

    def __init__(self, client: ServiceBusClient, sender: ServiceBusSender, *, partitioned: bool) -> None:
        self._client = client
        self._sender = sender
        self._partitioned = partitioned

    def send(self, delivery: Delivery) -> None:
        """Send what waits; session by session where a batch may have one session only."""
        for messages in self._groups(delivery.waiting):
            self._send_group(messages, delivery)

    def checkup(self) -> Iterator[Finding]:
        """Open the link, which only a place that is there answers, and ask what it takes."""
        largest = self._sender.create_message_batch().max_size_in_bytes
        yield Finding("relay", "ok", f"{self._sender.entity_name} answers")
        batches = "a batch for each row" if self._partitioned else "rows share batches"
        yield Finding("relay order", "ok", f"the changes of a row are one session, and {batches}")
        alone = self._largest_alone or largest
        yield Finding("relay size", "ok", f"batches up to {largest:,} bytes, an event alone up to {alone:,}")

    def close(self) -> None:
        """Close the sender and its client."""
        with suppress(Exception):
            self._sender.close()
        self._client.close()

    def _groups(self, messages: list[Message]) -> Iterator[list[Message]]:
        if not self._partitioned:
            yield messages
            return
        by_key = attrgetter("key")
        for _, group in groupby(sorted(messages, key=by_key), by_key):
            yield list(group)

    def _send_group(self, messages: Sequence[Message], delivery: Delivery) -> None:
        for batch, taken in packed(messages, self._sender.create_message_batch, _bus_takes):
            delivery.check()
            if batch is None:
                self._send_alone(taken[0], delivery)
            else:
                self._sender.send_messages(batch, timeout=delivery.send_seconds)
                delivery.confirm(taken)

    @property
    def _largest_alone(self) -> int | None:
        # The client knows what the link takes but has no public name for it; without it the service will tell.
        return getattr(self._sender, "_max_message_size_on_link", 0) or None

    def _send_alone(self, message: Message, delivery: Delivery) -> None:
        """Send a message that fits into no batch: a premium namespace takes larger ones alone."""
        from azure.servicebus.exceptions import MessageSizeExceededError

        limit = self._largest_alone
        if limit is not None and len(message.body) > limit:
            delivery.refuse(message, TooLargeError(message, limit, "Service Bus"))
            return
        try:
            self._sender.send_messages(_service_bus_message(message), timeout=delivery.send_seconds)
        except MessageSizeExceededError:
            delivery.refuse(message, TooLargeError(message, limit, "Service Bus"))
        else:
            delivery.confirm([message])


def session_of(key: str) -> str:
    """Return the session of a key: the key itself, or a hash where that is longer than a session's name may be."""
    return key if len(key) <= _LONGEST_SESSION else hashlib.sha256(key.encode(errors="backslashreplace")).hexdigest()


def _bus_client(connection: str, options: Mapping[str, Any]) -> ServiceBusClient:
    with needing("ServiceBusRelay", "azure-servicebus", "servicebus"):
        from azure.servicebus import ServiceBusClient
    return connected(
        connection,
        "Service Bus",
        lambda text: ServiceBusClient.from_connection_string(text, **options),
        lambda namespace, credential: ServiceBusClient(namespace, credential, **options),
    )


def _bus_takes(batch: ServiceBusMessageBatch, message: Message) -> bool:
    from azure.servicebus.exceptions import MessageSizeExceededError

    try:
        batch.add_message(_service_bus_message(message))
    except MessageSizeExceededError:
        return False
    return True


def _service_bus_message(message: Message) -> ServiceBusMessage:
    from azure.servicebus import ServiceBusMessage

    return ServiceBusMessage(
        message.body,
        message_id=message.id,
        session_id=session_of(message.key),
        content_type=message.content_type,
        application_properties=properties_of(message),
    )


def _bus_failures() -> Failures:
    with needing("ServiceBusRelay", "azure-servicebus", "servicebus"):
        from azure.servicebus import exceptions as errors
    lasting = (
        errors.MessagingEntityDisabledError,
        errors.MessagingEntityNotFoundError,
        errors.ServiceBusAuthenticationError,
        errors.ServiceBusAuthorizationError,
    )
    return Failures(lasting, (errors.ServiceBusError, OSError))


# The clients answer a lost link by themselves once; whatever lasts longer is waited for by the handler.
OPTIONS: Final = {"retry_total": 1, "retry_backoff_factor": 0.1}


class Failures(NamedTuple):
    """What a client raises: that which lasts, and that which may pass."""

    lasting: tuple[type[Exception], ...]
    passing: tuple[type[Exception], ...]


class Place(Protocol):
    """A connected event hub, queue or topic."""

    def send(self, delivery: Delivery) -> None:
        """Send what waits."""

    def checkup(self) -> Iterable[Finding]:
        """Ask the broker about the place; nothing is sent."""

    def close(self) -> None:
        """Close its client."""


class AmqpBroker:
    """A broker that is reached through a client of Azure's."""

    def __init__(self, service: str, failures: Callable[[], Failures], connect: Callable[[], Place]) -> None:
        self._service = service
        self._failures = failures
        self._place = PerProcess(connect)

    def send(self, delivery: Delivery) -> None:
        """Send what waits."""
        with self._translated():
            self._place.get().send(delivery)

    def checkup(self) -> list[Finding]:
        """Ask the broker about the place; nothing is sent."""
        with self._translated():
            return list(self._place.get().checkup())

    def close(self) -> None:
        """Let go of the connection; a broken client may fail at that, which changes nothing."""
        if place := self._place.drop():
            with suppress(Exception):
                place.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        failures = self._failures()
        try:
            yield
        except failures.lasting as failure:
            error: RelayError = RelayError(f"{self._service} refuses: {_first_line(failure)}")
            cause: Exception = failure
        except failures.passing as failure:
            error, cause = BrokerUnavailableError(f"{self._service} does not answer: {_first_line(failure)}"), failure
        else:
            return
        # Raised out here, so that an error that could show a connection string is not even its context.
        raise error from masked_error(cause)


def connected(connection: str, service: str, by_text: Callable[[str], T], by_identity: Callable[[str, Any], T]) -> T:
    """Return the client that an app setting leads to: a connection string, or identity-based settings."""
    match connection_at(connection, "fullyQualifiedNamespace"):
        case ByConnectionString(text):
            try:
                return by_text(text)
            except ValueError:
                raise ConfigurationError(
                    f"The app setting {connection} is no connection string of {service}", setting=connection
                ) from None
        case ByIdentity(namespace, credential):
            return by_identity(namespace, credential)


def properties_of(message: Message) -> dict[str | bytes, Any]:
    """Return the attributes of a CloudEvent as the binding for AMQP spells them."""
    return {f"cloudEvents:{name}": value for name, value in message.attributes.items()}


def _first_line(failure: Exception) -> str:
    """Return what a client says of a failure, without the details in the lines below."""
    return str(failure).strip().partition("\n")[0] or type(failure).__name__
