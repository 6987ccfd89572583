from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import ConfigurationError, HandlerError, LostLeaseError, RowsFailed
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.state.store import DocumentLease
from azure_functions_db.trigger.lease import Lease
from tests.unit.trigger.poller import Collected, ListSource, PlainStore, poller, position, run

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.poll import PollTrigger


def run_async(trigger: PollTrigger, handler: Any) -> int:
    return asyncio.run(trigger.run_async(timer=None, handler=handler))


def test_an_async_handler_is_awaited_on_the_hosts_loop() -> None:
    async def main() -> int:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        async def handler(events: list[RowChange], context: Any) -> None:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
            assert threading.get_ident() == thread
            assert len(events) == 3
            assert context.poller_name == "orders"

        return await poller(ListSource(3)).run_async(timer=None, handler=handler)

    assert asyncio.run(main()) == 3


def test_the_loop_stays_free_while_the_tick_blocks() -> None:
    async def main() -> None:
        moved = asyncio.Event()

        def blocking(_events: list[RowChange]) -> None:
            asyncio.run_coroutine_threadsafe(set_event(), loop).result(30)

        async def set_event() -> None:
            moved.set()

        loop = asyncio.get_running_loop()
        assert await poller(ListSource(3)).run_async(timer=None, handler=blocking) == 3
        assert moved.is_set()

    asyncio.run(main())


def test_an_async_handlers_error_is_a_handler_error() -> None:
    async def handler(_events: list[RowChange]) -> None:
        raise ValueError("no stock")

    with pytest.raises(HandlerError, match="no stock"):
        run_async(poller(ListSource(3)), handler)


@pytest.mark.parametrize("takes", ["nothing", "too much"])
def test_an_async_handler_that_cannot_be_called_fails_and_does_not_hang(takes: str) -> None:
    async def nothing() -> None: ...

    async def too_much(_events: list[RowChange], _context: Any, _more: Any) -> None: ...

    store = MemoryStateStore()
    with pytest.raises(HandlerError, match="TypeError"):
        run_async(poller(ListSource(3), store), nothing if takes == "nothing" else too_much)
    assert run(poller(ListSource(3), store), Collected()) == 3


def test_the_context_reaches_the_handler() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    async def main() -> None:
        variable.set("from the host")
        await poller(ListSource(3)).run_async(timer=None, handler=handler)

    async def handler(_events: list[RowChange]) -> None:
        assert variable.get() == "from the host"

    asyncio.run(main())


def test_an_async_handler_without_a_loop_is_refused_before_anything_happens() -> None:
    async def handler(_events: list[RowChange]) -> None: ...

    class AsyncObject:
        async def __call__(self, _events: list[RowChange]) -> None: ...

    for form in (handler, functools.partial(handler), AsyncObject()):
        store = PlainStore()
        with pytest.raises(ConfigurationError, match="run_async"):
            run(poller(ListSource(3), store), form)
        assert store.calls == []


def test_a_coroutine_that_nobody_would_await_is_never_taken_for_success() -> None:
    async def work(_events: list[RowChange]) -> None: ...

    store = MemoryStateStore()
    with pytest.raises(HandlerError, match="run_async"):
        run(poller(ListSource(3), store), lambda events: work(events))  # noqa: PLW0108 - hides the coroutine function
    assert position(store) == {}


def test_a_coroutine_returned_by_a_plain_handler_is_awaited() -> None:
    awaited: list[int] = []

    async def work(events: list[RowChange]) -> None:
        awaited.append(len(events))

    assert run_async(poller(ListSource(3)), lambda events: work(events)) == 3  # noqa: PLW0108 - hides the coroutine function
    assert awaited == [3]


async def cancelled_during_the_handler(store: Any, handler: Any, started: asyncio.Event) -> None:
    tick = asyncio.create_task(poller(ListSource(3), store).run_async(timer=None, handler=handler))
    await started.wait()
    tick.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tick


def test_a_cancelled_tick_cancels_its_handler_commits_nothing_and_frees_the_lease() -> None:
    async def main() -> None:
        store, started, ended = PlainStore(), asyncio.Event(), []

        async def handler(_events: list[RowChange]) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("cleaned up")

        await cancelled_during_the_handler(store, handler, started)
        assert ended == ["cleaned up"]
        assert store.calls == ["acquire", "load", "release"]

    asyncio.run(main())


def test_a_tick_that_is_cancelled_twice_still_frees_its_lease_first() -> None:
    async def main() -> None:
        store, started, go_on = PlainStore(), asyncio.Event(), asyncio.Event()

        async def handler(_events: list[RowChange]) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await go_on.wait()

        tick = asyncio.create_task(poller(ListSource(3), store).run_async(timer=None, handler=handler))
        await started.wait()
        for _ in range(2):
            tick.cancel()
            await asyncio.sleep(0.01)
        assert not tick.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await tick
        assert store.calls == ["acquire", "load", "release"]

    asyncio.run(main())


def test_a_generator_would_do_nothing_and_is_refused() -> None:
    def handler(events: list[RowChange]) -> Any:
        yield events

    with pytest.raises(ConfigurationError, match="generator"):
        run(poller(ListSource(3)), handler)


