"""What the Functions worker sees of a decorated function: the host's parameters and nothing else.

The worker asks a function for its signature, its type hints, its file and whether it is a
coroutine function; each of them has to answer as if the injected parameters did not exist.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import FunctionType

    Binder = Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]


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
        raise ConfigurationError(
            "This database decorator stands above a decorator of the function app. Decorators of the app "
            "(@app.route, @app.timer_trigger, @bp.queue_trigger ...) come first, database decorators below them, "
            "next to the function"
        )
    if isinstance(handler, staticmethod | classmethod | type) or not callable(handler):
        raise ConfigurationError(f"A database decorator goes on a function, not on a {type(handler).__name__}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(f"The function {handler.__name__!r} must return its result, not yield it")


def _check_parameter(handler: Callable[..., Any], parameter: inspect.Parameter) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            raise ConfigurationError(
                f"The function {handler_name(handler)!r} has the parameter {str(parameter)!r}: the Functions worker "
                "passes each parameter by its own name, so write them out"
            )
        case inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigurationError(
                f"The parameter {parameter.name!r} of {handler_name(handler)!r} is positional-only: the Functions "
                "worker passes parameters by name, so remove the '/'"
            )


def handler_name(handler: Callable[..., Any]) -> str:
    """Return the name by which messages call a handler."""
    return str(getattr(handler, "__name__", type(handler).__name__))
