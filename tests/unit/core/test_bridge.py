from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from azure_functions_db.core import bridge
from azure_functions_db.core.bridge import PinnedThread, awaited_on, finished, in_thread, threads_of
from azure_functions_db.core.config import DbConfig

invocation: ContextVar[str] = ContextVar("invocation", default="none")


async def test_blocking_work_runs_elsewhere_in_the_same_context() -> None:
    invocation.set("seven")
    where, who = await in_thread(lambda: (threading.current_thread(), invocation.get()))
    assert where is not threading.current_thread()
    assert who == "seven"


async def test_an_error_of_blocking_work_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_pinned_thread_is_always_the_same_and_keeps_its_context() -> None:
    invocation.set("seven")
    pinned = PinnedThread()
    first = await pinned.run(lambda: (threading.current_thread(), invocation.get()))
    await pinned.run(lambda: invocation.set("set on the thread"))
    second = await pinned.run(lambda: (threading.current_thread(), invocation.get()))
    pinned.close()
    assert first == (second[0], "seven")
    assert second[1] == "set on the thread"
    assert invocation.get() == "seven"


async def test_a_closed_pinned_thread_ends_once_its_work_is_done() -> None:
    pinned = PinnedThread()
    thread = await pinned.run(threading.current_thread)
    pinned.close()
    await in_thread(thread.join, 10)
    assert not thread.is_alive()


async def test_work_on_a_pinned_thread_follows_cancelled_work_in_order() -> None:
    pinned, go, done = PinnedThread(), threading.Event(), list[str]()

    def wait_and_tell() -> None:
        go.wait(10)
        done.append("first")

    first = asyncio.create_task(pinned.run(wait_and_tell))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(pinned.run(lambda: done.append("second")))
    go.set()
    await second
    pinned.close()
    assert done == ["first", "second"]


async def test_work_that_must_not_be_cut_short_ends_before_the_cancellation() -> None:
    pinned, go, ended = PinnedThread(), threading.Event(), threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait(10)
        ended.set()

    waiter = asyncio.create_task(pinned.run_to_end(work))
    await started.wait()
    for _ in range(2):
        waiter.cancel()
        await asyncio.sleep(0)
        assert not waiter.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    pinned.close()
    assert ended.is_set()


async def test_finished_work_gives_its_result_or_its_error() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    assert await finished(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(ZeroDivisionError):
        await finished(fail())


async def test_a_cancellation_tells_how_the_unfinished_work_failed() -> None:
    go = asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise ZeroDivisionError

    waiter = asyncio.create_task(finished(fail()))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await waiter
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_work_that_is_itself_cancelled_says_so() -> None:
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finished(inner)


async def test_a_thread_awaits_a_coroutine_on_the_hosts_loop_in_its_own_context() -> None:
    loop = asyncio.get_running_loop()

    async def handler() -> tuple[object, str]:
        return asyncio.get_running_loop(), invocation.get()

    def tick() -> tuple[object, str]:
        invocation.set("of the tick")
        return awaited_on(loop, handler)

    assert await in_thread(tick) == (loop, "of the tick")


async def test_many_ticks_whose_handlers_want_threads_too_do_not_starve_each_other() -> None:
    loop = asyncio.get_running_loop()
    all_ticks_run = threading.Barrier(60)

    async def handler() -> int:
        return await in_thread(lambda: 1)

    def tick() -> int:
        all_ticks_run.wait(10)
        return awaited_on(loop, handler)

    assert sum(await asyncio.gather(*(in_thread(tick) for _ in range(60)))) == 60


async def test_an_error_of_the_awaited_coroutine_reaches_the_thread() -> None:
    loop = asyncio.get_running_loop()

    async def handler() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await in_thread(awaited_on, loop, handler)


async def test_calls_of_a_database_share_as_many_threads_as_its_pool_has_connections() -> None:
    threads = threads_of(DbConfig(connection_url="sqlite:///bounded.db", pool_size=3, max_overflow=0))
    both = threading.Barrier(3)  # nobody gets through unless three work at the same time

    def call(number: int) -> tuple[int, str]:
        both.wait(30)
        return number, threading.current_thread().name

    answers = await asyncio.gather(*(threads.run(call, number) for number in range(30)))
    assert [number for number, _ in answers] == list(range(30))
    assert len({name for _, name in answers}) == 3


async def test_connections_beyond_those_that_are_kept_are_for_calls_that_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = DbConfig(connection_url="postgresql+psycopg://host/long", pool_size=1, max_overflow=2)
    threads, all_three = threads_of(config), threading.Barrier(3)
    await asyncio.gather(*(threads.run(all_three.wait, 30) for _ in range(3)))  # which three must wait for together
    monkeypatch.setattr(bridge, "_STUCK_SECONDS", 3600)
    threads = bridge.Threads(1, 3)
    names = await asyncio.gather(*(threads.run(lambda: threading.current_thread().name) for _ in range(50)))
    assert len(set(names)) == 1


async def test_a_database_that_hangs_holds_up_no_other() -> None:
    hanging = threads_of(DbConfig(connection_url="sqlite:///hanging.db", pool_size=1, max_overflow=0))
    other = threads_of(DbConfig(connection_url="sqlite:///other.db", pool_size=1, max_overflow=0))
    go = threading.Event()
    waiting = [asyncio.ensure_future(hanging.run(go.wait, 30)) for _ in range(10)]
    assert await other.run(lambda: "answered") == "answered"
    go.set()
    assert all(await asyncio.gather(*waiting))


async def test_a_call_runs_in_the_context_of_its_task_and_its_error_reaches_it() -> None:
    threads = threads_of(DbConfig(connection_url="sqlite:///context.db"))
    invocation.set("of this task")
    assert await threads.run(invocation.get) == "of this task"
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)


