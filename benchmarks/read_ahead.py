"""A catch-up whose handler waits, beside the longer of reading and handling; and one whose handler computes.

Handling is the handler alone, called as often; reading is the catch-up with a handler that does nothing. What can be
had at all is told by the bare driver, whose next page a thread reads while the handler has this one. A short catch-up
gains less than a long one: the lease and the first page have to be waited for, and only the long one has to be within
its limit. A handler that computes gains little by reading ahead; it is shown beside the same catch-up without, and must
not lose by more than a tenth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from _poll_worker import InMemory, read_everything
from _rows import PAGE, driver_pages, fill
from common import databases, report_turns
from sqlalchemy import Engine, create_engine

from azure_functions_db import PollTrigger, SqlAlchemySource

ROUNDS_OF = {20: 25, 100: 10}
"""How often a catch-up of so many pages is run."""
SHORT, LONG = ROUNDS_OF
WAIT = 0.005
Handler = Callable[[list[Any]], None]


def waiting(_events: list[Any]) -> None:
    """The handler: five milliseconds for somebody else's answer."""
    time.sleep(WAIT)


def idle(_events: list[Any]) -> None:
    """The handler that does nothing."""


def catch_up(url: str, handler: Handler, batches: int, *, read_ahead: bool = True) -> Callable[[], float]:
    """Return what handles so many batches from the first row on and tells the seconds that each took."""
    source = SqlAlchemySource(url=url, table="bench_rows", cursor_column="updated_at", pk_columns=["id"])
    store = InMemory()
    trigger = PollTrigger(
        name="bench",
        source=source,
        checkpoint_store=store,
        batch_size=PAGE,
        max_batches_per_tick=batches,
        read_ahead=read_ahead,
    )

    def run() -> float:
        store.checkpoint = {}
        began = time.perf_counter()
        if trigger.run(timer=None, handler=handler) != batches * PAGE:
            raise AssertionError("rows are missing")
        return (time.perf_counter() - began) / batches

    run()
    return run


def handling(batches: int) -> float:
    """Seconds per call of the handler alone."""
    began = time.perf_counter()
    for _ in range(batches):
        waiting([])
    return (time.perf_counter() - began) / batches


def driver_ahead(engine: Engine, thread: ThreadPoolExecutor, batches: int) -> Callable[[], float]:
    """Return the same with the driver alone: the thread, whose connection it is, reads one page ahead."""
    pages_of = thread.submit(driver_pages, engine).result()

    def run() -> float:
        pages = pages_of(batches)
        began = time.perf_counter()
        ahead = thread.submit(next, pages, None)
        while (page := ahead.result()) is not None:
            ahead = thread.submit(next, pages, None)
            waiting(page)
        return (time.perf_counter() - began) / batches

    run()
    return run


def while_waiting(kind: str, url: str, batches: int) -> None:
    engine = create_engine(url)
    both, alone = catch_up(url, waiting, batches), catch_up(url, waiting, batches, read_ahead=False)
    reading = catch_up(url, idle, batches, read_ahead=False)
    with ThreadPoolExecutor(max_workers=1) as thread:
        driver = driver_ahead(engine, thread, batches)
        turns = [(both(), driver(), max(reading(), handling(batches)), alone()) for _ in range(ROUNDS_OF[batches])]
    engine.dispose()
    ours, drivers, longer, without = (list(times) for times in zip(*turns, strict=True))
    case = f"{kind}, {batches} pages, a handler of 5 ms"
    limit = 1.15 if batches == LONG else None
    report_turns("read ahead", f"{case} beside the longer of both", ours, longer, target=limit)
    report_turns("read ahead", f"{case} beside the driver read ahead by a thread", ours, drivers)
    report_turns("read ahead", f"{case} beside none read ahead", ours, without, target=1.0)


def while_computing(kind: str, url: str) -> None:
    with_ = catch_up(url, read_everything, SHORT)
    without = catch_up(url, read_everything, SHORT, read_ahead=False)
    turns = [(with_(), without()) for _ in range(ROUNDS_OF[SHORT])]
    ours, beside = (list(times) for times in zip(*turns, strict=True))
    report_turns("read ahead", f"{kind}, a handler that computes beside none read ahead", ours, beside, target=1.1)


def main() -> None:
    with databases() as urls:
        for kind, url in urls.items():
            engine = create_engine(url)
            fill(engine, LONG * PAGE)
            engine.dispose()
            for batches in ROUNDS_OF:
                while_waiting(kind, url, batches)
            while_computing(kind, url)


if __name__ == "__main__":
    main()
