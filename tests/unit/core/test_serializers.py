from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from azure_functions_db.core.errors import CursorSerializationError
from azure_functions_db.core.serializers import (
    datetime_text,
    deserialize_part,
    deserialize_position,
    json_safe,
    retyped,
    serialize_part,
    serialize_position,
    types_of,
)


def unfolded(value: Any) -> Any:
    """No database knows of folds."""
    return value.replace(fold=0)


# Whole seconds, as every zone has them: Python's own reader takes an offset below a second for none.
offsets = st.integers(-86_340, 86_340).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
parts = st.one_of(
    st.text(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.datetimes().map(unfolded),
    st.datetimes(timezones=offsets).map(unfolded),
    st.datetimes(timezones=st.just(dt.UTC)).map(unfolded),
    st.dates(),
    st.times().map(unfolded),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.binary(),
)
UNFIT: list[Any] = [object(), [1], {"a": 1}, 1j, dt.timedelta(1), bytearray(b"x")]
NOT_FINITE = [float("nan"), float("inf"), Decimal("NaN"), Decimal("-Infinity"), Decimal("sNaN")]


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same to the last digit: 1.0 is not 1, 1.50 is not 1.5."""
    return type(one) is type(other) and repr(one) == repr(other)


@given(value=parts)
def test_a_part_comes_back_as_the_same_value_of_the_same_type(value: Any) -> None:
    assert same(deserialize_part(through_json(serialize_part(value))), value)


rows = st.recursive(
    parts | st.timedeltas() | st.floats() | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@example(value=dt.timedelta(99_421, microseconds=1))
@given(value=rows)
def test_what_json_cannot_hold_comes_back_by_the_types_noted_beside_it(value: Any) -> None:
    assert same(retyped(*through_json([json_safe(value), types_of(value)])), value)


def test_types_are_noted_only_where_json_would_forget_them() -> None:
    value = {"a/b": [1, Decimal("1.50")], "c": "1.50", "d": {"e~": {"x", "y"}}, "f": bytearray(b"g")}
    assert types_of(value) == {"/a~1b/1": "decimal", "/d/e~0": "set", "/f": "bytes"}
    assert retyped(through_json(json_safe(value)), types_of(value)) == value


@given(cursor=parts, first=parts, second=parts)
def test_a_position_comes_back_in_the_order_of_the_key_columns(cursor: Any, first: Any, second: Any) -> None:
    written = through_json(serialize_position(cursor, {"b": second, "a": first}))
    read = deserialize_position(written, ["a", "b"])
    assert [*map(repr, read)] == [*map(repr, (cursor, first, second))]
    assert [*map(type, read)] == [*map(type, (cursor, first, second))]


def test_a_position_reads_like_the_documented_example() -> None:
    moment = dt.datetime(2026, 4, 7, 1, 23, 45, 123456, tzinfo=dt.UTC)
    assert serialize_position(moment, {"id": 12093}) == {
        "kind": "timestamp+pk",
        "value": "2026-04-07T01:23:45.123456Z",
        "tiebreaker": {"id": 12093},
    }


def test_a_position_without_a_key_is_read_back() -> None:
    assert deserialize_position(serialize_position(7, {}), []) == (7,)


def test_a_position_in_the_older_list_form_is_read() -> None:
    assert deserialize_position(["2026-04-07T01:23:45", 5], ["id"]) == ("2026-04-07T01:23:45", 5)


def test_a_float_that_another_tool_wrote_without_its_fraction_stays_a_float() -> None:
    assert same(deserialize_position({"kind": "float", "value": 3, "tiebreaker": {}}, [])[0], 3.0)


@pytest.mark.parametrize("value", UNFIT, ids=lambda value: type(value).__name__)
def test_a_type_that_cannot_be_kept_is_named(value: Any) -> None:
    with pytest.raises(CursorSerializationError, match=type(value).__name__):
        serialize_part(value)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_number_without_an_order_is_no_cursor(value: Any) -> None:
    with pytest.raises(CursorSerializationError, match="NaN or infinite"):
        serialize_part(value)


@pytest.mark.parametrize(
    "written",
    [
        {"type": "timestamp", "value": "yesterday"},
        {"type": "wavelength", "value": "5"},
        {"type": "decimal", "value": "five"},
        {"type": "bytes", "value": "?"},
        {"type": "uuid", "value": "1-2"},
        {"value": "5"},
        [1, 2],
    ],
)
def test_a_part_that_makes_no_sense_is_refused(written: Any) -> None:
    with pytest.raises(CursorSerializationError):
        deserialize_part(written)


@pytest.mark.parametrize(
    "written",
    [
        None,
        5,
        {},
        [],
        [1],
        [1, 2, 3],
        {"kind": "integer+pk", "value": "5", "tiebreaker": {"id": 1}},
        {"kind": "boolean+pk", "value": 1, "tiebreaker": {"id": 1}},
        {"kind": "integer+pk", "value": 5, "tiebreaker": {"other": 1}},
        {"kind": "timestamp+pk", "value": None, "tiebreaker": {"id": 1}},
    ],
)
def test_a_position_that_makes_no_sense_is_refused(written: Any) -> None:
    with pytest.raises(CursorSerializationError):
        deserialize_position(written, ["id"])


def test_a_moment_keeps_its_microseconds_and_its_offset() -> None:
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    assert datetime_text(dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone)) == "2026-01-02T03:04:05.000000+05:30"


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), "2026-01-02T03:04:05.000006Z"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.timedelta(seconds=1.5), 1.5),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x00\xff", "AP8="),
        (memoryview(b"\x00\xff"), "AP8="),
        (float("inf"), "inf"),
        (Colour.RED, "red"),
        ({1: [Decimal(1), {"x": None}]}, {"1": ["1", {"x": None}]}),
        ({"b", "a"}, ["a", "b"]),
        (1j, "1j"),
    ],
)
def test_any_value_has_a_json_safe_form(value: Any, expected: Any) -> None:
    assert json_safe(value) == expected


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)


@given(value=st.recursive(parts, nested, max_leaves=6))
def test_the_json_safe_form_is_json(value: Any) -> None:
    safe = json_safe(value)
    assert through_json(safe) == safe
