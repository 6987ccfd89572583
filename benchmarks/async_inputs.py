"""One loop: 200 concurrent calls of an async function with an `input`, beside 20 threads that call a sync one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bindings_single import fill, table
from common import compare, databases, report
from sqlalchemy import create_engine

from azure_functions_db import DbBindings

CALLS, THREADS_BESIDE = 200, 20


def measure(kind: str, url: str, loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor) -> None:
    engine = create_engine(url)
    fill(engine, table())
    engine.dispose()
    db = DbBindings()
    read = db.input("row", url=url, table="bench_single", pk=lambda key: {"id": key})

    @read
    def in_threads(key: int, row: dict[str, Any]) -> Any:  # noqa: ARG001 - the key is made from it
        return row["id"]

    @read
    async def on_the_loop(key: int, row: dict[str, Any]) -> Any:  # noqa: ARG001 - the key is made from it
        return row["id"]

    keys = range(1, CALLS + 1)

    async def gathered() -> list[Any]:
        return await asyncio.gather(*(on_the_loop(key=key) for key in keys))

    assert loop.run_until_complete(gathered()) == list(keys)
    compare(
        "200 concurrent inputs on a loop, beside 20 threads",
        kind,
        lambda: loop.run_until_complete(gathered()),
        lambda: list(threads.map(lambda key: in_threads(key=key), keys)),
        target=1.0,
        rounds=60,
    )


def main() -> None:
    loop = asyncio.new_event_loop()
    with databases() as urls, ThreadPoolExecutor(THREADS_BESIDE, thread_name_prefix="beside") as threads:
        for kind, url in urls.items():
            measure(kind, url, loop, threads)
    used = sum(thread.name.startswith("azfdb") for thread in threading.enumerate())
    report("threads of 200 concurrent inputs, beside the bound", "all databases", used, 15 * len(urls), target=1.0)
    loop.close()


if __name__ == "__main__":
    main()
