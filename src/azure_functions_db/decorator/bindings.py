"""`DbBindings`: the decorators that a function app uses."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack

from azure_functions_db.core.errors import Code, ConfigurationError
from azure_functions_db.decorator.composition import handler_name, with_injection, with_polling
from azure_functions_db.decorator.injection import (
    AsyncDbOut,
    DbOut,
    InputInjection,
    OutputInjection,
    ReaderInjection,
    WriterInjection,
    checked_model,
    is_required,
    required_table,
    resolver_of,
    selection_of,
    target_of,
)
from azure_functions_db.decorator.polling import Polling, pollers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Table

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.ports import (
        ChangeSource,
        SourceAdapter,
        StateStore,
    )
    from azure_functions_db.sql.engine import EngineProvider
    from azure_functions_db.trigger.poll import PollOptions

    Source = SourceAdapter | ChangeSource
    Function = Callable[..., Any]
    Decorator = Callable[[Function], Function]

P = ParamSpec("P")
T = TypeVar("T")


def _with_parentheses(method: Callable[P, T]) -> Callable[P, T]:
    """Let a decorator that stands without its parentheses say so, rather than which arguments it misses."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if len(args) == 2 and not options and callable(args[1]):
            raise ConfigurationError(
                f"@db.{method.__name__} above {handler_name(args[1])!r} needs parentheses with its options: "
                f'@db.{method.__name__}(arg_name="...", ...)',
                code=Code.DECORATORS_WRONG,
            )
        return method(*args, **options)

    return call


class DbBindings:
    """Decorators that bind a function's parameters to databases.

    They stand below the app's own decorators and next to the function. Decorating does no I/O
    and reads no setting; what cannot work raises `ConfigurationError` right there.
    """

    @_with_parentheses
    def trigger(
        self,
        *,
        arg_name: str,
        source: Source | Sequence[Source] | Mapping[str, Source],
        checkpoint_store: StateStore,
        name: str | None = None,
        partitions: int = 1,
        partition_by: str | Sequence[str] | None = None,
        partition: Callable[..., int] | None = None,
        **options: Unpack[PollOptions],
    ) -> Decorator:
        """Hand the rows that changed to the function, in batches, whenever the host's trigger fires.

        This is polling inside a function of yours (a timer's, a queue's ...), not an extension of
        the host. Delivery is at-least-once: the handler must be idempotent. A parameter annotated
        with `PollContext`, or without annotation and named ``context``, receives the batch's context; one
        annotated with `func.Context` the host's. ``name`` names the poller's state and is the function's
        name unless given.

        The function returns None to the host (to an HTTP request a JSON text with the number of events):
        how many events were handled is in the log, the metrics and what `PollTrigger.run` returns.

        Several sources of the same shape (a list of sources with names, or a dict from names to sources)
        are polled as one poller each; ``event.source`` says where an event comes from.

        With ``partitions=N`` a source is polled as N pollers, each with its own lease: all of
        them side by side (the handler then runs in several threads at once), or the one whose
        number (from 0) the function ``partition`` tells from the host's arguments. Rows are shared out by
        their key, or by ``partition_by``, a column or several. Another N means other pollers; each begins
        at the lowest position that the old ones have reached for its rows, so some may come twice.
        """
        from azure_functions_db.trigger.poll import check_options

        check_options(options)
        if partition is not None and partitions == 1 and not isinstance(source, list | tuple | dict):
            raise ConfigurationError("partition= chooses one of several partitions: give partitions= too")
        chosen = None if partition is None else resolver_of("partition", partition)

        def decorate(fn: Function) -> Function:
            settings = {**options, "checkpoint_store": checkpoint_store}
            pollers = pollers_of(name or handler_name(fn), source, partitions, partition_by, settings)
            return with_polling(fn, Polling(checked_name(arg_name), pollers, chosen))

        return decorate

    @_with_parentheses
    def input(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table | None = None,
        schema: str | None = None,
        pk: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
        query: str | None = None,
        params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
        model: type[Any] | None = None,
        on_not_found: Literal["none", "raise"] = "none",
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Pass the function a row found by ``pk``, or the list of rows of a ``query``.

        ``pk`` and ``params`` are dicts, or functions whose parameter names are parameters of the
        handler. A missing row is None, or a `NotFoundError` with ``on_not_found="raise"``; a query
        without rows is an empty list in either case. Beside ``query``, ``table`` and ``schema`` say for
        the metadata what it reads.
        """
        injection = InputInjection(
            arg_name=checked_name(arg_name),
            target=target_of(url, db_config, table, schema, engine_provider),
            selection=selection_of(table, pk, query, params),
            model=checked_model(model),
            required=is_required(on_not_found),
        )
        return lambda fn: with_injection(fn, injection)

    @_with_parentheses
    def output(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table,
        schema: str | None = None,
        action: Literal["insert", "upsert"] = "insert",
        conflict_columns: Sequence[str] | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Pass the function a `DbOut` that writes to a table; an async function gets an `AsyncDbOut`."""
        options: dict[str, Any] = {
            "url": url,
            "db_config": db_config,
            "table": table,
            "schema": schema,
            "action": action,
            "conflict_columns": conflict_columns,
            "engine_provider": engine_provider,
        }
        injection = OutputInjection(checked_name(arg_name), DbOut(**options), AsyncDbOut(**options))
        return lambda fn: with_injection(fn, injection)

    @_with_parentheses
    def inject_reader(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table | None = None,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Pass the function a `DbReader`; an async function gets an `AsyncDbReader`."""
        target = target_of(url, db_config, table, schema, engine_provider)
        injection = ReaderInjection(checked_name(arg_name), target)
        return lambda fn: with_injection(fn, injection)

    @_with_parentheses
    def inject_writer(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Pass the function a `DbWriter`; an async function gets an `AsyncDbWriter`."""
        target = target_of(url, db_config, required_table(table), schema, engine_provider)
        injection = WriterInjection(checked_name(arg_name), target)
        return lambda fn: with_injection(fn, injection)


def checked_name(arg_name: Any) -> str:
    """Return the parameter name, refusing what can be none."""
    if not isinstance(arg_name, str) or not arg_name.isidentifier():
        raise ConfigurationError(
            f"arg_name= must be the name of a parameter of the function, not {arg_name!r}"
            + (". Call the decorator with it: @db.input('user', ...)" if callable(arg_name) else ""),
            code=Code.DECORATORS_WRONG,
        )
    return arg_name
