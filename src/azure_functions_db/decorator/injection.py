"""What a decorator puts into one parameter of the handler: opened for a call, closed after it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, assert_never

from azure_functions_db.core.bridge import finished, must_be_awaited, threads_of
from azure_functions_db.core.config import DbConfig, config_of
from azure_functions_db.core.errors import ConfigurationError, NotFoundError
from azure_functions_db.core.secrets import shown_url
from azure_functions_db.sql.reflection import checked_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from sqlalchemy import Table

    from azure_functions_db.binding.aio import AsyncDbReader, AsyncDbWriter
    from azure_functions_db.binding.reader import DbReader, Reader
    from azure_functions_db.binding.writer import DbWriter
    from azure_functions_db.core.bridge import Threads
    from azure_functions_db.sql.engine import EngineProvider


class ClientOptions(TypedDict):
    """What every reader and writer of a table is made with."""

    db_config: DbConfig
    table: Any
    schema: str | None
    engine_provider: EngineProvider | None


@dataclass(frozen=True, slots=True)
class BindingTarget:
    """A database, and the table in it that a binding was given."""

    config: DbConfig
    table: str | Table | None
    schema: str | None
    provider: EngineProvider | None

    @property
    def table_name(self) -> str | None:
        """The table's own name."""
        return self.table if self.table is None or isinstance(self.table, str) else str(self.table.name)

    def client_options(self) -> ClientOptions:
        """Return the arguments that open a reader or writer here."""
        return {
            "db_config": self.config,
            "table": self.table,
            "schema": self.schema,
            "engine_provider": self.provider,
        }

    def reader(self) -> Reader:
        """Return a reader for one call that leaves nothing to close."""
        return _reader_of()(self.config, self.provider, self.table, self.schema)

    def threads(self) -> Threads:
        """Return the threads for calls of this database."""
        return threads_of(self.config)

    def described(self) -> dict[str, Any]:
        """Return the place without anybody's credentials."""
        schema = self.schema if self.table is None or isinstance(self.table, str) else self.table.schema
        return described_place(self.config.connection_url, self.table_name, schema)


@cache
def _reader_of() -> Callable[..., Reader]:
    # Even an import that finds its module loaded takes half as long as making a reader.
    from azure_functions_db.binding.reader import reader_of

    return reader_of


def target_of(
    url: str | None,
    db_config: DbConfig | None,
    table: str | Table | None,
    schema: str | None,
    provider: EngineProvider | None,
) -> BindingTarget:
    """Return the database that a decorator was given."""
    checked = None if table is None else checked_table(table, schema)
    return BindingTarget(config_of(url, db_config), checked, schema, provider)


def required_table(table: str | Table | None) -> str | Table:
    """Return the table that is written to, which cannot be left out."""
    if table is None:
        raise ConfigurationError("table= must name the table to write to")
    return table


def described_place(connection_url: str, table: str | None, schema: str | None) -> dict[str, Any]:
    """Return a place as the metadata tells it; without credentials."""
    place = {"connection_setting": shown_url(connection_url), "resource": {} if table is None else {"table": table}}
    return place if schema is None else {**place, "schema": schema}


Kind = Literal["trigger", "input", "output", "inject_reader", "inject_writer"]


