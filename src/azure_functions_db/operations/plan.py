"""How many partitions, workers, requests and how much money a workload takes; nothing is contacted."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from azure_functions_db.core.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MONTH_SECONDS = 30 * 86_400
SMALLEST_BATCH, LARGEST_BATCH = 100, 1_000
OVERHEAD_SHARE = 0.1
"""How much of a batch may be reading and committing; larger batches make it less."""
LONGEST_BATCH_SECONDS = 30.0
"""A crash repeats a batch, and a heartbeat is due after a third of the lease: so batches stay shorter."""
MOST_BUSY = 0.7
"""The share of its time that a partition may be busy; the rest is what it catches up with."""
IDLE_TICK_SECONDS = 0.05
"""How long a tick takes that finds nothing."""
LOOK_SECONDS = 0.5
"""How far apart the looks of a tick are that stays."""
QUEUE_OPERATIONS = 3
"""What a message costs: to put it there, to get it, to delete it."""

# What Microsoft documents for a standard account, and the row rate of one core that benchmarks/ measures.
ACCOUNT_REQUESTS_PER_SECOND = 20_000
QUEUE_MESSAGES_PER_SECOND = 2_000
CORE_ROWS_PER_SECOND = 150_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in dollars as lists gave them for the Flex Consumption plan and hot blob storage in late 2026.

    They differ by region and change: give your own.
    """

    read: float = 0.0004
    """A thousand reads of a blob."""
    write: float = 0.0065
    """A thousand writes of a blob."""
    queue: float = 0.0004
    """A thousand operations on a queue."""
    execution: float = 0.0004
    """A thousand executions."""
    gb_second: float = 0.000026
    """A gigabyte of memory for a second of an execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What there is to do, and how it is to be done."""

    rows_per_second: float
    handler_ms: float
    """What the handler takes for one row."""
    batch_size: int | None = None
    batch_ms: float = 50.0
    """What reading and committing a batch take together."""
    interval_seconds: float = 10.0
    """How far apart the ticks of a partition are."""
    linger_seconds: float = 0.0
    """How long a tick stays for rows to come."""
    per_worker: int = 4
    """How many partitions one worker serves at once."""
    memory_mb: int = 2_048
    lease_ttl_seconds: float = 120.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in _MAY_BE_NONE_AT_ALL else None
            if value is not None and not (math.isfinite(value) and (value > 0 or value == least)):
                bound = "at least 0" if least == 0 else "greater than 0"
                raise ConfigurationError(f"{field.name} must be a number {bound}, not {value!r}", setting=field.name)


_MAY_BE_NONE_AT_ALL = {"handler_ms", "batch_ms", "linger_seconds"}


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that carries only so much, and how much of it is used."""

    what: str
    used: float
    most: float
    grade: Literal["ok", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What a workload takes, in thirty days where it is a cost."""

    partitions: int
    workers: int
    batch_size: int
    busy_partitions: float
    """How many partitions are at work on average."""
    delay_seconds: float
    """How long a row waits at most while all is well: for the tick, and for the rows before it."""
    catch_up_hours: float
    """How long it takes to work off what an outage of an hour has left."""
    ticks: int
    storage_reads: int
    storage_writes: int
    queue_operations: int
    executions: int
    gb_seconds: int
    costs: Mapping[str, float]
    """Dollars by what they are paid for."""
    total: float
    limits: Sequence[Limit]


