"""Changes out of the messages of a slot: none lost and none twice, wherever a reader was stopped."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from azure_functions_db.core.errors import FetchError, SerializationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.postgres.changes import (
    ChangeStream,
    Place,
    RowType,
    SeenTransactions,
    Session,
    Shape,
    TableRows,
    Timelines,
    Transaction,
    failure_of,
    record_builder,
)
from azure_functions_db.sources.postgres.pgoutput import (
    UNCHANGED,
    MalformedMessageError,
    Relation,
    Value,
    begun,
    committed,
    encoded_row,
    inserted,
)

INT, TEXT, DATE = 23, 25, 1082
COMMITTED = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
MICROSECONDS = int((COMMITTED - dt.datetime(2000, 1, 1, tzinfo=dt.UTC)).total_seconds() * 1_000_000)
TABLES = {"t": 1, "u": 2, "others": 3, "pairs": 4}


class Wal:
    """The messages of a log, each with the place at which its transaction was committed."""

    def __init__(self) -> None:
        self.transactions: list[tuple[int, int, list[bytes]]] = []

    def transaction(self, *messages: bytes, xid: int = 700) -> int:
        """Append one; return where it was committed. The next begins 0x10 further."""
        lsn = 0x100 * (len(self.transactions) + 1)
        begin = struct.pack(">cQqI", b"B", lsn, MICROSECONDS, xid)
        end = struct.pack(">cBQQq", b"C", 0, lsn, lsn + 0x10, MICROSECONDS)
        self.transactions.append((lsn, lsn + 0x10, [begin, *RELATIONS, *messages, end]))
        return lsn

    def sent_from(self, lsn: int) -> list[bytes]:
        """What a server sends whose slot was last acknowledged there."""
        return [message for _, end, messages in self.transactions if end > lsn for message in messages]

    @property
    def end(self) -> int:
        return self.transactions[-1][1]


def relation(name: str) -> bytes:
    columns = b"".join(
        struct.pack(">B", name == "id") + name.encode() + b"\0" + struct.pack(">Ii", oid, -1)
        for name, oid in (("id", INT), ("v", TEXT), ("d", DATE))
    )
    return b"R" + struct.pack(">I", TABLES[name]) + b"s\0" + name.encode() + b"\0d" + struct.pack(">H", 3) + columns


RELATIONS = [relation(name) for name in TABLES]


def values(key: int, v: Value = b"v", d: Value = None) -> list[Value]:
    return [str(key).encode(), v, d]


def insert(key: int, *more: Any, table: str = "t") -> bytes:
    return b"I" + struct.pack(">I", TABLES[table]) + b"N" + encoded_row(values(key, *more))


def update(new: Sequence[Value], old: Sequence[Value] | None = None, kind: bytes = b"O", table: str = "t") -> bytes:
    before = b"" if old is None else kind + encoded_row(old)
    return b"U" + struct.pack(">I", TABLES[table]) + before + b"N" + encoded_row(new)


def delete(old: Sequence[Value], kind: bytes = b"O", table: str = "t") -> bytes:
    return b"D" + struct.pack(">I", TABLES[table]) + kind + encoded_row(old)


def truncate(*tables: str) -> bytes:
    return struct.pack(f">cIB{len(tables)}I", b"T", len(tables), 0, *(TABLES[table] for table in tables))


class Feed:
    """Sends what it was given, one by one: messages, places and silence; then where the log ends, then nothing."""

    connection = None
    is_ended = False

    def __init__(self, received: Sequence[bytes | int | None], end: int) -> None:
        self._received = iter([*received, end])
        self.asked = 0

    def follow(self, target: int) -> None: ...

    def next(self, wait: float) -> bytes | int | None:
        return next(self._received, None)

    def ask(self) -> None:
        self.asked += 1

    def acknowledge(self, lsn: int) -> None: ...

    def close(self) -> None: ...


def rows_of(relation: Relation) -> TableRows | None:
    if relation.name == "others":
        return None
    names = tuple(column.name for column in relation.columns)
    shape = Shape(names, tuple(column.type_oid for column in relation.columns))
    rows = RowType(shape, Session(psycopg.adapters, None), {})
    key = {"pairs": ("v", "id")}.get(relation.name, ("id",))
    return TableRows(f"{relation.schema}.{relation.name}", rows, key, tuple(map(names.index, key)))


def stream_of(wal: Wal, place: Place | None = None, received: Any = None, **options: Any) -> ChangeStream:
    place = place or Place(0)
    chosen: dict[str, Any] = {"source": "orders", "patience_seconds": 0} | options
    feed = Feed(wal.sent_from(place.lsn) if received is None else received, chosen.pop("target", wal.end))
    return ChangeStream(feed, place, wal.end, rows_of, **chosen)


def told(changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    return [(change.op, change.key.get("id"), (change.after or {}).get("v")) for change in changes]


def busy_wal() -> Wal:
    wal = Wal()
    wal.transaction(insert(1), insert(2), insert(3))
    wal.transaction(insert(5, table="others"))
    wal.transaction(
        update(values(9), values(1)),
        b"O" + bytes(8) + b"origin\0",
        update(values(3, b"w"), values(3)),
        delete(values(2)),
    )
    wal.transaction(truncate("t", "others", "u", "pairs"))
    wal.transaction(b"M" + b"message", insert(6, table="others"), insert(7), update(values(7, b"x")))
    wal.transaction(
        update(values(6), table="others"),
        update(values(6), values(5), table="others"),
        delete(values(6), table="others"),
    )
    wal.transaction()
    wal.transaction(update([b"8", b"v", None], [b"7", None, None], b"K"), insert(10, table="u"))
    return wal


ALL = [
    ("insert", 1, "v"),
    ("insert", 2, "v"),
    ("insert", 3, "v"),
    ("delete", 1, None),
    ("insert", 9, "v"),
    ("update", 3, "w"),
    ("delete", 2, None),
    ("truncate", None, None),
    ("truncate", None, None),
    ("truncate", None, None),
    ("insert", 7, "v"),
    ("update", 7, "x"),
    ("delete", 7, None),
    ("insert", 8, "v"),
    ("insert", 10, "v"),
]


def test_a_log_is_read_to_its_end() -> None:
    stream = stream_of(busy_wal())
    changes = stream.take(1000)
    assert told(changes) == ALL
    assert (stream.is_caught_up, stream.place) == (True, Place(busy_wal().end))
    assert stream.last_commit_at == COMMITTED
    assert len({change.position for change in changes}) == len(changes)


@pytest.mark.parametrize("limit", range(1, 17))
def test_reading_goes_on_from_any_place_and_nothing_is_lost_or_told_twice(limit: int) -> None:
    wal, place, changes = busy_wal(), Place(0), list[Change]()
    while True:
        stream = stream_of(wal, place)
        page = stream.take(limit)
        assert len(page) <= limit
        changes += page
        place = Place.of(stream.place.written())
        if stream.is_caught_up:
            break
    assert changes == stream_of(wal).take(1000)
    assert place == Place(wal.end), "behind all of them, and inside of none"


@pytest.mark.parametrize("limit", range(1, 17))
def test_a_stream_that_goes_on_itself_tells_the_same_and_always_knows_where_it_stands(limit: int) -> None:
    wal = busy_wal()
    whole, stream, taken = stream_of(wal).take(1000), stream_of(wal), list[Change]()
    while not stream.is_caught_up:
        taken += stream.take(limit)
        rest = stream_of(wal, stream.place).take(1000)
        assert [*taken, *rest] == whole
    assert taken == whole


@pytest.mark.parametrize("limit", range(1, 17))
def test_a_stream_that_goes_on_in_the_middle_and_is_stopped_again_knows_where_it_stands(limit: int) -> None:
    """Silence comes before what was handed out earlier has come by: the place must not be forgotten."""
    wal = busy_wal()
    whole, first = stream_of(wal).take(1000), stream_of(wal)
    taken = first.take(limit)
    for count in range(len(wal.sent_from(first.place.lsn))):
        received = wal.sent_from(first.place.lsn)[:count]
        stream, page = stream_of(wal, first.place, [*received, None], target=0), list[Change]()
        with suppress(FetchError):  # where nothing has come but silence
            page = stream.take(limit)
        assert [*taken, *page, *stream_of(wal, stream.place).take(1000)] == whole


def test_a_place_inside_of_a_transaction_is_told_by_its_commit_and_what_is_done() -> None:
    wal = busy_wal()
    stream = stream_of(wal)
    stream.take(2)
    assert stream.place == Place(0, 0x100, 2, 0)
    stream.take(2)
    assert stream.place == Place(0x210, 0x300, 0, 1), "of the key that has moved, one half"
    assert stream.place.written() == {"value": "0/210", "transaction": ["0/300", 0, 1]}
    assert Place.of({"value": "0/210", "transaction": ["0/300", 0, 1]}) == stream.place
    assert Place(0x210).written() == {"value": "0/210"}


def test_a_place_is_kept_until_what_was_handed_out_has_come_by_again() -> None:
    wal = busy_wal()
    inside = Place(0, 0x300, 2, 0)
    early = stream_of(wal, inside, wal.transactions[0][2], target=0x150)
    assert told(early.take(2)) == [("insert", 1, "v"), ("insert", 2, "v")]
    begun = stream_of(wal, Place(0x210, 0x300, 2, 0), [*wal.transactions[2][2][:5], None, wal.end])
    with pytest.raises(FetchError):
        begun.take(5)
    assert begun.place == Place(0x210, 0x300, 2, 0)
    at_its_commit = stream_of(wal, Place(0x210, 0x300, 2, 0), [0x300, None], target=0)
    with pytest.raises(FetchError):
        at_its_commit.take(5)
    assert at_its_commit.place == Place(0x300, 0x300, 2, 0), "the server has come to it and not past it"


def test_a_change_tells_its_table_its_transaction_and_when_it_was_committed() -> None:
    wal = Wal()
    wal.transaction(insert(1), update(values(2), values(1)), truncate("t", "u"), xid=701)
    plain, gone, come, first, second = stream_of(wal).take(10)
    metadata = {"table": "s.t", "transaction": 701, "lsn": "0/100", "order": 1, "committed_at": COMMITTED}
    assert plain == Change("insert", "0/100:1", {"id": 1}, {"id": 1, "v": "v", "d": None}, None, COMMITTED, metadata)
    assert [change.position for change in (gone, come, first, second)] == [
        "0/100:2", "0/100:2.1", "0/100:3", "0/100:3.1",
    ]  # fmt: skip
    assert (gone.before, gone.after, come.before) == ({"id": 1, "v": "v", "d": None}, None, None)
    assert (gone.metadata, gone.cursor) == (metadata | {"order": 2}, COMMITTED)
    assert [change.metadata["table"] for change in (first, second)] == ["s.t", "s.u"]


def test_of_a_row_before_only_the_key_is_told_where_only_that_is_known() -> None:
    wal = Wal()
    wal.transaction(
        delete([b"1", None, None], b"K"),
        delete(values(2)),
        update(values(4), [b"3", None, None], b"K"),
        update(values(5, b"w"), values(5)),
    )
    key, whole, gone, come, changed = stream_of(wal).take(10)
    assert (key.before, whole.before) == ({"id": 1}, {"id": 2, "v": "v", "d": None})
    assert (gone.before, come.before) == ({"id": 3}, None)
    assert (changed.op, changed.before, changed.after) == (
        "update",
        {"id": 5, "v": "v", "d": None},
        {"id": 5, "v": "w", "d": None},
    )


def test_a_large_value_that_did_not_change_is_taken_from_before_or_named() -> None:
    wal = Wal()
    wal.transaction(
        update(values(1, UNCHANGED)),
        update(values(2, UNCHANGED), values(2, b"old")),
        update(values(4, UNCHANGED), [b"3", None, None], b"K"),
        update(values(6, UNCHANGED), values(5, b"old")),
    )
    stream = stream_of(wal)
    named, whole, _, moved, _, both = stream.take(10)
    assert stream.failures == {}
    assert (named.op, named.after, named.metadata["unchanged"]) == ("update", {"id": 1, "d": None}, ["v"])
    assert named.position == "0/100:1"
    assert (whole.after, "unchanged" in whole.metadata) == ({"id": 2, "v": "old", "d": None}, False)
    assert (moved.op, moved.after, moved.metadata["unchanged"]) == ("insert", {"id": 4, "d": None}, ["v"])
    assert (both.op, both.after) == ("insert", {"id": 6, "v": "old", "d": None})


def test_a_key_of_several_columns_is_told_and_compared_as_a_whole() -> None:
    wal = Wal()
    wal.transaction(
        insert(1, table="pairs"),
        update(values(1, b"v", b"2026-01-02"), values(1), table="pairs"),
        update(values(1, b"w"), values(1), table="pairs"),
        update([b"2", b"w", None], [b"1", b"w", None], b"K", table="pairs"),
    )
    assert [(change.op, dict(change.key)) for change in stream_of(wal).take(10)] == [
        ("insert", {"v": "v", "id": 1}),
        ("update", {"v": "v", "id": 1}),
        ("delete", {"v": "v", "id": 1}),
        ("insert", {"v": "w", "id": 1}),
        ("delete", {"v": "w", "id": 1}),
        ("insert", {"v": "w", "id": 2}),
    ]


def test_a_value_that_python_cannot_hold_is_a_text_and_its_change_is_told_apart() -> None:
    wal = Wal()
    odd = values(1, b"v", b"infinity")
    wal.transaction(
        insert(1, b"v", b"infinity"),
        insert(2),
        delete(odd),
        update(values(1), odd),
        update([b"3", UNCHANGED, b"infinity"]),
    )
    stream = stream_of(wal)
    changes = stream.take(10)
    assert changes[0].after == {"id": 1, "v": "v", "d": "infinity"}
    assert set(stream.failures) == {"0/100:1", "0/100:3", "0/100:4", "0/100:5"}
    failure = stream.failures["0/100:1"]
    assert isinstance(failure, SerializationError)
    assert "column 'd'" in str(failure)
    assert (changes[4].after, changes[4].metadata["unchanged"]) == ({"id": 3, "d": "infinity"}, ["v"])


def test_what_was_done_to_a_value_by_sqlalchemy_is_done_here_too_and_may_fail() -> None:
    def halved(value: Any) -> Any:
        if value is not None and value % 2:
            raise ValueError(value)
        return value and value // 2

    rows = RowType(Shape(("id", "v"), (INT, TEXT)), Session(psycopg.adapters, None), {"id": halved})
    assert rows.read([b"4", b"a"]).values == {"id": 2, "v": "a"}
    odd = rows.read([b"3", None])
    assert (odd.values, list(odd.failures)) == ({"id": "3", "v": None}, ["id"])
    assert rows.plain([b"3", None]) is None
    assert rows.read([b"\xff", b"a"]).values == {"id": "\\xff", "v": "a"}


def test_names_of_columns_are_texts_whatever_they_hold() -> None:
    name = "a': __import__('os') #\\\"\n{}"
    assert record_builder([name, "b"])(1, 2) == {name: 1, "b": 2}


def test_a_failure_says_which_columns_and_not_which_values() -> None:
    error = failure_of({"d": ValueError("secret"), "e": OverflowError("secret")}, "orders")
    assert str(error).startswith("A value cannot be decoded: column 'd' (ValueError), column 'e' (OverflowError)")
    assert error.source == "orders"


# Joining a snapshot.


def test_transactions_that_the_rows_of_a_snapshot_show_are_not_told_again() -> None:
    wal = Wal()
    for number, xid in enumerate((99, 100, 101, 102, 105, 99), 1):
        wal.transaction(insert(number), xid=xid)
    seen = SeenTransactions.of({"seen": "100:103:101", "until": "0/510"})
    assert seen == SeenTransactions(103, frozenset({101}), 0x510)
    changes = stream_of(wal, seen=seen).take(10)
    assert [change.key["id"] for change in changes] == [3, 5, 6], "running then, later, and an id that came round"
    assert SeenTransactions.of({"value": "0/0"}) is None
    edge = SeenTransactions(103, frozenset(), 0x100)
    assert len(stream_of(wal, seen=edge).take(10)) == 6, "the first was committed at that very place"


def test_ids_of_transactions_count_on_after_they_have_come_round() -> None:
    seen = SeenTransactions((1 << 32) + 3, frozenset({(1 << 32) + 1}), 2**62)
    assert [seen.had_ended(xid) for xid in (2**32 - 3, 2**32 - 2, 0, 1, 2, 3, 4)] == [
        True, True, True, False, True, False, False,
    ]  # fmt: skip
    far = SeenTransactions(2**31 + 5, frozenset(), 1)
    assert (far.had_ended(5), far.had_ended(4)) == (True, False), "half of all ids lie before, the others behind"
    assert not SeenTransactions(7, frozenset(), 1).had_ended(7 + 2**31 - 1)


def test_what_a_snapshot_shows_moves_the_place_and_not_the_last_commit() -> None:
    wal = Wal()
    wal.transaction(insert(1), insert(2), xid=99)
    stream = stream_of(wal, seen=SeenTransactions(103, frozenset(), 0x200))
    assert (stream.take(10), stream.place, stream.last_commit_at) == ([], Place(0x110), None)
    cut = stream_of(wal, received=[*wal.transactions[0][2][:-1], None], seen=SeenTransactions(103, frozenset(), 2))
    assert len(cut.take(1)) == 1
    inside = stream_of(wal, received=[*wal.transactions[0][2][:5], None], seen=SeenTransactions(103, frozenset(), 512))
    with pytest.raises(FetchError):
        inside.take(10)
    assert inside.place == Place(0)


def test_what_a_snapshot_shows_is_no_place_to_go_on_inside_of() -> None:
    wal = Wal()
    wal.transaction(insert(1), xid=200)
    wal.transaction(insert(2), insert(3), xid=99)
    received = [*wal.transactions[0][2], *wal.transactions[1][2][:-1], None]
    stream = stream_of(wal, received=received, seen=SeenTransactions(103, frozenset(), 0x300))
    assert (told(stream.take(10)), stream.place) == ([("insert", 1, "v")], Place(0x110))


def test_a_transaction_before_the_place_is_passed_over() -> None:
    wal = busy_wal()
    everything = wal.sent_from(0)
    assert told(stream_of(wal, Place(0x310), everything).take(100)) == ALL[7:]
    assert told(stream_of(wal, Place(0x300), everything).take(100)) == ALL[3:], "committed at that very place"


def test_transactions_of_a_promoted_server_have_names_of_their_own() -> None:
    wal = Wal()
    wal.transaction(insert(1))
    wal.transaction(insert(2), insert(3, b"v", b"infinity"))
    stream = stream_of(wal, timelines=Timelines(2, {1: 0x200}))
    changes = stream.take(10)
    assert [change.position for change in changes] == ["0/100:1", "0/200@2:1", "0/200@2:2"]
    assert changes[1].metadata["lsn"] == "0/200"
    assert list(stream.failures) == ["0/200@2:2"]
    assert Timelines(1, {}).name_of(Transaction(0x200, COMMITTED, 1)) == "0/200"


# Waiting.


def test_a_server_that_is_silent_for_too_long_is_told_and_one_that_answers_is_waited_for() -> None:
    wal = busy_wal()
    with pytest.raises(FetchError, match=r"'orders': for 0 s the server has told nothing new.*patience_seconds="):
        stream_of(wal, received=[None, None]).take(10)
    patient = stream_of(wal, received=[None, None, wal.end], patience_seconds=60)
    assert (patient.take(10), patient.is_caught_up) == ([], True)
    assert patient._feed.asked == 2  # type: ignore[attr-defined]  # it is one that counts


def test_what_is_there_is_handed_out_before_the_server_is_waited_for() -> None:
    wal = busy_wal()
    stream = stream_of(wal, received=[*wal.transactions[0][2], None, *wal.transactions[2][2]], target=0)
    assert told(stream.take(10)) == ALL[:3]
    assert (stream.is_caught_up, stream.place) == (False, Place(0x110))


def test_a_server_that_comes_no_further_has_come_to_the_end() -> None:
    """The log may end with a part of a record: the place that was to be reached is never told."""
    wal = busy_wal()
    stream = stream_of(wal, received=[0x50, 0x50, None, 0x50, 0x60], patience_seconds=60)
    assert stream.take(10) == []
    assert (stream.is_caught_up, stream.place) == (True, Place(0x50))
    assert stream._feed.next(0) == 0x60, "it was asked before that was believed, and not after"


def test_a_server_that_comes_further_when_it_is_asked_is_read_on() -> None:
    wal = Wal()
    wal.transaction(insert(1))
    stream = stream_of(wal, received=[0x50, None, 0x60, *wal.sent_from(0)], patience_seconds=60)
    assert told(stream.take(10)) == [("insert", 1, "v")]


def test_a_place_inside_of_a_transaction_is_not_behind_it() -> None:
    wal = Wal()
    wal.transaction(insert(1), insert(2))
    messages = wal.transactions[0][2]
    stream = stream_of(wal, received=[*messages[:-2], 2**40, *messages[-2:]])
    assert told(stream.take(10)) == [("insert", 1, "v"), ("insert", 2, "v")]
    assert stream.place == Place(0x110)


def test_a_place_never_goes_back() -> None:
    wal = Wal()
    wal.transaction(insert(1))
    stream = stream_of(wal, Place(0x90), received=[0x10, None, 0x20, 0x20], patience_seconds=60)
    stream.take(10)
    assert stream.place == Place(0x90)
    again = stream_of(wal, Place(0x500), received=wal.sent_from(0), target=wal.end)
    assert (again.take(10), again.place) == ([], Place(0x500))


def test_the_end_of_a_transaction_is_taken_with_its_last_change() -> None:
    wal = Wal()
    wal.transaction(insert(1))
    wal.transaction(insert(2), insert(3))
    stream = stream_of(wal)
    stream.take(1)
    assert stream.place == Place(0x110)
    stream.take(1)
    assert stream.place == Place(0x110, 0x200, 1, 0)
    assert told(stream.take(1)) == [("insert", 3, "v")], "what was looked at is not lost"


def test_a_row_outside_of_a_transaction_or_before_its_table_is_refused() -> None:
    wal = busy_wal()
    for message in (insert(1), update(values(1)), delete(values(1)), truncate("t")):
        with pytest.raises(FetchError, match="'orders': a row came outside of a transaction"):
            stream_of(wal, received=[message]).take(10)
        begin = wal.transactions[0][2][0]
        with pytest.raises(FetchError, match="'orders': a row came before its table was told"):
            stream_of(wal, received=[begin, message]).take(10)


@pytest.mark.parametrize("message", [b"", b"?", b"B", b"C", b"I"])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    wal = busy_wal()
    with pytest.raises(MalformedMessageError):
        stream_of(wal, received=[wal.transactions[0][2][0], message]).take(10)


def test_the_quick_ways_refuse_what_the_long_ones_do() -> None:
    good = insert(1)
    assert inserted(good) == (1, values(1))
    for wrong in (good + b"x", good[:-1], good[:5] + b"O" + good[6:], b"I"):
        with pytest.raises(MalformedMessageError, match="an insert that is none"):
            inserted(wrong)
    with pytest.raises(MalformedMessageError, match="a begin that is none"):
        begun(b"B")
    with pytest.raises(MalformedMessageError, match="a begin that is none"):
        begun(struct.pack(">cQqI", b"B", 1, 2**63 - 1, 1))
    with pytest.raises(MalformedMessageError, match="a commit that is none"):
        committed(b"C")
