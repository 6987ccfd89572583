"""The whole tick beside the raw driver's reads and beside the released package.

Batches of 1,000 rows of five columns; the handler reads every attribute of every event. Each
tick starts at the first row and finds its horizon anew; the floor pages on an open connection.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _poll_worker import Drain, InMemory, read_everything
from _rows import PAGE, driver_pages, fill
from common import databases, report, report_turns
from sqlalchemy import Engine, create_engine

from azure_functions_db import PollTrigger, SqlAlchemySource

BATCHES, ROUNDS = 20, 30
TARGETS = {"postgres": 1.5, "mariadb": 1.1, "sqlite": 2.2}
MILLION = 1_000_000


def floor(engine: Engine) -> float:
    """Seconds per batch of the raw driver, every value of every row read."""
    pages = driver_pages(engine)
    began = time.perf_counter()
    for rows in pages(BATCHES):
        for row in rows:
            for _value in row:
                pass
    return (time.perf_counter() - began) / BATCHES


def side_by_side(kind: str, url: str) -> None:
    engine = create_engine(url)
    fill(engine, BATCHES * PAGE)
    poller = Drain(url, BATCHES)
    poller.tick()
    ours, baseline = [], []
    for _ in range(ROUNDS):
        ours.append(poller.tick())
        baseline.append(floor(engine))
    report_turns("tick", f"{kind}, beside the driver", ours, baseline, target=TARGETS[kind])
    rival = _rival(url)
    if rival:
        report("tick", f"{kind}, beside 0.8.3", statistics.median(ours), statistics.median(rival[1:]))
    engine.dispose()


def _rival(url: str) -> list[float]:
    python = os.environ.get("AZFDB_COMPETITOR_PYTHON")
    if not python:
        return []
    worker = str(Path(__file__).parent / "_poll_worker.py")
    done = subprocess.run([python, worker, url, str(BATCHES), "3"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-500:], file=sys.stderr)
        return []
    return list(json.loads(done.stdout.splitlines()[-1]))


def far_from_the_start(kind: str, url: str) -> None:
    """A batch after 990,000 rows beside the first one."""
    late = {"cursor": ["2026-01-01T00:16:30" + ("+00:00" if kind == "postgres" else ""), 990_000]}
    early = {"cursor": ["2026-01-01T00:00:00.001" + ("+00:00" if kind == "postgres" else ""), 1]}
    poller = Drain(url, 1)
    poller.tick(late)
    far, near = [], []
    for _ in range(ROUNDS):
        far.append(poller.tick(late))
        near.append(poller.tick(early))
    report_turns("tick", f"{kind}, row 990,000 beside row 1", far, near, target=1.3)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def all_of_a_million(url: str) -> None:
    """Drain a million rows in one tick; memory at the end beside memory after a tenth of them."""
    source = SqlAlchemySource(url=url, table="bench_rows", cursor_column="updated_at", pk_columns=["id"])
    trigger = PollTrigger(
        name="bench", source=source, checkpoint_store=InMemory(), batch_size=PAGE, max_batches_per_tick=MILLION
    )
    seen: list[float] = []

    def handler(events: list[Any]) -> None:
        read_everything(events)
        seen.append(resident_mib())

    began = time.perf_counter()
    handled = trigger.run(timer=None, handler=handler)
    line = {
        "benchmark": "tick",
        "case": f"postgres, a million rows: MiB at the end beside MiB at a tenth ({handled:,} rows)",
        "ratio": round(seen[-1] / seen[len(seen) // 10], 3),
        "target": 1.1,
        "rows_per_second": round(handled / (time.perf_counter() - began)),
        "mib": round(seen[-1], 1),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    with databases() as urls:
        for kind, url in urls.items():
            side_by_side(kind, url)
        for kind, url in urls.items():
            engine = create_engine(url)
            fill(engine, MILLION)
            engine.dispose()
            far_from_the_start(kind, url)
        all_of_a_million(urls["postgres"])


if __name__ == "__main__":
    main()
