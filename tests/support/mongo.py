"""A MongoDB for tests: a real one where `AZFDB_MONGOD` names a program, else what one has said when it was recorded.

Between the tests' client and the server stands a `Front`. It answers the handshake by itself and hands on every other
command. In front of a real server it writes down requests and replies; without one it gives the same replies again, and
refuses a request that is not the next of its recording. Record again, all tests at once, with

    AZFDB_MONGOD=/path/of/mongod python -m tests.support.mongo
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import signal
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import MongoClient

from azure_functions_db import MongoChangeStreamSource
from azure_functions_db.sources.mongo.log import extended
from tests.support.proxy import cut
from tests.support.waiting import wait_for
from tools.services.instance import ROOT, Instance, exclusive
from tools.services.mongodb import PROGRAM, MongoDb

if TYPE_CHECKING:
    from azure_functions_db.core.types import Change
    from tools.services.processes import Process

RECORDINGS = Path(__file__).parents[1] / "recordings" / "mongo.bson.gz"
RECORDED = [
    "tests/contract/test_mongo_change_stream.py",
    "tests/integration/test_mongo_change_stream.py",
    "tests/integration/cli/test_mongo.py",
    "tests/docs/test_pages.py",
    "tests/acceptance/test_examples.py",
    "tests/acceptance/test_as_printed.py",
]
IS_REAL = bool(os.environ.get(PROGRAM))
RECORDS = "AZFDB_RECORD"

_HEADER, _FLAGS = struct.Struct("<iiii"), struct.Struct("<I")
_QUERY, _REPLY, _MESSAGE = 2004, 1, 2013
_HANDSHAKES = {"hello", "ismaster"}
# Sent whenever the driver tidies up, from a thread of its own.
_UNRECORDED = {"killCursors", "endSessions"}
# Another one each time.
_VOLATILE = {"lsid", "$clusterTime", "txnNumber", "getMore", "$readPreference"}
_REFUSAL = 9999
_AS_SENT: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


class Spoken(NamedTuple):
    """A request and its reply."""

    request: bytes
    reply: bytes


class Recordings:
    """What was said in each test."""

    def __init__(self, spoken: dict[str, list[Spoken]]) -> None:
        self.of = spoken

    @classmethod
    def loaded(cls) -> Self:
        spoken = defaultdict[str, list[Spoken]](list)
        for each in bson.decode_all(gzip.decompress(RECORDINGS.read_bytes())):
            spoken[each["test"]].append(Spoken(each["request"], each["reply"]))
        return cls(dict(spoken))

    def save(self) -> None:
        written = b"".join(
            bson.encode({"test": test, "request": request, "reply": reply})
            for test, spoken in sorted(self.of.items())
            for request, reply in spoken
        )
        RECORDINGS.write_bytes(gzip.compress(written, mtime=0))


class Front:
    """Where the tests' client connects to."""

    def __init__(self, spoken: list[Spoken], server: tuple[str, int] | None, *, set_name: str | None = "rs0") -> None:
        self._spoken = spoken
        self._server = server
        self._set_name = set_name
        self._next = 0
        self._lock = Lock()
        self.refuse = False
        """Whether who connects is sent away."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        host, port = self._listener.getsockname()
        self.uri = f"mongodb://{host}:{port}/?directConnection=true&retryReads=false&retryWrites=false"

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            cut(each)
            each.close()

    def lose_connections(self) -> None:
        for each in self._sockets[1:]:
            cut(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self.refuse:
            cut(client)
            return
        server = None if self._server is None else socket.create_connection(self._server)
        try:
            with suppress(OSError, EOFError):
                while True:
                    head, body = _received(client)
                    client.sendall(self._answer(head, body, server))
        finally:
            cut(client)
            if server is not None:
                server.close()

    def _answer(self, head: tuple[int, int, int, int], body: bytes, server: socket.socket | None) -> bytes:
        _, request_id, _, opcode = head
        request = _command(opcode, body)
        name = next(iter(request))
        if name.lower() in _HANDSHAKES:
            return _framed(self._hello(), request_id, opcode)
        if name in _UNRECORDED and server is None:
            return _framed({"ok": 1.0}, request_id, opcode)
        if server is None:
            with self._lock:
                return _framed(self._replayed(request), request_id, opcode)
        server.sendall(_HEADER.pack(*head) + body)
        (_, number, _, kind), reply = _received(server)
        if name not in _UNRECORDED:
            with self._lock:
                self._spoken.append(Spoken(bson.encode(_steady(request)), reply[5:]))
        return _HEADER.pack(16 + len(reply), number, request_id, kind) + reply

    def _replayed(self, request: dict[str, Any]) -> dict[str, Any] | bytes:
        asked = bson.encode(_steady(request))
        if self._next == len(self._spoken):
            return _refusal(f"the recording has ended before {bson.decode(asked, _AS_SENT)}")
        expected = self._spoken[self._next]
        if asked != expected.request:
            here, there = (bson.decode(each, _AS_SENT) for each in (expected.request, asked))
            return _refusal(f"the recording has {here} here, and not {there}")
        self._next += 1
        return expected.reply

    def _hello(self) -> dict[str, Any]:
        member = self.uri.partition("://")[2].partition("/")[0]
        member_of = {"setName": self._set_name, "hosts": [member], "primary": member, "me": member}
        return {
            "helloOk": True,
            "isWritablePrimary": True,
            **(member_of if self._set_name else {}),
            "maxBsonObjectSize": 16777216,
            "maxMessageSizeBytes": 48000000,
            "maxWriteBatchSize": 100000,
            "logicalSessionTimeoutMinutes": 30,
            "minWireVersion": 0,
            "maxWireVersion": 27,
            "readOnly": False,
            "ok": 1.0,
        }


def _received(connection: socket.socket) -> tuple[tuple[int, int, int, int], bytes]:
    head = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return head, _exactly(connection, head[0] - _HEADER.size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _command(opcode: int, body: bytes) -> dict[str, Any]:
    if opcode == _QUERY:
        end = body.index(b"\0", 4) + 1
        return dict(bson.decode(body[end + 8 :], _AS_SENT))
    request, place = dict[str, Any](), 4
    while place < len(body):
        kind, size = body[place], int.from_bytes(body[place + 1 : place + 5], "little")
        section = body[place + 1 : place + 1 + size]
        if kind == 0:
            request = {**bson.decode(section, _AS_SENT), **request}
        else:
            name_end = section.index(b"\0", 4)
            request[section[4:name_end].decode()] = bson.decode_all(section[name_end + 1 :], _AS_SENT)
        place += 1 + size
    return request


def _steady(request: dict[str, Any]) -> dict[str, Any]:
    name = next(iter(request))
    return {"command": name} | {key: value for key, value in request.items() if key not in _VOLATILE}


def _framed(reply: dict[str, Any] | bytes, request_id: int, opcode: int) -> bytes:
    document = reply if isinstance(reply, bytes) else bson.encode(reply)
    if opcode == _QUERY:
        body = struct.pack("<iqii", 8, 0, 0, 1) + document
        return _HEADER.pack(16 + len(body), 1, request_id, _REPLY) + body
    body = _FLAGS.pack(0) + b"\0" + document
    return _HEADER.pack(16 + len(body), 1, request_id, _MESSAGE) + body


def _refusal(reason: str) -> dict[str, Any]:
    return {"ok": 0.0, "code": _REFUSAL, "errmsg": f"{reason}: record again, as tests/support/mongo.py says"}


# Real servers.


class Member:
    """One server of a replica set, which can be killed and comes back at the same place."""

    def __init__(self, instance: Instance, server: MongoDb, process: Process) -> None:
        self._instance = instance
        self._server = server
        self._process = process
        self.address = ("127.0.0.1", server.port)
        self.uri = server.settings()["AZFDB_TEST_MONGO_URI"]

    @property
    def name(self) -> str:
        return "{}:{}".format(*self.address)

    def kill(self) -> None:
        replace(self._process, stop_signal=signal.SIGKILL).stop()
        for child in self._instance._children:
            if child.pid == self._process.pid:
                child.wait()

    def start(self) -> None:
        again = self._instance.launch(self._server)
        assert again is not None, self._server.log.read_text(errors="replace")[-3000:]
        self._process = again


@contextmanager
def replica_set(size: int = 1, kind: type[MongoDb] = MongoDb) -> Iterator[list[Member]]:
    """A replica set that nobody else uses, with a primary."""
    instances = [Instance(ROOT / f"mongo-{secrets.token_hex(4)}") for _ in range(size)]
    try:
        members = []
        for instance in instances:
            with exclusive():
                instance.claim()
            members.append(Member(instance, *instance.start_one(kind)))
        initiate(members)
        yield members
    finally:
        for instance in instances:
            instance.stop()


def initiate(members: Sequence[Member]) -> None:
    """Make one set of these servers, and wait for its primary."""
    settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200}
    hosts = [{"_id": number, "host": member.name} for number, member in enumerate(members)]
    with MongoClient[Any](members[0].uri) as client:
        client.admin.command("replSetInitiate", {"_id": "rs0", "members": hosts, "settings": settings})
    wait_for(lambda: primary_of(members), 60, "no primary was elected")


def primary_of(members: Sequence[Member]) -> Member | None:
    """Return the member that takes writes, None while there is none."""
    for member in members:
        with (
            suppress(Exception),
            MongoClient[Any](member.uri, serverSelectionTimeoutMS=500, connectTimeoutMS=500) as client,
        ):
            if client.admin.command("hello").get("isWritablePrimary"):
                return member
    return None


class Stage:
    """Gives each test its front: before the server of this run, or before a recording."""

    def __init__(self, server: tuple[str, int] | None) -> None:
        self._server = server
        self._recordings = Recordings({}) if server is not None else Recordings.loaded()

    @contextmanager
    def front(self, test: str, **options: Any) -> Iterator[Front]:
        spoken = self._recordings.of.setdefault(test, [])
        if self._server is not None:
            del spoken[:]
        with Front(spoken, self._server, **options) as front:
            yield front

    def save(self) -> None:
        self._recordings.save()


@contextmanager
def stage() -> Iterator[Stage]:
    if not IS_REAL:
        yield Stage(None)
        return
    with replica_set() as [member]:
        made = Stage(member.address)
        yield made
        if os.environ.get(RECORDS):
            made.save()


def fail_streams(client: MongoClient[Any], code: int) -> None:
    """Let the next change stream that is opened fail with an error of this code."""
    fail(client, "aggregate", code, {"times": 1})


def fail(client: MongoClient[Any], command: str, code: int, mode: Any) -> None:
    """Let commands of this name fail with an error of this code."""
    fault = {"errorCode": code, "failCommands": [command]}
    client.admin.command("configureFailPoint", "failCommand", mode=mode, data=fault)


def text(key: Any) -> str:
    """Return a key of any type as one that a mapping can have."""
    return json.dumps(extended(key))


class Mirror:
    """A source with its checkpoint, and a copy of the collections made of its changes."""

    def __init__(self, uri: str, **options: Any) -> None:
        self.uri = uri
        self.source = MongoChangeStreamSource(uri=uri, **({"database": "shop", "collection": "items"} | options))
        self.checkpoint: dict[str, Any] = {}
        self.rows: dict[Any, Any] = {}
        self.changes: list[Change] = []
        self.facts: list[Any] = []

    def drain(self, limit: int = 100) -> list[Change]:
        """Read to the end, page by page, each with a reader of its own, as ticks do."""
        new = self.page(limit)
        while self.has_more:
            new += self.page(limit)
        return new

    def page(self, limit: int = 100) -> list[Change]:
        page = self.source.fetch_changes(json.loads(json.dumps(self.checkpoint)), limit)
        assert len(page.records) <= limit
        for change in page.records:
            self.apply(change)
        self.checkpoint, self.has_more = page.next_checkpoint, bool(page.more)
        self.facts += page.facts
        self.changes += page.records
        return list(page.records)

    def reading(self) -> closing[Any]:
        return closing(self.source.open())

    def apply(self, change: Change) -> None:
        name = change.metadata["collection"]
        key = name, text(change.key.get("_id"))
        if change.op == "truncate":
            self.rows = {other: row for other, row in self.rows.items() if other[0] != name}
        elif change.after is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = change.after


if __name__ == "__main__":
    os.environ[RECORDS] = "1"
    sys.exit(pytest.main(["-n", "0", "-q", "-k", "mongo", *RECORDED]))
