"""Failure drills: what a handler does when its batch comes twice, when it dies half-way, when a row is
bad, and when another instance has taken over.

Each drill makes the world anew, runs the handler through a real tick with one kind of failure, lets
delivery go on as it would, and compares the effects with those of a calm day.
"""

from __future__ import annotations

import difflib
import logging
import pprint
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, PollerError
from azure_functions_db.testing.drill_scene import PoisonedRow, Scene, Subject, poisoned, spread, subject_of
from azure_functions_db.testing.memory import MemoryQuarantine

if TYPE_CHECKING:
    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.testing.drill_scene import NewStore
    from azure_functions_db.trigger.handler import Model
    from azure_functions_db.trigger.normalizers import Normalizer

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
