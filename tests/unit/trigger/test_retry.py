"""How often and after how long a handler or a fetch is tried again."""

from __future__ import annotations

from typing import Any

import pytest

from azure_functions_db import ConfigurationError, RetryPolicy
from azure_functions_db.trigger.retry import FETCH_RETRIES, ONCE


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"delay_seconds": -0.1},
        {"max_delay_seconds": -0.1},
        {"multiplier": 0.9},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_a_policy_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**options)


def test_the_edges_of_a_policy_are_allowed() -> None:
    for jitter in (0, 1):
        policy = RetryPolicy(max_attempts=2, delay_seconds=0, max_delay_seconds=0, multiplier=1, jitter=jitter)
        assert list(policy.pauses()) == [0]


def test_pauses_grow_to_a_cap_and_stray_by_the_jitter_at_most() -> None:
    policy = RetryPolicy(max_attempts=5, delay_seconds=1.5, multiplier=2, max_delay_seconds=7, jitter=0.2)
    assert list(policy.pauses(lambda: 0.5)) == pytest.approx([1.5, 3, 6, 7])
    assert list(policy.pauses(lambda: 0.0)) == pytest.approx([1.2, 2.4, 4.8, 5.6])
    assert list(policy.pauses(lambda: 1.0)) == pytest.approx([1.8, 3.6, 7.2, 8.4])


def test_many_attempts_overflow_nothing() -> None:
    assert sum(1 for _ in RetryPolicy(max_attempts=3000, jitter=0).pauses()) == 2999


def test_a_fetch_is_tried_three_times_within_a_second() -> None:
    assert list(FETCH_RETRIES.pauses(lambda: 0.5)) == pytest.approx([0.2, 0.4])
    assert FETCH_RETRIES.max_delay_seconds == 2
    assert list(ONCE.pauses()) == []
