"""Measuring side by side: every number is a ratio of two things timed in the same run."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import create_engine, make_url, text

Work = Callable[[], object]


_bytecode = TemporaryDirectory(prefix="bench_bytecode_")


def as_installed() -> dict[str, str]:
    """Return the environment of a child that keeps its bytecode, as pip does when it installs a package.

    Its first run compiles and is not to be counted.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": _bytecode.name}


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    """The URLs of an empty database of each kind; dropped afterwards."""
    servers = {"postgres": os.environ["AZFDB_TEST_POSTGRES_URL"], "mariadb": os.environ["AZFDB_TEST_MARIADB_URL"]}
    name = f"bench_{os.getpid()}"
    file = f"/dev/shm/{name}.db" if os.path.isdir("/dev/shm") else f"/tmp/{name}.db"  # noqa: PTH112
    urls = {"sqlite": f"sqlite:///{file}"}
    for kind, server in servers.items():
        _on_server(server, f"CREATE DATABASE {name}")
        urls[kind] = make_url(server).set(database=name).render_as_string(hide_password=False)
    try:
        yield urls
    finally:
        for kind, server in servers.items():
            _on_server(server, f"DROP DATABASE {name}{' WITH (FORCE)' if kind == 'postgres' else ''}")
        with suppress(FileNotFoundError):  # not every benchmark uses it
            os.unlink(file)  # noqa: PTH108


def write_log_at_commit(url: str) -> None:
    """Let commits of a PostgreSQL database wait for its log, as they do unless somebody forbids it: the log is read."""
    _on_server(url, f"ALTER DATABASE {make_url(url).database} SET synchronous_commit = on")


def _on_server(url: str, statement: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


def compare(
    benchmark: str,
    case: str,
    ours: Work,
    baseline: Work,
    *,
    target: float | None,
    rounds: int = 30,
    repeat: int = 1,
    before: Work = lambda: None,
) -> float:
    """Time two things in turns and print how the one compares with the other as one JSON line."""
    times: dict[Work, list[float]] = {ours: [], baseline: []}
    for work in times:
        before()
        work()
    for round_ in range(rounds):
        for work in (ours, baseline) if round_ % 2 else (baseline, ours):
            before()
            started = time.perf_counter()
            for _ in range(repeat):
                work()
            times[work].append((time.perf_counter() - started) / repeat)
    return report_turns(benchmark, case, times[ours], times[baseline], target=target)


def report_turns(
    benchmark: str, case: str, ours: list[float], baseline: list[float], *, target: float | None = None, **more: Any
) -> float:
    """Print two measurements that were made in turns; the ratio is the median of those of neighbours.

    Neighbours feel the same noise of the machine, so this ratio varies less than that of the medians.
    """
    ratio = statistics.median(mine / other for mine, other in zip(ours, baseline, strict=True))
    mine, other = statistics.median(ours), statistics.median(baseline)
    return report(benchmark, case, mine, other, target=target, ratio=ratio, **more)


def report(
    benchmark: str,
    case: str,
    ours: float,
    baseline: float,
    *,
    target: float | None = None,
    ratio: float | None = None,
    **more: Any,
) -> float:
    """Print one measurement, in seconds, as one JSON line; a ratio above its target is a failure."""
    ratio = ours / baseline if ratio is None else ratio
    line = {
        "benchmark": benchmark,
        "case": case,
        "ratio": round(ratio, 3),
        "target": target,
        "ours_ms": round(ours * 1000, 4),
        "baseline_ms": round(baseline * 1000, 4),
        **more,
    }
    print(json.dumps(line), flush=True)
    return ratio
