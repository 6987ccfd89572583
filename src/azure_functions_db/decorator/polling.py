"""The ``trigger`` decorator's part of a call: poll each partition, and hand each batch to the handler.

A function has one poller for each source and each share of it. When their number changes, they take over from one
another.
"""

from __future__ import annotations

import ast
import asyncio
import contextvars
import datetime as dt
import inspect
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from math import gcd
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ForwardRef,
    Protocol,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

from azure_functions_db.core.errors import ConfigurationError, FingerprintMismatchError, StateStoreError
from azure_functions_db.core.ports import HasPlace, ListsPollers, Partitionable
from azure_functions_db.decorator.injection import described_place, model_ref

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
    from concurrent.futures import Future

    from azure_functions_db.core.types import CheckpointJson, Position
    from azure_functions_db.decorator.injection import Kind, Resolver
    from azure_functions_db.trigger.batch import Checkpoint
    from azure_functions_db.trigger.handler import PollContext
    from azure_functions_db.trigger.poll import PollTrigger

    Shares = dict[int, CheckpointJson]


_CONTEXT_TYPE = "PollContext"
_CONTEXT_NAME = "context"
_FORMS = {"Optional", "Union", "Annotated"}
_PACKAGE = __name__.partition(".")[0]


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
            _wait_for(futures)
        return _total([future.exception() or future.result() for future in futures])

    async def run_async(self, given: Mapping[str, Any], handler: Callable[[Any, PollContext], Awaitable[Any]]) -> int:
        """Do one tick of each partition, side by side on the host's loop; return how many events were handled."""
        ticks = [poller.run_async(**_called_by(given), handler=handler) for poller in self._chosen(given)]
        if len(ticks) == 1:
            return await ticks[0]
        steals_of_this_tick.set(Steals())
        return _total(await asyncio.gather(*ticks, return_exceptions=True))

    def described(self) -> dict[str, Any]:
        """Return the pollers' names, and the place they read from where the source tells it."""
        places = {poller.source.place if isinstance(poller.source, HasPlace) else None for poller in self.pollers}
        place = places.pop()
        told: dict[str, Any] = {"resource": {}} if place is None or places else described_place(*place)
        model = model_ref(self.pollers[0].settings.model)
        return {**told, "pollers": [poller.name for poller in self.pollers], **model}

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


def context_parameters(handler: Callable[..., Any], signature: inspect.Signature) -> frozenset[str]:
    """Return the parameters that want the `PollContext`: annotated with it, or not annotated and named ``context``."""
    return frozenset(name for name, parameter in signature.parameters.items() if _wants_context(handler, parameter))


