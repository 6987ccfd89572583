"""The awaitable faces of readers, writers and sessions; the work itself is theirs, in threads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from azure_functions_db.binding.conversion import as_model
from azure_functions_db.binding.reader import DbReader, Reader
from azure_functions_db.binding.session import DbSession
from azure_functions_db.binding.writer import DbWriter, Writer
from azure_functions_db.core.bridge import PinnedThread, Threads, must_be_awaited, threads_of
from azure_functions_db.core.config import config_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from sqlalchemy import Connection, Table

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Row
    from azure_functions_db.sql.engine import EngineProvider

P = ParamSpec("P")
T = TypeVar("T")


def _awaitable(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the same method as a coroutine of the face."""

    @must_be_awaited
    @wraps(method)
    async def call(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await face._run(method, face._inner, *args, **kwargs)  # noqa: SLF001 - the faces of this file
        return result

    return call


class AsyncReader:
    """A `Reader` whose calls are awaited."""

    def __init__(self, inner: Reader, threads: PinnedThread | Threads) -> None:
        self._inner = inner
        self._threads = threads

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(work, *args, **kwargs)

    get = _awaitable(Reader.get)
    query = _awaitable(Reader.query)
    scalar = _awaitable(Reader.scalar)
    one = _awaitable(Reader.one)
    one_or_none = _awaitable(Reader.one_or_none)

    def stream(
        self,
        sql: str,
        *,
        params: Mapping[str, Any] | None = None,
        model: type[Any] | None = None,
        chunk_size: int = 1000,
    ) -> AsyncIterator[Any]:
        """Return the rows of a statement one by one; the server sends them in chunks."""
        convert = as_model(model)
        return self._pulled(self._inner.chunks(sql, params=params, chunk_size=chunk_size), convert)

    async def _pulled(self, chunks: Iterator[list[Row]], convert: Callable[[Row], Any]) -> AsyncIterator[Any]:
        # The statement must not be closed by one thread while another one still reads from it.
        own = self._threads if isinstance(self._threads, PinnedThread) else None
        thread = own or PinnedThread("azfdb-stream")
        try:
            while (chunk := await thread.run(next, chunks, None)) is not None:
                for row in chunk:
                    yield convert(row)
        finally:
            await thread.run_to_end(chunks.close)  # type: ignore[attr-defined]
            if thread is not own:
                thread.close()


class AsyncDbReader(AsyncReader):
    """A `DbReader` whose calls are awaited; several may run at once."""

    _inner: DbReader

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table | None = None,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        reader = DbReader(url=url, db_config=db_config, table=table, schema=schema, engine_provider=engine_provider)
        super().__init__(reader, threads_of(config_of(url, db_config)))

    close = _awaitable(DbReader.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncWriter:
    """A `Writer` whose calls are awaited, one after the other on one thread."""

    def __init__(self, inner: Writer, thread: PinnedThread | None = None) -> None:
        self._inner = inner
        if thread is not None:
            self._thread = thread

    @cached_property
    def _thread(self) -> PinnedThread:
        return PinnedThread("azfdb-writer")

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread.run(work, *args, **kwargs)

    insert = _awaitable(Writer.insert)
    insert_many = _awaitable(Writer.insert_many)
    upsert = _awaitable(Writer.upsert)
    upsert_many = _awaitable(Writer.upsert_many)
    update = _awaitable(Writer.update)
    delete = _awaitable(Writer.delete)
    in_transaction = _awaitable(Writer.in_transaction)


class AsyncDbWriter(AsyncWriter):
    """A `DbWriter` whose calls are awaited, one after the other on one thread."""

    _inner: DbWriter

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        super().__init__(
            DbWriter(url=url, db_config=db_config, table=table, schema=schema, engine_provider=engine_provider)
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Let all calls inside share one transaction: kept at the end, undone on an exception."""
        async with _on_thread(self._thread, self._inner.transaction()):
            yield self

    @must_be_awaited
    async def close(self) -> None:
        """Roll back a transaction that is still open; the pool stays."""
        await self._thread.run_to_end(self._inner.close)
        self._thread.close()
        del self._thread

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncDbSession:
    """A `DbSession` whose calls are awaited, one after the other on one thread."""

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        engine_provider: EngineProvider | None = None,
        isolation_level: str | None = None,
    ) -> None:
        self._inner = DbSession(
            url=url, db_config=db_config, engine_provider=engine_provider, isolation_level=isolation_level
        )

    @cached_property
    def _thread(self) -> PinnedThread:
        return PinnedThread("azfdb-session")

    def reader(self, table: str | Table | None = None, *, schema: str | None = None) -> AsyncReader:
        """Return a reader inside this transaction."""
        return AsyncReader(self._inner.reader(table, schema=schema), self._thread)

    def writer(self, table: str | Table, *, schema: str | None = None) -> AsyncWriter:
        """Return a writer inside this transaction."""
        return AsyncWriter(self._inner.writer(table, schema=schema), self._thread)

    @must_be_awaited
    async def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run work on the SQLAlchemy connection of this transaction."""
        return await self._thread.run(self._inner.in_transaction, work)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Undo what is done inside when it raises, and let the transaction go on."""
        return _on_thread(self._thread, self._inner.savepoint())

    @must_be_awaited
    async def close(self) -> None:
        """Roll back what has not been kept; the pool stays."""
        await self._thread.run_to_end(self._inner.close)

    async def __aenter__(self) -> Self:
        self._block = _on_thread(self._thread, self._inner)
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._block.__aexit__(kind, error, trace)
        finally:
            self._thread.close()
            del self._thread


@asynccontextmanager
async def _on_thread(thread: PinnedThread, manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager on a thread; leaving is not cut short by a cancellation."""
    try:
        entered = await thread.run_to_end(manager.__enter__)
    except asyncio.CancelledError:
        await thread.run_to_end(manager.__exit__, *sys.exc_info())
        raise
    try:
        yield entered
    except BaseException:
        if not await thread.run_to_end(manager.__exit__, *sys.exc_info()):
            raise
    else:
        await thread.run_to_end(manager.__exit__, None, None, None)
