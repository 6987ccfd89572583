"""Users keep event ids in tables: neither they nor the byte form of a value may ever change."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import sys
import unicodedata
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core.types import Change, Operation, SourceDescriptor
from azure_functions_db.trigger import events
from azure_functions_db.trigger.events import Identities, RowChange, byte_form
from azure_functions_db.trigger.normalizers import ChangeNormalizer

SOURCE = SourceDescriptor("orders", "sqlalchemy", "sha256:0")
NOON = dt.datetime(2026, 4, 7, 1, 23, 45, 123456, dt.UTC)


WRITTEN: list[tuple[Any, bytes]] = [
    (None, b"None"),
    (True, b"True"),
    (0, b"0"),
    (-7, b"-7"),
    (2**70, b"1180591620717411303424"),
    (0.1, b"0.1"),
    (-0.0, b"-0.0"),
    (1e16, b"1e+16"),
    (1e-5, b"1e-05"),
    (1e22, b"1e+22"),
    (5e-324, b"5e-324"),
    (math.inf, b"inf"),
    (math.nan, b"nan"),
    ("plain", b"'plain'"),
    ("", b"''"),
    ("it's", b'"it\'s"'),
    ('say "x"', b"'say \"x\"'"),
    ('it\'s "both"', b"'it\\'s \"both\"'"),
    ("back\\slash", b"'back\\\\slash'"),
    ("tab\t line\n return\r bell\x07 del\x7f", b"'tab\\t line\\n return\\r bell\\x07 del\\x7f'"),
    ("é 名 😀", b"'\xc3\xa9 \xe5\x90\x8d \xf0\x9f\x98\x80'"),
    ("nbsp\xa0 soft\xad zero\u200b line\u2028 bom\ufeff", b"'nbsp\\xa0 soft\\xad zero\\u200b line\\u2028 bom\\ufeff'"),
    ("\ud800 lone", b"'\\ud800 lone'"),
    ("\uffff last, \U00010000 first of the others", b"'\\uffff last, \xf0\x90\x80\x80 first of the others'"),
    (
        "\U000e0001 tag, \u0378 unassigned, \U0001fae8 of Unicode 15",
        b"'\\U000e0001 tag, \\u0378 unassigned, \\U0001fae8 of Unicode 15'",
    ),
    (b"", b"b''"),
    (b"it's \x00\t\n\r\x7f\xff \\", b'b"it\'s \\x00\\t\\n\\r\\x7f\\xff \\\\"'),
    (b"'\"", b"b'\\'\"'"),
    (Decimal("1.50"), b"Decimal('1.50')"),
    (Decimal("-1E+10"), b"Decimal('-1E+10')"),
    (Decimal("NaN"), b"Decimal('NaN')"),
    (UUID("12345678-1234-5678-1234-567812345678"), b"UUID('12345678-1234-5678-1234-567812345678')"),
    (dt.date(2026, 4, 7), b"datetime.date(2026, 4, 7)"),
    (dt.time(1, 2), b"datetime.time(1, 2)"),
    (dt.time(1, 2, 3), b"datetime.time(1, 2, 3)"),
    (dt.time(0, 0, 0, 5), b"datetime.time(0, 0, 0, 5)"),
    (NOON.replace(tzinfo=None), b"\x07\xea\x04\x07\x01\x17-\x01\xe2@"),
    (dt.datetime(1, 1, 1, tzinfo=dt.UTC), b"\x00\x01\x01\x01\x00\x00\x00\x00\x00\x00"),
    (dt.datetime(2026, 4, 7, 1, 23, 45, 123456, dt.UTC), b"\x07\xea\x04\x07\x01\x17-\x01\xe2@"),
    (
        dt.datetime(2026, 4, 7, 3, 23, 45, 123456, dt.timezone(dt.timedelta(hours=2))),
        b"\x07\xea\x04\x07\x01\x17-\x01\xe2@",
    ),
    (
        dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        b"\x07\xea\n\x19\x01\x1e\x00\x00\x00\x00",
    ),
    (dt.datetime(2026, 4, 7, 1, tzinfo=ZoneInfo("UTC")), b"\x07\xea\x04\x07\x01\x00\x00\x00\x00\x00"),
    ((), b""),
    ((1,), b"1"),
    ((1, "a", None), b"1\x1f'a'\x1fNone"),
    (((1, (b"x", 2.5)), dt.date(2026, 1, 1)), b"1\x1fb'x'\x1f2.5\x1fdatetime.date(2026, 1, 1)"),
    (dt.time(1, 2, tzinfo=dt.UTC), b"datetime.time(1, 2, tzinfo=datetime.timezone.utc)"),
    (dt.time(1, 2, fold=1), b"datetime.time(1, 2, fold=1)"),
    (dt.timedelta(hours=1), b"datetime.timedelta(seconds=3600)"),
    (IPv4Address("10.0.0.1"), b"IPv4Address('10.0.0.1')"),
]


@pytest.mark.parametrize(("value", "form"), WRITTEN)
def test_a_value_has_its_byte_form_for_good(value: Any, form: bytes) -> None:
    assert byte_form(value) == form


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(
    ("op", "cursor", "pk", "event_id"),
    [
        ("upsert", NOON, {"id": 1}, "d7ab0a2225119d158ebd7de1cbdf773a490c567956179696740ea13c91253e23"),
        (
            "delete",
            "é'",
            {"a": 1.5, "b": (b"x", None)},
            "d12b1d53fb65becbf8312d4e16f27ee55dc05bdc3f012614403acec9324cdfd8",
        ),
        (
            "insert",
            7,
            {"a": "x", "b": Decimal("1.0")},
            "dc2529e96f3aa6b3a309e8e91c40df67e38e949c1e20db68cf93ccea068164ac",
        ),
    ],
)
def test_an_id_is_what_it_was(op: Operation, cursor: Any, pk: dict[str, Any], event_id: str) -> None:
    assert RowChange(None, op, SOURCE, cursor, pk).event_id == event_id


@pytest.mark.usefixtures("loops")
def test_a_change_without_a_key_has_an_id_too() -> None:
    assert (
        RowChange(None, "upsert", SOURCE, 1, {}).event_id
        == hashlib.sha256(b"orders\x1fsha256:0\x1fupsert\x1f1\x1f").hexdigest()
    )


@pytest.mark.usefixtures("loops")
def test_moments_beyond_the_calendar_of_utc_have_ids_of_their_own() -> None:
    east, west = (dt.timezone(dt.timedelta(hours=hours)) for hours in (14, -12))
    moments = [
        *(dt.datetime(1, 1, 1, hour, tzinfo=east) for hour in (0, 1)),
        *(dt.datetime(9999, 12, 31, hour, tzinfo=west) for hour in (22, 23)),
        dt.datetime(9999, 12, 31, 22, tzinfo=dt.UTC),
    ]
    ids = Identities(SOURCE, ["upsert"] * 5, (moments, moments)).make()
    assert len(set(ids)) == 5


_VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.datetimes(), st.dates()),
    *(st.times(), st.decimals(), st.uuids(), st.datetimes(timezones=st.timezones())),
)


@pytest.mark.usefixtures("loops")
@given(st.lists(st.tuples(_VALUES, st.one_of(_VALUES, st.tuples(_VALUES, _VALUES))), min_size=1))
def test_many_ids_at_once_are_those_of_one_by_one(changes: list[tuple[Any, Any]]) -> None:
    cursors, keys = [cursor for cursor, _ in changes], [key for _, key in changes]
    at_once = Identities(SOURCE, ["upsert"] * len(changes), (cursors, keys)).make()
    assert at_once == [Identities(SOURCE, ["upsert"], ([cursor], [key])).make()[0] for cursor, key in changes]


@pytest.mark.usefixtures("loops")
def test_each_of_many_operations_has_ids_of_its_own() -> None:
    operations: list[Operation] = ["insert", "update", "delete", "update"]
    at_once = Identities(SOURCE, operations, ([1, 2, 3, 4], [1, 2, 3, 4])).make()
    one_by_one = [RowChange(None, op, SOURCE, n, {"id": n}).event_id for n, op in enumerate(operations, 1)]
    assert at_once == one_by_one


@pytest.mark.usefixtures("loops")
def test_a_change_is_told_from_others_by_its_position() -> None:
    changes = [
        Change("insert", "0/1A-1", {"id": 1}, {"id": 1}),
        Change("delete", "0/1A-2", {"id": 1}, None),
    ]
    assert [event.event_id for event in ChangeNormalizer().batch(changes, SOURCE, {})] == [
        hashlib.sha256(b"orders\x1fsha256:0\x1finsert\x1f\x1e0/1A-1").hexdigest(),
        hashlib.sha256(b"orders\x1fsha256:0\x1fdelete\x1f\x1e0/1A-2").hexdigest(),
    ]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("texts", [["a", "b"], ["a", "it's"], ["é", "a\nb"], ["", ""], ["😀", "x"], ["\\", "'"]])
def test_texts_at_once_are_those_of_one_by_one(texts: list[str]) -> None:
    at_once = Identities(SOURCE, ["upsert"] * len(texts), (texts, texts, [1] * len(texts))).make()
    assert at_once == [Identities(SOURCE, ["upsert"], ([text], [(text, 1)])).make()[0] for text in texts]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("alike", [True, False])
def test_moments_at_once_have_their_form_whatever_python_pickles_them_to(
    monkeypatch: pytest.MonkeyPatch, *, alike: bool
) -> None:
    monkeypatch.setattr(events, "_IS_REDUCED_ALIKE", alike)
    if not alike:
        monkeypatch.setattr(events, "_reduced", lambda _moment: (dt.datetime, (b"another form",)))
    plain = [dt.datetime.min, dt.datetime.max.replace(fold=1)]  # noqa: DTZ901 - times without a zone
    elsewhere = NOON.astimezone(ZoneInfo("Europe/Berlin"))
    for moments in (plain, [NOON, NOON], [NOON, *plain], [NOON, elsewhere], [elsewhere, *plain, NOON]):
        at_once = Identities(SOURCE, ["upsert"] * len(moments), (moments, [1] * len(moments))).make()
        assert at_once == [_id_of(moment) for moment in moments]


def _id_of(moment: dt.datetime) -> str:
    return hashlib.sha256(b"orders\x1fsha256:0\x1fupsert\x1f" + byte_form(moment) + b"\x1f1").hexdigest()


@given(_VALUES)
def test_the_form_is_the_one_that_older_versions_took_from_python(value: Any) -> None:
    if not isinstance(value, dt.datetime | str):
        assert byte_form(value) == repr(value).encode()


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="that is what the form was frozen with")
def test_every_character_is_escaped_as_it_was() -> None:
    texts = ["".join(map(chr, range(first, first + 256))) for first in range(0, sys.maxunicode, 256)]
    assert [text for text in texts if byte_form(text) != repr(text).encode()] == []
