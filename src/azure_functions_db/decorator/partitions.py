"""One source polled as several: each partition has a state document, and so a lease, of its own."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure_functions_db.trigger.poll import PollTrigger


@runtime_checkable
class Partitionable(Protocol):
    """A source that can be narrowed to a part of its keys."""

    def partitioned(self, index: int, count: int) -> Any:
        """Return the source of one partition; all of them together read every row once."""


class Steals:
    """Allows one lease of a vanished holder to be taken over; shared by the partitions of one tick.

    Free partitions are taken greedily. Those of an instance that died are taken one per tick, so
    that they spread over the instances that are left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Tell whether this is the first."""
        return self._lock.acquire(blocking=False)


steals_of_this_tick: ContextVar[Steals | None] = ContextVar("azfdb_steals", default=None)


def may_steal() -> bool:
    """Tell whether the tick that is running here may take over one more lease."""
    steals = steals_of_this_tick.get()
    return steals is None or steals.take()


def pollers_of(name: str, source: Any, partitions: Any, options: Mapping[str, Any]) -> tuple[PollTrigger, ...]:
    """Return the pollers of a source: one, or one for each partition."""
    from azure_functions_db.trigger.poll import PollTrigger

    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
        raise ConfigurationError(f"partitions= must be a number from 1 up, not {partitions!r}")
    if partitions == 1:
        return (PollTrigger(name=name, source=source, **options),)
    if not isinstance(source, Partitionable):
        raise ConfigurationError(f"A {type(source).__name__} cannot be partitioned; leave out partitions=")
    return tuple(
        PollTrigger(
            name=partition_name(name, index, partitions),
            source=source.partitioned(index, partitions),
            may_steal=may_steal,
            consumer=name,
            **options,
        )
        for index in range(partitions)
    )


def partition_name(name: str, index: int, count: int) -> str:
    """Return the poller name of one partition; it changes with the count, as its rows do."""
    return f"{name}-{index + 1}-of-{count}"
