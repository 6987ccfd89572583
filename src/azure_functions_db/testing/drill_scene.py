"""The handler under drill with its rows and effects, and one poller over them with a clock of its own."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from azure_functions_db.core.errors import ConfigurationError, DbError, HandlerError, LostLeaseError, PollerError
from azure_functions_db.decorator.composition import poll_composition_of
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.memory import FakeClock, MemorySource
from azure_functions_db.trigger.poll import PollTrigger

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.ports import StateStore
    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.decorator.composition import Composition
    from azure_functions_db.trigger.handler import Model
    from azure_functions_db.trigger.normalizers import Normalizer

    NewStore = Callable[..., StateStore]
    from collections.abc import Callable

    from azure_functions_db.core.ports import QuarantineSink, StateStore

    Call = Callable[[Any, Any], Any]
    Around = Callable[[Call], Call]
    from types import FrameType

    Trace = Callable[[FrameType, str, Any], Any]


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
    plan = poll_composition_of(handler)
    plain = handler if plan is None else plan.handler
    subject = Subject(
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
    return replace(subject, **chosen)


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


def _arguments(plan: Composition, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what stands for the host's own arguments; None where nothing is given."""
    visible = [name for name in plan.signature.parameters if name not in plan.hidden]
    return {name: (given or {}).get(name) for name in visible}


def _columns(plan: Composition | None, cursor_column: str | None, pk_columns: Sequence[str] | None) -> dict[str, Any]:
    source = None if plan is None or plan.polling is None else plan.polling.pollers[0].source
    cursor = cursor_column or getattr(source, "cursor_column", None)
    key = pk_columns or getattr(source, "pk_columns", None)
    if cursor is None or key is None:
        raise ConfigurationError("Failure drills need cursor_column= and pk_columns=, as a source does")
    marks = {name: getattr(source, name, None) for name in ("created_column", "deleted_column")}
    return {"cursor_column": cursor, "pk_columns": tuple(key), **marks}


def _trigger_options(plan: Composition | None) -> dict[str, Any]:
    if plan is None or plan.polling is None:
        return {}
    settings = plan.polling.pollers[0].settings
    return {"model": settings.model, "transactional": settings.transactional}


def _checked_rows(rows: Sequence[RawRecord]) -> Sequence[RawRecord]:
    if len(rows) < 2 or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError("Failure drills need rows=, a list of at least two rows as dicts")
    return list(rows)


_TTL = 120.0
_MOST_TICKS = 100


class Scene:
    """Two instances of one poller on one state: the one that runs, and its rival."""

    def __init__(
        self,
        subject: Subject,
        rows: Sequence[RawRecord] | None = None,
        *,
        batch_size: int | None = None,
        quarantine: QuarantineSink | None = None,
    ) -> None:
        self.subject = subject
        self.clock = FakeClock()
        self.source = subject.source(subject.rows if rows is None else rows)
        self.batch_size = batch_size or len(self.source.rows)
        self._name = f"drill-{uuid.uuid4().hex}"
        self._quarantine = quarantine
        self._store, self._rival_store = subject.stores(self.clock)
        subject.reset()

    def tick(self, around: Around | None = None) -> int:
        """Run one tick; ``around`` puts something around the handler."""
        return self._run(self._store, around)

    def drain(self) -> Any:
        """Tick until nothing is left; return the effects."""
        for _ in range(_MOST_TICKS):
            if not self.tick():
                return self.subject.seen()
        raise PollerError(f"The rows were not through after {_MOST_TICKS} ticks")

    def count_lines(self) -> int:
        """Run one tick and return how many lines the handler ran through."""
        counter = LineCounter(self.subject.file)
        self.tick(lambda call: self._counted(call, counter))
        return counter.lines

    def crash_after_success(self) -> None:
        """Run one tick that ends after the handler's success and before the commit."""
        with suppress(CrashError):
            self.tick(lambda call: self._followed(call, _crash))

    def crash_at(self, line: int) -> str:
        """Run one tick that ends before a line of the handler; return where that is."""
        counter = LineCounter(self.subject.file, at=line, act=_crash)

        def still_crash() -> None:
            if counter.place:  # a handler may have swallowed it, the end of a process cannot be
                _crash()

        with suppress(CrashError):
            self.tick(lambda call: self._followed(self._counted(call, counter), still_crash))
        return counter.place or "the handler's end"

    def lose_lease_at(self, line: int | None, later: Sequence[RawRecord]) -> str:
        """Run one tick that is frozen until its rival has done the work; return where that was.

        It is frozen before a line of the handler, or after its end. ``later`` are rows that change
        in between, which the rival handles as well.
        """
        rivals: list[threading.Thread] = []

        def freeze() -> None:
            self.clock.advance(2 * _TTL)
            rivals.append(threading.Thread(target=self._take_over, args=(later,), daemon=True))
            rivals[0].start()
            # A frozen owner may keep rows locked that its rival wants; then the rival has to wait for its end.
            rivals[0].join(self.subject.freeze_seconds)

        counter = LineCounter(self.subject.file, at=line, act=freeze)
        # A handler that notices the loss and raises is as good as one that comes to its end.
        with suppress(LostLeaseError, HandlerError):
            self.tick(lambda call: self._followed(call, freeze) if line is None else self._counted(call, counter))
        for rival in rivals:
            rival.join()
        self.clock.advance(2 * _TTL)
        self._take_over(later)
        return counter.place or "the handler's end"

    def _take_over(self, later: Sequence[RawRecord]) -> None:
        for rows in ((), later):
            self.source.rows.extend(row for row in rows if row not in self.source.rows)
            with suppress(DbError):
                while self._run(self._rival_store):
                    pass

    def _followed(self, call: Call, act: Callable[[], None]) -> Call:
        async def followed_async(events: Any, context: Any) -> None:
            await call(events, context)
            act()

        def followed(events: Any, context: Any) -> None:
            call(events, context)
            act()

        return followed_async if self.subject.is_async else followed

    def _counted(self, call: Call, counter: LineCounter) -> Call:
        async def counted_async(events: Any, context: Any) -> None:
            with counter:
                await call(events, context)

        def counted(events: Any, context: Any) -> None:
            with counter:
                call(events, context)

        return counted_async if self.subject.is_async else counted

    def _run(self, store: StateStore, around: Around | None = None) -> int:
        subject = self.subject
        trigger = PollTrigger(
            name=self._name,
            source=self.source,
            checkpoint_store=store,
            normalizer=subject.normalizer,
            batch_size=self.batch_size,
            lease_ttl_seconds=_TTL,
            quarantine=self._quarantine,
            max_attempts=2,
            model=subject.model,
            transactional=subject.transactional,
            now=self.clock,
            monotonic=self.clock.monotonic,
        )
        handler = around(subject.handler) if around else subject.handler
        if not subject.is_async:
            return trigger.run(timer=None, handler=handler)
        # In a thread of its own: the test itself may be running on a loop.
        with ThreadPoolExecutor(1, thread_name_prefix="azfdb-drill") as thread:
            return thread.submit(lambda: asyncio.run(trigger.run_async(timer=None, handler=handler))).result()


