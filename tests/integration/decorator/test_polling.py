"""Poll functions as the host calls them: batches, contexts, failures, partitions."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import (
    ConfigurationError,
    DbBindings,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    MemoryStateStore,
    SqlAlchemySource,
    SqlStateStore,
)
from azure_functions_db.decorator.composition import polling_of
from azure_functions_db.testing.memory import FakeClock

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import PollContext

db = DbBindings()
ROWS = 40


@pytest.fixture
def orders(sqlite_database: str) -> SqlAlchemySource:
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER)"))
        connection.execute(text("CREATE INDEX orders_by_version ON orders (version, id)"))
        rows = [{"id": number, "version": number} for number in range(1, ROWS + 1)]
        connection.execute(text("INSERT INTO orders VALUES (:id, :version)"), rows)
    engine.dispose()
    return SqlAlchemySource(url=sqlite_database, table="orders", cursor_column="version", pk_columns=["id"])


def test_each_call_hands_the_changed_rows_to_the_handler_in_batches(orders: SqlAlchemySource) -> None:
    batches: list[int] = []

    @db.trigger(
        arg_name="events", source=orders, checkpoint_store=MemoryStateStore(), batch_size=15, max_batches_per_tick=9
    )
    def changed(timer: Any, events: list[RowChange]) -> int:
        batches.append(len(events))
        return 5

    assert changed(timer="tick") is None, "a timer function must not return anything"
    assert batches == [15, 15, 10]
    changed(timer="tick")
    assert batches == [15, 15, 10]


def test_a_parameter_annotated_with_the_context_receives_it(orders: SqlAlchemySource) -> None:
    seen: list[PollContext] = []

    @db.trigger(arg_name="events", source=orders, checkpoint_store=MemoryStateStore(), name="nightly")
    def changed(timer: Any, events: list[RowChange], where: PollContext, context: Any = None) -> None:
        seen.append(where)

    changed(timer="tick", context="the host's own")
    assert [context.poller_name for context in seen] == ["nightly"]


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("hint", ["PollContext | None", "Optional[PollContext]", "azure_functions_db.PollContext"])
def test_an_optional_context_is_hidden_from_the_host_and_filled(
    orders: SqlAlchemySource, hint: str, as_text: bool
) -> None:
    module: dict[str, Any] = {}
    imports = "import azure_functions_db; from typing import Optional; from azure_functions_db import PollContext\n"
    future = "from __future__ import annotations; " if as_text else ""
    exec(f"{future}{imports}def changed(timer, events, where: {hint} = None): seen.append(where)", module)
    seen = module["seen"] = list[Any]()
    decorate = db.trigger(arg_name="events", source=orders, checkpoint_store=MemoryStateStore(), name="nightly")
    changed = decorate(module["changed"])
    assert list(inspect.signature(changed).parameters) == ["timer"]
    changed(timer="tick")
    assert [context.poller_name for context in seen] == ["nightly"]


def test_the_function_names_the_poller(orders: SqlAlchemySource) -> None:
    @db.trigger(arg_name="events", source=orders, checkpoint_store=MemoryStateStore())
    def changed(timer: Any, events: list[RowChange]) -> None: ...

    polling = polling_of(changed)
    assert polling is not None
    assert [poller.name for poller in polling.pollers] == ["changed"]


def test_an_async_handler_is_awaited_on_the_hosts_loop(orders: SqlAlchemySource) -> None:
    handled: list[int] = []

    @db.trigger(arg_name="events", source=orders, checkpoint_store=MemoryStateStore())
    async def changed(timer: Any, events: list[RowChange], context: PollContext) -> None:
        await asyncio.sleep(0)
        handled.append(len(events))
        assert threading.current_thread() is threading.main_thread()

    asyncio.run(changed(timer="tick"))
    assert handled == [ROWS]


def test_a_failing_handler_fails_the_function_and_its_batch_comes_again(orders: SqlAlchemySource) -> None:
    calls: list[int] = []

    @db.trigger(arg_name="events", source=orders, checkpoint_store=MemoryStateStore())
    def changed(timer: Any, events: list[RowChange]) -> None:
        calls.append(len(events))
        if len(calls) == 1:
            raise LookupError("downstream is away")

    with pytest.raises(HandlerError) as raised:
        changed(timer="tick")
    assert isinstance(raised.value.__cause__, LookupError)
    changed(timer="tick")
    assert calls == [ROWS, ROWS]


def test_a_lost_lease_fails_the_function_and_nothing_is_committed(orders: SqlAlchemySource) -> None:
    clock = FakeClock()
    store = MemoryStateStore(clock=clock)
    rival = MemoryStateStore(shared_with=store, clock=clock)

    @db.trigger(arg_name="events", source=orders, checkpoint_store=store, lease_ttl_seconds=60)
    def changed(timer: Any, events: list[RowChange]) -> None:
        clock.advance(120)
        rival.acquire_lease("changed", 60)

    with pytest.raises(LostLeaseError):
        changed(timer="tick")
    assert rival.load_checkpoint("changed") == {}


def test_a_cancelled_async_function_commits_nothing_and_gives_its_lease_back(orders: SqlAlchemySource) -> None:
    store = MemoryStateStore()

    @db.trigger(arg_name="events", source=orders, checkpoint_store=store)
    async def changed(timer: Any, events: list[RowChange], started: asyncio.Event) -> None:
        started.set()
        await asyncio.Event().wait()

    async def cancelled() -> None:
        started = asyncio.Event()
        running = asyncio.create_task(changed(timer="tick", started=started))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    other = MemoryStateStore(shared_with=store)
    assert other.look("changed").lease is None
    assert other.load_checkpoint("changed") == {}


def partitioned(orders: SqlAlchemySource, store: Any, seen: list[tuple[str, Any]], **options: Any) -> Any:
    @db.trigger(arg_name="events", source=orders, checkpoint_store=store, name="orders", **options)
    def changed(timer: Any, events: list[RowChange], context: PollContext) -> None:
        seen.extend((context.poller_name, event.pk["id"]) for event in events)

    return changed


def test_partitions_share_the_rows_without_overlap(orders: SqlAlchemySource) -> None:
    seen: list[tuple[str, Any]] = []
    partitioned(orders, MemoryStateStore(), seen, partitions=4)(timer="tick")
    assert sorted(row for _, row in seen) == list(range(1, ROWS + 1))
    assert len({poller for poller, _ in seen}) == 4


def test_partitions_of_an_async_handler_share_the_rows_too(orders: SqlAlchemySource) -> None:
    seen: list[Any] = []

    @db.trigger(arg_name="events", source=orders, checkpoint_store=MemoryStateStore(), partitions=3)
    async def changed(timer: Any, events: list[RowChange]) -> None:
        seen.extend(event.pk["id"] for event in events)

    asyncio.run(changed(timer="tick"))
    assert sorted(seen) == list(range(1, ROWS + 1))


def test_a_call_can_be_for_one_partition(orders: SqlAlchemySource) -> None:
    seen: list[tuple[str, Any]] = []
    store = MemoryStateStore()
    poll = partitioned(orders, store, seen, partitions=4, partition=lambda timer: timer)
    poll(timer=2)
    assert {poller for poller, _ in seen} == {"orders-3-of-4"}
    for number in range(4):
        poll(timer=number)
    assert sorted(row for _, row in seen) == list(range(1, ROWS + 1))
    with pytest.raises(ConfigurationError, match="returned 4; it must return a number from 0 to 3"):
        poll(timer=4)


def test_one_failing_partition_fails_the_call_and_keeps_no_other_from_its_work(orders: SqlAlchemySource) -> None:
    handled: Counter[str] = Counter()

    @db.trigger(arg_name="events", source=orders, checkpoint_store=MemoryStateStore(), name="orders", partitions=4)
    def changed(timer: Any, events: list[RowChange], context: PollContext) -> None:
        handled[context.poller_name] += len(events)
        if context.poller_name in broken:
            raise LookupError(context.poller_name)

    broken = {"orders-2-of-4"}
    with pytest.raises(HandlerError):
        changed(timer="tick")
    assert sum(handled.values()) == ROWS

    broken = {"orders-2-of-4", "orders-3-of-4"}
    handled.clear()
    with pytest.raises(HandlerError):
        changed(timer="tick")
    assert set(handled) == {"orders-2-of-4"}, "what the others had committed does not come again"


def test_partitions_of_a_dead_instance_are_taken_over_one_per_tick(orders: SqlAlchemySource) -> None:
    clock = FakeClock()
    dead = MemoryStateStore(clock=clock)
    seen: list[tuple[str, Any]] = []
    polled = partitioned(orders, MemoryStateStore(shared_with=dead, clock=clock), seen, partitions=4)
    for index in (1, 2, 3):
        dead.acquire_lease(f"orders-{index}-of-4", 60)

    polled(timer="tick")
    assert {poller for poller, _ in seen} == {"orders-4-of-4"}, "leases that are alive are respected"
    clock.advance(120)
    for taken_over in (2, 3, 4):
        polled(timer="tick")
        assert len({poller for poller, _ in seen}) == taken_over
    assert sorted(row for _, row in seen) == list(range(1, ROWS + 1))


async def test_a_partition_that_is_always_abandoned_again_does_not_keep_the_others_waiting(
    orders: SqlAlchemySource,
) -> None:
    clock = FakeClock()
    dying = MemoryStateStore(clock=clock)
    seen: set[str] = set()

    @db.trigger(
        arg_name="events",
        name="orders",
        source=orders,
        checkpoint_store=MemoryStateStore(shared_with=dying, clock=clock),
        partitions=2,
    )
    async def changed(timer: Any, events: list[RowChange], context: PollContext) -> None:
        seen.add(context.poller_name)
        if context.poller_name == "orders-1-of-2":
            raise LookupError("its process would die here")

    def die(poller: str) -> None:
        with suppress(LeaseConflictError):
            dying.acquire_lease(poller, 60)

    for _ in range(50):
        die("orders-1-of-2")
        if "orders-2-of-2" not in seen:
            die("orders-2-of-2")
        clock.advance(120)
        with suppress(HandlerError):
            await changed(timer="tick")
    assert seen == {"orders-1-of-2", "orders-2-of-2"}


def test_an_input_beside_a_trigger_is_read_for_each_batch(orders: SqlAlchemySource, sqlite_database: str) -> None:
    seen: list[tuple[int, Any]] = []

    @db.input("newest", url=sqlite_database, table="orders", pk=lambda events: {"id": events[-1].pk["id"]})
    @db.trigger(
        arg_name="events", source=orders, checkpoint_store=MemoryStateStore(), batch_size=30, max_batches_per_tick=2
    )
    def changed(timer: Any, events: list[RowChange], newest: dict[str, Any]) -> None:
        seen.append((len(events), newest["id"]))

    changed(timer="tick")
    assert seen == [(30, 30), (10, 40)]


@pytest.fixture
def books(database_url: str) -> str:
    """A database with sales to book; the state is kept there too."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE sales (id INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE ledger (sale INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO sales VALUES (1), (2), (3)"))
    engine.dispose()
    return database_url


