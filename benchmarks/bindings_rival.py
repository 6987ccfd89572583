"""The bindings beside the released package azure-functions-db 0.8.3, each in an environment of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from common import databases, report
from sqlalchemy import create_engine, text

WORKER = Path(__file__).with_name("_binding_worker.py")
DDL = """
    CREATE TABLE bench_rival (
        id INTEGER PRIMARY KEY, customer VARCHAR(50), status VARCHAR(20), amount FLOAT, quantity INTEGER,
        note VARCHAR(200)
    )
"""
SMALL = ["upsert of one row", "get", "get, reader made per call", "query of one row"]
LARGE = ["insert_many of 10,000 rows", "upsert_many of 10,000 rows"]


class Worker:
    """A process with one of the two packages."""

    def __init__(self, python: str, url: str) -> None:
        self._process = subprocess.Popen(
            [python, WORKER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_plain_environment()
        )

    def seconds(self, name: str, repeat: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}|{repeat}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def measure(kind: str, url: str, rival: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(DDL))
    workers = [Worker(sys.executable, url), Worker(rival, url)]
    for name in [*SMALL, *LARGE]:
        rounds, repeat = (20, 20) if name in SMALL else (2, 1)
        times: list[list[float]] = [[], []]
        for round_ in range(rounds + 1):
            for worker, found in zip(workers, times, strict=True):
                if name.startswith("insert_many"):
                    with engine.begin() as connection:
                        connection.execute(text("DELETE FROM bench_rival"))
                seconds = worker.seconds(name, repeat)
                if round_:  # the first one connects and reads the table
                    found.append(seconds)
        ours, theirs = map(statistics.median, times)
        report(f"{name}, beside 0.8.3", kind, ours, theirs)
    for worker in workers:
        worker.close()
    engine.dispose()


if __name__ == "__main__":
    rival = os.environ.get("AZFDB_COMPETITOR_PYTHON")
    if rival is None:
        sys.exit("AZFDB_COMPETITOR_PYTHON is not set: run `make bench`")
    with databases() as urls:
        for kind, url in urls.items():
            measure(kind, url, str(Path(rival).absolute()))
