"""All that the database decorators of one function do, put together.

However many decorators stand on a function and in whatever order, there is one layer around
it: the trigger polls, and each call of the handler gets its injected values.
"""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from azure_functions_db.core.calls import all_awaited, with_all_awaited
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.decorator.metadata import note_metadata, user_function
from azure_functions_db.decorator.polling import Polling, context_parameter, hints_of, reply_to
from azure_functions_db.decorator.signature import disguised, handler_name, handler_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from azure_functions_db.decorator.injection import Injection, Kind

_INJECTIONS = ("inject_reader", "inject_writer")
_TWICE = {
    "trigger": "A function has one trigger; give the second source a function of its own",
    "input": "Use @db.inject_reader instead of both: its reader reads as often as you like",
    "output": "Use @db.inject_writer instead of both, or a DbSession inside the handler to write several tables",
    "inject_reader": "One reader can query every table of its database; open a DbReader inside the handler for another",
    "inject_writer": "Open a DbWriter, or a DbSession for several tables at once, inside the handler",
}
# What a plain function is handed, and what an async one is.
_FACES: dict[Kind, tuple[str, str]] = {
    "output": ("DbOut", "AsyncDbOut"),
    "inject_reader": ("DbReader", "AsyncDbReader"),
    "inject_writer": ("DbWriter", "AsyncDbWriter"),
}
_REFUSED: dict[frozenset[Kind], str] = {
    frozenset({"input", "inject_reader"}): "Remove @db.input and read with the injected reader: reader.get(pk=...)",
    frozenset(
        {"output", "inject_writer"}
    ): "Remove @db.output and write with the injected writer: writer.insert(data=...)",
}


@dataclass(frozen=True)
class Plan:
    """A handler with its trigger and its injections."""

    handler: Callable[..., Any]
    injections: tuple[Injection, ...] = ()
    polling: Polling | None = None

    @cached_property
    def signature(self) -> inspect.Signature:
        """The handler's own signature."""
        return handler_signature(self.handler)

    @cached_property
    def context_name(self) -> str | None:
        """The parameter that wants the `PollContext`."""
        return None if self.polling is None else context_parameter(self.handler, self.signature)

    @property
    def parts(self) -> tuple[Injection | Polling, ...]:
        """Everything that has a parameter to fill."""
        return self.injections if self.polling is None else (*self.injections, self.polling)

    @property
    def hidden(self) -> frozenset[str]:
        """The parameters that are filled here, not by the host."""
        filled = {part.arg_name for part in self.parts}
        return frozenset(filled if self.context_name is None else {*filled, self.context_name})

    @property
    def unseen(self) -> frozenset[str]:
        """What the host must not see: what a poll function returns is not what its handler does."""
        return self.hidden if self.polling is None else self.hidden | {"return"}

    def call(self, given: Mapping[str, Any]) -> Any:
        """Run a sync handler for one invocation."""
        if self.polling is None:
            return self._handled(given)

        def handle(events: Any, context: Any) -> Any:
            return self.deliver(given, events, context)

        return reply_to(given, self.polling.run(given, handle))

    async def call_async(self, given: Mapping[str, Any]) -> Any:
        """Run an async handler for one invocation."""
        if self.polling is None:
            return await self._handled_async(given)

        async def handle(events: Any, context: Any) -> Any:
            return await self.deliver(given, events, context)

        return reply_to(given, await self.polling.run_async(given, handle))

    def deliver(self, given: Mapping[str, Any], events: Any, context: Any) -> Any:
        """Hand one batch to the handler, whatever brought it here; awaitable where the handler is async."""
        handle = self._handled_async if inspect.iscoroutinefunction(self.handler) else self._handled
        return handle({**given, **self._batch(events, context)})

    def _batch(self, events: Any, context: Any) -> dict[str, Any]:
        named = {} if self.polling is None else {self.polling.arg_name: events}
        return named if self.context_name is None else {**named, self.context_name: context}

    def _handled(self, given: Mapping[str, Any]) -> Any:
        with ExitStack() as opened:
            values = {part.arg_name: opened.enter_context(part.opened(given)) for part in self.injections}
            with all_awaited():
                return self.handler(**given, **values)

    async def _handled_async(self, given: Mapping[str, Any]) -> Any:
        async with AsyncExitStack() as opened:
            values = {}
            for part in self.injections:
                values[part.arg_name] = await opened.enter_async_context(part.opened_async(given))
            return await with_all_awaited(self.handler(**given, **values))


# Weak and by identity: a foreign decorator that copies our function's attributes is no plan of ours.
_plans: WeakKeyDictionary[Callable[..., Any], Plan] = WeakKeyDictionary()


def with_injection(fn: Callable[..., Any], injection: Injection) -> Callable[..., Any]:
    """Return the function with one more injected parameter."""
    plan = _open_plan(fn)
    return _wrapped(replace(plan, injections=(*plan.injections, injection)))


