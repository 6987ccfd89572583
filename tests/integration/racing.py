"""Eight processes that race for one lease; run as a script by `test_store_races`.

Each takes the lease, adds one to the number in the checkpoint and gives the lease back, some
times over. While a process holds the lease it owns a file that can only be made once.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import random
import sys
import time
from pathlib import Path
from typing import Any

from azure_functions_db import LeaseConflictError

PROCESSES = 8
ROUNDS = 5
POLLER = "counter"


def main() -> None:
    kind, options, directory = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    spawning = multiprocessing.get_context("fork")
    racers = [spawning.Process(target=race, args=(kind, options, Path(directory))) for _ in range(PROCESSES)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    sys.exit(max(abs(racer.exitcode or 0) for racer in racers))


def race(kind: str, options: dict[str, Any], directory: Path) -> None:
    module, _, name = kind.partition(":")
    store = getattr(importlib.import_module(module), name)(**options)
    for turn in range(ROUNDS):
        lease_id = acquired(store)
        witness = directory / "held"
        witness.touch(exist_ok=False)
        count = store.load_checkpoint(POLLER).get("cursor", [0])[0]
        witness.unlink()
        if turn % 2:
            store._lease(POLLER, lease_id).commit({"cursor": [count + 1]}, release=True)
        else:
            store.commit_checkpoint(POLLER, {"cursor": [count + 1]}, lease_id)
            store.release_lease(POLLER, lease_id)


def acquired(store: Any) -> str:
    while True:
        try:
            return str(store.acquire_lease(POLLER, 60))
        except LeaseConflictError:
            time.sleep(random.uniform(0, 0.02))


if __name__ == "__main__":
    main()
