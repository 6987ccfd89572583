"""The awaitable faces: same methods, same results, and nothing half done when a task is cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db import (
    AsyncDbReader,
    AsyncDbSession,
    AsyncDbWriter,
    ConfigurationError,
    DbReader,
    DbSession,
    DbWriter,
    QueryError,
    WriteError,
)
from azure_functions_db.sql.transactions import ambient_transaction

if TYPE_CHECKING:
    from tests.integration.binding.conftest import Place


def reader(place: Place, table: str | None = "items") -> AsyncDbReader:
    return AsyncDbReader(url=place.url, table=table, engine_provider=place.provider)


def writer(place: Place, table: str = "items") -> AsyncDbWriter:
    return AsyncDbWriter(url=place.url, table=table, engine_provider=place.provider)


def test_the_faces_have_the_same_methods() -> None:
    for face, original in ((AsyncDbReader, DbReader), (AsyncDbWriter, DbWriter), (AsyncDbSession, DbSession)):
        public = {name for name, _ in inspect.getmembers(original) if not name.startswith("_")} - {"chunks"}
        offered = {name for name, _ in inspect.getmembers(face) if not name.startswith("_")}
        assert offered == public


def test_reads_and_writes(place: Place) -> None:
    async def scenario() -> None:
        async with writer(place) as write, reader(place) as read:
            await write.insert(data={"id": 1, "name": "a"})
            await write.insert_many(rows=[{"id": key} for key in range(2, 200)])
            await write.upsert(data={"id": 1, "name": "b"}, conflict_columns=["id"])
            await write.upsert_many(rows=[{"id": 2, "name": "c"}], conflict_columns=["id"])
            await write.update(data={"size": 9}, pk={"id": 3})
            await write.delete(pk={"id": 4})
            assert (await read.get(pk={"id": 1}) or {})["name"] == "b"
            assert await read.scalar("SELECT count(*) FROM items", params={}) == 198
            assert await read.one("SELECT name FROM items WHERE id = 2", params={}) == {"name": "c"}
            assert await read.one_or_none("SELECT 1 AS one FROM items WHERE id = 4", params={}) is None
            assert await read.query("SELECT size FROM items WHERE id = 3", params={}) == [{"size": 9}]
            with pytest.raises(QueryError):
                await read.query("SELECT nothing FROM items", params={})
            with pytest.raises(WriteError):
                await write.insert(data={"id": 1})

    asyncio.run(scenario())


def test_many_calls_at_once(place: Place) -> None:
    async def scenario() -> None:
        async with writer(place) as write, reader(place) as read:
            await asyncio.gather(*(write.insert(data={"id": key}) for key in range(1, 21)))
            found = await asyncio.gather(*(read.get(pk={"id": key}) for key in range(1, 21)))
            assert [row["id"] for row in found if row] == list(range(1, 21))

    asyncio.run(scenario())


def test_a_stream_is_pulled_chunk_by_chunk_and_may_be_left(place: Place) -> None:
    place.writer().insert_many(rows=[{"id": key} for key in range(1, 501)])

    async def scenario() -> None:
        async with reader(place) as read:
            found = [
                row["id"] async for row in read.stream("SELECT id FROM items ORDER BY id", params={}, chunk_size=100)
            ]
            assert found == list(range(1, 501))
            rows = read.stream("SELECT id FROM items ORDER BY id", params={}, chunk_size=10)
            assert (await anext(rows))["id"] == 1
            await rows.aclose()  # type: ignore[attr-defined]
            assert place.reader()._database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]

    asyncio.run(scenario())


def test_a_transaction_is_kept_or_undone(place: Place) -> None:
    async def scenario() -> None:
        async with writer(place) as write:
            async with write.transaction():
                await write.insert(data={"id": 1})
                await write.insert_many(rows=[{"id": 2}])
                assert place.count() == 0
            assert place.count() == 2
            with pytest.raises(KeyError):
                async with write.transaction():
                    await write.insert(data={"id": 3})
                    raise KeyError
            with pytest.raises(WriteError, match="do not nest"):
                async with write.transaction(), write.transaction():
                    pass
            assert place.count() == 2

    asyncio.run(scenario())


def test_a_cancelled_transaction_is_rolled_back_whole(place: Place) -> None:
    async def scenario() -> None:
        async with writer(place) as write:
            inside = asyncio.Event()

            async def work() -> None:
                async with write.transaction():
                    await write.insert(data={"id": 1})
                    inside.set()
                    await asyncio.sleep(3600)

            task = asyncio.create_task(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert place.count() == 0
            await write.insert(data={"id": 2})
            assert place.count() == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_a_cancellation_while_beginning_or_committing_waits_for_the_database(
    sqlite: Place, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's answer is waited for: a begun transaction is undone, a committed one stays committed."""
    held, reached = threading.Event(), threading.Event()

    async def scenario() -> None:
        write = writer(sqlite)
        await write.insert(data={"id": 1})
        database = write._inner._database
        original = getattr(database, moment)

        def slow(*args: Any, **kwargs: Any) -> Any:
            reached.set()
            held.wait(30)
            return original(*args, **kwargs)

        monkeypatch.setattr(database, moment, slow)

        async def work() -> None:
            async with write.transaction():
                await write.insert(data={"id": 2})

        task = asyncio.create_task(work())
        await asyncio.to_thread(reached.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        held.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sqlite.count() == (1 if moment == "begin" else 2)
        assert database.is_open is False
        await write.close()

    asyncio.run(scenario())


def test_a_session_spans_tables(place: Place) -> None:
    place.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY)")

    async def scenario() -> None:
        async with AsyncDbSession(url=place.url, engine_provider=place.provider) as session:
            await session.writer("items").insert(data={"id": 1})
            await session.writer("notes").insert_many(rows=[{"id": 1}])
            with pytest.raises(WriteError):
                async with session.savepoint():
                    await session.writer("items").insert(data={"id": 2})
                    await session.writer("items").insert(data={"id": 1})
            assert await session.reader("items").get(pk={"id": 2}) is None
            assert [row async for row in session.reader().stream("SELECT id FROM items", params={})] == [{"id": 1}]
        assert place.count() == 1
        with pytest.raises(KeyError):
            async with AsyncDbSession(url=place.url, engine_provider=place.provider) as session:
                await session.writer("items").delete(pk={"id": 1})
                raise KeyError
        assert place.count() == 1
        with pytest.raises(ConfigurationError, match="with block"):
            await session.reader("items").get(pk={"id": 1})

    asyncio.run(scenario())


def test_a_shared_transaction_is_joined_from_an_async_handler(place: Place) -> None:
    engine = place.writer()._database.engine

    async def handler() -> None:
        async with writer(place) as write, reader(place) as read:
            await write.insert(data={"id": 1})
            assert await read.get(pk={"id": 1}) is not None
            assert place.count() == 0

    with pytest.raises(KeyError), ambient_transaction(engine):
        asyncio.run(handler())
        raise KeyError
    assert place.count() == 0


def test_a_closed_writer_may_be_used_again(sqlite: Place) -> None:
    async def scenario() -> None:
        write = writer(sqlite)
        await write.insert(data={"id": 1})
        await write.close()
        await write.insert(data={"id": 2})
        await write.close()

    asyncio.run(scenario())
    assert sqlite.count() == 2
