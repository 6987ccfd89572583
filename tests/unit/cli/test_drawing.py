"""Numbers, moments and texts as people are shown them."""

from __future__ import annotations

import pytest

from azure_functions_db.cli import drawing


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
    assert drawing.duration(seconds) == said


@pytest.mark.parametrize(("rate", "said"), [(None, "-"), (0, "0.0/s"), (0.5, "30.0/min"), (1234.5, "1,234.5/s")])
def test_rates(rate: float | None, said: str) -> None:
    assert drawing.rate(rate) == said


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
    assert drawing.shown(text) == told
    assert drawing.shown(told) == told


def test_lines_are_kept_where_they_are_wanted() -> None:
    assert drawing.shown("one\n\ttwo", lines=True) == "one\n\\ttwo"
