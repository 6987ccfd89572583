"""A world in one thread: a clock that jumps from event to event, tasks that take turns, and faults drawn from a seed.

Whoever calls into the world (a request, a statement, a wait, a step of a handler) gives up its turn there, and only
there. What happens next follows from the seed alone, so that the same seed tells the same story.
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from concurrent import futures
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # it ships no types

_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
# A history that goes on for longer has got stuck in a loop.
_MOST_STEPS = 60_000

FaultId = tuple[int, int]
"""Whose fault it is, and the number of the draw by which it struck."""


class Crash(BaseException):
    """The process is gone: nothing of it reaches the world any more, whatever it still tries."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the story."""

    at: float
    who: str
    what: str


class Chance:
    """The luck of one party: how long things take, and which faults strike it.

    Each question about faults is one draw with a number, so that a single fault can be left out of a replay.
    """

    def __init__(self, world: World, number: int) -> None:
        self.random = Random(world.seed * 1000 + number)
        self._world = world
        self._number = number
        self._strokes = Random(world.seed * 1000 + 500 + number)
        self._draws = itertools.count()

    def strikes(self, *kinds: str) -> str | None:
        """Return the fault of these kinds that strikes now; most often none."""
        world = self._world
        if world.is_calm:
            return None
        place, draw = self._strokes.random(), next(self._draws)
        for kind in kinds:
            place -= world.rates.get(kind, 0.0)
            if place < 0:
                return kind if world.strikes((self._number, draw), kind) else None
        return None

    def seconds(self, most: float) -> float:
        """Return how long something takes."""
        return most * self.random.random()


class Task(greenlet):  # type: ignore[misc]  # see the import
    """Something that runs on its own: a tick, a heartbeat, a transaction."""

    def __init__(self, world: World, process: Process, work: Callable[[], object]) -> None:
        super().__init__(self._run_to_end, parent=world.hub)
        self.process = process
        self.turn = 0
        """Counts its waits: a wake-up for an earlier one is stale."""
        self._world = world
        self._work = work

    def _run_to_end(self) -> None:
        try:
            if not self.process.is_dead:
                self._work()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever escapes is what the judge wants to know
            self._world.complain(f"{self.process.name}: {type(error).__name__} escaped: {error}", error)


