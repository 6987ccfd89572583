"""``make simulate``: many histories, or one of them told in full.

make simulate SEEDS=100000      # the next so many seeds, on all processors
make simulate SEED=123          # one history; where it is wrong, the shortest that is wrong in the same way
make simulate GUARDS=1000       # in how many seeds each guard is missed once it is taken away
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.guards import GUARDS
from tests.simulation.history import History, played, shrunk, told
from tests.simulation.kept import first_found
from tests.simulation.plan import Plan

_AT_ONCE = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="tell the history of this seed")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many histories")
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--world", help="keyset, outbox or postgres; as the seed says unless given")
    parser.add_argument("--guards", type=int, help="take each guard away, for at most so many seeds")
    given = parser.parse_args()
    if given.guards is not None:
        return _miss_guards(given.guards)
    if given.seed is not None:
        return _tell(played(Plan.of(given.seed, given.world)))
    return _run(given.first, given.seeds, given.world)


def _run(first: int, count: int, world: str | None) -> int:
    began, bad = time.monotonic(), list[int]()
    batches = [range(begin, min(begin + _AT_ONCE, first + count)) for begin in range(first, first + count, _AT_ONCE)]
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for done, found in enumerate(pool.map(_bad_among, batches, [world] * len(batches)), 1):
            bad += found
            _show_progress(min(done * _AT_ONCE, count), count, len(bad))
    print(f"\n{count} histories from seed {first} in {time.monotonic() - began:.0f} s: {len(bad)} went wrong")
    for seed in bad[:20]:
        print(f"  make simulate SEED={seed}" + (f" WORLD={world}" if world else ""))
    return bool(bad) and _tell(played(Plan.of(bad[0], world)))


def _bad_among(seeds: range, world: str | None) -> list[int]:
    return [seed for seed in seeds if played(Plan.of(seed, world)).complaints]


def _show_progress(done: int, count: int, bad: int) -> None:
    if sys.stdout.isatty():
        print(f"\r{done} of {count} histories, {bad} wrong", end="", flush=True)


def _tell(history: History) -> int:
    if history.complaints:
        history = shrunk(history)
    for line in _lines(history):
        print(line)
    return bool(history.complaints)


def _lines(history: History) -> Iterator[str]:
    yield from told(history)
    for error in history.errors[:1]:
        yield from traceback.format_exception(error)


def _miss_guards(most: int) -> int:
    """Show how many seeds it takes to miss each guard."""
    unmissed = 0
    for guard in GUARDS:
        found = first_found(guard, most)
        unmissed += found is None
        print(f"{guard:28}", f"not missed in {most} seeds" if found is None else f"seed {found[0]}: {found[1]}")
    return unmissed


if __name__ == "__main__":
    sys.exit(main())
