"""The relay to a webhook: HTTP POST, signed."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import time
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal, get_args
from urllib.parse import urlsplit

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import BrokerUnavailableError, Code, ConfigurationError, RelayError, masked_error
from azure_functions_db.core.types import Finding
from azure_functions_db.relay.handler import PerProcess, RelayHandler, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from requests import Response, Session

    from azure_functions_db.relay.handler import CloudEventOf, Delivery, KeyOf, Message

Posts = Literal["event", "batch"]
"""What one request carries."""

_BATCH: Final = "application/cloudevents-batch+json"
_SECRET_PREFIX = "whsec_"  # noqa: S105 - what secrets begin with, no secret
_SHORTEST_SECRET = 24
_LOOK_SECONDS = 10.0
_BATCH_BYTES = 256 * 1024
_BATCH_EVENTS = 100
_TOO_LARGE = 413
_UNFIT = {400, 422}
_PASSING = {408, 409, 423, 425, 429}


class WebhookRelay(RelayHandler):
    """Posts each batch to a URL, and returns when every request was answered with 2xx.

    Requests are CloudEvents, one event each or, with ``posts="batch"``, many; they follow each other
    in order. With a ``secret`` they are signed as the Standard Webhooks specification says.
    ``%NAME%`` in the URL, the secret and the headers stands for an app setting.
    """

    def __init__(
        self,
        *,
        url: str,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        posts: Posts = "event",
        key: KeyOf | None = None,
        event: CloudEventOf | None = None,
        patience_seconds: float = 30.0,
    ) -> None:
        if posts not in get_args(Posts):
            raise ConfigurationError(f"posts= is event or batch, not {posts!r}")
        if not url.startswith(("https://", "http://", "%")):
            raise ConfigurationError("A webhook's url= begins with https://")
        broker = Webhook(url, secret, dict(headers or {}), posts)
        super().__init__(broker, key=key, event=event, patience_seconds=patience_seconds)


class Webhook:
    """A URL that takes events by HTTP POST."""

    def __init__(self, url: str, secret: str | None, headers: Mapping[str, str], posts: Posts) -> None:
        self._url = url
        self._secret = secret
        self._headers = headers
        self._posts = posts
        self._session = PerProcess(_session)

    def send(self, delivery: Delivery) -> None:
        """Post what waits, in its order."""
        if self._posts == "event":
            for message in delivery.waiting:
                self._post_one(message, delivery)
        else:
            for messages in _batches(delivery.waiting):
                self._post_many(messages, delivery)

    def checkup(self) -> list[Finding]:
        """Ask the receiver which methods it knows, which changes nothing; any answer will do."""
        url = expanded(self._url)
        with _reaching(url):
            headers = {name: expanded(value) for name, value in self._headers.items()}
            answer = self._session.get().options(url, headers=headers, timeout=_LOOK_SECONDS, allow_redirects=False)
        found = [Finding("relay", "ok", f"{_place(url)} answers ({answer.status_code})")]
        if self._secret is None:
            found.append(Finding("relay signature", "note", "requests are not signed", "secret=%NAME%"))
        if url.startswith("http://"):
            found.append(Finding("relay transport", "warning", "requests travel in plain text", "an https:// URL"))
        return found

    def close(self) -> None:
        """Let go of the connection."""
        if session := self._session.drop():
            session.close()

    def _post_one(self, message: Message, delivery: Delivery) -> None:
        answer = self._post(message.id, message.body, message.content_type, delivery)
        if answer.status_code == _TOO_LARGE or answer.status_code in _UNFIT:
            delivery.refuse(message, _refusal(message, answer))
        else:
            _check(answer)
            delivery.confirm([message])

    def _post_many(self, messages: Sequence[Message], delivery: Delivery) -> None:
        body = b"[" + b",".join(message.body for message in messages) + b"]"
        ids = hashlib.sha256(" ".join(message.id for message in messages).encode())
        answer = self._post(ids.hexdigest(), body, _BATCH, delivery)
        if answer.status_code == _TOO_LARGE:
            self._post_halves(messages, delivery, answer)
        else:
            _check(answer)
            delivery.confirm(messages)

    def _post_halves(self, messages: Sequence[Message], delivery: Delivery, answer: Response) -> None:
        if len(messages) == 1:
            delivery.refuse(messages[0], _refusal(messages[0], answer))
            return
        middle = len(messages) // 2
        self._post_many(messages[:middle], delivery)
        self._post_many(messages[middle:], delivery)

    def _post(self, message_id: str, body: bytes, content_type: str, delivery: Delivery) -> Response:
        delivery.check()
        headers = {name: expanded(value) for name, value in self._headers.items()} | {"Content-Type": content_type}
        if self._secret is not None:
            headers |= signature(expanded(self._secret), message_id, int(time.time()), body)
        url, seconds = expanded(self._url), delivery.send_seconds
        with _reaching(url):
            # A redirect is no answer: who sends secrets elsewhere must be told so by the URL.
            return self._session.get().post(url, body, headers=headers, timeout=seconds, allow_redirects=False)


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    from requests import RequestException

    try:
        yield
    except RequestException as failure:
        error, cause = BrokerUnavailableError(f"{_place(url)} does not answer ({type(failure).__name__})"), failure
    else:
        return
    # Raised out here, so that an error that could show a signed URL is not even its context.
    raise error from masked_error(cause)


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of the Standard Webhooks specification for a request."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(_key(secret), signed, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if len(key) < _SHORTEST_SECRET:
        raise ConfigurationError(
            f"A webhook's secret is base64 of at least {_SHORTEST_SECRET} random bytes, whsec_ may stand before it"
        )
    return key


def _session() -> Session:
    try:
        from requests import Session
    except ModuleNotFoundError:
        raise ConfigurationError(
            "WebhookRelay needs the package requests: pip install requests", code=Code.PACKAGE_MISSING
        ) from None
    return Session()


def _batches(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the messages in groups that a receiver can be expected to take at once."""
    groups: list[list[Message]] = []
    size = 0
    for message in messages:
        size += len(message.body)
        if not groups or size > _BATCH_BYTES or len(groups[-1]) == _BATCH_EVENTS:
            groups.append([])
            size = len(message.body)
        groups[-1].append(message)
    return groups


def _check(answer: Response) -> None:
    """Raise unless the receiver has said yes."""
    status = answer.status_code
    if 200 <= status < 300:
        return
    says = f"{_place(str(answer.request.url))} answers with {status} {answer.reason}"
    if status >= 500 or status in _PASSING:
        raise BrokerUnavailableError(says, retry_after_seconds=_retry_after(answer))
    raise RelayError(says)


def _refusal(message: Message, answer: Response) -> Exception:
    if answer.status_code == _TOO_LARGE:
        return TooLargeError(message, None, "the receiver")
    return ValueError(f"The receiver refuses the event: {answer.status_code} {answer.reason}: {answer.text[:500]}")


def _retry_after(answer: Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    try:
        return (
            float(text) if text.isdecimal() else (parsedate_to_datetime(text) - dt.datetime.now(dt.UTC)).total_seconds()
        )
    except (TypeError, ValueError):
        return None


def _place(url: str) -> str:
    """Return where a URL leads, without what it may hold for the receiver's eyes only."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"
