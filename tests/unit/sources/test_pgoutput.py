"""The decoder of pgoutput reads every message, and answers anything else with one error."""

from __future__ import annotations

import contextlib
import datetime as dt
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from azure_functions_db.sources.postgres.changes import Timelines, Transaction
from azure_functions_db.sources.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    MalformedMessageError,
    Other,
    Relation,
    Truncate,
    Update,
    Value,
    decoded,
    encoded_row,
    lsn_of,
    lsn_text,
)

VALUES = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=40)), max_size=12)
OIDS = st.integers(0, 2**32 - 1)
LSNS = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
MOMENT = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
MICROSECONDS = int((MOMENT - dt.datetime(2000, 1, 1, tzinfo=dt.UTC)).total_seconds() * 1_000_000)


@given(LSNS, OIDS)
def test_a_transaction_begins_and_ends(lsn: int, xid: int) -> None:
    assert decoded(struct.pack(">cQqI", b"B", lsn, MICROSECONDS, xid)) == Begin(lsn, MOMENT, xid)
    assert decoded(struct.pack(">cBQQq", b"C", 0, lsn, lsn, MICROSECONDS)) == Commit(lsn, lsn)


@given(OIDS, VALUES, VALUES, st.sampled_from("KO"))
def test_rows_are_read_as_they_were_written(oid: int, old: list[Value], new: list[Value], kind: str) -> None:
    head, mark = struct.pack(">I", oid), kind.encode()
    assert decoded(b"I" + head + b"N" + encoded_row(new)) == Insert(oid, new)
    assert decoded(b"U" + head + b"N" + encoded_row(new)) == Update(oid, None, None, new)
    both = b"U" + head + mark + encoded_row(old) + b"N" + encoded_row(new)
    assert decoded(both) == Update(oid, kind, old, new)
    assert decoded(b"D" + head + mark + encoded_row(old)) == Delete(oid, kind, old)


@given(OIDS, NAMES, NAMES, st.lists(st.tuples(NAMES, OIDS, st.integers(-1, 2**31 - 1), st.booleans()), max_size=6))
def test_tables_are_read_as_they_were_written(
    oid: int, schema: str, name: str, columns: list[tuple[str, int, int, bool]]
) -> None:
    data = (
        b"R"
        + struct.pack(">I", oid)
        + schema.encode()
        + b"\0"
        + name.encode()
        + b"\0d"
        + struct.pack(">H", len(columns))
    )
    for column, kind, modifier, is_key in columns:
        data += struct.pack(">B", is_key) + column.encode() + b"\0" + struct.pack(">Ii", kind, modifier)
    assert decoded(data) == Relation(oid, schema, name, "d", tuple(Column(*column) for column in columns))


@given(st.lists(OIDS, max_size=6))
def test_truncates_name_their_tables(oids: list[int]) -> None:
    assert decoded(struct.pack(f">cIB{len(oids)}I", b"T", len(oids), 0, *oids)) == Truncate(tuple(oids))


@pytest.mark.parametrize("kind", ["O", "Y", "M"])
def test_messages_that_are_not_about_rows_are_let_pass(kind: str) -> None:
    assert decoded(kind.encode() + b"whatever") == Other(kind)


@given(st.binary(max_size=80))
@example(b"")
@example(b"I\0\0\0\1N\0\1t\xff\xff\xff\xff")
@example(b"T\xff\xff\xff\xff\0")
@example(b"R\0\0\0\1\xff\0a\0d\0\0")
def test_anything_else_is_one_error(data: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        decoded(data)


@given(VALUES, st.data())
def test_a_message_that_was_cut_short_or_goes_on_is_refused(values: list[Value], data: st.DataObject) -> None:
    whole = b"I\0\0\0\1N" + encoded_row(values)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"x"):
        with pytest.raises(MalformedMessageError):
            decoded(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        b"I\0\0\0\1O" + encoded_row([b"1"]),
        b"U\0\0\0\1X" + encoded_row([b"1"]),
        b"U\0\0\0\1K" + encoded_row([b"1"]) + b"O" + encoded_row([b"2"]),
        b"D\0\0\0\1N" + encoded_row([b"1"]),
        b"I\0\0\0\1N\0\1b",
        b"T\0\0\0\2\0\0\0\0\1",
    ],
)
def test_a_row_that_is_not_marked_as_what_it_should_be_is_refused(wrong: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decoded(wrong)


def test_a_table_without_a_schema_is_one_of_the_server() -> None:
    assert decoded(b"R\0\0\0\1\0pg_class\0d\0\0") == Relation(1, "pg_catalog", "pg_class", "d", ())


@given(LSNS)
def test_places_are_written_as_postgresql_does(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn
    assert lsn_text(0x1_0000_0ABC) == "1/ABC"


@pytest.mark.parametrize(
    ("timeline", "left", "lsn", "name"),
    [
        (1, {}, 0x16B3748, "0/16B3748"),
        (3, {1: 0x2000, 2: 0x3000}, 0x1FFF, "0/1FFF"),
        (3, {1: 0x2000, 2: 0x3000}, 0x2000, "0/2000@2"),
        (3, {1: 0x2000, 2: 0x3000}, 0x3000, "0/3000@3"),
        (3, {}, 0x1000, "0/1000@3"),
    ],
)
def test_a_transaction_is_named_by_its_place_and_the_timeline_that_wrote_it(
    timeline: int, left: dict[int, int], lsn: int, name: str
) -> None:
    assert Timelines(timeline, left).name_of(Transaction(lsn, MOMENT, 1)) == name
