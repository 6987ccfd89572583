"""What kind of world a seed stands for: how many processes, with which settings, in which weather."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

FAULTS = {
    "crash": 0.015,
    "freeze": 0.02,
    "cancel": 0.03,
    "clock step": 0.1,
    "misdeployed": 0.3,
    "throttled": 0.1,
    "lost request": 0.1,
    "lost reply": 0.1,
    "late write": 0.1,
    "refused retry": 0.1,
    "duplicated": 0.1,
    "storage outage": 0.9,
    "cut off": 0.9,
    "handler outage": 0.9,
    "handler failure": 0.15,
    "handled partly": 0.2,
    "connection lost": 0.08,
    "late commit": 0.3,
    "savepoint": 0.2,
    "rollback": 0.2,
    "migration": 0.9,
    "failover": 0.7,
    "retention": 0.3,
}
"""Each kind of fault, and how often it strikes where it may: at each draw, or once in a storm."""

WORLDS = ("keyset", "outbox", "postgres")


@dataclass(frozen=True)
class Plan:
    """One history before it happens."""

    seed: int
    world: str = "keyset"
    hosts: int = 1
    ticks_at_once: int = 1
    is_skewed: bool = False
    ttl: float = 12.0
    batch_size: int = 3
    max_batches: int = 2
    commit: str = "batch"
    retries: int = 1
    time_budget: float | None = None
    handler_seconds: float = 1.0
    """The longest step of a handler."""
    handler_steps: int = 3
    is_polite: bool = True
    """Whether the handler stops when it is told that its lease is lost."""
    has_quarantine: bool = False
    has_poison: bool = False
    names_rows: bool = False
    """Whether the handler says which rows it failed on."""
    has_plain_store: bool = False
    """Whether the store has just the five methods of the port."""
    snapshot: str = "never"
    """Whether the rows of a log's table are read before its stream: "initial" or "never"."""
    transactions: int = 8
    writes_at_once: int = 3
    linger: float | None = None
    """For how many seconds a tick stays and looks again; None where it ends with its backlog."""
    reads_ahead: bool = False
    """Whether a table may be asked for its next page while the handler has one."""
    read_seconds: float = 0.05
    """How long that may take."""
    tells_cuts: bool = True
    """Whether its pages tell the position behind each of their rows."""
    is_async: bool = False
    """Whether ticks and handler are awaited on an event loop."""
    is_transactional: bool = False
    """Whether the handler writes in one transaction with the checkpoint."""
    on_position_lost: str = "stop"
    """What happens when a log no longer has what follows the checkpoint: "stop", or "snapshot"."""
    faults: frozenset[str] = frozenset()
    options: tuple[tuple[str, Any], ...] = ()
    """Further settings of the poller, and of its source."""
    spared: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """The faults that do not strike in this replay."""

    @classmethod
    def of(cls, seed: int, world: str | None = None) -> Plan:
        """Return the plan of a seed. Each has a few kinds of faults only, so that these get room to work."""
        random = Random(seed)
        ttl = random.choice((6.0, 12.0, 40.0))
        some = random.sample(sorted(FAULTS), random.randint(0, 13))
        plan = cls(
            seed=seed,
            world=world or random.choice(WORLDS),
            hosts=random.choice((1, 2, 2, 2, 3)),
            ticks_at_once=random.choice((1, 1, 1, 2)),
            is_skewed=random.random() < 0.5,
            ttl=ttl,
            batch_size=random.choice((1, 2, 3, 10)),
            max_batches=random.choice((1, 2, 5)),
            commit=random.choice(("batch", "batch", "batch", "row")),
            retries=random.choice((1, 1, 2)),
            time_budget=random.choice((None, None, ttl)),
            handler_seconds=random.choice((0.1, 1.0, ttl / 4, ttl)),
            handler_steps=random.choice((1, 3, 10)),
            is_polite=random.random() < 0.7,
            has_quarantine=random.random() < 0.4,
            has_poison=random.random() < 0.3,
            names_rows=random.random() < 0.3,
            has_plain_store=random.random() < 0.1,
            snapshot=random.choice(("initial", "never")),
            transactions=random.randint(2, 12),
            writes_at_once=random.randint(1, 4),
            faults=frozenset(some),
            # Drawn last, so that whoever does without lives through the same history as ever.
            linger=random.choice((None, None, None, ttl / 2, ttl * 3)),
            reads_ahead=random.random() < 0.5,
            read_seconds=random.choice((0.05, 1.0, ttl / 2)),
            tells_cuts=random.random() < 0.5,
            is_async=random.random() < 0.25,
            is_transactional=random.random() >= 0.85,
            on_position_lost=random.choice(("stop", "snapshot")),
        )
        if plan.world == "keyset" and plan.reads_ahead:  # with something to read ahead, out of a handful of rows
            plan = replace(plan, commit="batch", batch_size=min(plan.batch_size, 2), max_batches=5)
        return plan

    @property
    def rates(self) -> dict[str, float]:
        """How often each kind of fault strikes."""
        return {kind: FAULTS[kind] for kind in self.faults}
