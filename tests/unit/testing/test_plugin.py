"""The pytest plugin as a user's test run shows it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SURVIVOR = """
    from shop import WORLD, ROWS, reset

    def upsert(events):
        for event in events:
            WORLD[event.pk["id"]] = event.after["amount"]

    def test_upsert(failure_drills):
        report = failure_drills(
            upsert, rows=ROWS, cursor_column="version", pk_columns=["id"], effects=lambda: WORLD, reset=reset
        )
        assert not report.failures
"""
VICTIM = """
    from shop import WORLD, ROWS, reset

    def count(events):
        for event in events:
            WORLD["total"] = WORLD.get("total", 0) + event.after["amount"]

    def test_count(failure_drills):
        failure_drills(
            count, rows=ROWS, cursor_column="version", pk_columns=["id"], effects=lambda: WORLD, reset=reset,
            drills=["duplicates", "poison-rows"],
        )
"""


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(
        shop="""
        WORLD = {}
        ROWS = [{"id": n, "version": n, "amount": n} for n in range(1, 5)]

        def reset():
            WORLD.clear()
        """
    )
    pytester.syspathinsert()
    return pytester


def test_a_handler_that_survives_passes_and_is_told_of(shop: pytest.Pytester) -> None:
    shop.makepyfile(SURVIVOR)
    result = shop.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*failure drills*", "upsert: survived duplicates, crash-and-redeliver, poison-rows, lost-leases"]
    )


def test_a_handler_that_does_not_survive_fails_and_is_told_how(shop: pytest.Pytester) -> None:
    shop.makepyfile(VICTIM)
    result = shop.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "count does not survive 2 of 2 failure drills",
            "*does not survive*duplicates*each batch was delivered twice; the effects differ*",
            "*- {'total': 10}",
            "*+ {'total': 20}",
            "count: does not survive duplicates, poison-rows",
        ]
    )


def test_the_summary_reaches_the_controller_of_a_distributed_run(shop: pytest.Pytester) -> None:
    shop.makepyfile(SURVIVOR)
    result = shop.runpytest_subprocess("-n", "1", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["upsert: survived duplicates, *"])


def test_a_run_without_drills_says_nothing_of_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.stdout.no_fnmatch_line("*failure drills*")
