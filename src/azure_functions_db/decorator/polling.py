"""The ``trigger`` decorator's part of a call: poll each partition, and hand each batch to the handler."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Protocol, Union, get_args, get_origin, runtime_checkable

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from azure_functions_db.decorator.injection import Kind
    from azure_functions_db.decorator.inputs import Resolver
    from azure_functions_db.trigger.context import PollContext
    from azure_functions_db.trigger.poll import PollTrigger


_CONTEXT_TYPE = "PollContext"
_OPTIONAL = re.compile(r"(?:\w+\.)*Optional\[(.*)\]")


@dataclass(frozen=True, slots=True)
class Polling:
    """The pollers behind one function, one for each partition of its source."""

    arg_name: str
    pollers: tuple[PollTrigger, ...]
    partition: Resolver | None = None
    """Tells from the host's arguments which partition a call is for; without it a call serves all."""
    kind: Kind = "trigger"

    def check(self, available: Collection[str]) -> None:
        """Check that the partition is told from what the host passes."""
        if self.partition is not None:
            self.partition.check(available)

    def run(self, given: Mapping[str, Any], handler: Callable[[Any, PollContext], Any]) -> int:
        """Do one tick of each partition, side by side in threads; return how many events were handled."""
        ticks = [partial(poller.run, **_called_by(given), handler=handler) for poller in self._chosen(given)]
        if len(ticks) == 1:
            return ticks[0]()
        shared = contextvars.copy_context()
        shared.run(steals_of_this_tick.set, Steals())
        with ThreadPoolExecutor(len(ticks), thread_name_prefix="azfdb-partition") as threads:
            # Each thread gets a context of its own, so that logs keep the invocation's id.
            futures = [threads.submit(shared.copy().run, tick) for tick in ticks]
        return _total([future.exception() or future.result() for future in futures])

    async def run_async(self, given: Mapping[str, Any], handler: Callable[[Any, PollContext], Awaitable[Any]]) -> int:
        """Do one tick of each partition, side by side on the host's loop; return how many events were handled."""
        ticks = [poller.run_async(**_called_by(given), handler=handler) for poller in self._chosen(given)]
        if len(ticks) == 1:
            return await ticks[0]
        steals_of_this_tick.set(Steals())
        return _total(await asyncio.gather(*ticks, return_exceptions=True))

    def described(self) -> dict[str, Any]:
        """Return the poller's names."""
        return {"type": self.kind, "arg_name": self.arg_name, "pollers": [poller.name for poller in self.pollers]}

    def _chosen(self, given: Mapping[str, Any]) -> Sequence[PollTrigger]:
        if self.partition is None:
            return self.pollers
        index = self.partition.resolve(given)
        if not isinstance(index, int) or not 0 <= index < len(self.pollers):
            raise ConfigurationError(
                f"The function given as partition= returned {index!r}; it must return a number from 0 to "
                f"{len(self.pollers) - 1}"
            )
        return [self.pollers[index]]


def context_parameter(handler: Callable[..., Any], signature: inspect.Signature) -> str | None:
    """Return the name of the parameter that is annotated with `PollContext`, if there is one."""
    for parameter in signature.parameters.values():
        if any(getattr(hint, "__name__", hint) == _CONTEXT_TYPE for hint in hints_of(handler, parameter)):
            return parameter.name
    return None


def hints_of(handler: Callable[..., Any], parameter: inspect.Parameter) -> Sequence[Any]:
    """Return the types that an annotation allows: its own, or those of an optional one; unknown ones as text."""
    annotation, names = parameter.annotation, getattr(inspect.unwrap(handler), "__globals__", {})
    if not isinstance(annotation, str):
        return get_args(annotation) if get_origin(annotation) in {Union, UnionType} else [annotation]
    inside = _OPTIONAL.sub(r"\1", annotation.strip("'\" "))
    words = [part.strip("'\" ").rpartition(".")[2] for part in inside.split("|")]
    return [names.get(word, word) for word in words]


def _called_by(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the host told: its trigger's payload, by custom the first argument, and the invocation's id."""
    invocation_id = getattr(given.get("context"), "invocation_id", None)
    return {"timer": next(iter(given.values()), None), "invocation_id": invocation_id}


def reply_to(given: Mapping[str, Any], handled: int) -> str | None:
    """Return what the host wants of a poll function: nothing, but to an HTTP request something."""
    is_http = any(type(value).__name__ == "HttpRequest" for value in given.values())
    return f'{{"handled": {handled}}}' if is_http else None


def _total(outcomes: Sequence[int | BaseException]) -> int:
    """Return the sum, or raise what failed."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} partitions failed", failures)
    return sum(outcome for outcome in outcomes if isinstance(outcome, int))


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
