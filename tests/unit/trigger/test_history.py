"""What a poller did lately is kept beside its checkpoint: bounded, and never in the way."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.trigger.batch import HOURS, MINUTES, Checkpoint, Sample, Tier, noted, samples

NOON = dt.datetime(2026, 4, 7, 12, tzinfo=dt.UTC)
MOST = 8_000


def minutes(count: float) -> dt.timedelta:
    return dt.timedelta(minutes=count)


def test_what_happens_within_a_minute_is_added_up() -> None:
    history = noted(None, NOON, Sample(rows=3, batches=1, fetch_ms=5, lag_seconds=9))
    history = noted(history, NOON + minutes(0.5), Sample(rows=4, batches=1, handler_ms=7, lag_seconds=2))
    assert samples(history, MINUTES) == [
        (NOON, Sample(rows=7, batches=2, fetch_ms=5, handler_ms=7, lag_seconds=2)),
    ]


def test_the_lag_stays_what_it_was_where_a_failure_knows_none() -> None:
    history = noted(noted(None, NOON, Sample(lag_seconds=9)), NOON, Sample(failures=1))
    assert samples(history, MINUTES) == [(NOON, Sample(failures=1, lag_seconds=9))]


@pytest.mark.parametrize("tier", [MINUTES, HOURS], ids=["minutes for an hour", "hours for a week"])
def test_what_was_done_is_kept_for_as_many_slots_as_are_read(tier: Tier) -> None:
    history: Any = None
    moments = [NOON + dt.timedelta(seconds=number * tier.seconds) for number in range(tier.slots + 30)]
    for moment in moments:
        history = noted(noted(history, moment, Sample(rows=1)), moment, Sample(rows=2))
        assert history[tier.name].count(";") < tier.slots, "no more than is read"
    assert samples(history, tier) == [(moment, Sample(rows=3)) for moment in moments[-tier.slots :]]


def test_a_clock_that_goes_back_loses_nothing() -> None:
    history = noted(noted(None, NOON, Sample(rows=1)), NOON - minutes(5), Sample(rows=1))
    assert samples(history, MINUTES) == [(NOON, Sample(rows=2))]


def test_however_much_is_done_the_history_stays_small() -> None:
    history: Any = None
    chance = random.Random(0)
    for minute in range(0, 8 * 24 * 60, 7):
        huge = [chance.randrange(10**12) for _ in range(7)]
        history = noted(history, NOON + minutes(minute), Sample(*huge))
        assert len(json.dumps(history)) < MOST
    assert len(samples(history, HOURS)) > 80


@pytest.mark.parametrize("broken", ["", "x", 7, [], {"minutes": 7}, {"minutes": "a,b;;,"}, {"hours": "zzzzzzzzz,1,1"}])
def test_a_history_that_cannot_be_read_begins_anew(broken: Any) -> None:
    assert samples(broken, MINUTES) == []
    assert samples(noted(broken, NOON, Sample(rows=1)), MINUTES) == [(NOON, Sample(rows=1))]


@pytest.mark.parametrize("number", ["-1", "0", "ffffffffffff"])
def test_a_slot_of_no_time_that_there_is_is_left_out(number: str) -> None:
    assert samples({"minutes": f"{number},1,1,0,0,0,0,"}, MINUTES) == []


@given(st.dictionaries(st.sampled_from(["minutes", "hours"]), st.text(st.sampled_from("0az,;-é"))))
def test_no_history_of_others_makes_anything_fail(history: dict[str, str]) -> None:
    samples(history, HOURS)
    assert len(samples(noted(history, NOON, Sample(rows=1)), MINUTES)) >= 1


def test_handlers_and_observers_are_not_given_the_history_and_stores_are() -> None:
    checkpoint = Checkpoint({"cursor": 1}).written_at(NOON, Sample(rows=1))
    assert "metadata" not in checkpoint.json
    assert samples(Checkpoint.of(json.loads(json.dumps(checkpoint.stored))).history, MINUTES) == [
        (NOON, Sample(rows=1))
    ]
