"""Values that a decorator is given either as they are or as a function of the handler's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclass(frozen=True, slots=True)
class Resolver:
    """A function whose parameter names are names of the handler's parameters."""

    option: str
    function: Callable[..., Any]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def check(self, available: Collection[str]) -> None:
        """Refuse a name that the handler is not called with."""
        missing = [name for name in self.required if name not in available]
        if missing:
            raise ConfigurationError(
                f"The function given as {self.option}= wants {_listed(missing)}, but may only ask for parameters that "
                f"the host passes to the handler: {_listed(sorted(available)) or 'there are none'}"
            )

    def resolve(self, given: Mapping[str, Any]) -> Any:
        """Call the function with what the handler is called with."""
        names = [*self.required, *(name for name in self.optional if name in given)]
        return self.function(**{name: given[name] for name in names})


@dataclass(frozen=True, slots=True)
class Values:
    """Named values, known beforehand or computed for each invocation."""

    option: str
    source: Mapping[str, Any] | Resolver

    def check(self, available: Collection[str]) -> None:
        """Refuse a resolver that asks for what the handler does not have."""
        if isinstance(self.source, Resolver):
            self.source.check(available)

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for this invocation."""
        values = self.source.resolve(given) if isinstance(self.source, Resolver) else self.source
        if not isinstance(values, Mapping):
            raise ConfigurationError(
                f"The function given as {self.option}= returned a {type(values).__name__}; it must return a dict"
            )
        return dict(values)


def values_of(option: str, given: Any) -> Values:
    """Return the named values that an option was given as a dict or a function."""
    if isinstance(given, Mapping):
        return Values(option, given)
    if callable(given):
        return Values(option, resolver_of(option, given))
    raise ConfigurationError(f"{option}= must be a dict or a function that returns one, not a {type(given).__name__}")


def resolver_of(option: str, function: Callable[..., Any]) -> Resolver:
    """Return the resolver of a function, refusing one that cannot be called with names."""
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"The function given as {option}= must not be async")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"The function given as {option}= does not tell its parameter names; wrap it in a lambda"
        ) from None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(parameter.kind not in named for parameter in parameters):
        raise ConfigurationError(f"The function given as {option}= must name each of its parameters")
    required = tuple(p.name for p in parameters if p.default is p.empty)
    optional = tuple(p.name for p in parameters if p.default is not p.empty)
    return Resolver(option, function, required, optional)


def _listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names)
