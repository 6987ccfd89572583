"""Inputs, outputs and injected clients, as sync and async handlers get them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, event, text

from azure_functions_db import (
    ConfigurationError,
    DbBindings,
    DbConfig,
    DbConnectionError,
    EngineProvider,
    NotFoundError,
    WriteError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

db = DbBindings()


class User(BaseModel):
    id: int
    name: str


class Shop:
    """A database with users, and the engine through which bindings reach it."""

    def __init__(self, url: str) -> None:
        self.provider = EngineProvider()
        self.config = DbConfig(connection_url=url)
        self.place: dict[str, Any] = {"db_config": self.config, "engine_provider": self.provider}
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE users (id INTEGER PRIMARY KEY, name VARCHAR(50) NOT NULL)"))
            connection.execute(text("INSERT INTO users VALUES (1, 'Ada'), (2, 'Grace')"))

    @property
    def engine(self) -> Any:
        return self.provider.get_engine(self.config)

    @property
    def users(self) -> list[tuple[int, str]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text("SELECT id, name FROM users ORDER BY id"))]

    @property
    def borrowed(self) -> int:
        return int(self.engine.pool.checkedout())


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    shop = Shop(database_url)
    yield shop
    shop.provider.dispose_all()


def test_an_input_by_key_is_a_dict_or_none(shop: Shop) -> None:
    @db.input("user", **shop.place, table="users", pk=lambda req: {"id": req})
    def handler(req: int, user: dict[str, Any] | None) -> Any:
        assert shop.borrowed == 0, "the connection is back before the handler starts"
        return user

    assert handler(1) == {"id": 1, "name": "Ada"}
    assert handler(req=9) is None


def test_an_input_with_a_fixed_key_and_a_model(shop: Shop) -> None:
    @db.input("user", **shop.place, table="users", pk={"id": 2}, model=User)
    def handler(req: int, user: User) -> Any:
        return user

    assert handler(1) == User(id=2, name="Grace")


def test_an_input_by_query_is_a_list(shop: Shop) -> None:
    @db.input(
        "users",
        **shop.place,
        query="SELECT name FROM users WHERE id >= :low ORDER BY id",
        params=lambda req, low=2: {"low": low},
    )
    def handler(req: int, users: list[dict[str, Any]], low: int = 1) -> Any:
        return [user["name"] for user in users]

    assert handler(req=0) == ["Ada", "Grace"]
    assert handler(req=0, low=2) == ["Grace"]


def test_a_missing_row_can_be_an_error(shop: Shop) -> None:
    @db.input("user", **shop.place, table="users", pk={"id": 9}, on_not_found="raise")
    def by_key(req: int, user: Any) -> None: ...

    with pytest.raises(NotFoundError, match="'user' found no row in table 'users'") as raised:
        by_key(1)
    assert raised.value.table == "users"


def test_a_resolver_must_return_a_dict(shop: Shop) -> None:
    @db.input("user", **shop.place, table="users", pk=lambda req: req)
    def handler(req: Any, user: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="given as pk= returned a int"):
        handler(5)


@pytest.mark.parametrize(
    "value",
    [{"id": 3, "name": "Alan"}, [{"id": 3, "name": "Alan"}], User(id=3, name="Alan"), [User(id=3, name="Alan")]],
)
def test_an_output_writes_rows_and_models_at_once(shop: Shop, value: Any) -> None:
    @db.output("out", **shop.place, table="users")
    def handler(req: Any, out: Any) -> str:
        out.set(value)
        assert (3, "Alan") in shop.users
        return "the handler's own"

    assert handler(1) == "the handler's own"


@pytest.mark.parametrize("value", [{"id": 1, "name": "Lovelace"}, [{"id": 1, "name": "Lovelace"}]])
def test_an_output_can_upsert(shop: Shop, value: Any) -> None:
    @db.output("out", **shop.place, table="users", action="upsert", conflict_columns=["id"])
    async def handler(req: Any, out: Any) -> None:
        await out.set(value)

    asyncio.run(handler(1))
    assert shop.users == [(1, "Lovelace"), (2, "Grace")]


@pytest.mark.parametrize("value", [None, []])
def test_nothing_to_write_needs_no_database(value: Any) -> None:
    @db.output("out", url="postgresql+psycopg://nobody@127.0.0.1:1/nowhere", table="users")
    def handler(req: Any, out: Any) -> None:
        out.set(value)

    handler(1)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (({"id": 3},), "the value is a tuple"),
        ("text", "the value is a str"),
        ([{"id": 3, "name": "Alan"}, ("id", 4)], "element 1 of the list is a tuple"),
        ([None], "element 0 of the list is a NoneType"),
    ],
)
def test_what_is_no_row_is_named_before_anything_is_written(shop: Shop, value: Any, named: str) -> None:
    @db.output("out", **shop.place, table="users")
    def handler(req: Any, out: Any) -> None:
        out.set(value)

    with pytest.raises(ConfigurationError, match=named):
        handler(1)
    assert len(shop.users) == 2


def test_a_failed_write_reaches_the_caller(shop: Shop) -> None:
    @db.output("out", **shop.place, table="users")
    def handler(req: Any, out: Any) -> None:
        out.set([{"id": 3, "name": "Alan"}, {"id": 1, "name": "again"}])

    with pytest.raises(WriteError):
        handler(1)
    assert len(shop.users) == 2


def test_injected_clients_are_closed_however_the_handler_ends(shop: Shop) -> None:
    @db.inject_reader("reader", **shop.place)
    @db.inject_writer("writer", **shop.place, table="users")
    def handler(req: Any, reader: Any, writer: Any) -> None:
        assert reader.scalar("SELECT count(*) FROM users", params={}) == 2
        with writer.transaction():
            writer.insert(data={"id": 3, "name": "Alan"})
            assert shop.borrowed > 0
            raise KeyError("half way")

    with pytest.raises(KeyError):
        handler(1)
    assert shop.borrowed == 0
    assert len(shop.users) == 2


def test_a_cancelled_async_handler_leaves_nothing_open(shop: Shop) -> None:
    reached = asyncio.Event()

    @db.inject_writer("writer", **shop.place, table="users")
    async def handler(req: Any, writer: Any) -> None:
        async with writer.transaction():
            await writer.insert(data={"id": 3, "name": "Alan"})
            reached.set()
            await asyncio.Event().wait()

    async def cancelled() -> None:
        running = asyncio.create_task(handler(1))
        await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert shop.borrowed == 0
    assert len(shop.users) == 2


def test_an_async_handler_never_blocks_its_loop_on_the_database(shop: Shop) -> None:
    threads: set[str] = set()
    event.listen(shop.engine, "before_cursor_execute", lambda *_: threads.add(threading.current_thread().name))

    @db.input("user", **shop.place, table="users", pk={"id": 1})
    @db.output("out", **shop.place, table="users", action="upsert", conflict_columns=["id"])
    async def with_bindings(req: Any, user: Any, out: Any) -> None:
        await out.set({**user, "name": "Countess"})

    @db.inject_reader("reader", **shop.place)
    @db.inject_writer("writer", **shop.place, table="users")
    async def with_clients(req: Any, reader: Any, writer: Any) -> None:
        await writer.update(data={"name": "Hopper"}, pk={"id": 2})
        assert await reader.scalar("SELECT name FROM users WHERE id = 2", params={}) == "Hopper"

    asyncio.run(with_bindings(1))
    asyncio.run(with_clients(1))
    assert threads
    assert threading.main_thread().name not in threads
    assert shop.users == [(1, "Countess"), (2, "Hopper")]


def test_an_unreachable_database_is_a_connection_error_without_the_password() -> None:
    @db.input("user", url="postgresql+psycopg://ada:hidden@127.0.0.1:1/x", table="users", pk={"id": 1})
    def handler(req: Any, user: Any) -> None: ...

    with pytest.raises(DbConnectionError) as raised:
        handler(1)
    assert "hidden" not in str(raised.value)


def test_a_pool_is_reused_across_invocations(sqlite_database: str) -> None:
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE users (id INTEGER PRIMARY KEY)"))
    engine.dispose()
    provider = EngineProvider()

    @db.inject_reader("reader", url=sqlite_database, engine_provider=provider)
    def handler(req: Any, reader: Any) -> Any:
        return reader.query("SELECT * FROM users", params={})

    pooled = provider.get_engine(DbConfig(connection_url=sqlite_database))
    connected: list[Any] = []
    event.listen(pooled, "connect", lambda *made: connected.append(made))
    for _ in range(3):
        assert handler(1) == []
    assert len(connected) == 1
    provider.dispose_all()
