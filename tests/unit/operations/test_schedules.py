"""When timers fire."""

from __future__ import annotations

import datetime as dt

import pytest

from azure_functions_db import ConfigurationError
from azure_functions_db.operations.run import parsed_schedule


def after(schedule: str, moment: str) -> str:
    return parsed_schedule(schedule).after(dt.datetime.fromisoformat(moment + "+00:00")).isoformat(" ")[:19]


@pytest.mark.parametrize(
    ("schedule", "moment", "expected"),
    [
        ("*/15 * * * * *", "2026-11-15 12:00:16", "2026-11-15 12:00:30"),
        ("0 */5 * * * *", "2026-11-15 12:00:00", "2026-11-15 12:05:00"),
        ("0 30 9 * * 1-5", "2026-11-14 10:00:00", "2026-11-16 09:30:00"),
        ("0 0 0 * JAN SUN", "2026-11-15 00:00:00", "2027-01-03 00:00:00"),
        ("*/5 * * * *", "2026-11-15 12:01:30", "2026-11-15 12:05:00"),
        ("00:00:10", "2026-11-15 12:00:00", "2026-11-15 12:00:10"),
        ("02:30", "2026-11-15 12:00:00", "2026-11-15 14:30:00"),
        ("1.12:00:00", "2026-11-15 12:00:00", "2026-11-17 00:00:00"),
        ("24:00:00", "2026-11-15 12:00:00", "2026-12-09 12:00:00"),
    ],
)
def test_the_next_tick(schedule: str, moment: str, expected: str) -> None:
    assert after(schedule, moment) == expected


def test_day_of_month_and_day_of_week_must_both_match_as_the_host_has_it() -> None:
    # The first Friday the 13th after November 2026; crontab would take the next Friday.
    assert after("0 0 0 13 * FRI", "2026-11-14 00:00:00") == "2027-08-13 00:00:00"


@pytest.mark.parametrize("broken", ["", "* * *", "61 * * * * *", "every minute", "25", "*/0 * * * * *"])
def test_what_is_no_schedule_is_refused_with_the_two_forms(broken: str) -> None:
    with pytest.raises(ConfigurationError, match=r"NCRONTAB expression .* time span \(hh:mm:ss\)"):
        parsed_schedule(broken)


def test_a_span_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no time at all"):
        parsed_schedule("00:00:00")


def test_a_schedule_that_never_comes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="never comes round"):
        after("0 0 0 */20 * 1L", "2026-11-15 00:00:00")