def planned(workload: Workload, prices: Prices | None = None) -> CapacityPlan:
    """Return what it takes to handle so many rows in time."""
    prices = prices or Prices()
    batch = workload.batch_size or _batch_size(workload)
    seconds_per_row = (workload.handler_ms + workload.batch_ms / batch) / 1000
    busy = workload.rows_per_second * seconds_per_row
    partitions = max(1, math.ceil(busy / MOST_BUSY))
    workers = math.ceil(partitions / workload.per_worker)
    rows_per_tick = workload.rows_per_second * workload.interval_seconds / partitions
    tick_seconds = rows_per_tick * seconds_per_row
    looks = min(rows_per_tick, workload.linger_seconds / LOOK_SECONDS)  # each finds what has come since the last one
    ticks = round(partitions * MONTH_SECONDS / workload.interval_seconds)
    batches = max(rows_per_tick / batch, looks)
    use = _used(workload, partitions, ticks, batches, max(tick_seconds, IDLE_TICK_SECONDS))
    costs = {
        "storage reads": use.reads / 1000 * prices.read,
        "storage writes": use.writes / 1000 * prices.write,
        "queue": use.queue / 1000 * prices.queue,
        "executions": use.executions / 1000 * prices.execution,
        "execution time": use.gb_seconds * prices.gb_second,
    }
    return CapacityPlan(
        partitions=partitions,
        workers=workers,
        batch_size=batch,
        busy_partitions=round(busy, 2),
        delay_seconds=round(_waited(workload, tick_seconds), 1),
        catch_up_hours=round(busy / (partitions - busy), 2),
        ticks=ticks,
        storage_reads=round(use.reads),
        storage_writes=round(use.writes),
        queue_operations=round(use.queue),
        executions=round(use.executions),
        gb_seconds=round(use.gb_seconds),
        costs={what: round(cost, 2) for what, cost in costs.items()},
        total=round(sum(costs.values()), 2),
        limits=_limits(workload, use, workers),
    )


def prices_of(given: Iterable[str], prices: Prices | None = None) -> Prices:
    """Return the prices with those of texts such as ``write=0.0065`` in their place."""
    prices = prices or Prices()
    for text in given:
        name, _, amount = text.partition("=")
        known = [field.name for field in fields(Prices)]
        if name not in known:
            raise ConfigurationError(
                f"There is no price of {name!r}; there are: {', '.join(known)}{did_you_mean(name, known)}"
            )
        prices = replace(prices, **{name: _dollars(name, amount)})
    return prices


def _dollars(name: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise ConfigurationError(f"The price of {name!r} must be dollars, such as {name}=0.0065, not {text!r}")
    return amount


def _batch_size(workload: Workload) -> int:
    """Return the batch that makes reading and committing a small part, but no longer than may be repeated."""
    if not workload.handler_ms:
        return LARGEST_BATCH
    wanted = math.ceil(workload.batch_ms / (OVERHEAD_SHARE * workload.handler_ms))
    longest = max(1, int(LONGEST_BATCH_SECONDS * 1000 / workload.handler_ms))
    return min(max(SMALLEST_BATCH, min(wanted, LARGEST_BATCH)), longest)


def _waited(workload: Workload, tick_seconds: float) -> float:
    """Return how long a row waits for somebody to look, and for the rows before it."""
    if workload.linger_seconds:
        return max(LOOK_SECONDS, workload.interval_seconds - workload.linger_seconds)
    return workload.interval_seconds + tick_seconds


@dataclass(frozen=True, slots=True)
class _Use:
    reads: float
    writes: float
    queue: float
    executions: float
    gb_seconds: float


def _used(workload: Workload, partitions: int, ticks: int, batches_per_tick: float, tick_seconds: float) -> _Use:
    """Return what is used in a month: a tick reads once; with work it writes to begin, and once for each batch."""
    stays = max(tick_seconds, workload.linger_seconds)
    with_work = min(1.0, workload.rows_per_second * MONTH_SECONDS / ticks)
    heartbeats = int(stays / (workload.lease_ttl_seconds / 3))
    is_spread = partitions > workload.per_worker
    return _Use(
        reads=ticks,
        writes=ticks * with_work * (1 + max(1.0, batches_per_tick) + heartbeats),
        queue=QUEUE_OPERATIONS * ticks * is_spread,
        executions=ticks + is_spread * MONTH_SECONDS / workload.interval_seconds,
        # Partitions that run side by side on a worker share its memory.
        gb_seconds=ticks * stays / min(workload.per_worker, partitions) * workload.memory_mb / 1024,
    )


def _limits(workload: Workload, use: _Use, workers: int) -> list[Limit]:
    per_second = 1 / MONTH_SECONDS
    used = (
        ("storage requests a second", (use.reads + use.writes) * per_second, ACCOUNT_REQUESTS_PER_SECOND),
        ("queue messages a second", use.queue / QUEUE_OPERATIONS * per_second, QUEUE_MESSAGES_PER_SECOND),
        ("rows a second and worker", workload.rows_per_second / workers, CORE_ROWS_PER_SECOND),
    )
    return [Limit(what, round(now, 1), most, "ok" if now <= most / 2 else "warning") for what, now, most in used]
