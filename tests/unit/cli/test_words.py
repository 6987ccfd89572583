"""Numbers, moments and values as people say and type them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from azure_functions_db import ConfigurationError
from azure_functions_db.cli import words
from azure_functions_db.cli.examination import ticks_per_month
from azure_functions_db.cli.schedules import parsed_schedule
from azure_functions_db.cli.store_urls import database_at
from azure_functions_db.cli.values import cursor_from, key_from


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (9.96, "10.0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3660, "1 h 1 min"),
        (90061, "1 d 1 h"),
        (86460, "1 d"),
        (-75, "-1 min 15 s"),
    ],
)
def test_durations(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(("rate", "said"), [(None, "-"), (0, "0.0/s"), (0.5, "30.0/min"), (1234.5, "1,234.5/s")])
def test_rates(rate: float | None, said: str) -> None:
    assert words.rate(rate) == said


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Zoë 🦊 ünï\u00a0ode", "Zoë 🦊 ünï\u00a0ode"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("safe\u202etxt.exe\u202c", "safe\\u202etxt.exe\\u202c"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("two\nlines\r\u2028\u0085", "two\\nlines\\r\\u2028\\x85"),
        ("lone \udc80", "lone \\udc80"),
        ("\U000e0041 tag", "\\U000e0041 tag"),
        ("mysql://ann:hunter-2@host", "mysql://ann:***@host"),
    ],
)
def test_texts_of_others_are_shown_without_what_steers_or_hides(text: str, told: str) -> None:
    assert words.shown(text) == told
    assert words.shown(told) == told


def test_lines_are_kept_where_they_are_wanted() -> None:
    assert words.shown("one\n\ttwo", lines=True) == "one\n\\ttwo"