class Process:
    """One life of a process: its clocks, whether it is stopped or dead, and what runs in it."""

    def __init__(self, world: World, name: str, chance: Chance, skew: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.chance = chance
        self.skew = skew
        self.is_dead = False
        self.frozen_until = 0.0
        self.stopped: list[tuple[Task, int]] = []
        """The tasks that would have had their turn while it was stopped, each with the wait that was over."""
        self.tasks: list[Task] = []
        self.on_death: Callable[[], None] | None = None

    def wall(self) -> dt.datetime:
        """Return the time of day as this process takes it to be."""
        return _EPOCH + dt.timedelta(seconds=self.world.now + self.skew)

    def monotonic(self) -> float:
        """Return the clock that leases are held against; it goes on while the process is stopped."""
        return self.world.now

    def spawn(self, work: Callable[[], object]) -> None:
        """Let something run beside what already does."""
        if self.is_dead:
            raise Crash
        task = Task(self.world, self, work)
        self.tasks.append(task)
        self.world.wake(task)

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass at a place where the process may be stopped for a while, or for good."""
        self.falter()
        self.world.wait(seconds)

    def falter(self) -> None:
        """Be stopped for a while, or die, where that strikes now."""
        match self.chance.strikes("crash", "freeze"):
            case "crash":
                self.world.tell(self.name, "crashes")
                self.die()
                raise Crash
            case "freeze":
                length = self.world.longest_freeze * self.chance.random.random()
                self.world.tell(self.name, f"is stopped for {length:.1f} s")
                self.frozen_until = self.world.now + length

    def go_on(self) -> None:
        """Be stopped no longer."""
        self.frozen_until = min(self.frozen_until, self.world.now)
        for task, turn in self.stopped:
            if task.turn == turn:
                self.world.wake(task)

    def die(self) -> None:
        """End all that runs in it; none of it may touch the world again."""
        if self.is_dead:
            return
        self.is_dead = True
        for task in self.tasks:
            self.world.wake(task)
        if self.on_death is not None:
            self.on_death()


@dataclass
class World:
    """All that exists in one history."""

    seed: int
    rates: dict[str, float] = field(default_factory=dict)
    spared: frozenset[FaultId] = frozenset()
    longest_freeze: float = 30.0
    now: float = 0.0
    steps: int = 0
    is_calm: bool = False
    story: list[Entry] = field(default_factory=list)
    struck: dict[FaultId, str] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hub = getcurrent()
        self.nature = Process(self, "world", Chance(self, 0))
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, Task, int]] = []

    # Telling.

    def tell(self, who: str, what: str) -> None:
        """Add a line to the story."""
        self.story.append(Entry(self.now, who, what))

    def complain(self, what: str, error: BaseException | None = None) -> None:
        """Note a broken promise."""
        self.tell("judge", f"COMPLAINS: {what}")
        self.complaints.append(what)
        if error is not None:
            self.errors.append(error)

    def strikes(self, fault: FaultId, kind: str) -> bool:
        """Let a fault strike, unless this replay spares it."""
        if fault in self.spared:
            return False
        self.struck[fault] = kind
        return True

    # Turns.

    @property
    def current(self) -> Task:
        """The task whose turn it is."""
        task = getcurrent()
        if not isinstance(task, Task):
            raise RuntimeError("nobody's turn: only tasks may wait")  # noqa: TRY004 - not an argument
        return task

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """Let something happen after a while."""

        def wait_and_work() -> None:
            self.wait(seconds)
            work()

        self.nature.spawn(wait_and_work)

    def wait(self, seconds: float | None) -> None:
        """Give up the turn for so long; without a time, until somebody wakes the task."""
        task = self.current
        if task.process.is_dead:
            raise Crash
        task.turn += 1
        if seconds is not None:
            self.wake(task, seconds)
        self.hub.switch()
        if task.process.is_dead:
            raise Crash

    def wake(self, task: Task, seconds: float = 0.0) -> None:
        """Give a task its turn after so long, unless something else wakes it before."""
        # However short a time is, it passes: who waits for the rest of one would else wait for ever.
        at = max(self.now + seconds, math.nextafter(self.now, math.inf)) if seconds else self.now
        heapq.heappush(self._agenda, (at, next(self._numbers), task, task.turn))

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Give turns in the order of time until a moment has come, or something is over."""
        while self._agenda and self._agenda[0][0] <= until and not is_over():
            at, _, task, turn = heapq.heappop(self._agenda)
            if task.dead or turn != task.turn:
                continue
            self.now = max(self.now, at)
            if task.process.frozen_until > self.now and not task.process.is_dead:
                task.process.stopped.append((task, turn))
                self.wake(task, task.process.frozen_until - self.now)
                continue
            self.steps += 1
            if self.steps > _MOST_STEPS:
                self.complain("the history does not come to an end")
                return
            task.switch()
        self.now = max(self.now, min(until, self.now))

    def end(self, processes: Iterable[Process]) -> None:
        """End everything that still runs."""
        for process in (*processes, self.nature):
            process.on_death = None
            process.die()
        self.run(until=float("inf"))


class Threading:
    """Stands in for the module ``threading``: threads are tasks of the process that starts them."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Event(self) -> Event:  # noqa: N802 - the module's own names
        return Event(self._world)

    def Lock(self) -> Lock:  # noqa: N802
        return Lock(self._world)

    def Thread(  # noqa: N802
        self, *, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", daemon: bool = False
    ) -> Thread:
        return Thread(self._world, lambda: target(*args))


class Thread:
    """A thread of the process whose turn it is."""

    def __init__(self, world: World, work: Callable[[], object]) -> None:
        self._process = world.current.process
        self._work = work

    def start(self) -> None:
        self._process.spawn(self._work)


class Event:
    """An event whose waiters wait in simulated time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiters: list[tuple[Task, int]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for task, turn in waiters:
            if task.turn == turn:
                self._world.wake(task)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            task = self._world.current
            self._waiters.append((task, task.turn + 1))
            self._world.wait(timeout)
        return self._is_set


class Condition(Event):
    """What those wait for who want the outcome of a `Future`; nobody is interrupted between two waits."""

    notify_all = Event.set

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the turn is given up in waits only."""


class Future(futures.Future[Any]):
    """An outcome that is waited for in simulated time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._condition: Any = Condition(world)


class Pool:
    """Stands in for an executor: each piece of work is a task of the process that hands it in."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, work: Callable[..., object], *args: object) -> Future:
        outcome = Future(self._world)

        def run() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                result = work(*args)
            except Crash:
                raise
            except BaseException as error:  # noqa: BLE001 - whoever waits for it is to see it
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self._world.current.process.spawn(run)
        return outcome


class Lock:
    """A lock whose waiters are let in in their order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False
        self._waiters: list[tuple[Task, int]] = []

    def __enter__(self) -> Self:
        while self._is_held:
            task = self._world.current
            self._waiters.append((task, task.turn + 1))
            self._world.wait(None)
        self._is_held = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        for task, turn in self._waiters[:1]:
            if task.turn == turn:
                self._world.wake(task)
        del self._waiters[:1]
