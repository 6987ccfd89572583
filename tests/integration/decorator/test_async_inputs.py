"""Many async invocations at once, on few threads."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text

from azure_functions_db import DbBindings, DbConfig, MemoryStateStore, PollTrigger, SqlAlchemySource

if TYPE_CHECKING:
    from azure_functions_db import EngineProvider

ROWS = 200
db = DbBindings()


def numbers(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (id INTEGER PRIMARY KEY, doubled INTEGER)"))
        rows = [{"id": i, "doubled": 2 * i} for i in range(ROWS)]
        connection.execute(text("INSERT INTO numbers VALUES (:id, :doubled)"), rows)
    engine.dispose()


async def test_two_hundred_inputs_at_once_need_no_more_threads_than_the_pool_has_connections(
    database_url: str, provider: EngineProvider
) -> None:
    numbers(database_url)
    config = DbConfig(connection_url=database_url, pool_size=2, max_overflow=1)
    seen: set[str] = set()

    def key(number: int) -> dict[str, int]:  # asked for on the thread that reads
        seen.add(threading.current_thread().name)
        return {"id": number}

    @db.input("row", db_config=config, engine_provider=provider, table="numbers", pk=key)
    async def doubled(number: int, row: Any) -> Any:
        return row["doubled"]

    assert await asyncio.gather(*map(doubled, range(ROWS))) == [2 * i for i in range(ROWS)]
    assert 0 < len(seen) <= 3


async def test_ticks_whose_async_handlers_use_bindings_do_not_wait_for_each_other(
    database_url: str, provider: EngineProvider
) -> None:
    numbers(database_url)
    config = DbConfig(connection_url=database_url, pool_size=1, max_overflow=10)
    met = asyncio.Barrier(4)

    @db.input("rows", db_config=config, engine_provider=provider, query="SELECT id FROM numbers", params={})
    async def handle(events: Any, rows: Any) -> None:
        await met.wait()  # every tick has its thread, and keeps it
        assert len(rows) == ROWS

    def poller(number: int) -> PollTrigger:
        source = SqlAlchemySource(
            db_config=config, engine_provider=provider, table="numbers", cursor_column="id", pk_columns=["id"]
        )
        return PollTrigger(
            name=f"numbers-{number}", source=source, checkpoint_store=MemoryStateStore(), batch_size=ROWS
        )

    handled = await asyncio.gather(*(poller(number).run_async(timer=None, handler=handle) for number in range(4)))
    assert handled == [ROWS] * 4
