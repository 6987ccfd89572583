"""Simulates a thousand partitions on two hundred workers, and draws what `docs/explanation/capacity.md` shows of it.

The host's part is modelled (a timer that fills a queue, workers that take messages from it), storage answers after a
random delay, and time is simulated; leases and checkpoints are the library's own: every `look`, `take`, `renew` and
`commit` is a call of the real state store on a shared place. One seed is one history.
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import json
import random
from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from azure_functions_db.core.errors import LeaseConflictError
from azure_functions_db.state.memory import MemoryBackend
from azure_functions_db.state.store import DocumentStateStore
from tools.plots import ASSETS, CHECKOUT, curve
from tools.site import slug

RESULTS = CHECKOUT / "benchmarks" / "capacity.json"
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FINGERPRINT = "sha256:capacity"

Process = Generator[float, None, None]
"""Something that goes on in the simulated world; it yields how long it waits."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is simulated."""

    partitions: int = 1000
    workers: int = 200
    slots: int = 5
    """How many messages a worker handles at once."""
    interval: float = 5.0
    """How often the timer hands out every partition."""
    handler: float = 2.5
    """How long the handler takes on average."""
    ttl: float = 120.0
    seconds: float = 300.0
    deaths: float = 0.0
    """The share of the workers that die at ``at``."""
    restart: bool = False
    """Whether as many new ones take their place: a deployment that kills."""
    at: float = 61.5
    slow: float = 0.0
    """How long the handler of partition 0 takes instead."""


@dataclass
class Figures:
    """What was counted."""

    requests: Counter[int] = field(default_factory=Counter)
    """Storage requests by the second."""
    handled_at: dict[int, list[float]] = field(default_factory=dict)
    """When batches of a partition were committed."""
    ticks: int = 0
    skipped: int = 0
    takes: int = 0
    lost_races: int = 0
    together: int = 0
    """How often two held a partition at once."""
    longest_queue: int = 0


class CountedBackend(MemoryBackend):
    """A place that counts its requests."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def read(self, name: Any) -> Any:
        return self._world.counted(super().read, name)

    def create(self, name: Any, content: bytes) -> Any:
        return self._world.counted(super().create, name, content)

    def replace(self, name: Any, content: bytes, version: Any) -> Any:
        return self._world.counted(super().replace, name, content, version)


class World:
    """The clock, everything that is going on, and the queue between the timer and the workers."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.random = random.Random(seed)
        self.now = 0.0
        self.figures = Figures()
        self.queue: deque[int] = deque()
        self.backend = CountedBackend(self)
        self.held: dict[int, tuple[Worker, float]] = {}
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, Process, Worker | None]] = []

    def clock(self) -> dt.datetime:
        return BEGIN + dt.timedelta(seconds=self.now)

    def counted(self, request: Any, *given: Any) -> Any:
        self.figures.requests[int(self.now)] += 1
        return request(*given)

    def latency(self) -> float:
        """How long storage takes to answer: some milliseconds, at times much longer."""
        return 0.002 + self.random.expovariate(1 / 0.008)

    def start(self, process: Process, worker: Worker | None = None, after: float = 0.0) -> None:
        heapq.heappush(self._waiting, (self.now + after, next(self._order), process, worker))

    def run(self) -> Figures:
        while self._waiting and self._waiting[0][0] <= self.scene.seconds:
            self.now, _, process, worker = heapq.heappop(self._waiting)
            if worker is not None and worker.is_dead:
                continue  # nothing of it runs any more
            wait = next(process, None)
            if wait is not None:
                self.start(process, worker, wait)
        return self.figures


