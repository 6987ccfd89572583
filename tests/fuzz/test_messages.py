"""Messages of servers, as they were recorded and mutated: right changes, or the one error that says what is wrong."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core.errors import FetchError, SerializationError, SourceConfigurationError
from azure_functions_db.sources.mysql.decoding import TableMaps
from azure_functions_db.sources.mysql.log import Event, Replica
from azure_functions_db.sources.mysql.position import BinlogPosition
from azure_functions_db.sources.mysql.transactions import TransactionReader
from azure_functions_db.sources.postgres.changes import ChangeStream, Place, RowType, Session, Shape, TableRows
from azure_functions_db.sql import mysql_wire
from tests.fuzz.inputs import fuzzed, lines, mutated, refusing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.core.types import Change
    from azure_functions_db.sources.postgres.pgoutput import Relation

DOCUMENTED = (FetchError, SerializationError, SourceConfigurationError)
PGOUTPUT = {
    name: [bytes.fromhex(message) for (message,) in lines(f"{name}.txt")] for name in ("pgoutput-15", "pgoutput-18")
}


def event_of(line: list[str]) -> Event:
    kind, timestamp, server_id, start, end, crc = map(int, line[:-1])
    return Event(kind, timestamp, server_id, start, end, bytes.fromhex(line[-1]), crc)


BINLOG = [event_of(line) for line in lines("binlog-mariadb.txt")]
END = 2**62


class Recorded:
    """Sends messages, then that there are no more, then nothing."""

    connection = None
    is_ended = False

    def __init__(self, messages: list[bytes]) -> None:
        self._messages: Iterator[bytes | int] = iter([*messages, END])

    def follow(self, target: int) -> None: ...

    def next(self, wait: float) -> bytes | int | None:
        return next(self._messages, None)

    def ask(self) -> None: ...

    def acknowledge(self, lsn: int) -> None: ...

    def close(self) -> None: ...


def rows_of(relation: Relation) -> TableRows:
    names = tuple(column.name for column in relation.columns)
    shape = Shape(names, tuple(column.type_oid for column in relation.columns))
    session = Session(psycopg.adapters, None)
    places = tuple(place for place, name in enumerate(names) if name == "id")
    return TableRows(relation.name, RowType(shape, session, {}), tuple(names[place] for place in places), places)


def streamed(messages: list[bytes]) -> list[Change]:
    stream = ChangeStream(Recorded(messages), Place(0), END, rows_of, source="fuzz", patience_seconds=0)
    return stream.take(1000)


def replayed(events: list[Event]) -> list[Change]:
    maps = TableMaps(lambda *_: True, lambda collation: "latin1" if collation == 8 else "utf8mb4", lambda *_: {})
    reader = TransactionReader(
        SimpleNamespace(file="binlog.000001"),  # type: ignore[arg-type]  # of a connection, only the file's name is asked
        iter(events),
        BinlogPosition(file="binlog.000001", offset=4),
        maps,
        is_mariadb=True,
        is_wanted=lambda *_: True,
        is_mentioned=lambda _: True,
    )
    return reader.take(1000, lambda: False)


@pytest.mark.parametrize("name", PGOUTPUT)
def test_what_postgresql_has_sent_is_read(name: str) -> None:
    told = [(change.op, change.key.get("id")) for change in streamed(PGOUTPUT[name])]
    assert told == [
        ("insert", 1), ("insert", 2), ("insert", 3), ("update", 2), ("delete", 3), ("insert", 4),
        ("update", 1), ("delete", 4), ("insert", 5), ("truncate", None),
    ]  # fmt: skip


def test_what_mariadb_has_sent_is_read() -> None:
    told = [(change.op, change.key.get("id")) for change in replayed(BINLOG)]
    assert told == [
        ("insert", 1), ("insert", 2), ("insert", 3), ("update", 1), ("update", 2), ("delete", 3), ("insert", 9),
        ("delete", 2), ("insert", 5), ("truncate", None),
    ]  # fmt: skip


@fuzzed
@given(st.data())
def test_a_changed_message_of_postgresql_is_read_or_refused(data: st.DataObject) -> None:
    messages = list(PGOUTPUT[data.draw(st.sampled_from(sorted(PGOUTPUT)))])
    at = data.draw(st.integers(0, len(messages) - 1))
    messages[at] = data.draw(mutated(messages[at]))
    with refusing(*DOCUMENTED):
        streamed(messages)


@fuzzed
@given(st.data())
def test_messages_of_postgresql_in_any_order_are_read_or_refused(data: st.DataObject) -> None:
    messages = PGOUTPUT[data.draw(st.sampled_from(sorted(PGOUTPUT)))]
    with refusing(*DOCUMENTED):
        streamed(data.draw(st.lists(st.sampled_from(messages), max_size=12)))


@fuzzed
@given(st.data())
def test_a_changed_event_of_the_binary_log_is_read_or_refused(data: st.DataObject) -> None:
    events = list(BINLOG)
    at = data.draw(st.integers(0, len(events) - 1))
    events[at] = events[at]._replace(body=data.draw(mutated(events[at].body)))
    with refusing(*DOCUMENTED):
        replayed(events)


@fuzzed
@given(st.lists(st.tuples(st.sampled_from(BINLOG), st.sampled_from([event.kind for event in BINLOG])), max_size=12))
def test_events_of_any_kind_in_any_order_are_read_or_refused(events: list[tuple[Event, int]]) -> None:
    with refusing(*DOCUMENTED):
        replayed([event._replace(kind=kind) for event, kind in events])


class Sent(Replica):
    """A replica to which packets are sent that somebody has made up."""

    def __init__(self, packets: list[bytes], *, checksums: bool) -> None:
        self.file, self._checksums, self._packets = "", checksums, iter(packets)

    def _packet(self) -> bytes:
        return next(self._packets, b"\xfe")


def test_the_name_of_a_file_may_be_any_bytes() -> None:
    rotation = bytes(8) + b"log\xff"
    packet = b"\0" + bytes(4) + b"\x04" + bytes(4) + (19 + len(rotation)).to_bytes(4, "little") + bytes(6) + rotation
    assert len(list(Sent([packet], checksums=False)._events())) == 1


@fuzzed
@given(st.data())
def test_packets_of_a_log_are_events_or_refused(data: st.DataObject) -> None:
    packets: list[Any] = []
    for event in data.draw(st.lists(st.sampled_from(BINLOG), max_size=4)):
        head = (
            b"\0" + event.timestamp.to_bytes(4, "little") + bytes([event.kind]) + event.server_id.to_bytes(4, "little")
        )
        size = (len(event.body) + 19).to_bytes(4, "little")
        packets.append(head + size + event.end.to_bytes(4, "little") + b"\0\0" + event.body)
    packets = [data.draw(st.just(packet) | mutated(packet)) for packet in packets]
    with refusing(*DOCUMENTED):
        list(Sent(packets, checksums=data.draw(st.booleans()))._events())


ROW, NULLS = b"\x0242\x03abc", b"\xfb\xfb"
ANSWERS = [
    [ROW, NULLS, b"\xfe\0\0\2\0"],
    [ROW, b"\xff\xda\x04#21000more than one row"],
    [b"\x0242\xfc\x02\x00ab", b"", ROW],
]


@fuzzed
@given(st.data())
def test_an_answer_of_rows_is_read_or_refused(data: st.DataObject) -> None:
    payloads = data.draw(st.sampled_from(ANSWERS)) + data.draw(st.sampled_from(ANSWERS))
    sent = b"".join(len(each).to_bytes(3, "little") + bytes([number]) + each for number, each in enumerate(payloads, 1))
    connection = SimpleNamespace(
        _rfile=io.BytesIO(data.draw(st.just(sent) | mutated(sent))),
        _next_seq_id=1,
        _force_close=lambda: None,
        encoding="utf8",
    )
    result = SimpleNamespace(converters=[("ascii", int), ("utf8", None)], unbuffered_active=True)
    with refusing(pymysql.err.Error, ValueError):
        rows = mysql_wire._rows(SimpleNamespace(connection=connection, _result=result))
        assert all(len(row) == 2 for row in rows)
    assert not result.unbuffered_active
