"""A TCP proxy that counts what passes and can forget its connections, as network devices do."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from typing import Self


class Proxy:
    """Stands between a client and a server on this machine."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.bytes_sent = 0
        self.requests = 0
        self._forgotten: list[socket.socket] = []

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            cut(each)

    def forget(self) -> None:
        """Forget every connection there is: what a client says on one is answered with its end."""
        self._forgotten = list(self._sockets)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                Thread(target=self._pump, args=(client, server, True), daemon=True).start()
                Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if from_client:
                    if source in self._forgotten:
                        break
                    self.bytes_sent += len(data)
                    self.requests += 1
                target.sendall(data)
        cut(source)
        cut(target)


def cut(connection: socket.socket) -> None:
    """End a connection, also for whoever waits on it in another thread."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