def booked(url: str) -> list[int]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [row[0] for row in connection.execute(text("SELECT sale FROM ledger ORDER BY sale"))]
    engine.dispose()
    return found


def booking(url: str, *, is_async: bool, failing: list[bool]) -> Any:
    """A poll function that writes to the ledger, then fails as long as it is told to."""
    source = SqlAlchemySource(url=url, table="sales", cursor_column="id", pk_columns=["id"], in_flight="ignore")
    trigger = db.trigger(
        arg_name="events", source=source, checkpoint_store=SqlStateStore(url=url), transactional=True, name="books"
    )
    ledger = db.inject_writer("ledger", url=url, table="ledger")

    def book(timer: Any, events: list[RowChange], ledger: Any) -> None:
        ledger.insert_many(rows=[{"sale": event.pk["id"]} for event in events])
        if failing.pop():
            raise LookupError("after the write")

    async def book_async(timer: Any, events: list[RowChange], ledger: Any) -> None:
        await ledger.insert_many(rows=[{"sale": event.pk["id"]} for event in events])
        if failing.pop():
            raise LookupError("after the write")

    if not is_async:
        return trigger(ledger(book))
    run = trigger(ledger(book_async))
    return lambda timer: asyncio.run(run(timer=timer))


@pytest.mark.parametrize("is_async", [False, True])
def test_with_transactional_the_handlers_writes_and_the_checkpoint_are_one(books: str, is_async: bool) -> None:
    poll = booking(books, is_async=is_async, failing=[False, True])
    with pytest.raises(HandlerError):
        poll(timer="tick")
    assert booked(books) == []
    poll(timer="tick")
    poll(timer="tick")
    assert booked(books) == [1, 2, 3]
