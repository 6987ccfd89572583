"""All that can go wrong, in an order that only the seed knows."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.record import entries
from tests.chaos.sky import Sky

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.fleet import Fleet
    from tests.chaos.servers import Servers


class Weather:
    """Deals every kind of trouble once, then again in another order, until the time is up."""

    def __init__(self, seed: int, ttl: float, fleet: Fleet, servers: Servers, folder: Path) -> None:
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._ttl = ttl
        self._fleet = fleet
        self._servers = servers
        self._folder = folder
        self._sky = Sky(folder)
        self._aside = ThreadPoolExecutor()
        self._restarts: dict[str, Future[None]] = {}

    def rage(self, seconds: float) -> None:
        began, deck = time.monotonic(), self._deck()
        while time.monotonic() < began + seconds:
            self._random.shuffle(deck)
            for trouble in deck:
                if time.monotonic() < began + seconds:
                    self._strike(trouble, began)

    def missing(self) -> set[str]:
        """The kinds of trouble that there was no time for."""
        return {trouble.__name__ for trouble in self._deck()} - self.seen.keys()

    def clear_up(self) -> None:
        """Let the sky be blue again; clocks stay as they are, they are all within the margin."""
        self._sky.turn(**{"storage faults": 0.0})
        for restart in self._restarts.values():
            restart.result()
        self._fleet.revive()

    def close(self) -> None:
        """Wait for servers that are on their way back: only then can they be stopped for good."""
        self._aside.shutdown()

    def kill(self) -> str:
        who = self._somebody_at_work()
        self._fleet.kill(who)
        return who

    def freeze(self) -> str:
        """Stop a process for longer than its lease lives, then let it go on as if nothing had happened."""
        who = self._somebody_at_work()
        self._fleet.freeze(who)
        time.sleep(self._ttl * self._random.uniform(1.5, 2))
        self._fleet.thaw(who)
        return who

    def clock_jump(self) -> str:
        """Put a process's clock off, back and forth, but no two further apart than their margins allow.

        Further off, a taker would steal a lease that is alive by the holder's clock: a commit is still
        fenced, but two handlers could be at work.
        """
        who, margin = self._random.choice(self._fleet.names), self._ttl / 4
        self._sky.turn(**{f"clock of {who}": self._random.uniform(-0.8, 0.8) * margin})
        return who

    def storage_faults(self) -> str:
        self._sky.turn(**{"storage faults": 0.5})
        time.sleep(self._random.uniform(1, 3))
        self._sky.turn(**{"storage faults": 0.0})
        return ""

    def cut_off(self) -> str:
        """Keep one process from the storage for longer than its lease lives, and its rival not.

        Only PostgreSQL's poller keeps its state there.
        """
        who = self._at_work_for("postgres")
        self._sky.turn(**{"cut off": who})
        time.sleep(self._ttl * self._random.uniform(1.5, 2))
        self._sky.turn(**{"cut off": None})
        return who

    def postgres_restart(self) -> str:
        return self._restart("postgres", crash=self._random.random() < 0.5)

    def mariadb_restart(self) -> str:
        return self._restart("mariadb", crash=self._random.random() < 0.5)

    def azurite_restart(self) -> str:
        return self._restart("azurite", crash=False)

    def _restart(self, name: str, *, crash: bool) -> str:
        """Take a server down; other troubles do not wait until it is back."""
        if name in self._restarts:
            self._restarts[name].result()
        self._restarts[name] = self._aside.submit(self._servers.restart, name, crash=crash)
        return "by a crash" if crash else ""

    def _deck(self) -> list[Callable[[], str]]:
        restarts = [self.postgres_restart, self.mariadb_restart, self.azurite_restart]
        faults = [self.storage_faults, self.cut_off, self.clock_jump]
        return [self.kill, self.kill, self.freeze, self.freeze, *faults, *restarts]

    def _strike(self, trouble: Callable[[], str], began: float) -> None:
        details = trouble()
        self.seen[trouble.__name__] += 1
        print(f"{time.monotonic() - began:6.1f} s  {trouble.__name__} {details}", flush=True)  # noqa: T201 - its report
        self._fleet.revive()
        time.sleep(self._random.uniform(0.1, 0.5))

    def _somebody_at_work(self) -> str:
        return self._at_work_for(self._random.choice(self._fleet.names).rpartition("-")[0])

    def _at_work_for(self, poller: str) -> str:
        """Wait a moment for one of a poller's processes to begin with a batch."""
        before = len(self._begun(poller))
        deadline = time.monotonic() + self._ttl
        while len(begun := self._begun(poller)) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        return begun[-1] if begun else f"{poller}-1"

    def _begun(self, poller: str) -> list[str]:
        return [entry["who"] for entry in entries(self._folder, poller, "begin")]
