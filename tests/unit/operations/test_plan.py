"""What `azfdb plan` tells of a workload."""

from __future__ import annotations

import math

import pytest

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.operations.plan import MONTH_SECONDS, Prices, Workload, planned, prices_of


def test_little_work_needs_one_poller_and_no_queue() -> None:
    plan = planned(Workload(rows_per_second=5, handler_ms=2))
    assert (plan.partitions, plan.workers, plan.queue_operations) == (1, 1, 0)
    assert plan.ticks == plan.storage_reads == plan.executions == MONTH_SECONDS / 10


@pytest.mark.parametrize("rows", [1, 10, 300, 5_000, 80_000])
@pytest.mark.parametrize("handler_ms", [0.05, 1, 30, 2_000])
def test_partitions_have_time_for_all_rows_and_some_to_spare(rows: float, handler_ms: float) -> None:
    plan = planned(Workload(rows_per_second=rows, handler_ms=handler_ms))
    work = rows * (handler_ms + 50 / plan.batch_size) / 1000
    assert plan.partitions * 0.7 >= work > (plan.partitions - 1) * 0.7
    assert plan.workers * 4 >= plan.partitions > (plan.workers - 1) * 4
    assert plan.busy_partitions < plan.partitions
    assert plan.batch_size * handler_ms <= 30_000 or plan.batch_size == 1


def test_a_tick_with_one_batch_costs_one_read_and_two_writes() -> None:
    plan = planned(Workload(rows_per_second=10, handler_ms=1, interval_seconds=10, batch_size=100))
    assert (plan.storage_reads, plan.storage_writes) == (plan.ticks, 2 * plan.ticks)


def test_further_batches_cost_one_write_each() -> None:
    plan = planned(Workload(rows_per_second=50, handler_ms=1, interval_seconds=10, batch_size=100))
    assert plan.storage_writes == 6 * plan.ticks


def test_a_tick_longer_than_a_third_of_its_lease_renews_it() -> None:
    once = planned(Workload(rows_per_second=0.1, handler_ms=5_000, interval_seconds=100, lease_ttl_seconds=600))
    often = planned(Workload(rows_per_second=0.1, handler_ms=5_000, interval_seconds=100, lease_ttl_seconds=60))
    assert often.storage_writes > once.storage_writes


def test_a_tick_that_stays_is_paid_for_its_time_and_waits_less() -> None:
    plain = planned(Workload(rows_per_second=1, handler_ms=1, interval_seconds=60))
    lingering = planned(Workload(rows_per_second=1, handler_ms=1, interval_seconds=60, linger_seconds=59.5))
    assert plain.delay_seconds > 60
    assert lingering.delay_seconds == 0.5
    assert lingering.gb_seconds > 100 * plain.gb_seconds


def test_prices_are_the_users_own() -> None:
    free = Prices(read=0, write=0, queue=0, execution=0, gb_second=0)
    workload = Workload(rows_per_second=100, handler_ms=10)
    assert planned(workload, free).total == 0
    plan = planned(workload, prices_of(["write=1"], free))
    assert plan.total == plan.costs["storage writes"] == round(plan.storage_writes / 1000, 2)


def test_a_limit_that_is_near_is_told() -> None:
    grades = {
        limit.what: limit.grade for limit in planned(Workload(rows_per_second=1e5, handler_ms=0, batch_ms=2)).limits
    }
    assert grades == {
        "storage requests a second": "ok",
        "queue messages a second": "ok",
        "rows a second and worker": "warning",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows_per_second": 0},
        {"rows_per_second": -1},
        {"rows_per_second": math.nan},
        {"rows_per_second": math.inf},
        {"handler_ms": -1},
        {"batch_size": 0},
        {"per_worker": 0},
        {"interval_seconds": 0},
        {"linger_seconds": -1},
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Workload(**{"rows_per_second": 1, "handler_ms": 1, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["wrte=1", "write", "write=", "write=cheap", "write=-1", "write=nan"])
def test_a_price_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="price"):
        prices_of([text])