class Worker:
    """An instance of the host: it takes messages from the queue as long as it has slots."""

    def __init__(self, world: World) -> None:
        self.is_dead = False
        self._world = world
        self._free = world.scene.slots
        self._store = DocumentStateStore(world.backend, app_name="shop", clock=world.clock)
        world.start(self._poll(), self, after=world.random.uniform(0, 1))

    def _poll(self) -> Process:
        """Ask the queue, less and less often while it is empty, as the host does."""
        world, pause = self._world, 0.1
        while True:
            got = [world.queue.popleft() for _ in range(min(self._free, len(world.queue)))]
            for partition in got:
                self._free -= 1
                world.start(self._call(partition), self)
            pause = 0.1 if got else min(2 * pause, 2.0)
            yield pause

    def _call(self, partition: int) -> Process:
        yield from self._tick(partition)
        self._free += 1

    def _tick(self, partition: int) -> Process:
        """Do what a tick does, request by request."""
        world, figures, store = self._world, self._world.figures, self._store
        figures.ticks += 1
        yield world.latency()
        state = store.look(f"ship-{partition + 1}", FINGERPRINT)
        if state.lease is not None:
            figures.skipped += 1
            return
        yield world.latency()  # the page
        figures.takes += 1
        try:
            lease = store.take(state, world.scene.ttl)
        except LeaseConflictError:
            figures.lost_races += 1
            return
        self._hold(partition)
        yield from self._handle(partition, lease)
        yield world.latency()
        lease.commit({"cursor": {"kind": "integer", "value": world.now}}, release=True)
        world.held.pop(partition, None)
        figures.handled_at.setdefault(partition, []).append(world.now)

    def _handle(self, partition: int, lease: Any) -> Process:
        scene = self._world.scene
        left = scene.slow if scene.slow and partition == 0 else self._world.random.uniform(0.5, 1.5) * scene.handler
        while left > scene.ttl / 3:
            yield scene.ttl / 3
            lease.renew(scene.ttl)
            self._hold(partition)
            left -= scene.ttl / 3
        yield left

    def _hold(self, partition: int) -> None:
        """Take note that the lease is held until it expires; somebody else's must not last any longer."""
        world = self._world
        holder, until = world.held.get(partition, (self, 0.0))
        world.figures.together += holder is not self and not holder.is_dead and until > world.now
        world.held[partition] = (self, world.now + world.scene.ttl)


def simulated(scene: Scene, seed: int = 1) -> Figures:
    """Return what comes of a scene."""
    world = World(scene, seed)
    workers = [Worker(world) for _ in range(scene.workers)]
    world.start(_timer(world))
    if scene.deaths:
        world.start(_end_some(world, workers), after=scene.at)
    return world.run()


def _timer(world: World) -> Process:
    while True:
        world.queue.extend(world.random.sample(range(world.scene.partitions), world.scene.partitions))
        world.figures.longest_queue = max(world.figures.longest_queue, len(world.queue))
        yield world.scene.interval


def _end_some(world: World, workers: list[Worker]) -> Process:
    dying = world.random.sample(workers, round(world.scene.deaths * len(workers)))
    for worker in dying:
        worker.is_dead = True
    if world.scene.restart:
        for _ in dying:
            Worker(world)
    yield 0.0


def waits_after(figures: Figures, moment: float) -> list[float]:
    """Return how long each partition took, from a moment, until a batch of it was committed; in order."""
    return sorted(
        min((at for at in times if at >= moment), default=1e9) - moment for times in figures.handled_at.values()
    )


SCENES = {
    "first start": Scene(seconds=120),
    "deployment that kills all workers": Scene(deaths=1.0, restart=True),
    "half of the workers die": Scene(deaths=0.5),
    "one partition takes two minutes": Scene(slow=120.0, seconds=200),
    "more work than workers": Scene(workers=100, handler=6.0, seconds=120),
}


def told(name: str, scene: Scene) -> dict[str, Any]:
    """Simulate a scene and return its figures for the page."""
    figures = simulated(scene)
    waits = waits_after(figures, scene.at if scene.deaths else 0.0)
    per_second = [figures.requests[second] for second in range(int(scene.seconds))]
    return {
        "scene": name,
        "half": round(waits[len(waits) // 2], 1),
        "most": round(waits[int(len(waits) * 0.95)], 1),
        "all": round(waits[-1], 1),
        "requests": round(sum(per_second) / len(per_second)),
        "peak": max(per_second),
        "skipped": round(figures.skipped / figures.ticks, 3),
        "lost_races": round(figures.lost_races / figures.takes, 4),
        "together": figures.together,
        "longest_queue": figures.longest_queue,
        "waits": [round(wait, 1) for wait in waits[:: max(1, len(waits) // 100)]],
        "per_second": per_second,
    }


PLOTS = (
    ("deployment that kills all workers", "handled"),
    ("half of the workers die", "handled"),
    ("half of the workers die", "requests"),
)


def draw(lines: list[dict[str, Any]]) -> None:
    """Draw the plots of the page."""
    for scene, what in PLOTS:
        line = next(line for line in lines if line["scene"] == scene)
        if what == "handled":
            waits = line["waits"]
            points = [(0.0, 0.0), *((wait, 100 * place / len(waits)) for place, wait in enumerate(waits, 1))]
            drawing = curve(scene, points, "seconds", "% of the partitions were handled")
        else:
            points = list(enumerate(map(float, line["per_second"])))
            drawing = curve(scene, points, "seconds", "storage requests a second")
        (ASSETS / f"capacity-{slug(scene)}-{what}.svg").write_text(drawing)


def main() -> None:
    lines = [told(name, scene) for name, scene in SCENES.items()]
    draw(lines)
    kept = [{name: value for name, value in line.items() if not isinstance(value, list)} for line in lines]
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in kept))
    print(RESULTS.read_text(), end="")


if __name__ == "__main__":
    main()
