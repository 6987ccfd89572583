"""The relay into Azure Service Bus."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from azure_functions_db.azure.storage import ByConnectionString, ByIdentity, connection_at
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import BrokerUnavailableError, ConfigurationError, RelayError, masked_error
from azure_functions_db.relay.handler import PerProcess, RelayHandler, TooLargeError, first_line, packed
from azure_functions_db.relay.messages import amqp_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender

    from azure_functions_db.relay.handler import Delivery
    from azure_functions_db.relay.messages import CloudEventOf, KeyOf, Message, Mode

# The client answers a lost link by itself once; whatever lasts longer is waited for by the handler.
_OPTIONS: Final = {"retry_total": 1, "retry_backoff_factor": 0.1}
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
            client = _client(connection, {**_OPTIONS, **(client_options or {})})
            if queue is not None:
                return Entity(client, client.get_queue_sender(expanded(queue)))
            return Entity(client, client.get_topic_sender(expanded(str(topic))))

        broker = ServiceBusBroker(connect, partitioned=partitioned)
        super().__init__(broker, mode=mode, key=key, event=event, patience_seconds=patience_seconds)


class ServiceBusBroker:
    """Sends messages in their order, in batches that fit."""

    def __init__(self, connect: Callable[[], Entity], *, partitioned: bool) -> None:
        self._entity = PerProcess(connect)
        self._partitioned = partitioned

    def send(self, delivery: Delivery) -> None:
        """Send what waits; session by session where a batch may have one session only."""
        with _translated():
            for messages in self._groups(delivery.waiting):
                self._entity.get().send(messages, delivery)

    def close(self) -> None:
        """Let go of the connection."""
        if entity := self._entity.drop():
            entity.close()

    def _groups(self, messages: list[Message]) -> Iterator[list[Message]]:
        if not self._partitioned:
            yield messages
            return
        by_key = attrgetter("key")
        for _, group in groupby(sorted(messages, key=by_key), by_key):
            yield list(group)


class Entity:
    """A connected queue or topic."""

    def __init__(self, client: ServiceBusClient, sender: ServiceBusSender) -> None:
        self._client = client
        self._sender = sender

    def send(self, messages: Sequence[Message], delivery: Delivery) -> None:
        """Send messages in their order."""
        for batch, taken in packed(messages, self._sender.create_message_batch, _added):
            delivery.check()
            if batch is None:
                self._send_alone(taken[0], delivery)
            else:
                self._sender.send_messages(batch, timeout=delivery.send_seconds)
                delivery.confirm(taken)

    def close(self) -> None:
        """Close the client; a broken one may fail at that, which changes nothing."""
        with suppress(Exception):
            self._sender.close()
        with suppress(Exception):
            self._client.close()

    def _send_alone(self, message: Message, delivery: Delivery) -> None:
        """Send a message that fits into no batch: a premium namespace takes larger ones alone."""
        from azure.servicebus.exceptions import MessageSizeExceededError

        # The client knows what the link takes but has no public name for it; without it the service will tell.
        limit = getattr(self._sender, "_max_message_size_on_link", 0) or None
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
    try:
        from azure.servicebus import ServiceBusClient
    except ModuleNotFoundError:
        raise ConfigurationError(
            'ServiceBusRelay needs the package azure-servicebus: pip install "azure-functions-db[servicebus]"'
        ) from None
    match connection_at(connection, "fullyQualifiedNamespace"):
        case ByConnectionString(text):
            try:
                return ServiceBusClient.from_connection_string(text, **options)
            except ValueError:
                raise ConfigurationError(
                    f"The app setting {connection} is no connection string of Service Bus", setting=connection
                ) from None
        case ByIdentity(namespace, credential):
            return ServiceBusClient(namespace, credential, **options)


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
        application_properties=amqp_properties(message),
    )


@contextmanager
def _translated() -> Iterator[None]:
    from azure.servicebus.exceptions import (
        MessagingEntityDisabledError,
        MessagingEntityNotFoundError,
        ServiceBusAuthenticationError,
        ServiceBusAuthorizationError,
        ServiceBusError,
    )

    lasting = (
        MessagingEntityDisabledError,
        MessagingEntityNotFoundError,
        ServiceBusAuthenticationError,
        ServiceBusAuthorizationError,
    )
    try:
        yield
    except lasting as failure:
        error: RelayError = RelayError(f"Service Bus refuses the batch: {first_line(failure)}")
        cause: Exception = failure
    except (ServiceBusError, OSError) as failure:
        error, cause = BrokerUnavailableError(f"Service Bus did not take the batch: {first_line(failure)}"), failure
    else:
        return
    # Raised out here, so that an error that could show a connection string is not even its context.
    raise error from masked_error(cause)
