"""All that can go wrong, in an order that only the seed knows."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.chaos.servers import CRASH, GENTLY

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet
    from tests.chaos.servers import Servers
    from tests.chaos.sky import Sky


class Weather:
    """Deals every kind of trouble once, then again in another order, until the time is up."""

    def __init__(self, seed: int, ttl: float, fleet: Fleet, servers: Servers, sky: Sky) -> None:
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._ttl = ttl
        self._fleet = fleet
        self._servers = servers
        self._sky = sky

    def rage(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        deck = [
            self.kill,
            self.freeze,
            self.clock_jump,
            self.storage_faults,
            self.kill,
            self.postgres_restart,
            self.mariadb_restart,
            self.azurite_restart,
        ]
        while time.monotonic() < deadline:
            self._random.shuffle(deck)
            for trouble in deck:
                if time.monotonic() < deadline:
                    trouble()
                    self.seen[trouble.__name__] += 1
                    self._fleet.revive()
                    time.sleep(self._random.uniform(0.1, 0.5))

    def clear_up(self) -> None:
        """Let the sky be blue again; clocks stay as they are, they are all within the margin."""
        self._sky.turn(**{"storage faults": 0.0})
        self._fleet.revive()

    def kill(self) -> None:
        self._fleet.kill(self._anybody())

    def freeze(self) -> None:
        """Stop a process for longer than its lease lives, then let it go on as if nothing had happened."""
        who = self._anybody()
        self._fleet.freeze(who)
        time.sleep(self._ttl * self._random.uniform(1.5, 2))
        self._fleet.thaw(who)

    def clock_jump(self) -> None:
        """Put a process's clock off, back and forth, but no two further apart than their margins allow.

        Further off, a taker would steal a lease that is alive by the holder's clock: a commit is still
        fenced, but two handlers could be at work.
        """
        margin = self._ttl / 4
        self._sky.turn(**{f"clock of {self._anybody()}": self._random.uniform(-0.8, 0.8) * margin})

    def storage_faults(self) -> None:
        self._sky.turn(**{"storage faults": 0.5})
        time.sleep(self._random.uniform(1, 3))
        self._sky.turn(**{"storage faults": 0.0})

    def postgres_restart(self) -> None:
        self._servers.restart("postgres", self._random.choice([CRASH, GENTLY]))

    def mariadb_restart(self) -> None:
        self._servers.restart("mariadb", self._random.choice([CRASH, GENTLY]))

    def azurite_restart(self) -> None:
        self._servers.restart("azurite", GENTLY)

    def _anybody(self) -> str:
        return self._random.choice(self._fleet.names)
