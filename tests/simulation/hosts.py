"""The processes that poll: each ticks by its timer, is stopped, dies and comes back as another one."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from azure_functions_db.core.clocks import lease_margin
from azure_functions_db.core.errors import RowsFailed
from azure_functions_db.core.types import HandledFirst
from azure_functions_db.sql.transactions import ambient_connection
from azure_functions_db.state.store import DocumentStateStore
from azure_functions_db.trigger.handler import Handler
from azure_functions_db.trigger.lease import TickCancelled
from azure_functions_db.trigger.pace import Pace
from azure_functions_db.trigger.poll import PollRunner, settings_of
from azure_functions_db.trigger.retry import RetryPolicy
from tests.simulation.judge import expiry_of, is_lost
from tests.simulation.loop import Loop
from tests.simulation.sql import SqlEngine, SqlServer, sql_store
from tests.simulation.storage import Client, SimulatedBackend, SimulatedSink
from tests.simulation.world import Chance, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import PollContext
    from azure_functions_db.trigger.poll import PollSettings
    from tests.simulation.judge import Call, Judge, Row
    from tests.simulation.storage import Service

POLLER = "orders"
FINGERPRINT = "sha256:orders"


class Scene:
    """What all hosts of one history share."""

    def __init__(self, judge: Judge, service: Service) -> None:
        self.judge = judge
        self.service = service
        self.world = judge.world
        self.plan = judge.plan
        self.database = judge.database
        self.sql = SqlServer(judge.world, judge)
        self.is_handler_out = False
        self._ids = itertools.count(1)

    def new_id(self) -> str:
        return f"{next(self._ids):032x}"


class Host:
    """A machine on which one process after the other runs the poller."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.scene = scene
        self.name = "ABCDEFGH"[number - 1]
        self.chance = Chance(scene.world, number)
        self.process: Process | None = None
        self.client: Client | None = None
        self._lives = itertools.count(1)

    def start(self) -> None:
        """Begin another life."""
        scene, plan = self.scene, self.scene.plan
        process = Process(scene.world, f"{self.name}{next(self._lives)}", self.chance, self._skew())
        process.on_death = self._come_back
        self.process, self.client = process, Client(scene.service, process, plan.ttl / 2)
        # Whoever comes first is right: the definition is held against what is stored.
        is_misdeployed = self.chance.strikes("misdeployed") is not None and scene.judge.token > 0
        scene.world.tell(process.name, "starts with another definition" if is_misdeployed else "starts")
        poller = Poller(scene, process, self.client, is_misdeployed=is_misdeployed)
        for live in (poller.run_loop,) if plan.is_async else (poller.live,) * plan.ticks_at_once:
            process.spawn(live)

    def _skew(self) -> float:
        """Return how far the clock is off: two clocks differ by no more than both margins together allow."""
        margin = lease_margin(self.scene.plan.ttl) * 0.99
        if not self.scene.plan.is_skewed:
            return 0.0
        return self.chance.random.choice((-margin, margin, self.chance.random.uniform(-margin, margin)))

    def _come_back(self) -> None:
        self.scene.world.later(self.chance.seconds(self.scene.plan.ttl), self.start)


