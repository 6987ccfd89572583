"""The relay to a webhook, against a server that answers as it is told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event

from azure_functions_db import (
    ConfigurationError,
    HandlerError,
    MemoryStateStore,
    RelayError,
    RowChange,
    RowsFailed,
    SourceDescriptor,
)
from azure_functions_db.relay import WebhookRelay
from tests.unit.trigger.poller import ListSource, poller, run

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = SourceDescriptor("shop.orders", "sqlalchemy", "sha256:orders")
HANG = (0, {"never": "answered"})
SECRET = "whsec_" + base64.b64encode(b"twenty-four bytes of key").decode()


def changes(*numbers: int, **row: Any) -> list[RowChange]:
    return [RowChange(None, "upsert", SOURCE, each, {"id": each}, None, {"id": each, **row}) for each in numbers]


class Receiver(ThreadingHTTPServer):
    """Keeps the requests it says yes to, and says what it is told to say first."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.answers: list[tuple[int, dict[str, str]] | None] = []
        self.largest = 10_000_000
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.tries = 0
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/orders?code=hush"

    @property
    def numbers(self) -> list[int]:
        bodies = [json.loads(body) for _, body in self.posts]
        events = [event for body in bodies for event in (body if isinstance(body, list) else [body])]
        return [event["data"]["pk"]["id"] for event in events]


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tries += 1
        planned = self.server.answers.pop(0) if self.server.answers else (204, {})
        if planned == HANG:
            self.server.released.wait()
            planned = None
        if planned is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, headers = (413, {}) if len(body) > self.server.largest else planned
        if status < 300:
            self.server.posts.append((dict(self.headers), body))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


@pytest.fixture
def relays() -> Iterator[list[WebhookRelay]]:
    made: list[WebhookRelay] = []
    yield made
    for relay in made:
        relay.close()


def relay_to(receiver: Receiver, relays: list[WebhookRelay], **options: Any) -> WebhookRelay:
    relays.append(WebhookRelay(url=receiver.url, **options))
    return relays[-1]