class Injection(Protocol):
    """One parameter's value, for sync and for async handlers."""

    @property
    def kind(self) -> Kind:
        """Which decorator made it."""

    @property
    def arg_name(self) -> str:
        """The parameter that receives the value."""

    def check(self, available: Collection[str]) -> None:
        """Refuse to be made from parameters that are not there."""

    def opened(self, given: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Make the value for one call of a sync handler."""

    def opened_async(self, given: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Make the value for one call of an async handler; nothing here blocks its loop."""

    def described(self) -> dict[str, Any]:
        """Return what tools may know about it besides kind and parameter; no credentials."""


@dataclass(frozen=True, slots=True)
class ReaderInjection:
    """Hands the handler a reader."""

    arg_name: str
    target: BindingTarget
    kind: Kind = "inject_reader"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> DbReader:
        """Return a reader for one call."""
        from azure_functions_db.binding.reader import DbReader

        return DbReader(**self.target.client_options())

    def opened_async(self, _given: Mapping[str, Any]) -> AsyncDbReader:
        """Return an async reader for one call."""
        from azure_functions_db.binding.aio import AsyncDbReader

        return AsyncDbReader(**self.target.client_options())

    def described(self) -> dict[str, Any]:
        """Return the place it reads from."""
        return self.target.described()


@dataclass(frozen=True, slots=True)
class WriterInjection:
    """Hands the handler a writer."""

    arg_name: str
    target: BindingTarget
    kind: Kind = "inject_writer"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> DbWriter:
        """Return a writer for one call."""
        from azure_functions_db.binding.writer import DbWriter

        return DbWriter(**self.target.client_options())

    def opened_async(self, _given: Mapping[str, Any]) -> AsyncDbWriter:
        """Return an async writer for one call."""
        from azure_functions_db.binding.aio import AsyncDbWriter

        return AsyncDbWriter(**self.target.client_options())

    def described(self) -> dict[str, Any]:
        """Return the place it writes to."""
        return self.target.described()


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

    def opened_async(self, given: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Read in a thread for one call."""
        return _Awaited(self.target.threads().run(self.read, given))

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


class _Awaited:
    """A value that is awaited when it is entered, and leaves nothing to close; without a generator's detours."""

    __slots__ = ("_value",)

    def __init__(self, value: Coroutine[Any, Any, Any]) -> None:
        self._value = value

    def __aenter__(self) -> Coroutine[Any, Any, Any]:
        return self._value

    async def __aexit__(self, *_: object) -> None:
        pass


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


@dataclass(frozen=True, slots=True)
class Insert:
    """Every row is new."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """A row replaces the one with the same values in the conflict columns."""

    conflict_columns: tuple[str, ...]


class Output:
    """Where an output writes and how; it keeps nothing between two writes, so any number of threads may share it."""

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table,
        schema: str | None = None,
        action: Literal["insert", "upsert"] = "insert",
        conflict_columns: Sequence[str] | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        self._target = target_of(url, db_config, required_table(table), schema, engine_provider)
        self._action = action_of(action, conflict_columns)

    def described(self) -> dict[str, Any]:
        """Return the place it writes to and how."""
        match self._action:
            case Insert():
                return {**self._target.described(), "action": "insert"}
            case Upsert(columns):
                return {**self._target.described(), "action": "upsert", "conflict_columns": list(columns)}
            case _:
                assert_never(self._action)

    def _write(self, value: Any) -> None:
        from azure_functions_db.binding.writer import DbWriter

        with DbWriter(**self._target.client_options()) as writer:
            _write_with(writer, self._action, value)


class DbOut(Output):
    """Writes rows to its table; the handler's return value stays its own.

    Each `set` is written at once, in a transaction of its own. A function has one `DbOut` for all its
    invocations; one that is made by hand, in a test say, is the same.
    """

    def set(self, value: Any) -> None:
        """Write a dict, a Pydantic model, or a list of them; None and an empty list write nothing."""
        if has_rows(value):
            self._write(value)


class AsyncDbOut(Output):
    """`DbOut` for async handlers: ``await out.set(...)``."""

    @must_be_awaited
    async def set(self, value: Any) -> None:
        """Write a dict, a Pydantic model, or a list of them; None and an empty list write nothing."""
        if has_rows(value):
            # What has begun is waited for: a cancelled handler leaves no write behind that is still under way.
            await finished(self._target.threads().run(self._write, value))


def _write_with(writer: DbWriter, action: Insert | Upsert, value: Any) -> None:
    match action, value:
        case Insert(), list():
            writer.insert_many(rows=value)
        case Insert(), _:
            writer.insert(data=value)
        case Upsert(columns), list():
            writer.upsert_many(rows=value, conflict_columns=columns)
        case Upsert(columns), _:
            writer.upsert(data=value, conflict_columns=columns)


@dataclass(frozen=True, slots=True)
class OutputInjection:
    """Hands the handler a `DbOut`, or an `AsyncDbOut` when it is async: the same one at each call."""

    arg_name: str
    out: DbOut
    async_out: AsyncDbOut
    kind: Kind = "output"

    def check(self, available: Collection[str]) -> None:
        """Need nothing from the handler."""

    def opened(self, _given: Mapping[str, Any]) -> AbstractContextManager[DbOut]:
        """Return the handle."""
        return nullcontext(self.out)

    def opened_async(self, _given: Mapping[str, Any]) -> AbstractAsyncContextManager[AsyncDbOut]:
        """Return the awaitable handle."""
        return nullcontext(self.async_out)

    def described(self) -> dict[str, Any]:
        """Return the place it writes to and how."""
        return self.out.described()


def action_of(
    action: Literal["insert", "upsert"] | str,  # noqa: PYI051 - tells a checker's user the two values
    conflict_columns: Sequence[str] | None,
) -> Insert | Upsert:
    """Return how an output writes, from the options it was given."""
    match action:
        case "insert":
            if conflict_columns is not None:
                raise ConfigurationError("conflict_columns= belong to action='upsert'; an insert has none")
            return Insert()
        case "upsert":
            if not conflict_columns or isinstance(conflict_columns, str):
                raise ConfigurationError(
                    "action='upsert' needs conflict_columns=, the list of columns that identify a row"
                )
            return Upsert(tuple(conflict_columns))
        case _:
            raise ConfigurationError(f"action= is 'insert' or 'upsert', not {action!r}")


def has_rows(value: Any) -> bool:
    """Tell whether there is anything to write, refusing what is no row by its place."""
    if value is None:
        return False
    if not isinstance(value, list):
        _check_row("the value", value)
        return True
    for position, row in enumerate(value):
        _check_row(f"element {position} of the list", row)
    return bool(value)


def _check_row(what: str, value: Any) -> None:
    # Whoever has a model has imported Pydantic; nobody else needs to.
    pydantic = sys.modules.get("pydantic")
    if isinstance(value, dict) or (pydantic is not None and isinstance(value, pydantic.BaseModel)):
        return
    raise ConfigurationError(
        f"DbOut.set takes a dict, a Pydantic model, a list of them, or None; {what} is a {type(value).__name__}"
    )
