"""The ``input`` binding: rows that are read before the handler runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection
    from contextlib import AbstractContextManager

    from azure_functions_db.binding.reader import Reader
    from azure_functions_db.decorator.injection import BindingTarget, Kind


@dataclass(frozen=True, slots=True)
class ByKey:
    """One row of a table, by its primary key."""

    key: Values

    @property
    def values(self) -> Values:
        """What is made from the handler's parameters."""
        return self.key

    def read(self, reader: Reader, given: Mapping[str, Any], model: type[Any] | None) -> Any:
        """Return the row for one call, or None."""
        return reader.get(pk=self.key.resolve(given), model=model)

    def described(self) -> dict[str, Any]:
        """Return how it is read."""
        return {"query_kind": "pk"}


@dataclass(frozen=True, slots=True)
class ByQuery:
    """The rows of a query."""

    sql: str
    params: Values

    @property
    def values(self) -> Values:
        """What is made from the handler's parameters."""
        return self.params

    def read(self, reader: Reader, given: Mapping[str, Any], model: type[Any] | None) -> Any:
        """Return the rows for one call."""
        return reader.query(self.sql, params=self.params.resolve(given), model=model)

    def described(self) -> dict[str, Any]:
        """Return how they are read."""
        return {"query_kind": "text", "query": self.sql}


@dataclass(frozen=True, slots=True)
class InputInjection:
    """Hands the handler a row or rows."""

    arg_name: str
    target: BindingTarget
    selection: ByKey | ByQuery
    model: type[Any] | None
    required: bool
    kind: Kind = "input"

    def check(self, available: Collection[str]) -> None:
        """Check that key and parameters are made from what the handler is called with."""
        self.selection.values.check(available)

    def opened(self, given: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Read for one call."""
        return nullcontext(self.read(given))

    @asynccontextmanager
    async def opened_async(self, given: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Read in a thread for one call."""
        yield await self.target.threads().run(self.read, given)

    def read(self, given: Mapping[str, Any]) -> Any:
        """Return the row or the rows; the connection is given back before the handler starts."""
        selected = self.selection.read(self.target.reader(), given, self.model)
        if self.required and selected is None:
            name = self.target.table_name
            raise NotFoundError(f"The input {self.arg_name!r} found no row in table {name!r}", table=name)
        return selected

    def described(self) -> dict[str, Any]:
        """Return the place it reads from and how."""
        return {**self.target.described(), **model_ref(self.model), **self.selection.described()}


def model_ref(model: type[Any] | None) -> dict[str, str]:
    """Return where a model is found, as the metadata tells it."""
    return {} if model is None else {"model_ref": f"{model.__module__}:{model.__qualname__}"}


def selection_of(table: object, pk: Any, query: str | None, params: Any) -> ByKey | ByQuery:
    """Return what an input reads, from the options it was given."""
    if (pk is None) == (query is None):
        raise ConfigurationError("An input reads by exactly one of pk= (one row) and query= (a list of rows)")
    return _by_key(table, pk, params) if query is None else _by_query(query, params)


def _by_key(table: object, pk: Any, params: Any) -> ByKey:
    if table is None:
        raise ConfigurationError("pk= finds a row in a table: give table= too")
    if params is not None:
        raise ConfigurationError("params= belong to query=; with pk= leave them out")
    if pk == {}:
        raise ConfigurationError("pk= names no column; give every column of the primary key with its value")
    return ByKey(values_of("pk", pk))


def _by_query(query: Any, params: Any) -> ByQuery:
    if not isinstance(query, str) or not query.strip():
        raise ConfigurationError("query= must be the text of an SQL query")
    # Without params= there are none: the text is the developer's own, so the reader need not warn of it.
    return ByQuery(query, values_of("params", {} if params is None else params))


def is_required(on_not_found: str) -> bool:
    """Tell whether a missing row is an error, from the ``on_not_found`` option."""
    match on_not_found:
        case "none":
            return False
        case "raise":
            return True
        case _:
            raise ConfigurationError(f"on_not_found= is 'none' or 'raise', not {on_not_found!r}")


def checked_model(model: Any) -> type[Any] | None:
    """Return the model, refusing what is no Pydantic model class."""
    if model is not None and not (isinstance(model, type) and hasattr(model, "model_validate")):
        raise ConfigurationError(f"model= must be a Pydantic model class, not {model!r}")
    return model


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
        named = {name: given[name] for name in self.required}
        if self.optional:
            named |= {name: given[name] for name in self.optional if name in given}
        return self.function(**named)


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
