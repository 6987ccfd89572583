"""What the brokers of Azure share: how they are reached, how their failures are told, what they tell of themselves."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from azure_functions_db.azure.storage import ByConnectionString, ByIdentity, connection_at
from azure_functions_db.core.errors import BrokerUnavailableError, ConfigurationError, RelayError, masked_error
from azure_functions_db.relay.handler import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from azure_functions_db.core.types import Finding
    from azure_functions_db.relay.handler import Delivery
    from azure_functions_db.relay.messages import Message

T = TypeVar("T")

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
