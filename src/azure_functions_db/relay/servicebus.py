"""The relay into Azure Service Bus."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError, needing
from azure_functions_db.core.types import Finding
from azure_functions_db.relay.amqp import OPTIONS, AmqpBroker, Failures, connected, properties_of
from azure_functions_db.relay.handler import RelayHandler, TooLargeError, packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender

    from azure_functions_db.relay.handler import Delivery
    from azure_functions_db.relay.messages import CloudEventOf, KeyOf, Message, Mode

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
            client = _client(connection, {**OPTIONS, **(client_options or {})})
            if queue is not None:
                return Entity(client, client.get_queue_sender(expanded(queue)), partitioned=partitioned)
            return Entity(client, client.get_topic_sender(expanded(str(topic))), partitioned=partitioned)

        broker = AmqpBroker("Service Bus", _failures, connect)
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
        for batch, taken in packed(messages, self._sender.create_message_batch, _added):
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


def _client(connection: str, options: Mapping[str, Any]) -> ServiceBusClient:
    with needing("ServiceBusRelay", "azure-servicebus", "servicebus"):
        from azure.servicebus import ServiceBusClient
    return connected(
        connection,
        "Service Bus",
        lambda text: ServiceBusClient.from_connection_string(text, **options),
        lambda namespace, credential: ServiceBusClient(namespace, credential, **options),
    )


def _added(batch: ServiceBusMessageBatch, message: Message) -> bool:
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


def _failures() -> Failures:
    with needing("ServiceBusRelay", "azure-servicebus", "servicebus"):
        from azure.servicebus import exceptions as errors
    lasting = (
        errors.MessagingEntityDisabledError,
        errors.MessagingEntityNotFoundError,
        errors.ServiceBusAuthenticationError,
        errors.ServiceBusAuthorizationError,
    )
    return Failures(lasting, (errors.ServiceBusError, OSError))