def is_signed(headers: dict[str, str], body: bytes) -> bool:
    """Check a signature as the specification tells a receiver to."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"twenty-four bytes of key", signed, hashlib.sha256).digest()
    return headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_each_event_is_posted_as_a_cloudevent_with_its_signature(
    receiver: Receiver, relays: list[WebhookRelay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.setenv("TOKEN", "t0ken")
    relay = relay_to(receiver, relays, secret="%HOOK_SECRET%", headers={"Authorization": "Bearer %TOKEN%"})
    [event] = sent = changes(1)
    relay(sent)
    [(headers, body)] = receiver.posts
    parsed = from_http_event(HTTPMessage(headers, body))
    assert parsed.get_id() == event.event_id == headers["webhook-id"]
    assert parsed.get_data() == event.to_json()
    assert headers["Authorization"] == "Bearer t0ken"
    assert is_signed(headers, body)
    assert not is_signed(headers, body + b" ")


def test_a_batch_is_posted_as_a_cloudevents_batch(receiver: Receiver, relays: list[WebhookRelay]) -> None:
    relay = relay_to(receiver, relays, secret=SECRET, posts="batch")
    relay(changes(*range(250)))
    assert [len(json.loads(body)) for _, body in receiver.posts] == [100, 100, 50]
    assert receiver.numbers == list(range(250))
    assert all(is_signed(headers, body) for headers, body in receiver.posts)
    assert {headers["Content-Type"] for headers, _ in receiver.posts} == {"application/cloudevents-batch+json"}


def test_the_same_batch_has_the_same_id_when_it_is_posted_again(receiver: Receiver, relays: list[WebhookRelay]) -> None:
    relay = relay_to(receiver, relays, secret=SECRET, posts="batch")
    relay(changes(1, 2))
    relay(changes(1, 2))
    relay(changes(1, 3))
    ids = [headers["webhook-id"] for headers, _ in receiver.posts]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("posts", ["event", "batch"])
@pytest.mark.parametrize("answer", [(503, {}), (429, {"Retry-After": "0"}), (500, {}), None, HANG])
def test_a_failure_that_passes_is_tried_again_in_order(
    receiver: Receiver, relays: list[WebhookRelay], posts: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("azure_functions_db.relay.handler._LEAST_SECONDS", 0.5)
    receiver.answers = [(204, {}), answer, answer]
    relay = relay_to(receiver, relays, posts=posts, patience_seconds=6)
    relay(changes(*range(3)))
    relay(changes(*range(3, 5)))
    assert receiver.numbers == list(range(5))


def test_a_receiver_that_asks_for_more_time_than_there_is_gets_the_batch_in_another_tick(
    receiver: Receiver, relays: list[WebhookRelay]
) -> None:
    store = MemoryStateStore()
    receiver.answers = [(429, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"})]
    trigger = poller(ListSource(3), store)
    with pytest.raises(HandlerError, match="3 of 3 events"):
        run(trigger, relay_to(receiver, relays))
    assert (receiver.tries, "cursor" in store.load_checkpoint("orders")) == (1, False)
    assert run(trigger, relay_to(receiver, relays)) == 3


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_event_that_the_receiver_refuses_is_named_and_the_rest_goes_on(
    receiver: Receiver, relays: list[WebhookRelay], status: int
) -> None:
    receiver.answers = [(204, {}), (status, {})]
    events = changes(0, 1, 2)
    with pytest.raises(RowsFailed) as failed:
        relay_to(receiver, relays)(events)
    assert list(failed.value.failures) == [events[1].event_id]
    assert receiver.numbers == [0, 2]


def test_a_batch_too_large_is_halved_until_the_one_event_is_found(
    receiver: Receiver, relays: list[WebhookRelay]
) -> None:
    receiver.largest = 4000
    events = changes(0, 1, 2) + changes(3, text="x" * 5000) + changes(4)
    with pytest.raises(RowsFailed) as failed:
        relay_to(receiver, relays, posts="batch")(events)
    assert list(failed.value.failures) == [events[3].event_id]
    assert receiver.numbers == [0, 1, 2, 4]


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_a_receiver_that_does_not_want_any_event_is_told_at_once_and_without_secrets(
    receiver: Receiver, relays: list[WebhookRelay], status: int
) -> None:
    receiver.answers = [(status, {"Location": "http://127.0.0.1:1/"})]
    with pytest.raises(RelayError, match=rf"http://127.0.0.1 answers with {status}") as told:
        relay_to(receiver, relays)(changes(1, 2))
    assert receiver.tries == 1
    assert "hush" not in str(told.value)


def test_nobody_listening_is_told_without_secrets(relays: list[WebhookRelay]) -> None:
    with Receiver() as server:
        url = server.url
    relay = WebhookRelay(url=url, patience_seconds=0.3)
    with pytest.raises(RelayError, match="does not answer") as told:
        relay(changes(1))
    chain: Sequence[Any] = [told.value, told.value.__cause__, told.value.__cause__ and told.value.__cause__.__cause__]
    assert not any("hush" in str(each) for each in chain)


@pytest.mark.parametrize("secret", ["short", "whsec_c2hvcnQ=", "nicht base64 " * 4])
def test_a_secret_that_protects_nothing_is_refused(receiver: Receiver, secret: str) -> None:
    relay = WebhookRelay(url=receiver.url, secret=secret)
    with pytest.raises(ConfigurationError, match="at least 24 random bytes") as refused:
        relay(changes(1))
    relay.close()
    assert secret not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"url": "ftp://x"}, {"url": "https://x", "posts": "all"}])
def test_options_that_cannot_work_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WebhookRelay(**wrong)


def test_doctor_asks_the_receiver_without_posting(receiver: Receiver) -> None:
    found = {finding.check: finding.grade for finding in WebhookRelay(url=receiver.url).checkup()}
    assert found == {"relay": "ok", "relay signature": "note", "relay transport": "warning"}
    assert (receiver.posts, receiver.tries) == ([], 0)


def test_doctor_is_told_that_a_receiver_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    [finding] = WebhookRelay(url=f"http://127.0.0.1:{port}/?code=hush").checkup()
    assert finding.grade == "error"
    assert "hush" not in finding.text
