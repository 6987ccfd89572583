"""A broker that speaks AMQP as Event Hubs and Service Bus do: run as a process of its own, killed and started again.

It says yes to a message only once it has written it down. ``python -m tests.support.broker PORT FOLDER``.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proton import Condition, Data, Delivery, Handler, Message, symbol
from proton.reactor import Container

from tests.support.waiting import wait_for
from tools.services.server import HOST, free_port

PARTITIONS = 4
LARGEST = 1024 * 1024
DATA, SHORT = b"\x00\x53\x75", 0xA0
BUSY = "com.microsoft:server-busy"
# With nothing as its last field, an error would be too short a list for the clients.
TRACKING: Any = {symbol("tracking"): "none"}


class Service(Handler):
    """Answers on ``$cbs`` and ``$management``, and keeps what is sent to anybody else."""

    def __init__(self, port: int, folder: Path) -> None:
        super().__init__()
        self._address = f"{HOST}:{port}"
        self._folder = folder
        self._received = (folder / "received").open("a+b", buffering=0)
        self._received.seek(0)
        self._received.truncate(max((end for *_, end in entries(self._received.readall())), default=0))
        self._answering: dict[tuple[Any, str], Any] = {}

    def on_reactor_init(self, event: Any) -> None:
        event.container.listen(self._address)
        (self._folder / "listening").touch()

    def on_connection_remote_open(self, event: Any) -> None:
        event.connection.container = "broker"
        event.connection.open()

    def on_session_remote_open(self, event: Any) -> None:
        event.session.open()

    def on_link_remote_open(self, event: Any) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.max_message_size = int(self._told("largest", str(LARGEST)))
        link.open()
        if link.is_sender:
            self._answering[event.connection, link.remote_source.address] = link
        else:
            link.flow(1000)

    def on_link_remote_close(self, event: Any) -> None:
        event.link.close()

    def on_connection_remote_close(self, event: Any) -> None:
        event.connection.close()

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if not link.is_receiver or not delivery.readable or delivery.partial:
            return
        encoded = link.recv(delivery.pending)
        link.advance()
        link.flow(1)
        address = link.remote_target.address
        if address in {"$cbs", "$management"} or address.endswith("/$management"):
            self._answer(event.connection, address, decoded(encoded))
            self._settle(delivery, Delivery.ACCEPTED)
        elif len(encoded) > link.max_message_size:
            delivery.local.condition = Condition("amqp:link:message-size-exceeded", "too large", TRACKING)
            self._settle(delivery, Delivery.REJECTED)
        else:
            self._take(event, address, encoded)

    def _take(self, event: Any, address: str, encoded: bytes) -> None:
        match self._next_fault():
            case "busy":
                event.delivery.local.condition = Condition(BUSY, "come back later", TRACKING)
                self._settle(event.delivery, Delivery.REJECTED)
            case "refuse":
                event.delivery.local.condition = Condition("amqp:not-allowed", "not this one", TRACKING)
                self._settle(event.delivery, Delivery.REJECTED)
            case "lose":
                self._drop(event)
            case "keep and lose":
                self._keep(address, encoded)
                self._drop(event)
            case _:
                self._keep(address, encoded)
                self._settle(event.delivery, Delivery.ACCEPTED)

    def _keep(self, address: str, encoded: bytes) -> None:
        # As it came: a sender that is measured must not wait for what tests want to know of its messages.
        self._received.write(f"{len(encoded)} {address}\n".encode() + encoded)

    def _answer(self, connection: Any, address: str, request: Message) -> None:
        link = self._answering[connection, address]
        reply: Any = Message(address=request.reply_to, correlation_id=request.id)
        reply.properties = {"status-code": 202 if address == "$cbs" else 200, "status-description": "OK"}
        ids = [str(number) for number in range(PARTITIONS)]
        reply.body = {"name": "hub", "created_at": 0, "partition_count": PARTITIONS, "partition_ids": ids}
        link.send(reply)

    def _next_fault(self) -> str | None:
        planned = self._told("faults", "").split("\n")
        if planned[0]:
            (self._folder / "faults").write_text("\n".join(planned[1:]))
        return planned[0] or None

    def _told(self, name: str, default: str) -> str:
        file = self._folder / name
        return file.read_text() if file.exists() else default

    @staticmethod
    def _settle(delivery: Any, outcome: Any) -> None:
        delivery.update(outcome)
        delivery.settle()

    @staticmethod
    def _drop(event: Any) -> None:
        event.transport.close_tail()
        event.transport.close_head()


def records(written: bytes) -> Iterator[dict[str, Any]]:
    """Return what was written down, message by message."""
    for address, encoded, _ in entries(written):
        yield from (record(address, message) for message in messages(encoded))


def entries(written: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Return what was written down, and where each entry ends; one that a kill has torn is none."""
    start = 0
    while (end := written.find(b"\n", start)) >= 0:
        size, address = written[start:end].decode().split(" ", 1)
        start = end + 1 + int(size)
        if start > len(written):
            return
        yield address, written[end + 1 : start], start


def messages(encoded: bytes) -> Iterator[Message]:
    """Return the messages of a batch, or the one message itself."""
    parts = list(data_sections(encoded))
    if parts and all(part.startswith(b"\x00") for part in parts):
        yield from map(decoded, parts)
    else:
        yield decoded(encoded)


def data_sections(encoded: bytes) -> Iterator[bytes]:
    """Return the payloads of a message whose other sections stand before them, as a batch's do."""
    start = 0
    while start < len(encoded) and encoded[start : start + 3] != DATA:
        start += Data().decode(encoded[start:])
    while encoded[start : start + 3] == DATA:
        width = 1 if encoded[start + 3] == SHORT else 4
        body = start + 4 + width
        start = body + int.from_bytes(encoded[start + 4 : body])
        yield encoded[body:start]


def decoded(encoded: bytes) -> Message:
    message = Message()
    message.decode(encoded)
    return message


def record(address: str, message: Message) -> dict[str, Any]:
    """Return what tests want to know of a message."""
    body: Any = message.body
    properties: Any = message.properties
    annotations = {str(name): value for name, value in (message.annotations or {}).items()}
    return {
        "address": address,
        "id": message.id,
        "session": message.group_id,
        "key": annotations.get("x-opt-partition-key"),
        "content_type": str(message.content_type),
        "properties": {text(name): text(value) for name, value in (properties or {}).items()},
        "body": bytes(body).decode(),
    }


def text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | memoryview) else str(value)


@dataclass
class Broker:
    """The process, for tests: where it is, what it has received, what it shall do wrong next."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def connection_string(self) -> str:
        address = f"sb://{HOST}:{self.port}"
        return f"Endpoint={address};SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true;"

    def start(self) -> None:
        (self.folder / "listening").unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.support.broker", str(self.port), str(self.folder)]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        wait_for((self.folder / "listening").exists, 30, "the broker does not listen")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def plan(self, *faults: str) -> None:
        """Let the next messages meet these faults, one each."""
        (self.folder / "faults").write_text("\n".join(faults))

    def limit(self, size: int) -> None:
        """Let links that are opened from now on take messages of this size at most."""
        (self.folder / "largest").write_text(str(size))

    def received(self) -> list[dict[str, Any]]:
        file = self.folder / "received"
        return list(records(file.read_bytes())) if file.exists() else []


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """A broker for the length of a block."""
    broker = Broker(free_port(), folder)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


if __name__ == "__main__":
    Container(Service(int(sys.argv[1]), Path(sys.argv[2]))).run()