def _crash() -> None:
    raise CrashError("the process ends here")


class CrashError(BaseException):
    """Stands for the end of a process: no ``except Exception`` holds it up."""


class LineCounter:
    """While it is entered, counts the lines that this thread runs in one file; acts before one of them.

    Debuggers and coverage tools use the same hook: they see nothing of what runs inside.
    """

    def __init__(self, file: str | None, *, at: int | None = None, act: Callable[[], None] | None = None) -> None:
        self._file = file
        self._at = at
        self._act = act
        self._before: Any = None
        self.lines = 0
        self.place: str | None = None
        """Where it acted, None as long as it has not."""

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        if self._file is not None:
            sys.settrace(self._called)
        return self

    def __exit__(self, *_failure: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Trace | None:
        return self._ran if frame.f_code.co_filename == self._file else None

    def _ran(self, frame: FrameType, event: str, _argument: Any) -> Trace:
        if event == "line":
            self.lines += 1
            if self.lines == self._at and self._act is not None:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self._act()
        return self._ran


def file_of(handler: Callable[..., Any]) -> str | None:
    """Return the file in which a handler is written, None for one that is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    function = handler if hasattr(handler, "__code__") else getattr(type(handler), "__call__", None)  # noqa: B004
    code = getattr(function, "__code__", None)
    return None if code is None else code.co_filename


def spread(count: int, most: int) -> list[int]:
    """Return at most so many numbers from 1 to ``count``, evenly spread, both ends included."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + round(step * (count - 1) / (most - 1)) for step in range(most)})


_armed: ContextVar[bool] = ContextVar("azfdb_poison_armed", default=False)


class PoisonError(ValueError):
    """The row of a drill was read."""


class PoisonedRow(dict[str, Any]):
    """Reads like any other row, except inside a handler: there, whatever touches it fails."""

    was_read = False

    def _touch(self) -> None:
        if _armed.get():
            self.was_read = True
            raise PoisonError("this row cannot be digested (failure drill)")

    def __getitem__(self, name: str) -> Any:
        self._touch()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._touch()
        return super().get(name, default)

    def __iter__(self) -> Any:
        self._touch()
        return super().__iter__()

    def keys(self) -> Any:
        self._touch()
        return super().keys()

    def values(self) -> Any:
        self._touch()
        return super().values()

    def items(self) -> Any:
        self._touch()
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._touch()
        return self  # so that it is known to have been read

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return self.copy()


def poisoned(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the handler such that poisoned rows are poison while it runs."""

    def armed(events: Any, context: Any) -> Any:
        events = [_with_own_key(event) for event in events]
        token = _armed.set(True)
        try:
            outcome = call(events, context)
            return _awaited(outcome) if inspect.isawaitable(outcome) else outcome
        finally:
            _armed.reset(token)

    return armed


def _with_own_key(event: Any) -> Any:
    """Return an event that does not look into its row for its key and id: only the row is poison."""
    return event.with_metadata(event.metadata) if isinstance(getattr(event, "after", None), PoisonedRow) else event


async def _awaited(outcome: Any) -> Any:
    token = _armed.set(True)
    try:
        return await outcome
    finally:
        _armed.reset(token)
