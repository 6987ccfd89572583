"""A million rows upserted from a generator: the memory of the process must not grow with them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from common import databases
from sqlalchemy import create_engine, text

from azure_functions_db import DbWriter

COUNT = 1_000_000
FIRST = 50_000


def resident_mib() -> float:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096 / 2**20


def rows(count: int, seen: list[float]) -> Iterator[dict[str, Any]]:
    for key in range(count):
        if key % FIRST == 0:
            seen.append(resident_mib())
        yield {"id": key, "name": f"name {key}", "amount": key / 3}


def measure(kind: str, url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bench_million (id INTEGER PRIMARY KEY, name VARCHAR(50), amount FLOAT)"))
    writer = DbWriter(url=url, table="bench_million")
    seen: list[float] = []
    started = time.perf_counter()
    writer.upsert_many(rows=rows(COUNT, seen), conflict_columns=["id"])
    seconds = time.perf_counter() - started
    settled, most = seen[1], max(seen)
    line = {
        "benchmark": "memory of upsert_many, 1,000,000 rows over 50,000",
        "case": kind,
        "ratio": round(most / settled, 3),
        "target": 1.2,
        "mib_after_50000": round(settled, 1),
        "mib_at_most": round(most, 1),
        "rows_per_second": round(COUNT / seconds),
    }
    print(json.dumps(line), flush=True)
    engine.dispose()


if __name__ == "__main__":
    with databases() as urls:
        for kind, url in urls.items():
            measure(kind, url)
