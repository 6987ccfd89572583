"""The ``trigger`` decorator's part of a call: poll each partition, and hand each batch to the handler."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Union, get_args, get_origin

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.ports import HasPlace
from azure_functions_db.decorator.injection import described_place
from azure_functions_db.decorator.inputs import model_ref

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from azure_functions_db.decorator.injection import Kind
    from azure_functions_db.decorator.inputs import Resolver
    from azure_functions_db.trigger.context import PollContext
    from azure_functions_db.trigger.poll import PollTrigger


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
