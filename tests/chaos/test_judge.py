"""The judge finds what is wrong in a journal, and nothing else."""

from __future__ import annotations

from typing import Any

from tests.chaos.judge import Entry, judged


def entry(what: str, who: str = "a", **facts: Any) -> Entry:
    return {"what": what, "who": who, **facts}


def call(name: str, rows: list[list[int]], *moments: int, who: str = "a", digested: bool = True) -> list[Entry]:
    first, *later = moments
    lines = [entry("begin", who, call=name, at=first, rows=rows)]
    lines += [entry("alive", who, call=name, at=at) for at in later]
    return [*lines, entry("end", who, call=name)] if digested else lines


def cursor(value: int) -> dict[str, Any]:
    return {"kind": "integer+pk", "value": value, "tiebreaker": {"id": 1}}


def took(token: int, start: dict[str, Any] | None) -> Entry:
    return entry("took", token=token, cursor=start)


def committed(token: int, end: dict[str, Any]) -> Entry:
    return entry("committed", token=token, cursor=end)


def test_rows_that_were_digested_or_quarantined_are_not_lost() -> None:
    verdict = judged(call("one", [[1, 4]], 10), {1: 4, 2: 5}, quarantined=[(2, 5)])
    assert verdict.complaints == []


def test_a_newer_version_stands_for_the_ones_before_it() -> None:
    assert judged(call("one", [[1, 4]], 10), {1: 3}).complaints == []


def test_a_row_of_which_only_an_older_version_arrived_is_lost() -> None:
    assert len(judged(call("one", [[1, 3]], 10), {1: 4}).lost) == 1


def test_a_row_in_a_call_that_did_not_end_is_lost() -> None:
    assert len(judged(call("one", [[1, 4]], 10, digested=False), {1: 4}).lost) == 1


def test_rows_that_come_again_are_counted_but_no_complaint() -> None:
    verdict = judged([*call("one", [[1, 4]], 10), *call("two", [[1, 4]], 20)], {1: 4})
    assert (verdict.complaints, verdict.repeated) == ([], 1)


def test_calls_one_after_the_other_are_fine() -> None:
    assert judged([*call("one", [], 10, 20), *call("two", [], 21, 30, who="b")], {}).complaints == []


def test_two_live_calls_are_concurrent() -> None:
    assert len(judged([*call("one", [], 10, 20), *call("two", [], 19, 30, who="b")], {}).concurrent) == 1


def test_a_call_inside_a_long_one_is_concurrent_after_a_short_one_too() -> None:
    calls = [*call("long", [], 10, 50), *call("short", [], 20, 21, who="b"), *call("late", [], 40, 41, who="b")]
    assert len(judged(calls, {}).concurrent) == 2


def test_a_sleeper_that_was_told_when_it_woke_up_is_not_concurrent() -> None:
    woken = [*call("one", [], 10, 12, digested=False), entry("told", call="one", at=99)]
    assert judged([*woken, *call("two", [], 50, 120, who="b")], {}).complaints == []


def test_who_starts_from_the_last_commit_is_fine_even_if_that_is_written_down_late() -> None:
    journal = [took(1, None), took(2, cursor(5)), committed(1, cursor(5)), committed(2, cursor(6)), took(3, cursor(6))]
    assert judged(journal, {}).complaints == []


def test_a_commit_that_the_next_holder_did_not_start_from_is_stale() -> None:
    journal = [took(1, None), took(2, None), committed(2, cursor(5)), committed(1, cursor(5))]
    assert len(judged(journal, {}).stale) == 1


def test_a_token_that_was_taken_twice_is_no_fence() -> None:
    assert len(judged([took(1, None), took(1, None)], {}).stale) == 1