def test_a_generator_in_disguise_is_never_taken_for_success() -> None:
    class Lazy:
        def __call__(self, events: list[RowChange]) -> Any:
            yield from events

    store = MemoryStateStore()
    with pytest.raises(HandlerError, match="nothing in it has run"):
        run(poller(ListSource(3), store), Lazy())
    assert run(poller(ListSource(3), store), Collected()) == 3


def test_a_handler_that_ignores_its_cancellation_is_not_committed_either() -> None:
    async def main() -> None:
        store, started = PlainStore(), asyncio.Event()

        async def stubborn(_events: list[RowChange]) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        await cancelled_during_the_handler(store, stubborn, started)
        assert "commit" not in store.calls

    asyncio.run(main())


def test_a_tick_that_fails_after_it_was_cancelled_was_cancelled() -> None:
    async def main() -> None:
        started, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        class Failing(ListSource):
            def fetch(self, cursor: Any, batch_size: int) -> Any:
                loop.call_soon_threadsafe(started.set)
                assert go_on.wait(30)
                raise OSError("gone")

        tick = asyncio.create_task(poller(Failing()).run_async(timer=None, handler=print))
        await started.wait()
        tick.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await tick

    asyncio.run(main())


def test_a_plain_handler_of_a_cancelled_tick_is_not_committed() -> None:
    async def main() -> None:
        store, started, go_on = PlainStore(), asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def blocking(_events: list[RowChange]) -> None:
            loop.call_soon_threadsafe(started.set)
            assert go_on.wait(30)

        tick = asyncio.create_task(poller(ListSource(3), store).run_async(timer=None, handler=blocking))
        await started.wait()
        tick.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await tick
        assert store.calls == ["acquire", "load", "release"]

    asyncio.run(main())


def test_a_handler_that_cancels_itself_has_failed() -> None:
    async def handler(_events: list[RowChange]) -> None:
        raise asyncio.CancelledError

    with pytest.raises(HandlerError):
        run_async(poller(ListSource(3)), handler)


def test_a_lost_lease_cancels_an_async_handler() -> None:
    async def main() -> None:
        store, cancelled = MemoryStateStore(), []

        async def handler(_events: list[RowChange]) -> None:
            MemoryStateStore(shared_with=store).break_lease("orders")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        with pytest.raises(LostLeaseError):
            await poller(ListSource(3), store, lease_ttl_seconds=0.3).run_async(timer=None, handler=handler)
        assert cancelled == [True]
        assert store.load_checkpoint("orders") == {}

    asyncio.run(main())


def test_a_renewal_that_hangs_does_not_keep_the_handler_of_a_lost_lease_alive() -> None:
    hanging = threading.Event()

    class HangingLease(DocumentLease):
        def renew(self, _ttl_seconds: float) -> None:
            assert hanging.wait(60)

    class Hanging(MemoryStateStore):
        _lease_type = HangingLease

    async def main() -> None:
        async def handler(_events: list[RowChange]) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                hanging.set()

        with pytest.raises(LostLeaseError):
            await poller(ListSource(3), Hanging(), lease_ttl_seconds=0.3).run_async(timer=None, handler=handler)

    asyncio.run(main())


def test_a_lease_that_ends_between_two_looks_at_the_clock_cancels_the_handler() -> None:
    class Endless:
        cancelled = False

        def result(self, timeout: float | None = None) -> None:
            if self.cancelled:
                raise asyncio.CancelledError
            assert timeout is not None, "nobody would ever look at the clock again"
            now.append(3.1)
            raise TimeoutError

        def done(self) -> bool:
            return self.cancelled

        def cancel(self) -> None:
            self.cancelled = True

    now = [0.0]  # the lease is ours until 3
    lease = Lease(
        PlainStore(),
        "orders",
        ttl_seconds=4,
        transactional=False,
        may_steal=lambda: True,
        clock=lambda: now[-1],
        tell=lambda _error, _lost: None,
    )
    lease.approach("sha256:orders")
    with pytest.raises(LostLeaseError):
        lease.watch(Endless())  # type: ignore[arg-type]
    lease.stop()


def test_an_async_handler_can_name_its_culprits() -> None:
    async def handler(events: list[RowChange]) -> None:
        raise RowsFailed({events[0].event_id: "bad"})

    with pytest.raises(HandlerError) as caught:
        run_async(poller(ListSource(3)), handler)
    assert isinstance(caught.value.__cause__, RowsFailed)


def test_handlers_are_called_in_the_form_they_have() -> None:
    forms: list[Any] = []

    def plain(events: list[RowChange]) -> None:
        forms.append(("plain", len(events)))

    def with_context(events: list[RowChange], context: Any) -> None:
        forms.append(("context", context.poller_name))

    def any_second_name(events: list[RowChange], ctx: Any) -> None:
        forms.append(("ctx", ctx.poller_name))

    def keyword(events: list[RowChange], *, context: Any) -> None:
        forms.append(("keyword", context.poller_name))

    def with_default(events: list[RowChange], limit: int = 3) -> None:
        forms.append(("default", limit))

    for handler in (plain, with_context, any_second_name, keyword, with_default, Collected()):
        run(poller(ListSource(1)), handler)
    assert forms == [
        ("plain", 1),
        ("context", "orders"),
        ("ctx", "orders"),
        ("keyword", "orders"),
        ("default", 3),
    ]