class Poller:
    """The library in one process: the real tick, lease and store over the simulated service."""

    def __init__(self, scene: Scene, process: Process, client: Client, *, is_misdeployed: bool) -> None:
        self._scene = scene
        self._process = process
        self._is_misdeployed = is_misdeployed
        self._engine: Any = SqlEngine(scene.sql, client) if scene.plan.is_transactional else None
        self._settings = self._settings_over(client)
        self._runner = PollRunner(self._settings)
        # It has been at work for a while, and knows that its reads take time.
        self._runner._pace = Pace(fetch_waits=deque([0.05] * 3, maxlen=3))

    def live(self) -> None:
        """Tick by a timer that is never quite on time."""
        for seconds in self._timer():
            self._process.world.wait(seconds)
            self._tick()
        self._process.die()  # whoever deployed it has seen it fail

    def run_loop(self) -> None:
        """Live on an event loop, as hosts with async functions do."""
        Loop(self._process).run(self._live_async())

    async def _live_async(self) -> None:
        await asyncio.gather(*(self._live_one_async() for _ in range(self._scene.plan.ticks_at_once)))
        self._process.die()

    async def _live_one_async(self) -> None:
        for seconds in self._timer():
            await asyncio.sleep(seconds)
            await self._tick_async()

    def _timer(self) -> Iterator[float]:
        process, plan = self._process, self._scene.plan
        while not (self._is_misdeployed and self._scene.world.is_calm):
            seconds = plan.ttl * (0.1 + process.chance.seconds(0.6))
            process.falter()
            yield seconds

    def _tick(self) -> None:
        self._set_clock()
        tick = self._runner._kind(
            self._settings,
            Handler(lambda events, context: self._handle(events, context, tick.lease.cancel)),
            None,
            self._runner._pace,
        )
        with self._judged():
            tick.run()

    async def _tick_async(self) -> None:
        self._set_clock()
        calls: list[Call] = []

        async def handler(events: list[RowChange], context: PollContext) -> HandledFirst | None:
            calls.append(self._begun(events, context))
            return await self._handle_async(calls[-1], events, context, tick.cancel)

        tick = asyncio.ensure_future(self._runner.tick_async(handler))
        with self._judged():
            await tick
        self._scene.judge.left(self._process, calls)

    def _set_clock(self) -> None:
        process = self._process
        if process.chance.strikes("clock step") and self._scene.plan.is_skewed:
            process.skew *= process.chance.random.uniform(-1, 1)

    @contextmanager
    def _judged(self) -> Iterator[None]:
        scene, process, began_calm = self._scene, self._process, self._scene.world.is_calm
        try:
            yield
        except (TickCancelled, asyncio.CancelledError):
            scene.world.tell(process.name, "ends its tick as the host wants")
        except Exception as error:  # noqa: BLE001 - the judge knows which may come
            scene.judge.failed(process, error, is_misdeployed=self._is_misdeployed, is_undisturbed=began_calm)

    def _settings_over(self, client: Client) -> PollSettings:
        scene, process, plan = self._scene, self._process, self._scene.plan
        fingerprint = FINGERPRINT + "-changed" * self._is_misdeployed
        options: dict[str, Any] = {
            "batch_size": plan.batch_size,
            "max_batches_per_tick": plan.max_batches,
            "lease_ttl_seconds": plan.ttl,
            "time_budget_seconds": plan.time_budget,
            "retry_policy": RetryPolicy(max_attempts=plan.retries, jitter=0.0),
            "linger_seconds": plan.linger,
            "commit": plan.commit,
            "transactional": plan.is_transactional,
            "quarantine": SimulatedSink(client) if plan.has_quarantine else None,
            "max_attempts": 2,
            "now": process.wall,
            "monotonic": process.monotonic,
            "new_id": scene.new_id,
            **dict(plan.options),
        }
        source = scene.database.source(process, fingerprint)
        return settings_of(POLLER, source, self._store_over(client, fingerprint), options)

    def _store_over(self, client: Client, fingerprint: str) -> Any:
        options: dict[str, Any] = {"app_name": "shop", "clock": self._process.wall}
        is_plain = self._scene.plan.has_plain_store and self._engine is None
        if self._engine is not None:
            store: DocumentStateStore = sql_store(self._engine, **options)
        else:
            # A trigger tells its source's to stores that take it.
            own = fingerprint if is_plain else None
            store = DocumentStateStore(SimulatedBackend(client), source_fingerprint=own, **options)
        store._owner_id = f"host/{self._process.name}"
        return PlainStore(store) if is_plain else store

    # The handler.

    def _handle(
        self, events: list[RowChange], context: PollContext, cancel: Callable[[], object]
    ) -> HandledFirst | None:
        call, lease = self._begun(events, context), context.lease_lost
        try:
            for seconds in self._steps(call, cancel, lease.is_set, asks=self._scene.plan.is_polite):
                self._process.world.wait(seconds)
            return self._outcome(call, events)
        finally:
            call.is_over = True

    async def _handle_async(
        self, call: Call, events: list[RowChange], context: PollContext, cancel: Callable[[], object]
    ) -> HandledFirst | None:
        """Work without ever asking for the lease: whoever has lost it is cancelled, and may not heed that."""
        scene, is_polite, lease = self._scene, self._scene.plan.is_polite, context.lease_lost
        is_cancelled, lost_at = False, list[float]()
        lease.on_loss(lambda: lost_at.append(scene.world.now))  # type: ignore[attr-defined]
        try:
            for seconds in self._steps(call, cancel, lambda: is_lost(lease), asks=False):
                try:
                    await asyncio.sleep(seconds)
                except asyncio.CancelledError:
                    scene.world.tell(self._process.name, "the handler is cancelled" + ", and goes on" * (not is_polite))
                    is_cancelled = True
                    if is_polite:
                        raise
                if is_lost(lease) and not is_cancelled:
                    scene.judge.uncancelled(self._process, *(lost_at or [expiry_of(lease)]))
            if is_polite and is_lost(lease):
                self._stop()
            return self._outcome(call, events)
        finally:
            call.is_over = True

    def _begun(self, events: list[RowChange], context: PollContext) -> Call:
        judge = self._scene.judge
        if self._is_misdeployed:
            judge.complain("fingerprint", f"{self._process.name} handles {len(events)} event(s)")
        return judge.begun(self._process, events, context)

    def _steps(
        self, call: Call, cancel: Callable[[], object], is_lost: Callable[[], bool], *, asks: bool
    ) -> Iterator[float]:
        """Return how long each step takes; after it the host may end the tick, and who asks learns of a lost lease."""
        process, plan = self._process, self._scene.plan
        for _ in range(process.chance.random.randint(0, plan.handler_steps)):
            seconds = process.chance.seconds(plan.handler_seconds)
            process.falter()
            yield seconds
            if process.chance.strikes("cancel"):
                self._scene.world.tell(process.name, "is told by the host to end")
                cancel()
            if not is_lost():
                self._scene.judge.alive(call)
            elif asks:
                self._stop()

    def _stop(self) -> NoReturn:
        self._scene.world.tell(self._process.name, "is told that its lease is lost, and stops")
        raise RuntimeError("the lease is lost")

    def _outcome(self, call: Call, events: list[RowChange]) -> HandledFirst | None:
        self._fail_on(call, events)
        count = len(call.rows)
        if count > 1 and self._process.chance.strikes("handled partly") and not call.is_trial:
            count -= 1
        self._digest(call, call.rows[:count])
        return None if count == len(call.rows) else HandledFirst(count)

    def _digest(self, call: Call, rows: list[Row]) -> None:
        """Get through rows, in the transaction that is open where the checkpoint is to be part of it."""
        judge, engine = self._scene.judge, self._engine
        transaction: Any = ambient_connection(engine)
        if engine is None:
            judge.digested(call, rows)
        elif transaction is None:
            judge.complain("once", f"{self._process.name} is called outside of a transaction")
        else:
            transaction.write(lambda: judge.took_effect(call, rows))

    def _fail_on(self, call: Call, events: list[RowChange]) -> None:
        scene, rows = self._scene, call.rows
        is_healed = scene.world.is_calm and not scene.plan.has_quarantine
        poison = [place for place, row in enumerate(rows) if scene.judge.is_poison(row) and not is_healed]
        if scene.is_handler_out or (not scene.plan.has_quarantine and self._process.chance.strikes("handler failure")):
            scene.world.tell(self._process.name, "the handler fails on anything")
            raise RuntimeError("the target is out of reach")
        if not poison:
            return
        scene.world.tell(self._process.name, "the handler fails on poison")
        if scene.plan.names_rows:
            self._digest(call, [row for place, row in enumerate(rows) if place not in poison])
            raise RowsFailed({events[place].event_id: "poison" for place in poison})
        raise ValueError("poison")


class PlainStore:
    """A user's own store: just the five methods."""

    def __init__(self, store: DocumentStateStore) -> None:
        self.acquire_lease = store.acquire_lease
        self.renew_lease = store.renew_lease
        self.release_lease = store.release_lease
        self.load_checkpoint = store.load_checkpoint
        self.commit_checkpoint = store.commit_checkpoint
