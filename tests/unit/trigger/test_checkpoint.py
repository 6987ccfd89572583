"""What is kept beside a position, as operators and later ticks read it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.trigger.batch import Checkpoint, Search

NOON = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def failed(**changes: Any) -> Checkpoint:
    """A checkpoint with a failure beside it, of which a part may have been written by somebody else."""
    checkpoint = Checkpoint({"cursor": 1}, updated_at=datetime_text(NOON - HOUR)).failed_with(
        ValueError("no stock"), NOON, None
    )
    return checkpoint.noting(failure={**checkpoint.notes["failure"], **changes})


def test_a_failure_is_told_by_what_was_raised_first() -> None:
    failure = failed().failure
    assert failure is not None
    assert (failure.error_type, failure.error, failure.attempts) == ("ValueError", "no stock", 1)
    wrapped = RuntimeError("the handler failed")
    wrapped.__cause__ = KeyError("sku")
    told = Checkpoint().failed_with(wrapped, NOON, None).failure
    assert told is not None
    assert told.error_type == "KeyError"


def test_a_failed_tick_is_a_tick() -> None:
    assert failed().succeeded_at == NOON - HOUR
    assert failed().ticked_at == NOON


@pytest.mark.parametrize("change", [{"since": "yesterday"}, {"last_at": None}, {"attempts": -1}, {"error": 5}])
def test_a_failure_that_cannot_be_read_stops_nobody(change: dict[str, Any]) -> None:
    assert failed(**change).failure is None
    assert failed(**change).ticked_at == NOON - HOUR


def test_a_failure_in_a_batch_that_cannot_be_read_is_told_without_it() -> None:
    stuck = {"id": "batch_1", "rows": 3, "first": "7 (id=1)"}
    whole, odd = failed(batch=stuck).failure, failed(batch={**stuck, "rows": "many"}).failure
    assert whole is not None
    assert whole.batch is not None
    assert whole.batch.rows == 3
    assert odd is not None
    assert odd.batch is None


@pytest.mark.parametrize(
    ("cursor", "shown"),
    [
        ({"value": 5, "tiebreaker": {"id": {"type": "uuid", "value": "a-b"}, "n": 2}}, (5, {"id": "a-b", "n": 2})),
        ([5, 2, 3], (5, {"1": 2, "2": 3})),
        ([], ([], {})),
        ("token", ("token", {})),
    ],
)
def test_people_are_shown_the_cursor_and_the_key(cursor: Any, shown: Any) -> None:
    assert Checkpoint({"cursor": cursor}).shown_position == shown


def test_nothing_is_written_that_is_not_there() -> None:
    assert Checkpoint({"cursor": 1}).stored == {"cursor": 1}


def test_the_end_of_a_search_is_no_longer_noted() -> None:
    searching = Checkpoint({"cursor": 1}).with_search(Search(parts=(2,)))
    assert searching.search(10) == Search(parts=(2,))
    assert searching.with_search(None).notes == {}


def test_the_rate_fades_over_five_minutes_and_never_grows_by_a_clock_that_goes_back() -> None:
    first = Checkpoint().after(Checkpoint(), "batch_1", NOON, 300)
    assert first.rows_per_second == 1.0
    written = Checkpoint(updated_at=datetime_text(NOON), notes={"rows_per_second": 1.0})
    later = written.after(Checkpoint(), "batch_2", NOON + dt.timedelta(seconds=300), 300).rows_per_second
    assert later == pytest.approx(1.367879)
    back = written.after(Checkpoint(), "batch_2", NOON - HOUR, 300).rows_per_second
    assert back == pytest.approx(2.0)
    unmeasured = Checkpoint(updated_at=datetime_text(NOON)).after(Checkpoint(), "batch_2", NOON, 300)
    assert unmeasured.rows_per_second == 1.0
    undated = Checkpoint(notes={"rows_per_second": 1.0}).after(Checkpoint(), "batch_2", NOON, 300)
    assert undated.rows_per_second == 1.0


def test_what_a_source_leaves_empty_is_no_news() -> None:
    checkpoint = Checkpoint({"cursor": 1, "boundary": {"rows": "…"}})
    assert not checkpoint.has_news(Checkpoint({"cursor": 1, "boundary": None}))
    assert checkpoint.has_news(Checkpoint({"cursor": 2, "boundary": None}))
    assert checkpoint.has_news(Checkpoint({"cursor": 1, "horizon": {}}))
