"""All that the database decorators of one function do, put together.

However many decorators stand on a function and in whatever order, there is one layer around
it: the trigger polls, and each call of the handler gets its injected values.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from azure_functions_db.core.bridge import all_awaited, with_all_awaited
from azure_functions_db.core.errors import Code, ConfigurationError
from azure_functions_db.decorator.polling import Polling, context_parameters, hints_of, reply_to

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
    from types import FunctionType

    from azure_functions_db.decorator.injection import Injection, Kind
    from azure_functions_db.trigger.poll import PollTrigger

    Binder = Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]

# The decorators that inject a client, and what the metadata calls it.
_CLIENTS: dict[Kind, str] = {"inject_reader": "reader", "inject_writer": "writer"}
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
class Composition:
    """A handler with its trigger and its injections."""

    handler: Callable[..., Any]
    injections: tuple[Injection, ...] = ()
    polling: Polling | None = None

    @cached_property
    def signature(self) -> inspect.Signature:
        """The handler's own signature."""
        return handler_signature(self.handler)

    @cached_property
    def context_names(self) -> frozenset[str]:
        """The parameters that want the `PollContext`."""
        if self.polling is None:
            return frozenset()
        return context_parameters(self.handler, self.signature) - {part.arg_name for part in self.parts}

    @property
    def parts(self) -> tuple[Injection | Polling, ...]:
        """Everything that has a parameter to fill."""
        return self.injections if self.polling is None else (*self.injections, self.polling)

    @property
    def hidden(self) -> frozenset[str]:
        """The parameters that are filled here, not by the host."""
        return self.context_names.union(part.arg_name for part in self.parts)

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

    def call_async(self, given: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """Run an async handler for one invocation; to be awaited."""
        return self._handled_async(given) if self.polling is None else self._polled_async(self.polling, given)

    async def _polled_async(self, polling: Polling, given: Mapping[str, Any]) -> Any:
        async def handle(events: Any, context: Any) -> Any:
            return await self.deliver(given, events, context)

        return reply_to(given, await polling.run_async(given, handle))

    def deliver(self, given: Mapping[str, Any], events: Any, context: Any) -> Any:
        """Hand one batch to the handler, whatever brought it here; awaitable where the handler is async."""
        handle = self._handled_async if inspect.iscoroutinefunction(self.handler) else self._handled
        return handle({**given, **self._batch(events, context)})

    def _batch(self, events: Any, context: Any) -> dict[str, Any]:
        named = {} if self.polling is None else {self.polling.arg_name: events}
        return {**named, **dict.fromkeys(self.context_names, context)}

    def _handled(self, given: Mapping[str, Any]) -> Any:
        if self.polling is not None and not self.injections:
            return self.handler(**given)  # the tick itself sees to it that all is awaited
        return self._filled(given, {}, self.injections)

    def _filled(self, given: Mapping[str, Any], values: dict[str, Any], missing: Sequence[Injection]) -> Any:
        """Open what is missing, one inside the other, and call the handler within."""
        if not missing:
            with all_awaited():
                return self.handler(**given, **values)
        part, *others = missing
        with part.opened(given) as values[part.arg_name]:
            return self._filled(given, values, others)

    def _handled_async(self, given: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        return self._filled_async(given, {}, self.injections)

    async def _filled_async(
        self, given: Mapping[str, Any], values: dict[str, Any], missing: Sequence[Injection]
    ) -> Any:
        """Do the same for an async handler."""
        if not missing:
            return await with_all_awaited(self.handler(**given, **values))
        part, *others = missing
        async with part.opened_async(given) as values[part.arg_name]:
            return await self._filled_async(given, values, others)


# Weak and by identity: a foreign decorator that copies our function's attributes is no composition of ours.
_compositions: WeakKeyDictionary[Callable[..., Any], Composition] = WeakKeyDictionary()


def with_injection(fn: Callable[..., Any], injection: Injection) -> Callable[..., Any]:
    """Return the function with one more injected parameter."""
    composition = _open_composition(fn)
    return _wrapped(replace(composition, injections=(*composition.injections, injection)))


def with_polling(fn: Callable[..., Any], polling: Polling) -> Callable[..., Any]:
    """Return the function as a poll function."""
    composition = _open_composition(fn)
    if composition.polling is not None:
        raise _wrong(_twice(composition.handler, "trigger"))
    return _wrapped(replace(composition, polling=polling))


def polling_of(fn: Any) -> Polling | None:
    """Return the pollers behind a function of an app, however deep the trigger lies; None for other functions."""
    composition = poll_composition_of(fn)
    return None if composition is None else composition.polling


def poll_composition_of(fn: Any) -> Composition | None:
    """Return the composition of a poll function, with its trigger and its handler; None for other functions."""
    return next(
        (composition for composition in _compositions_of(user_function(fn)) if composition.polling is not None), None
    )


def poll_functions(directory: Path) -> list[tuple[FunctionType, tuple[PollTrigger, ...]]]:
    """Return every function with a trigger of ours that was written in a directory, with its pollers."""
    found: list[tuple[Any, Polling | None]] = [(fn, each.polling) for fn, each in list(_compositions.items())]
    return [
        (fn, polling.pollers)
        for fn, polling in found
        if polling is not None and directory in Path(fn.__code__.co_filename).parents
    ]


def _open_composition(fn: Callable[..., Any]) -> Composition:
    """Return the composition of a function that is decorated already, or an empty one."""
    handler_signature(fn)
    return _compositions.get(fn) or Composition(fn)


def _compositions_of(fn: Any) -> Iterator[Composition]:
    while fn is not None:
        if inspect.isfunction(fn) and fn in _compositions:
            yield _compositions[fn]
        fn = getattr(fn, "__wrapped__", None)


def _wrapped(composition: Composition) -> Callable[..., Any]:
    _check(composition)
    is_async = inspect.iscoroutinefunction(composition.handler)
    face = disguised(
        composition.handler,
        composition.unseen,
        composition.call_async if is_async else composition.call,
        takes_payload=composition.polling is not None,
    )
    _compositions[face] = composition
    parts = _all_parts(composition)
    note_metadata(
        face,
        bindings=[_noted(part, part.kind) for part in parts if part.kind not in _CLIENTS],
        injections=[_noted(part, _CLIENTS[part.kind]) for part in parts if part.kind in _CLIENTS],
    )
    return face


def _noted(part: Injection | Polling, kind: str) -> dict[str, Any]:
    return {"kind": kind, "parameter": part.arg_name, **part.described()}


def _all_parts(composition: Composition) -> list[Injection | Polling]:
    """Return the composition's own parts after those of compositions beneath a decorator of the user's own."""
    return [*(part for deeper in _compositions_of(composition.handler) for part in deeper.parts), *composition.parts]


def _check(composition: Composition) -> None:
    _check_combination(composition)
    for part in composition.parts:
        _check_argument(composition, part.arg_name)
    own = set(composition.signature.parameters) - {part.arg_name for part in composition.injections}
    for injection in composition.injections:
        injection.check(own)
        _check_face(composition, injection)
    if composition.polling is not None:
        composition.polling.check(own - composition.hidden)


def _check_combination(composition: Composition) -> None:
    kinds = [part.kind for part in _all_parts(composition)]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise _wrong(_twice(composition.handler, kind))
    for pair in combinations(kinds, 2):
        if advice := _REFUSED.get(frozenset(pair)):
            raise _wrong(
                f"@db.{pair[0]} and @db.{pair[1]} cannot stand on one function "
                f"({handler_name(composition.handler)!r}). {advice}"
            )


def _twice(handler: Callable[..., Any], kind: Kind) -> str:
    return f"@db.{kind} stands twice on the function {handler_name(handler)!r}. {_TWICE[kind]}"


def _check_argument(composition: Composition, name: str) -> None:
    if name not in composition.signature.parameters:
        has = ", ".join(repr(known) for known in composition.signature.parameters) or "none"
        raise _wrong(
            f"The function {handler_name(composition.handler)!r} has no parameter {name!r} for arg_name=; it has: {has}"
        )
    if Counter(part.arg_name for part in composition.parts)[name] > 1:
        raise _wrong(f"Two database decorators want to fill the parameter {name!r}; give each its own")


def _check_face(composition: Composition, injection: Injection) -> None:
    """Refuse an annotation that promises the plain face to an async function, whose calls it would not await."""
    if injection.kind not in _FACES:
        return
    is_async = inspect.iscoroutinefunction(composition.handler)
    plain, awaited = _FACES[injection.kind]
    given, other = (awaited, plain) if is_async else (plain, awaited)
    hints = hints_of(composition.handler, composition.signature.parameters[injection.arg_name])
    if any(_names(hint, other) for hint in hints) and not any(_names(hint, given) for hint in hints):
        raise ConfigurationError(
            f"The parameter {injection.arg_name!r} of {handler_name(composition.handler)!r} is annotated with {other}, "
            "but "
            + (
                f"an async function receives an {given}: annotate it so, and await its calls"
                if is_async
                else f"a function that is not async receives a {given}: annotate it so, or make the function async"
            ),
            code=Code.FACE_WRONG,
        )


def _names(hint: Any, face: str) -> bool:
    """Tell whether a type, or the text of one that is not imported at run time, is this class of ours."""
    home = getattr(hint, "__module__", __name__)
    return getattr(hint, "__name__", hint) == face and home.partition(".")[0] == __name__.partition(".")[0]


_ATTRIBUTE = "_azure_functions_metadata"
_NAMESPACE = "db"
_VERSION = 1


def get_db_metadata(fn: Any) -> dict[str, Any] | None:
    """Return what the database decorators noted about a function, or None where there are none.

    Takes the function itself or what an app decorator made of it. The result is a copy:
    ``{"version": 1, "bindings": [...], "injections": [...]}``. A binding has ``kind`` ("trigger", "input" or
    "output"), ``parameter``, and where they apply ``connection_setting`` (the URL as it is written; of a
    literal one the credentials and parameters are masked), ``resource`` (``{"table": name}`` or empty),
    ``query_kind`` ("pk" or "text") and ``model_ref`` ("module:qualname"); an injection has ``kind`` ("reader"
    or "writer") and ``parameter``. Further keys may stand beside them.
    """
    noted = getattr(user_function(fn), _ATTRIBUTE, None)
    return copy.deepcopy(noted.get(_NAMESPACE)) if isinstance(noted, dict) else None


def note_metadata(fn: Callable[..., Any], bindings: list[dict[str, Any]], injections: list[dict[str, Any]]) -> None:
    """Note what the decorators did, beside what other libraries have noted."""
    others = getattr(fn, _ATTRIBUTE, {})
    noted = {"version": _VERSION, "bindings": bindings, "injections": injections}
    setattr(fn, _ATTRIBUTE, {**others, _NAMESPACE: noted})


def user_function(fn: Any) -> Any:
    """Return the function inside what an app decorator made of it (a builder, then a function object)."""
    built = getattr(fn, "_function", fn)
    get_user_function = getattr(built, "get_user_function", None)
    return fn if get_user_function is None else get_user_function()


def handler_signature(handler: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function that can be a handler; refuse anything else."""
    _check_kind(handler)
    signature = inspect.signature(handler)
    for parameter in signature.parameters.values():
        _check_parameter(handler, parameter)
    return signature


def disguised(
    handler: Callable[..., Any],
    hidden: Collection[str],
    run: Callable[[Mapping[str, Any]], Any],
    *,
    takes_payload: bool = False,
) -> Callable[..., Any]:
    """Return a function that looks like the handler without its hidden parameters ("return" is its return type).

    Calling it hands the visible arguments by name to ``run``, which is a coroutine function
    exactly when the handler is one. One that ``takes_payload`` and has no visible parameter may be called
    with one argument all the same, the payload of the host's trigger, which nobody has asked for.
    """
    signature = _without(handler_signature(handler), hidden)
    bound = _payload_dropper if takes_payload and not signature.parameters else _binder(signature)
    face = _face(bound, run, is_async=inspect.iscoroutinefunction(handler))
    # __wrapped__ stays: type hints written as text are looked up in the globals it leads to.
    functools.update_wrapper(face, handler)
    face.__signature__ = signature  # type: ignore[attr-defined]
    face.__annotations__ = {name: hint for name, hint in _annotations(handler).items() if name not in hidden}
    _settle_in_file_of(face, handler)
    return face


def _face(bound: Binder, run: Callable[[Mapping[str, Any]], Any], *, is_async: bool) -> FunctionType:
    # One line each: tracebacks show it as the first line of the user's function.
    async def awaiting(*args: Any, **kwargs: Any) -> Any: return await run(bound(args, kwargs))  # fmt: skip

    def calling(*args: Any, **kwargs: Any) -> Any: return run(bound(args, kwargs))  # fmt: skip

    return awaiting if is_async else calling  # type: ignore[return-value]


def _payload_dropper(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    """Take one argument, and do without it."""
    _ONE_AT_MOST.bind(*args, **kwargs)
    return {}


_ONE_AT_MOST = inspect.signature(lambda payload=None, /: payload)


def _binder(signature: inspect.Signature) -> Binder:
    """Return what puts the arguments of a call to their names; the host's own way of calling takes no detour."""
    names = signature.parameters.keys()

    def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        if not args and kwargs.keys() == names:
            return kwargs
        complete = signature.bind(*args, **kwargs)
        complete.apply_defaults()
        return complete.arguments

    return bound


def _without(signature: inspect.Signature, hidden: Collection[str]) -> inspect.Signature:
    visible = [parameter for parameter in signature.parameters.values() if parameter.name not in hidden]
    returned = inspect.Signature.empty if "return" in hidden else signature.return_annotation
    return signature.replace(parameters=visible, return_annotation=returned)


def _annotations(handler: Callable[..., Any]) -> dict[str, Any]:
    return dict(getattr(handler, "__annotations__", {}))


def _settle_in_file_of(face: FunctionType, handler: Callable[..., Any]) -> None:
    """Let `inspect.getfile` lead to the user's file: the worker takes the function's directory from it."""
    home = getattr(inspect.unwrap(handler), "__code__", None)
    if home is not None:
        face.__code__ = face.__code__.replace(
            co_filename=home.co_filename, co_firstlineno=home.co_firstlineno, co_name=home.co_name
        )


def _check_kind(handler: Any) -> None:
    if type(handler).__module__.startswith("azure."):
        raise _wrong(
            "This database decorator stands above a decorator of the function app. Decorators of the app "
            "(@app.route, @app.timer_trigger, @bp.queue_trigger ...) come first, database decorators below them, "
            "next to the function"
        )
    if isinstance(handler, staticmethod | classmethod | type) or not callable(handler):
        raise _wrong(f"A database decorator goes on a function, not on a {type(handler).__name__}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise _wrong(f"The function {handler.__name__!r} must return its result, not yield it")


def _check_parameter(handler: Callable[..., Any], parameter: inspect.Parameter) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            raise _wrong(
                f"The function {handler_name(handler)!r} has the parameter {str(parameter)!r}: the Functions worker "
                "passes each parameter by its own name, so write them out"
            )
        case inspect.Parameter.POSITIONAL_ONLY:
            raise _wrong(
                f"The parameter {parameter.name!r} of {handler_name(handler)!r} is positional-only: the Functions "
                "worker passes parameters by name, so remove the '/'"
            )


def handler_name(handler: Callable[..., Any]) -> str:
    """Return the name by which messages call a handler."""
    return str(getattr(handler, "__name__", type(handler).__name__))


def _wrong(message: str) -> ConfigurationError:
    return ConfigurationError(message, code=Code.DECORATORS_WRONG)
