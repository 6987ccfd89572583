"""Values, places and schedules as people type them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from azure_functions_db import ConfigurationError
from azure_functions_db.operations.doctor import ticks_per_month
from azure_functions_db.operations.pollers import database_at
from azure_functions_db.operations.positions import cursor_from, key_from
from azure_functions_db.operations.run import parsed_schedule


def checkpoint(kind: str, **key: Any) -> dict[str, Any]:
    return {"checkpoint": {"cursor": {"kind": f"{kind}+pk", "value": "x", "tiebreaker": key}}}


@pytest.mark.parametrize(
    ("text", "kind", "document", "value"),
    [
        ("12", None, None, 12),
        ("1.5", None, None, 1.5),
        ("2026-01-01T00:00:00Z", None, None, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("2026-01", None, None, "2026-01"),
        ("12", None, checkpoint("text"), "12"),
        ("12", None, checkpoint("decimal"), Decimal(12)),
        ("12", "text", checkpoint("decimal"), "12"),
        ("2026-01-01", "date", None, dt.date(2026, 1, 1)),
        ("true", "boolean", None, True),
    ],
)
def test_a_typed_cursor_has_the_type_that_is_meant(text: str, kind: str | None, document: Any, value: Any) -> None:
    read = cursor_from(text, kind, document)
    assert (read, type(read)) == (value, type(value))


def test_a_typed_key_has_the_types_of_the_present_one() -> None:
    document = checkpoint("integer", id=1, code="7", at={"type": "date", "value": "2026-01-01"})
    key = key_from(["id=5", "code=5", "at=2026-05-05"], document)
    assert key == {"id": 5, "code": "5", "at": dt.date(2026, 5, 5)}
    with pytest.raises(ConfigurationError, match="'x' is no integer"):
        key_from(["id=x", "code=5", "at=2026-05-05"], document)


@pytest.mark.parametrize("kind", ["integer", "timestamp", "uuid", "bytes", "boolean", "nonsense"])
def test_a_typed_value_that_does_not_fit_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'?!' is no {kind}"):
        cursor_from("?!", kind, None)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("sqlite:///x.db", {"url": "sqlite:///x.db"}),
        ("sqlite:///x.db#t", {"url": "sqlite:///x.db", "table": "t", "schema": None}),
        ("postgresql://h/x#ops.t", {"url": "postgresql://h/x", "table": "t", "schema": "ops"}),
        ("postgresql://me:a#b@h/x", {"url": "postgresql://me:a#b@h/x"}),
    ],
)
def test_a_table_behind_a_database_url(url: str, place: dict[str, Any]) -> None:
    assert database_at(url) == place


@pytest.mark.parametrize(
    ("schedule", "ticks"),
    [("*/10 * * * * *", 259_200), ("00:01:00", 43_200), ("0 0 9 * * 1-5", 22), ("0 0 0 1 1 *", 1)],
)
def test_how_often_a_schedule_fires_in_a_month(schedule: str, ticks: int) -> None:
    now = dt.datetime(2026, 6, 1, 12, 0, 3, tzinfo=dt.UTC)
    assert ticks_per_month(parsed_schedule(schedule), now) == ticks
