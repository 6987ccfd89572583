"""Servers that pose as databases and ask for the password in clear."""

from __future__ import annotations

import socket
import ssl
import struct
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from threading import Thread
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.support.certificates import Certificate

_PATIENCE = 20.0


class Rogue(ABC):
    """Speaks a database's protocol far enough to get at a password, and keeps all that it was sent."""

    url: str

    def __init__(self, certificate: Certificate | None) -> None:
        self.got = b""
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate.file, certificate.key_file)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_PATIENCE)

    @abstractmethod
    def ask(self, client: socket.socket) -> None:
        """Talk to a client until it has sent its password, or goes away."""

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(_PATIENCE)
            with ExitStack() as self._open, suppress(OSError, EOFError):
                self.ask(self._open.enter_context(client))

    def read(self, client: socket.socket, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = client.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
            self.got += part
        return found

    def secured(self, client: socket.socket) -> socket.socket:
        if self._context is None:
            return client
        return self._open.enter_context(self._context.wrap_socket(client, server_side=True))


class RoguePostgres(Rogue):
    """Asks with AuthenticationCleartextPassword."""

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"postgresql+psycopg://app@127.0.0.1:{self.port}/shop"

    def ask(self, client: socket.socket) -> None:
        asked = self._message(client)
        while asked[:4] == struct.pack("!I", 80877103):  # may we speak TLS?
            client.sendall(b"N" if self._context is None else b"S")
            client = self.secured(client)
            asked = self._message(client)
        client.sendall(b"R" + struct.pack("!II", 8, 3))
        self.read(client, 1)
        self._message(client)

    def _message(self, client: socket.socket) -> bytes:
        [size] = struct.unpack("!I", self.read(client, 4))
        return self.read(client, size - 4)


class RogueMySql(Rogue):
    """Switches to mysql_clear_password."""

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"mysql+pymysql://app@127.0.0.1:{self.port}/shop"

    def ask(self, client: socket.socket) -> None:
        abilities = 0x0008_8200 | 0x0800 * (self._context is not None)
        low, high = abilities & 0xFFFF, abilities >> 16
        greeting = b"\x0a" + b"8.0.0\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<HBHH", low, 45, 2, high)
        self._send(client, 0, greeting + b"\x15" + bytes(10) + b"123456789012\0" + b"mysql_native_password\0")
        if self._context is not None:
            self._packet(client)
            client = self.secured(client)
        number = self._packet(client)
        self._send(client, number + 1, b"\xfemysql_clear_password\0")
        self._packet(client)

    def _packet(self, client: socket.socket) -> int:
        head = self.read(client, 4)
        self.read(client, int.from_bytes(head[:3], "little"))
        return head[3]

    @staticmethod
    def _send(client: socket.socket, number: int, body: bytes) -> None:
        client.sendall(len(body).to_bytes(3, "little") + bytes([number]) + body)
