"""A connection that is lost: the user's own exception comes out, and either kind of error catches the loss."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from azure_functions_db import (
    AsyncDbReader,
    AsyncDbSession,
    AsyncDbWriter,
    DbBindings,
    DbConnectionError,
    DbReader,
    DbWriter,
    QueryError,
    WriteError,
    processed_once,
)
from azure_functions_db.binding.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.binding.conftest import Place


class OwnError(Exception):
    """What the user's block raises."""


def rollback_warnings(log: pytest.LogCaptureFixture) -> list[str]:
    ours = [record for record in log.records if record.name == "azure_functions_db"]
    return [record.getMessage() for record in ours if record.levelno == logging.WARNING]


def in_a_transaction(place: Place) -> None:
    writer = place.writer()
    with writer.transaction():
        writer.insert(data={"id": 1})
        lose(place)


def in_a_session(place: Place) -> None:
    with place.session() as session:
        session.writer("items").insert(data={"id": 1})
        lose(place)


def in_a_savepoint(place: Place) -> None:
    with place.session() as session, session.savepoint():
        session.writer("items").insert(data={"id": 1})
        lose(place)


def in_a_call_of_many_rows(place: Place) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for key in range(20_000):
            yield {"id": key}
        lose(place)

    place.writer().insert_many(rows=rows())


def in_an_injected_writer(place: Place) -> None:
    @DbBindings().inject_writer("writer", url=place.url, table="items", engine_provider=place.provider)
    def function(writer: DbWriter) -> None:
        with writer.transaction():
            writer.insert(data={"id": 1})
            lose(place)

    function()


def in_an_async_transaction(place: Place) -> None:
    async def run() -> None:
        writer = AsyncDbWriter(url=place.url, table="items", engine_provider=place.provider)
        async with writer, writer.transaction():
            await writer.insert(data={"id": 1})
            lose(place)

    asyncio.run(run())


def in_an_async_session(place: Place) -> None:
    async def run() -> None:
        async with AsyncDbSession(url=place.url, engine_provider=place.provider) as session:
            await session.writer("items").insert(data={"id": 1})
            lose(place)

    asyncio.run(run())


def in_a_ledgers_transaction(place: Place) -> None:
    with processed_once([], url=place.url, engine_provider=place.provider):
        place.writer().insert(data={"id": 1})
        lose(place)


def lose(place: Place) -> None:
    place.kill_other_sessions()
    raise OwnError


@pytest.mark.parametrize(
    "fail",
    [
        in_a_transaction,
        in_a_session,
        in_a_savepoint,
        in_a_call_of_many_rows,
        in_an_injected_writer,
        in_an_async_transaction,
        in_an_async_session,
        in_a_ledgers_transaction,
    ],
)
def test_a_failing_rollback_does_not_hide_the_users_exception(
    server: Place, caplog: pytest.LogCaptureFixture, fail: Callable[[Place], None]
) -> None:
    with pytest.raises(OwnError):
        fail(server)
    assert any("Rolling back failed" in told for told in rollback_warnings(caplog))
    assert server.count() == 0
    server.writer().insert(data={"id": 2})
    assert server.count() == 1


def test_closing_a_lost_transaction_or_stream_logs_and_does_not_raise(
    server: Place, caplog: pytest.LogCaptureFixture
) -> None:
    writer = server.writer()
    block = writer.transaction()
    block.__enter__()
    writer.insert(data={"id": 1})
    session = server.session().__enter__()
    session.writer("items").insert(data={"id": 2})
    server.kill_other_sessions()

    writer.close()
    session.close()

    assert len(rollback_warnings(caplog)) == 2
    assert server.count() == 0


def test_a_stream_that_lost_its_connection_can_be_closed(
    sqlite: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Made up: the drivers' own cursors complain aloud when they are collected after a real loss.
    def lost_at_its_end(*_args: Any, **_options: Any) -> Iterator[list[dict[str, Any]]]:
        try:
            yield [{"id": 1}]
        finally:
            raise DbConnectionError("gone")

    monkeypatch.setattr(Reader, "chunks", lost_at_its_end)
    reader = sqlite.reader()
    stream = reader.stream("SELECT * FROM items", params={})
    next(stream)
    reader.close()
    assert rollback_warnings(caplog) == ["Rolling back failed: gone"]


async def call(face: Any, name: str, **arguments: Any) -> Any:
    async with face:
        return await getattr(face, name)(**arguments)


@pytest.fixture
def nowhere(server: Place) -> str:
    return make_url(server.url).set(port=1).render_as_string(hide_password=False)


def test_a_connection_lost_while_writing_is_a_write_error_too(server: Place) -> None:
    def write() -> None:
        with writer.transaction():
            writer.insert(data={"id": 1})
            server.kill_other_sessions()
            writer.insert(data={"id": 2})

    def commit() -> None:
        with writer.transaction():
            writer.insert(data={"id": 1})
            server.kill_other_sessions()

    def commit_session() -> None:
        with server.session() as session:
            session.writer("items").insert(data={"id": 1})
            server.kill_other_sessions()

    for lost in (write, commit, commit_session):
        writer = server.writer()
        with pytest.raises(WriteError) as caught:
            lost()
        assert isinstance(caught.value, DbConnectionError)
        assert caught.value.table == (None if lost is commit_session else "items")
    assert server.count() == 0


def test_a_connection_that_cannot_be_had_for_writing_is_a_write_error_too(nowhere: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: DbWriter(url=nowhere, table="items").insert(data={"id": 1}),
        lambda: DbWriter(url=nowhere, table="items").insert_many(rows=[{"id": 1}]),
        lambda: DbWriter(url=nowhere, table="items").delete(pk={"id": 1}),
        lambda: DbWriter(url=nowhere, table="items").transaction().__enter__(),
        lambda: asyncio.run(call(AsyncDbWriter(url=nowhere, table="items"), "insert", data={"id": 1})),
        lambda: processed_once([], url=nowhere).__enter__(),
    ]
    for attempt in calls:
        with pytest.raises(WriteError) as caught:
            attempt()
        assert isinstance(caught.value, DbConnectionError)
        assert isinstance(caught.value, ConnectionError)


def test_a_connection_lost_while_reading_is_a_query_error_too(server: Place, nowhere: str) -> None:
    def read_in_a_session() -> None:
        with server.session() as session:
            session.reader().query("SELECT 1 AS one", params={})
            server.kill_other_sessions()
            session.reader("items").get(pk={"id": 1})

    calls: list[Callable[[], Any]] = [
        read_in_a_session,
        lambda: DbReader(url=nowhere).query("SELECT 1", params={}),
        lambda: DbReader(url=nowhere, table="items").get(pk={"id": 1}),
        lambda: list(DbReader(url=nowhere).stream("SELECT 1", params={})),
        lambda: asyncio.run(call(AsyncDbReader(url=nowhere), "scalar", sql="SELECT 1", params={})),
    ]
    for attempt in calls:
        with pytest.raises(QueryError) as caught:
            attempt()
        assert isinstance(caught.value, DbConnectionError)
        assert not isinstance(caught.value, WriteError)