async def test_a_call_that_was_cancelled_before_it_began_is_not_made() -> None:
    threads = threads_of(DbConfig(connection_url="sqlite:///cancelled.db", pool_size=1, max_overflow=0))
    go, made = threading.Event(), list[str]()
    first = asyncio.ensure_future(threads.run(go.wait, 30))
    second = asyncio.ensure_future(threads.run(made.append, "second"))
    await asyncio.sleep(0)  # both are handed over
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    await threads.run(made.append, "third")
    assert made == ["third"]


async def test_a_call_that_raises_the_end_of_an_iterator_holds_up_no_answer() -> None:
    threads = threads_of(DbConfig(connection_url="sqlite:///ended.db", pool_size=1, max_overflow=0))
    answers = await asyncio.gather(threads.run(next, iter(())), threads.run(int, "1"), return_exceptions=True)
    assert isinstance(answers[0], RuntimeError)
    assert isinstance(answers[0].__cause__, StopIteration)
    assert answers[1] == 1


async def test_a_call_for_which_no_thread_can_be_started_fails_and_the_next_ones_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = threads_of(DbConfig(connection_url="sqlite:///crowded.db", pool_size=1, max_overflow=0))
    made: list[str] = []

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", refused)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="new thread"):
                await threads.run(made.append, "refused")
    await threads.run(made.append, "made")
    assert made == ["made"]


async def test_a_call_that_comes_when_the_only_thread_is_about_to_rest_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threads_of(DbConfig(connection_url="sqlite:///resting.db", pool_size=1, max_overflow=0))
    loop, brought, is_brought = asyncio.get_running_loop(), list[asyncio.Task[str]](), asyncio.Event()

    async def bring() -> None:
        brought.append(asyncio.create_task(threads.run(str, "late")))
        await asyncio.sleep(0)  # it is handed over
        is_brought.set()

    class Waiting(deque[Any]):
        def popleft(self) -> Any:
            if not self and not brought:
                asyncio.run_coroutine_threadsafe(bring(), loop).result(30)
                raise IndexError
            return super().popleft()

    monkeypatch.setattr(threads, "_waiting", Waiting())
    await threads.run(str, "first")
    async with asyncio.timeout(30):
        await is_brought.wait()
        assert await brought[0] == "late"


def test_calls_of_one_database_answer_each_loop_that_made_them() -> None:
    threads = threads_of(DbConfig(connection_url="sqlite:///loops.db", pool_size=2, max_overflow=0))

    async def asked() -> list[int]:
        return await asyncio.gather(*(threads.run(int, str(number)) for number in range(50)))

    with ThreadPoolExecutor(4) as hosts:
        answers = list(hosts.map(lambda _: asyncio.run(asked()), range(4)))
    assert answers == [list(range(50))] * 4