def with_polling(fn: Callable[..., Any], polling: Polling) -> Callable[..., Any]:
    """Return the function as a poll function."""
    plan = _open_plan(fn)
    if plan.polling is not None:
        raise ConfigurationError(_twice(plan.handler, "trigger"))
    return _wrapped(replace(plan, polling=polling))


def polling_of(fn: Any) -> Polling | None:
    """Return the pollers behind a function of an app, however deep the trigger lies; None for other functions."""
    plan = poll_plan_of(fn)
    return None if plan is None else plan.polling


def poll_plan_of(fn: Any) -> Plan | None:
    """Return the plan of a poll function, with its trigger and its handler; None for other functions."""
    return next((plan for plan in _plans_of(user_function(fn)) if plan.polling is not None), None)


def _open_plan(fn: Callable[..., Any]) -> Plan:
    """Return the plan of a function that is decorated already, or an empty one."""
    handler_signature(fn)
    return _plans.get(fn) or Plan(fn)


def _plans_of(fn: Any) -> Iterator[Plan]:
    while fn is not None:
        if inspect.isfunction(fn) and fn in _plans:
            yield _plans[fn]
        fn = getattr(fn, "__wrapped__", None)


def _wrapped(plan: Plan) -> Callable[..., Any]:
    _check(plan)
    is_async = inspect.iscoroutinefunction(plan.handler)
    face = disguised(plan.handler, plan.unseen, plan.call_async if is_async else plan.call)
    _plans[face] = plan
    described = [part.described() for part in _all_parts(plan)]
    note_metadata(
        face,
        bindings=[entry for entry in described if entry["type"] not in _INJECTIONS],
        injections=[entry for entry in described if entry["type"] in _INJECTIONS],
    )
    return face


def _all_parts(plan: Plan) -> list[Injection | Polling]:
    """Return the plan's own parts after those of plans beneath a decorator of the user's own."""
    return [*(part for deeper in _plans_of(plan.handler) for part in deeper.parts), *plan.parts]


def _check(plan: Plan) -> None:
    _check_combination(plan)
    for part in plan.parts:
        _check_argument(plan, part.arg_name)
    own = set(plan.signature.parameters) - {part.arg_name for part in plan.injections}
    for injection in plan.injections:
        injection.check(own)
        _check_face(plan, injection)
    if plan.polling is not None:
        plan.polling.check(own - plan.hidden)


def _check_combination(plan: Plan) -> None:
    kinds = [part.kind for part in _all_parts(plan)]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ConfigurationError(_twice(plan.handler, kind))
    for pair in combinations(kinds, 2):
        if advice := _REFUSED.get(frozenset(pair)):
            raise ConfigurationError(
                f"@db.{pair[0]} and @db.{pair[1]} cannot stand on one function "
                f"({handler_name(plan.handler)!r}). {advice}"
            )


def _twice(handler: Callable[..., Any], kind: Kind) -> str:
    return f"@db.{kind} stands twice on the function {handler_name(handler)!r}. {_TWICE[kind]}"


def _check_argument(plan: Plan, name: str) -> None:
    if name not in plan.signature.parameters:
        has = ", ".join(repr(known) for known in plan.signature.parameters) or "none"
        raise ConfigurationError(
            f"The function {handler_name(plan.handler)!r} has no parameter {name!r} for arg_name=; it has: {has}"
        )
    if Counter(part.arg_name for part in plan.parts)[name] > 1:
        raise ConfigurationError(f"Two database decorators want to fill the parameter {name!r}; give each its own")


def _check_face(plan: Plan, injection: Injection) -> None:
    """Refuse an annotation that promises the plain face to an async function, whose calls it would not await."""
    if injection.kind not in _FACES:
        return
    is_async = inspect.iscoroutinefunction(plan.handler)
    plain, awaited = _FACES[injection.kind]
    given, other = (awaited, plain) if is_async else (plain, awaited)
    hints = hints_of(plan.handler, plan.signature.parameters[injection.arg_name])
    if any(_names(hint, other) for hint in hints) and not any(_names(hint, given) for hint in hints):
        raise ConfigurationError(
            f"The parameter {injection.arg_name!r} of {handler_name(plan.handler)!r} is annotated with {other}, but "
            + (
                f"an async function receives an {given}: annotate it so, and await its calls"
                if is_async
                else f"a function that is not async receives a {given}: annotate it so, or make the function async"
            )
        )


def _names(hint: Any, face: str) -> bool:
    """Tell whether a type, or the text of one that is not imported at run time, is this class of ours."""
    home = getattr(hint, "__module__", __name__)
    return getattr(hint, "__name__", hint) == face and home.partition(".")[0] == __name__.partition(".")[0]
