"""Drains a table by ticks of 1,000 rows a batch and prints the seconds per batch.

Speaks only names that this library and the released package share, so both run the same script:
``_poll_worker.py URL BATCHES ROUNDS``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from azure_functions_db import PollTrigger, SqlAlchemySource


class InMemory:
    """The five methods of a state store, so that no storage is part of the measurement."""

    def __init__(self) -> None:
        self.checkpoint: dict[str, Any] = {}

    def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:  # noqa: ARG002
        return "bench:1"

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: float) -> None: ...

    def release_lease(self, poller_name: str, lease_id: str) -> None: ...

    def load_checkpoint(self, poller_name: str) -> dict[str, Any]:  # noqa: ARG002
        return self.checkpoint

    def commit_checkpoint(self, poller_name: str, checkpoint: dict[str, Any], lease_id: str) -> None:  # noqa: ARG002
        self.checkpoint = checkpoint


def read_everything(events: list[Any]) -> None:
    """The handler: look at every attribute of every event."""
    for event in events:
        event.event_id
        event.op
        event.source
        event.cursor
        event.pk
        event.before
        event.after
        event.metadata


class Drain:
    """A poller as a worker process keeps it: made once, ticking again and again."""

    def __init__(self, url: str, batches: int) -> None:
        source = SqlAlchemySource(url=url, table="bench_rows", cursor_column="updated_at", pk_columns=["id"])
        self.store = InMemory()
        self.batches = batches
        self.trigger = PollTrigger(
            name="bench", source=source, checkpoint_store=self.store, batch_size=1000, max_batches_per_tick=batches
        )

    def tick(self, checkpoint: dict[str, Any] | None = None) -> float:
        """Return the seconds per batch of one tick from the first row, or from a checkpoint."""
        self.store.checkpoint = checkpoint or {}
        began = time.perf_counter()
        handled = self.trigger.run(timer=None, handler=read_everything)
        taken = time.perf_counter() - began
        if handled != self.batches * 1000:
            raise AssertionError(f"{handled} rows instead of {self.batches * 1000}")
        return taken / self.batches


if __name__ == "__main__":
    _, address, count, rounds = sys.argv
    poller = Drain(address, int(count))
    print(json.dumps([poller.tick() for _ in range(int(rounds))]))