def _wants_context(handler: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    if parameter.annotation is parameter.empty:
        return parameter.name == _CONTEXT_NAME
    return any(getattr(hint, "__name__", hint) == _CONTEXT_TYPE for hint in hints_of(handler, parameter))


def hints_of(handler: Callable[..., Any], parameter: inspect.Parameter) -> list[Any]:
    """Return the types that an annotation allows, however it is spelled; those that are not known here as text."""
    return list(_alternatives(parameter.annotation, getattr(inspect.unwrap(handler), "__globals__", {})))


def _alternatives(hint: Any, names: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(hint, ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        yield from _written_alternatives(_parsed(hint), names)
    elif get_origin(hint) in {Union, UnionType}:
        for each in get_args(hint):
            yield from _alternatives(each, names)
    elif get_origin(hint) is Annotated:
        yield from _alternatives(get_args(hint)[0], names)
    elif hasattr(hint, "__value__"):  # type Out = ...
        yield from _alternatives(hint.__value__, names)
    else:
        yield hint


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None


def _written_alternatives(hint: ast.expr | None, names: Mapping[str, Any]) -> Iterator[Any]:
    """Return the types that an annotation allows which is still text, as all are where annotations are postponed."""
    match hint:
        case ast.BinOp(left=left, right=right):
            yield from _written_alternatives(left, names)
            yield from _written_alternatives(right, names)
        case ast.Subscript(value=ast.Name(id=form) | ast.Attribute(attr=form), slice=inner) if form in _FORMS:
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            for part in parts[:1] if form == "Annotated" else parts:
                yield from _written_alternatives(part, names)
        case ast.Constant(value=str() as text):
            yield from _alternatives(text, names)
        case ast.Name(id=name) if name in names:
            yield from _alternatives(names[name], {})
        case ast.Name(id=name):
            yield name
        case ast.Attribute(attr=name):
            # Not looked up: that could import what decorating must not.
            root = ast.unparse(hint).partition(".")[0]
            home = getattr(names.get(root), "__name__", _PACKAGE)
            yield name if home.partition(".")[0] == _PACKAGE else f"{home}.{name}"
        case _:
            pass


def _called_by(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the host told: its trigger's payload, by custom the first argument, and the invocation's id."""
    invocation_id = getattr(given.get(_CONTEXT_NAME), "invocation_id", None)
    return {"timer": next(iter(given.values()), None), "invocation_id": invocation_id}


def reply_to(given: Mapping[str, Any], handled: int) -> str | None:
    """Return what the host wants of a poll function: nothing, but to an HTTP request something."""
    is_http = any(type(value).__name__ == "HttpRequest" for value in given.values())
    return f'{{"handled": {handled}}}' if is_http else None


def _wait_for(futures: Sequence[Future[int]]) -> None:
    """Wait until all have ended; whoever is interrupted meanwhile need not wait for those who linger."""
    from azure_functions_db.trigger.pace import end_lingering

    try:
        wait(futures)
    except BaseException:
        end_lingering()
        raise


def _total(outcomes: Sequence[int | BaseException]) -> int:
    """Return the sum, or raise what failed."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} partitions failed", failures)
    return sum(outcome for outcome in outcomes if isinstance(outcome, int))


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


_logger = logging.getLogger("azure_functions_db")


@runtime_checkable
class Named(Protocol):
    """A source with a name of its own."""

    name: str


def pollers_of(
    name: str, source: Any, partitions: Any, by: str | Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[PollTrigger, ...]:
    """Return the pollers of one source or several: one, or one for each partition."""
    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
        raise ConfigurationError(f"partitions= must be a number from 1 up, not {partitions!r}")
    if by is not None and partitions == 1:
        raise ConfigurationError("partition_by= says how partitions share the rows: give partitions= too")
    sources = _named_sources(name, source)
    return tuple(
        poller
        for named, each in sources.items()
        for poller in _pollers(named, each, partitions, by, {**options, "consumer": name})
    )


def partition_name(name: str, index: int, count: int) -> str:
    """Return the poller name of one partition; it changes with the count, as its rows do."""
    return name if count == 1 else f"{name}-{index + 1}-of-{count}"


def _named_sources(name: str, source: Any) -> dict[str, Any]:
    """Return each source by the name of its poller; one alone has the function's."""
    match source:
        case Mapping():
            labelled = list(source.items())
        case list() | tuple():
            labelled = [(_own_name(each), each) for each in source]
        case _:
            return {name: source}
    names = [label for label, _ in labelled]
    if not names or len(set(names)) < len(names) or not all(isinstance(label, str) and label for label in names):
        raise ConfigurationError(
            "Several sources need a name each, all of them different: source={'eu': ..., 'us': ...}"
        )
    return {f"{name}-{label}": each for label, each in labelled}


def _own_name(source: Any) -> str:
    if not isinstance(source, Named):
        raise ConfigurationError(
            f"A {type(source).__name__} has no name to tell its state by: give source= as a dict, a name for each"
        )
    return source.name


def _pollers(
    name: str, source: Any, count: int, by: str | Sequence[str] | None, options: Mapping[str, Any]
) -> Iterator[PollTrigger]:
    from azure_functions_db.trigger.poll import PollTrigger

    is_partitionable: bool = isinstance(source, Partitionable)
    if not is_partitionable:
        if count > 1:
            raise ConfigurationError(f"A {type(source).__name__} cannot be partitioned; leave out partitions=")
        yield PollTrigger(name=name, source=source, **options)
        return
    shares = Repartition(name, source, count, by, options["checkpoint_store"])
    for index in range(count):
        yield PollTrigger(
            name=partition_name(name, index, count),
            source=source if count == 1 else source.partitioned(index, count, by),
            carried=shares.carried_to_first if count == 1 else partial(shares.carried, index),
            **(options if count == 1 else {**options, "may_steal": may_steal}),
        )


class Repartition:
    """What the shares of a source have reached under other numbers of partitions, looked up once in a process.

    A position says that everything of its share up to there was handled, by whomever, and stays true.
    A row is in the same share of two numbers when its number has both remainders. So a share may begin
    at the lowest position of those that have rows of it; the furthest of all that is known will do.
    What an operator has reset stays where it was put.
    """

    def __init__(self, name: str, source: Any, count: int, by: str | Sequence[str] | None, store: Any) -> None:
        self._name = name
        self._source = source
        self._count = count
        self._by = by
        self._store = store
        self._lock = threading.Lock()

    @property
    def carried_to_first(self) -> Callable[[Checkpoint], Position | None]:
        """The same for the only share: to look costs a request, which a poller that never had partitions is spared."""
        return lambda checkpoint: None if checkpoint.position else self.carried(0, checkpoint)

    def carried(self, index: int, checkpoint: Checkpoint) -> Position | None:
        """Return the furthest position that others have reached for a share; None where its own is to be kept."""
        has_own = checkpoint.position.get("cursor") is not None
        if not isinstance(self._store, ListsPollers):
            return None
        try:
            return self._furthest(index, checkpoint.json)
        except StateStoreError as failure:
            if self._count > 1 and not has_own:
                raise  # to begin anew instead would be a replay of everything
            self._known = {}
            _logger.info("Poller %r does not look for earlier partitions: %s", self._name, failure)
            return None

    def _furthest(self, index: int, checkpoint: CheckpointJson) -> Position | None:
        furthest = checkpoint
        for covering in self._covering(index):
            reached = self._source.lowest(covering) if _were_written_after(checkpoint, covering) else None
            # One that has not begun would not even begin where others have: it may be told to begin at "now".
            if reached and (not furthest.get("cursor") or self._source.is_behind(furthest, reached)):
                furthest = reached
        return None if furthest is checkpoint or self._was_reset(index, checkpoint) else furthest

    def _covering(self, index: int) -> Iterator[list[CheckpointJson]]:
        """Return, for each other number, the checkpoints of the shares that have rows of this one."""
        with self._lock:
            known = self._known
        for count, shares in known.items():
            step = gcd(self._count, count)
            yield [shares.get(other, {}) for other in range(index % step, count, step)]

    def _was_reset(self, index: int, checkpoint: CheckpointJson) -> bool:
        """Tell whether somebody has put a share to the beginning; one that has begun and crashed left its lease."""
        document = self._store.inspect(partition_name(self._name, index, self._count))
        if checkpoint.get("cursor") is not None or document is None:
            return False
        lease = document["lease"]
        return lease is None or lease["expires_at"] <= lease["heartbeat_at"]

    @cached_property
    def _known(self) -> dict[int, Shares]:
        """The checkpoints of the shares by their numbers, for each other number of partitions that has left any."""
        known: dict[int, Shares] = {}
        for name in {self._name, *self._store.poller_names()}:
            share = self._share_of(name)
            if share is not None and share[1] != self._count:
                known.setdefault(share[1], {})[share[0]] = self._looked_at(name, *share)
        return known

    def _share_of(self, name: str) -> tuple[int, int] | None:
        if name == self._name:
            return 0, 1
        found = re.fullmatch(rf"{re.escape(self._name)}-([1-9]\d{{0,5}})-of-([1-9]\d{{0,5}})", name)
        return None if found is None else (int(found[1]) - 1, int(found[2]))

    def _looked_at(self, name: str, index: int, count: int) -> CheckpointJson:
        source = self._source if count == 1 else self._source.partitioned(index, count, self._by)
        try:
            looked: CheckpointJson = self._store.look(name, source.source_descriptor.fingerprint).checkpoint
        except FingerprintMismatchError:
            return {}  # of another definition: it tells nothing of this one
        return looked


def _were_written_after(own: CheckpointJson, others: Sequence[CheckpointJson]) -> bool:
    """Tell whether others went on when a poller no longer did; an operator's reset has no time, and counts as new."""
    if own.get("cursor") is None:
        return True
    times = [each.get("updated_at") for each in (own, *others)]
    if None in times:
        return False
    stopped, *later = (dt.datetime.fromisoformat(str(at)) for at in times)
    return all(stopped < at for at in later)
