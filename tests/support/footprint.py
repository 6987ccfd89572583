"""What this process holds: memory, threads, open files and connections, and whether that grows."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Engine

    Footprint = dict[str, float]

# What may come and go between two looks, or is the allocator's and not ours.
ALLOWED = {"MiB": 4, "threads": 4, "files": 4, "connections": 4}
CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database()",
    "sqlite": "SELECT 0",  # its connections are open files
}
_PAGES_PER_MIB = (1 << 20) / os.sysconf("SC_PAGE_SIZE")


def footprint(databases: Iterable[Engine]) -> Footprint:
    """Look at this process, and ask each server how many are connected to its database."""
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "MiB": resident / _PAGES_PER_MIB,
        "threads": _entries("task"),
        "files": _entries("fd"),
        "connections": sum(_connections(engine) for engine in databases),
    }


def _entries(folder: str) -> int:
    return sum(1 for _ in Path("/proc/self", folder).iterdir())


def _connections(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(CONNECTIONS[engine.dialect.name])).scalar_one())


def trend(samples: Sequence[Footprint]) -> dict[str, tuple[float, float]]:
    """The medians of the first and of the last third, without the warm-up: the first quarter of the time."""
    warm = samples[len(samples) // 4 :]
    third = len(warm) // 3
    return {
        name: (median(each[name] for each in warm[:third]), median(each[name] for each in warm[-third:]))
        for name in ALLOWED
    }


def leaks(samples: Sequence[Footprint]) -> list[str]:
    """What has grown by more than it may."""
    return [
        f"{name}: {first:.1f} in the first third, {last:.1f} in the last"
        for name, (first, last) in trend(samples).items()
        if last - first > ALLOWED[name]
    ]
