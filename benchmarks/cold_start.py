"""The first row in a fresh process, and the first tick, beside a first plain query through SQLAlchemy's own engine.

Each is a process of its own, with bytecode as an installed package has it; what is imported is imported before the
clock starts.
"""

from __future__ import annotations

import subprocess
import sys

from bindings_single import fill, table
from common import as_installed, databases, report_turns
from sqlalchemy import create_engine

ROUNDS = 12
TARGETS = {"postgres": 1.3}
DRIVERS = {"sqlite": "sqlite3", "postgres": "psycopg", "mariadb": "pymysql"}
PROGRAM = """
import time, {driver}
from sqlalchemy import create_engine, text
from azure_functions_db import DbReader, MemoryStateStore, PollTrigger, SqlAlchemySource

def plain():
    with create_engine(url).connect() as connection:
        return dict(connection.execute(text("SELECT * FROM bench_single WHERE id = :id"), {{"id": 5}}).mappings().one())

def get():
    return DbReader(url=url, table="bench_single").get(pk={{"id": 5}})

def tick():
    source = SqlAlchemySource(url=url, table="bench_single", cursor_column="id", pk_columns=["id"])
    trigger = PollTrigger(name="bench", source=source, checkpoint_store=MemoryStateStore(), batch_size=1)
    trigger.run(timer=None, handler=lambda events: None)

url = {url!r}
began = time.perf_counter()
{work}()
print(time.perf_counter() - began)
"""


def seconds(work: str, kind: str, url: str) -> float:
    """Return how long a fresh interpreter takes for it."""
    program = PROGRAM.format(driver=DRIVERS[kind], url=url, work=work)
    child = [sys.executable, "-c", program]
    return float(subprocess.run(child, check=True, capture_output=True, text=True, env=as_installed()).stdout)


def main() -> None:
    """Compare on each database, in turns."""
    with databases() as urls:
        for kind, url in urls.items():
            engine = create_engine(url)
            fill(engine, table())
            engine.dispose()
            turns = [[seconds(work, kind, url) for work in ("get", "tick", "plain")] for _ in range(1 + ROUNDS)]
            gets, ticks, plain = map(list, zip(*turns[1:], strict=True))
            report_turns(
                "cold_start", f"{kind}: first get, beside a first plain query", gets, plain, target=TARGETS.get(kind)
            )
            report_turns(
                "cold_start", f"{kind}: first tick, beside a first plain query", ticks, plain, target=TARGETS.get(kind)
            )


if __name__ == "__main__":
    main()
