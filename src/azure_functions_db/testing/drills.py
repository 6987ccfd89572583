"""Failure drills: what a handler does when its batch comes twice, when it dies half-way, when a row is
bad, and when another instance has taken over.

Each drill makes the world anew, runs the handler through a real tick with one kind of failure, lets
delivery go on as it would, and compares the effects with those of a calm day.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
import functools
import inspect
import logging
import pprint
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from azure_functions_db.core.errors import ConfigurationError, DbError, HandlerError, LostLeaseError, PollerError
from azure_functions_db.decorator.composition import poll_composition_of
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.memory import FakeClock, MemoryQuarantine, MemorySource
from azure_functions_db.trigger.poll import PollTrigger

if TYPE_CHECKING:
    import datetime as dt
    from types import FrameType

    from azure_functions_db.core.ports import QuarantineSink, StateStore
    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.decorator.composition import Composition
    from azure_functions_db.trigger.handler import Model
    from azure_functions_db.trigger.normalizers import Normalizer

    NewStore = Callable[..., StateStore]
    Call = Callable[[Any, Any], Any]
    Around = Callable[[Call], Call]
    Trace = Callable[[FrameType, str, Any], Any]

_MOST_FREEZES = 6
_MOST_LINES_SHOWN = 20
_TICKS_TO_QUARANTINE = 6


class Drill(StrEnum):
    """A kind of failure that at-least-once delivery knows."""

    DUPLICATES = "duplicates"
    """The handler succeeds, the commit does not: the batch comes again, alone and in other company."""
    CRASH_AND_REDELIVER = "crash-and-redeliver"
    """The process ends before some line of the handler: the whole batch comes again."""
    POISON_ROWS = "poison-rows"
    """One row cannot be read: it belongs into the quarantine, the others go through."""
    LOST_LEASES = "lost-leases"
    """The process stands still past its lease: another instance does the work, then it goes on."""


class Verdict(StrEnum):
    """What a drill showed."""

    SURVIVED = "survived"
    FAILED = "does not survive"
    UNTESTED = "untested"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one drill, and what it was seen by."""

    drill: Drill
    verdict: Verdict
    detail: str

    def __str__(self) -> str:
        first, *others = self.detail.splitlines()
        return "\n".join([f"{self.verdict:<17} {self.drill:<20} {first}", *(f"    {line}" for line in others)])


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of all drills on one handler."""

    handler: str
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The drills that the handler does not survive."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.FAILED)

    def __str__(self) -> str:
        counted = f"does not survive {len(self.failures)} of {len(self.findings)}" if self.failures else "survives"
        return "\n".join([f"{self.handler} {counted} failure drills", *(f"  {told}" for told in self._told())])

    def _told(self) -> list[str]:
        return [str(finding).replace("\n", "\n  ") for finding in self.findings]


def run_drills(
    handler: Callable[..., Any],
    *,
    rows: Sequence[RawRecord],
    effects: Callable[[], Any],
    reset: Callable[[], object],
    cursor_column: str | None = None,
    pk_columns: Sequence[str] | None = None,
    later: Sequence[RawRecord] = (),
    poison: Sequence[RawRecord] = (),
    drills: Sequence[Drill | str] = tuple(Drill),
    max_crashes: int = 25,
    freeze_seconds: float = 3.0,
    model: type[Model] | None = None,
    normalizer: Normalizer | None = None,
    transactional: bool = False,
    new_store: NewStore | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Report:
    """Run the failure drills on a handler and report which of them it does not survive.

    - ``handler``: a function of events, or of events and context, sync or async; or a function of an
      app with ``@db.trigger``, which then runs with all that is injected into it (``arguments`` stands
      for what the host passes, None otherwise).
    - ``rows``: at least two rows as the source would read them, each with its own key.
    - ``reset``: empties the world: the tables, files and fakes that the handler writes to.
    - ``effects``: returns what the handler has done to the world, comparable with ``==``; leave out
      times and random ids. A handler without any effect is refused.
    - ``cursor_column``, ``pk_columns``: as for a source; known already where the handler has a trigger.
    - ``later``: rows that change again while an instance has lost its lease: shows whether it then
      overwrites new with old.
    - ``poison``: rows that the handler cannot digest, where a row that cannot be read at all will not do.
    - ``drills``: those to run; all by default.
    - ``max_crashes``: how many places at most are tried for a crash.
    - ``freeze_seconds``: how long a process stands still at most, where the other instance has to wait for
      the locks it holds.
    - ``model``, ``normalizer``, ``transactional``: as for the trigger.
    - ``new_store``: makes the state stores, such as ``lambda **options: SqlStateStore(url=..., **options)``;
      in memory by default.
    """
    subject = subject_of(
        handler,
        rows=rows,
        effects=effects,
        reset=reset,
        cursor_column=cursor_column,
        pk_columns=pk_columns,
        arguments=arguments,
        later=later,
        poison=poison,
        freeze_seconds=freeze_seconds,
        model=model,
        normalizer=normalizer,
        transactional=transactional,
        new_store=new_store,
    )
    chosen = [Drill(drill) for drill in drills]
    with _silence():
        return _Drills(subject, max_crashes).run(chosen)


class _Drills:
    """All drills on one subject."""

    def __init__(self, subject: Subject, max_crashes: int) -> None:
        self._subject = subject
        self._max_crashes = max_crashes
        self._calm = self._calm_effects()
        self._lines = Scene(subject).count_lines()

    def run(self, drills: Sequence[Drill]) -> Report:
        """Run the drills, each to its finding."""
        run = {
            Drill.DUPLICATES: self._duplicates,
            Drill.CRASH_AND_REDELIVER: self._crash_and_redeliver,
            Drill.POISON_ROWS: self._poison_rows,
            Drill.LOST_LEASES: self._lost_leases,
        }
        return Report(self._subject.name, tuple(self._found(drill, run[drill]) for drill in drills))

    def _found(self, drill: Drill, run: Callable[[], str]) -> Finding:
        try:
            return Finding(drill, Verdict.SURVIVED, run())
        except _NotSurvivedError as failure:
            return Finding(drill, Verdict.FAILED, str(failure))
        except _UntestedError as reason:
            return Finding(drill, Verdict.UNTESTED, str(reason))

    def _calm_effects(self) -> Any:
        self._subject.reset()
        nothing = self._subject.seen()
        try:
            first, second = Scene(self._subject).drain(), Scene(self._subject).drain()
        except PollerError as failure:
            failure.add_note("This was a calm run, before any drill: the handler must succeed with rows= as they are.")
            raise
        if first == nothing:
            raise ConfigurationError(
                "A calm run had no effect, so every drill would be survived: let effects= show what the handler does "
                "with rows=, and see whether it does it"
            )
        if first != second:
            raise ConfigurationError(
                "Two calm runs had different effects, so nothing could be compared: let reset= empty everything, "
                "and leave times and random ids out of effects=\n" + _difference(first, second)
            )
        return first

    def _duplicates(self) -> str:
        half = (len(self._subject.rows) + 1) // 2
        scene = Scene(self._subject, batch_size=half)
        for _ in range(2):
            scene.crash_after_success()
            self._redelivered(scene.tick, "each batch was delivered twice")
        self._compare(scene, self._calm, "each batch was delivered twice")
        scene = Scene(self._subject, batch_size=half)
        scene.crash_after_success()
        scene.batch_size = len(self._subject.rows)
        self._compare(scene, self._calm, "rows were delivered twice, the second time together with others")
        return "each batch delivered twice, alone and together with other rows"

    def _crash_and_redeliver(self) -> str:
        places = spread(self._lines, self._max_crashes)
        if not places:
            raise _UntestedError("no line of the handler could be watched: is it written in Python?")
        for line in places:
            scene = Scene(self._subject)
            place = scene.crash_at(line)
            self._compare(scene, self._calm, f"the process ended before {place} and the batch came again")
        return f"a crash at {len(places)} of {self._lines} steps, then the whole batch again"

    def _poison_rows(self) -> str:
        if self._subject.poison:
            self._isolate([*self._subject.rows, *self._subject.poison], self._subject.poison, self._calm)
            return f"{len(self._subject.poison)} bad row(s) in quarantine, the others through"
        if self._subject.model is not None or self._subject.normalizer is not None:
            raise _UntestedError("give poison=, rows that the handler cannot digest")
        for place in (0, len(self._subject.rows) // 2):
            bad = PoisonedRow(self._subject.rows[place])
            rows = [bad if number == place else row for number, row in enumerate(self._subject.rows)]
            calm = Scene(self._subject, [row for row in rows if row is not bad]).drain()
            self._isolate(rows, [bad], calm)
        return "a row that cannot be read in quarantine, the others through"

    def _isolate(self, rows: Sequence[RawRecord], bad: Sequence[RawRecord], calm: Any) -> None:
        sink = MemoryQuarantine()
        scene = Scene(self._subject, rows, quarantine=sink)
        for _ in range(_TICKS_TO_QUARANTINE):
            try:
                if not scene.tick(poisoned):
                    break
            except PollerError:
                continue
        unread = [row for row in bad if isinstance(row, PoisonedRow) and not row.was_read]
        if unread:
            raise _UntestedError("the handler does not look into the rows; give poison=, rows that it cannot digest")
        if len(sink.entries()) != len(bad):
            raise _NotSurvivedError(
                f"of {len(bad)} row(s) that cannot be digested, {len(sink.entries())} came into the quarantine: "
                "the handler hides the failure, or fails for good rows too"
            )
        self._match(calm, self._subject.seen(), "a bad row was searched for and put aside")

    def _lost_leases(self) -> str:
        later = self._subject.later
        calm = self._calm_with_later() if later else self._calm
        for line in [*spread(self._lines, _MOST_FREEZES), None]:
            scene = Scene(self._subject)
            place = scene.lose_lease_at(line, later)
            what = "another instance did the work" + (" and that of later changes" if later else "")
            self._compare(scene, calm, f"the process stood still before {place}, {what}, then it went on")
        return "frozen past its lease, and going on after another instance" + (
            "" if later else " (give later= to see whether it overwrites new with old)"
        )

    def _calm_with_later(self) -> Any:
        scene = Scene(self._subject)
        scene.drain()
        scene.source.rows.extend(self._subject.later)
        return scene.drain()

    def _compare(self, scene: Scene, calm: Any, what: str) -> None:
        self._match(calm, self._redelivered(scene.drain, what), what)

    def _redelivered(self, run: Callable[[], Any], what: str) -> Any:
        try:
            return run()
        except PollerError as failure:
            cause = failure.__cause__ or failure
            raise _NotSurvivedError(f"{what}, and it failed: {type(cause).__name__}: {cause}") from failure

    def _match(self, calm: Any, actual: Any, what: str) -> None:
        if actual != calm:
            raise _NotSurvivedError(f"{what}; the effects differ from a calm day's:\n{_difference(calm, actual)}")


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the failures that are made on purpose out of the log."""
    logger = logging.getLogger("azure_functions_db")
    logger.addFilter(_never)
    try:
        yield
    finally:
        logger.removeFilter(_never)


def _never(_record: logging.LogRecord) -> bool:
    return False


class _NotSurvivedError(Exception):
    """The drill showed what happens."""


class _UntestedError(Exception):
    """The drill could not show anything."""


def _difference(expected: Any, actual: Any) -> str:
    before, after = (pprint.pformat(value, width=100, sort_dicts=False).splitlines() for value in (expected, actual))
    lines = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    if len(lines) > _MOST_LINES_SHOWN:
        lines = [*lines[:_MOST_LINES_SHOWN], "..."]
    return "\n".join(lines)


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
