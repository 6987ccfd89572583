"""One history from its seed to its verdict, and the shortest one that is still wrong in the same way."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from azure_functions_db.core import bridge
from azure_functions_db.sources.postgres import changes, log
from azure_functions_db.state import store
from azure_functions_db.trigger import lease, tick
from tests.simulation.database import Database, KeysetTable
from tests.simulation.hosts import Host, Scene
from tests.simulation.judge import Judge
from tests.simulation.outbox import OutboxTable
from tests.simulation.plan import Plan  # noqa: TC001 - a field's type
from tests.simulation.postgres import PostgresServer
from tests.simulation.storage import Service
from tests.simulation.world import Entry, FaultId, Future, Pool, Threading, World

KINDS: dict[str, type[Database]] = {"keyset": KeysetTable, "outbox": OutboxTable, "postgres": PostgresServer}

# After so many lives of a lease the storm is over; after so many, and calls of the handler, all has to have come right.
_STORM = 6
_CALM = 60
_CALLS = 150


@dataclass(frozen=True)
class History:
    """What has happened."""

    plan: Plan
    story: list[Entry]
    complaints: list[str]
    struck: dict[FaultId, str]
    errors: list[BaseException]

    @property
    def guarantees(self) -> set[str]:
        """The promises that were broken."""
        return {complaint.partition(":")[0] for complaint in self.complaints}


def played(plan: Plan) -> History:
    """Let a plan happen."""
    world = World(plan.seed, plan.rates, plan.spared, longest_freeze=plan.ttl * 2)
    with _stage(world, plan.seed):
        judge = Judge(world, plan)
        judge.database = KINDS[plan.world](world, plan)
        judge.database.judge = judge
        scene = Scene(judge, Service(world, judge))
        hosts = [Host(scene, number) for number in range(1, plan.hosts + 1)]
        try:
            _weather(scene, hosts)
            world.run(until=plan.ttl * _STORM, is_over=lambda: bool(world.complaints))
            _calm(scene, hosts)
            patience = plan.ttl * _CALM + plan.handler_seconds * plan.handler_steps * _CALLS
            world.run(until=patience, is_over=lambda: bool(world.complaints) or judge.is_satisfied())
            if not world.complaints:
                judge.conclude()
        finally:
            world.end(host.process for host in hosts if host.process is not None)
    return History(plan, world.story, world.complaints, world.struck, world.errors)


@contextmanager
def _stage(world: World, seed: int) -> Iterator[None]:
    """Put the world in place of threads, and of what else would be different each time."""
    logger = logging.getLogger("azure_functions_db")
    level, threads, pool = logger.level, Threading(world), Pool(world)
    clock = SimpleNamespace(monotonic=lambda: world.now, sleep=world.wait)
    logger.setLevel(logging.CRITICAL + 1)
    random.seed(seed)  # the pauses between retries stray by it
    try:
        with ExitStack() as stack:
            for module, name, stand_in in (
                (lease, "threading", threads),
                (store, "threading", threads),
                (bridge, "threading", threads),
                (bridge, "_threads", lambda: pool),
                (bridge, "Future", lambda: Future(world)),
                # Nobody computes for any length of time: all that passes is waited for.
                (tick, "perf_counter", lambda: world.now),
                (tick, "thread_time", lambda: 0.0),
                (changes, "time", clock),
                (log, "time", clock),
                (log, "timeline_history", lambda server, _config, _timeline: server.switches),
            ):
                stack.enter_context(mock.patch.object(module, name, stand_in))
            yield
    finally:
        logger.setLevel(level)


def _weather(scene: Scene, hosts: list[Host]) -> None:
    """Let everything begin, and say what will be out of reach for a while."""
    world, storm = scene.world, scene.plan.ttl * _STORM
    for host in hosts:
        world.later(host.chance.seconds(scene.plan.ttl / 2), host.start)
    scene.database.write_for_a_while(storm * 0.8)
    world.later(world.nature.chance.seconds(storm), scene.database.happen)
    if world.nature.chance.strikes("storage outage"):
        _spell(scene, "the storage is out of reach", lambda is_on: setattr(scene.service, "is_down", is_on))
    if world.nature.chance.strikes("handler outage"):
        _spell(scene, "nothing can be handled", lambda is_on: setattr(scene, "is_handler_out", is_on))
    if world.nature.chance.strikes("cut off"):
        host = world.nature.chance.random.choice(hosts)
        _spell(scene, f"{host.name} is cut off from the storage", lambda is_on: _cut_off(host, is_on))


def _spell(scene: Scene, what: str, turn: Callable[[bool], None]) -> None:
    world, chance = scene.world, scene.world.nature.chance
    begin, length = chance.seconds(scene.plan.ttl * _STORM), chance.seconds(scene.plan.ttl * 2)

    def pass_by() -> None:
        world.tell("world", f"{what}, for {length:.1f} s")
        turn(True)
        world.wait(length)
        turn(False)

    world.later(begin, pass_by)


def _cut_off(host: Host, is_on: bool) -> None:
    if host.client is not None:
        host.client.is_cut_off = is_on


def _calm(scene: Scene, hosts: list[Host]) -> None:
    """Let no fault strike any more, and whoever is stopped go on."""
    scene.world.tell("world", "the storm is over")
    scene.world.is_calm = True
    if scene.plan.has_poison:
        for number in range(1, 6):
            scene.world.later(number * scene.plan.ttl, scene.database.write_well)
    for host in hosts:
        if host.process is not None:
            host.process.go_on()


# A history that is wrong is made shorter.

_SIMPLER: dict[str, tuple[Any, ...]] = {
    "hosts": (1, 2),
    "ticks_at_once": (1,),
    "is_skewed": (False,),
    "max_batches": (1,),
    "commit": ("batch",),
    "retries": (1,),
    "time_budget": (None,),
    "linger": (None,),
    "has_plain_store": (False,),
    "names_rows": (False,),
    "has_quarantine": (False,),
    "has_poison": (False,),
    "transactions": (1, 2, 3, 5),
    "writes_at_once": (1, 2),
    "batch_size": (1, 2),
    "handler_seconds": (0.1, 1.0),
    "handler_steps": (1, 3),
    "is_polite": (True,),
    "reads_ahead": (False,),
    "is_async": (False,),
    "is_transactional": (False,),
    "on_position_lost": ("stop",),
}


def shrunk(history: History, most: int = 400) -> History:
    """Return the shortest history found that breaks one of the same promises."""
    tries = iter(range(most))
    while True:
        shorter = next((found for found in map(_wrong_as(history), _shorter(history)) if found), None)
        if shorter is None or next(tries, None) is None:
            return history
        history = shorter


def _wrong_as(history: History) -> Callable[[Plan], History | None]:
    def replayed(plan: Plan) -> History | None:
        found = played(plan)
        return found if found.guarantees & history.guarantees else None

    return replayed


def _shorter(history: History) -> Iterator[Plan]:
    """Give plans in which less happens: simpler settings first, then fewer faults, many of them at once."""
    plan = history.plan
    for name, values in _SIMPLER.items():
        for value in values:
            if getattr(plan, name) == value:
                break
            yield replace(plan, **{name: value})
    struck = sorted(history.struck)
    size = len(struck)
    while size:
        for first in range(0, len(struck), size):
            yield replace(plan, spared=plan.spared | frozenset(struck[first : first + size]))
        size //= 2


def told(history: History) -> Iterator[str]:
    """Give the lines of a story: what kind of world it is, then one numbered line for each thing that happened."""
    plan = history.plan
    settings = {name: getattr(plan, name) for name in (*_SIMPLER, "ttl", "snapshot")}
    yield f"seed {plan.seed}, {plan.world}: " + ", ".join(f"{name}={value}" for name, value in settings.items())
    struck = ", ".join(sorted(set(history.struck.values()))) or "none"
    yield f"faults that struck: {struck}; {len(plan.spared)} were left out"
    for number, entry in enumerate(history.story, 1):
        yield f"{number:4} {entry.at:9.2f} s  {entry.who:10} {entry.what}"
