"""The handler under drill, its rows and the world in which its effects show."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.decorator.plan import poll_plan_of
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.breakpoints import file_of
from azure_functions_db.testing.memory import MemorySource

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.ports import StateStore
    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.decorator.plan import Plan
    from azure_functions_db.trigger.handler import Model
    from azure_functions_db.trigger.normalizers import Normalizer

    NewStore = Callable[..., StateStore]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is drilled; each drill makes the world anew with ``reset`` and looks at it with ``effects``."""

    name: str
    handler: Callable[[Any, Any], Any]
    is_async: bool
    file: str | None
    rows: Sequence[RawRecord]
    effects: Callable[[], Any] = field(repr=False)
    reset: Callable[[], object] = field(repr=False)
    cursor_column: str
    pk_columns: Sequence[str]
    created_column: str | None = None
    deleted_column: str | None = None
    later: Sequence[RawRecord] = ()
    poison: Sequence[RawRecord] = ()
    model: type[Model] | None = None
    normalizer: Normalizer | None = None
    transactional: bool = False
    new_store: NewStore | None = None
    freeze_seconds: float = 3.0

    def source(self, rows: Sequence[RawRecord]) -> MemorySource:
        """Return a source of these rows."""
        return MemorySource(
            rows,
            cursor_column=self.cursor_column,
            pk_columns=self.pk_columns,
            created_column=self.created_column,
            deleted_column=self.deleted_column,
        )

    def stores(self, clock: Callable[[], dt.datetime]) -> tuple[StateStore, StateStore]:
        """Return the stores of two instances on one state."""
        if self.new_store is not None:
            return self.new_store(clock=clock), self.new_store(clock=clock)
        store = MemoryStateStore(clock=clock)
        return store, MemoryStateStore(shared_with=store, clock=clock)

    def seen(self) -> Any:
        """Return the effects as they are now, whatever becomes of the objects that show them."""
        return copy.deepcopy(self.effects())


def subject_of(
    handler: Any,
    *,
    rows: Sequence[RawRecord],
    effects: Callable[[], Any],
    reset: Callable[[], object],
    cursor_column: str | None,
    pk_columns: Sequence[str] | None,
    arguments: Mapping[str, Any] | None,
    **options: Any,
) -> Subject:
    """Return the subject: a plain handler, or a function that has a trigger of this library."""
    plan = poll_plan_of(handler)
    plain = handler if plan is None else plan.handler
    found = Subject(
        name=getattr(plain, "__name__", type(plain).__name__),
        handler=_called_with_context(handler) if plan is None else partial(plan.deliver, _arguments(plan, arguments)),
        is_async=_is_async(plain),
        file=file_of(plain),
        rows=_checked_rows(rows),
        effects=effects,
        reset=reset,
        **_columns(plan, cursor_column, pk_columns),
    )
    chosen = {**_trigger_options(plan), **{name: value for name, value in options.items() if value}}
    if chosen.get("transactional") and not chosen.get("new_store"):
        raise ConfigurationError(
            "A transactional handler is drilled with its own kind of store: "
            "new_store=lambda **options: SqlStateStore(url=..., **options)"
        )
    return replace(found, **chosen)


def _called_with_context(handler: Any) -> Callable[[Any, Any], Any]:
    from azure_functions_db.trigger.handler import arguments_reader

    arguments_of = arguments_reader(handler)

    def call(events: Any, context: Any) -> Any:
        given, named = arguments_of(events, context)
        return handler(*given, **named)

    return call


def _is_async(handler: Any) -> bool:
    from azure_functions_db.trigger.handler import is_async

    return is_async(handler)


def _arguments(plan: Plan, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what stands for the host's own arguments; None where nothing is given."""
    visible = [name for name in plan.signature.parameters if name not in plan.hidden]
    return {name: (given or {}).get(name) for name in visible}


def _columns(plan: Plan | None, cursor_column: str | None, pk_columns: Sequence[str] | None) -> dict[str, Any]:
    source = None if plan is None or plan.polling is None else plan.polling.pollers[0].source
    cursor = cursor_column or getattr(source, "cursor_column", None)
    key = pk_columns or getattr(source, "pk_columns", None)
    if cursor is None or key is None:
        raise ConfigurationError("Failure drills need cursor_column= and pk_columns=, as a source does")
    marks = {name: getattr(source, name, None) for name in ("created_column", "deleted_column")}
    return {"cursor_column": cursor, "pk_columns": tuple(key), **marks}


def _trigger_options(plan: Plan | None) -> dict[str, Any]:
    if plan is None or plan.polling is None:
        return {}
    settings = plan.polling.pollers[0].settings
    return {"model": settings.model, "transactional": settings.transactional}


def _checked_rows(rows: Sequence[RawRecord]) -> Sequence[RawRecord]:
    if len(rows) < 2 or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError("Failure drills need rows=, a list of at least two rows as dicts")
    return list(rows)
