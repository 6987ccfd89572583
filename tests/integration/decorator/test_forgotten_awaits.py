"""A call of an async face that nobody awaits does nothing: the batch or the invocation fails and says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import (
    AsyncDbOut,
    AsyncDbReader,
    AsyncDbSession,
    AsyncDbWriter,
    ConfigurationError,
    DbBindings,
    HandlerError,
    MemoryStateStore,
    PollTrigger,
    WriteError,
)
from azure_functions_db.testing.memory import MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure_functions_db import RowChange

db = DbBindings()
ROWS = [{"id": 1, "version": 1}, {"id": 2, "version": 2}]
KEPT: list[Any] = []


class Target:
    """A table, and functions that write to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_engine(url)
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE copies (id INTEGER PRIMARY KEY)"))

    def ids(self) -> list[int]:
        with self._engine.connect() as connection:
            return list(connection.scalars(text("SELECT id FROM copies ORDER BY id")))

    def clear(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(text("DELETE FROM copies"))

    def close(self) -> None:
        self._engine.dispose()

    def polled(self, write: Callable[[Any, list[dict[str, Any]]], Any], kind: str = "output") -> Any:
        """Return a poll function whose handler does this with what is injected into it."""

        async def copied(timer: Any, events: list[RowChange], face: Any) -> None:
            await write(face, [{"id": event.pk["id"]} for event in events])

        injected = getattr(db, kind)("face", url=self.url, table="copies")(copied)
        source = MemorySource(ROWS, cursor_column="version", pk_columns=["id"])
        return db.trigger(arg_name="events", source=source, checkpoint_store=MemoryStateStore())(injected)


@pytest.fixture
def target(sqlite_database: str) -> Iterator[Target]:
    made = Target(sqlite_database)
    yield made
    made.close()
    KEPT.clear()


async def set_and_forget(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    out.set(rows)  # type: ignore[unused-coroutine]


async def set_and_keep(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    KEPT.append(out.set(rows))


async def insert_and_forget(writer: AsyncDbWriter, rows: list[dict[str, Any]]) -> None:
    await writer.insert(data=rows[0])
    writer.insert(data=rows[1])  # type: ignore[unused-coroutine]


async def forget_in_a_transaction(writer: AsyncDbWriter, rows: list[dict[str, Any]]) -> None:
    async with writer.transaction():
        writer.insert_many(rows=rows)  # type: ignore[unused-coroutine]


async def forget_in_a_helper(writer: AsyncDbWriter, rows: list[dict[str, Any]]) -> None:
    def helper() -> None:
        writer.insert_many(rows=rows)  # type: ignore[unused-coroutine]

    helper()
    await asyncio.to_thread(helper)


async def forget_in_a_comprehension(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    [out.set(row) for row in rows]


async def await_one_and_forget_the_other(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    first, _second = out.set(rows[0]), out.set(rows[1])
    await asyncio.gather(first)


async def forget_in_a_task(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    async def write() -> None:
        out.set(rows)  # type: ignore[unused-coroutine]

    await asyncio.create_task(write())


async def query_and_forget(reader: AsyncDbReader, _rows: list[dict[str, Any]]) -> None:
    reader.query("SELECT 1", params={})  # type: ignore[unused-coroutine]


@pytest.mark.parametrize(
    ("kind", "forget", "name"),
    [
        ("output", set_and_forget, "AsyncDbOut.set"),
        ("output", set_and_keep, "AsyncDbOut.set"),
        ("inject_writer", insert_and_forget, "AsyncDbWriter.insert"),
        ("inject_writer", forget_in_a_transaction, "AsyncDbWriter.insert_many"),
        ("inject_reader", query_and_forget, "AsyncDbReader.query"),
        ("inject_writer", forget_in_a_helper, "AsyncDbWriter.insert_many"),
        ("output", forget_in_a_comprehension, "AsyncDbOut.set"),
        ("output", await_one_and_forget_the_other, "AsyncDbOut.set"),
        ("output", forget_in_a_task, "AsyncDbOut.set"),
    ],
)
def test_a_batch_whose_handler_forgets_an_await_fails_and_comes_again(
    target: Target, kind: str, forget: Any, name: str
) -> None:
    copied = target.polled(forget, kind)
    for _ in range(2):
        with pytest.raises(HandlerError, match=rf"{name} was called but never awaited.*: await it"):
            asyncio.run(copied(timer=None))
        target.clear()


def test_a_face_of_the_handlers_own_counts_too(target: Target) -> None:
    async def handler(_events: list[RowChange]) -> None:
        async with AsyncDbSession(url=target.url) as session:
            session.writer("copies").insert(data={"id": 1})  # type: ignore[unused-coroutine]

    source = MemorySource(ROWS, cursor_column="version", pk_columns=["id"])
    poller = PollTrigger(name="copies", source=source, checkpoint_store=MemoryStateStore())
    with pytest.raises(HandlerError, match=r"AsyncWriter.insert was called but never awaited"):
        asyncio.run(poller.run_async(timer=None, handler=handler))


def test_a_plain_handler_that_calls_an_async_face_fails(target: Target) -> None:
    source = MemorySource(ROWS, cursor_column="version", pk_columns=["id"])
    poller = PollTrigger(name="copies", source=source, checkpoint_store=MemoryStateStore())
    writer = AsyncDbWriter(url=target.url, table="copies")

    def forgetful(events: list[RowChange]) -> None:
        writer.insert(data={"id": events[0].pk["id"]})  # type: ignore[unused-coroutine]

    with pytest.raises(HandlerError, match="never awaited"):
        poller.run(timer=None, handler=forgetful)
    poller.run(timer=None, handler=lambda _events: asyncio.run(_written(writer)))
    assert target.ids() == [1]


async def _written(writer: AsyncDbWriter) -> None:
    async with writer:
        await writer.insert(data={"id": 1})


async def gathered(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    await asyncio.gather(*(out.set(row) for row in rows))


async def as_task(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    await asyncio.create_task(out.set(rows))


async def as_a_task_that_nobody_waits_for(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    KEPT.append(asyncio.create_task(out.set(rows)))


async def in_a_task_of_the_handlers(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
    async def write() -> None:
        await out.set(rows)

    KEPT.append(asyncio.ensure_future(write()))


@pytest.mark.parametrize("write", [gathered, as_task, as_a_task_that_nobody_waits_for, in_a_task_of_the_handlers])
def test_what_is_handed_to_a_task_is_awaited(target: Target, write: Any) -> None:
    asyncio.run(target.polled(write)(timer=None))
    assert target.ids() == [1, 2]


def test_a_task_that_nobody_waits_for_fails_the_batch_with_its_write(target: Target) -> None:
    async def write(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
        KEPT.append(asyncio.create_task(out.set([*rows, *rows])))

    async def run() -> None:
        with pytest.raises(HandlerError) as caught:
            await target.polled(write)(timer=None)
        assert isinstance(caught.value.__cause__, WriteError)
        await asyncio.gather(*KEPT, return_exceptions=True)

    asyncio.run(run())


def test_a_task_that_writes_after_its_handler_is_spoken_of(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    async def write(out: AsyncDbOut, rows: list[dict[str, Any]]) -> None:
        async def later() -> None:
            await returned.wait()
            await out.set(rows)

        KEPT.append(asyncio.create_task(later()))

    async def run() -> None:
        await target.polled(write)(timer=None)
        returned.set()
        await asyncio.gather(*KEPT)

    returned = asyncio.Event()
    asyncio.run(run())
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "AsyncDbOut.set was called by a task that has outlived its handler" in warning
    assert target.ids() == [1, 2]


def test_a_function_without_a_trigger_fails_at_its_end(target: Target) -> None:
    @db.output("out", url=target.url, table="copies")
    async def function(req: Any, out: AsyncDbOut) -> str:
        out.set({"id": 1})  # type: ignore[unused-coroutine]
        return "done"

    with pytest.raises(ConfigurationError, match=r"AsyncDbOut.set was called but never awaited.*: await it"):
        asyncio.run(function(req=None))
    assert target.ids() == []


def test_the_handlers_own_exception_is_what_comes_out(target: Target) -> None:
    @db.output("out", url=target.url, table="copies")
    async def function(req: Any, out: AsyncDbOut) -> None:
        out.set({"id": 1})  # type: ignore[unused-coroutine]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(function(req=None))


def test_outside_an_invocation_a_face_is_as_it_was(target: Target) -> None:
    async def run() -> None:
        async with AsyncDbWriter(url=target.url, table="copies") as writer:
            await writer.insert(data={"id": 7})

    asyncio.run(run())
    assert target.ids() == [7]
