"""Users keep event ids in tables: neither they nor the byte form of a value may ever change."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import sys
import unicodedata
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core.types import Operation, SourceDescriptor
from azure_functions_db.trigger import events
from azure_functions_db.trigger.events import Identities, RowChange, byte_form

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


_VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.datetimes(), st.dates()),
    *(st.times(), st.decimals(), st.uuids(), st.datetimes(timezones=st.timezones())),
)


@pytest.mark.usefixtures("loops")
@given(st.lists(st.tuples(_VALUES, st.one_of(_VALUES, st.tuples(_VALUES, _VALUES))), min_size=1))
def test_many_ids_at_once_are_those_of_one_by_one(changes: list[tuple[Any, Any]]) -> None:
    cursors, keys = [cursor for cursor, _ in changes], [key for _, key in changes]
    at_once = Identities(SOURCE, ["upsert"] * len(changes), cursors, keys).make()
    assert at_once == [Identities(SOURCE, ["upsert"], [cursor], [key]).make()[0] for cursor, key in changes]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("texts", [["a", "b"], ["a", "it's"], ["é", "a\nb"], ["", ""], ["😀", "x"], ["\\", "'"]])
def test_texts_at_once_are_those_of_one_by_one(texts: list[str]) -> None:
    at_once = Identities(SOURCE, ["upsert"] * len(texts), texts, [(text, 1) for text in texts]).make()
    assert at_once == [Identities(SOURCE, ["upsert"], [text], [(text, 1)]).make()[0] for text in texts]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("alike", [True, False])
def test_moments_at_once_have_their_form_whatever_python_pickles_them_to(
    monkeypatch: pytest.MonkeyPatch, *, alike: bool
) -> None:
    monkeypatch.setattr(events, "_IS_REDUCED_ALIKE", alike)
    moments = [NOON, dt.datetime.min, dt.datetime.max.replace(fold=1)]  # noqa: DTZ901 - with and without a zone
    for moment in moments:
        assert Identities(SOURCE, ["upsert"], [moment], [1]).make() == [_id_of(moment)]


def _id_of(moment: dt.datetime) -> str:
    return hashlib.sha256(b"orders\x1fsha256:0\x1fupsert\x1f" + byte_form(moment) + b"\x1f1").hexdigest()


@given(_VALUES)
def test_the_form_is_the_one_that_older_versions_took_from_python(value: Any) -> None:
    if not isinstance(value, dt.datetime | str):
        assert byte_form(value) == repr(value).encode()


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="that is what the form was frozen with")
def test_every_character_is_escaped_as_it_was() -> None:
    characters = map(chr, range(sys.maxunicode + 1))
    assert [each for each in characters if byte_form(each) != repr(each).encode()] == []
