"""The public face, statement by statement: what the specification says, and what teams of release 0.8.3 rely on.

Release 0.8.3 runs beside, as a black box in an environment of its own, and is asked what it does.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import json
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from azure.storage.blob import ContainerClient
from pydantic import BaseModel
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.engine import RootTransaction
from sqlalchemy.engine.reflection import Inspector

from azure_functions_db import (
    AsyncDbOut,
    AsyncDbReader,
    AsyncDbSession,
    AsyncDbWriter,
    BlobCheckpointStore,
    ConfigurationError,
    CursorPart,
    DbBindings,
    DbConfig,
    DbConnectionError,
    DbError,
    DbOut,
    DbReader,
    DbSession,
    DbWriter,
    EngineProvider,
    FetchError,
    FileQuarantine,
    HandledFirst,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    MemoryStateStore,
    NotFoundError,
    PollContext,
    PollTrigger,
    QueryError,
    RetryPolicy,
    RowChange,
    RowsFailed,
    SourceConfigurationError,
    SourceDescriptor,
    SqlAlchemySource,
    SqlStateStore,
    StateStoreError,
    WriteError,
    get_db_metadata,
)
from azure_functions_db.core import parse_checkpoint_cursor, resolve_env_vars, serialize_cursor_part
from azure_functions_db.observability import NoOpCollector
from azure_functions_db.testing.faults import Fault, FaultyStateStore
from azure_functions_db.testing.memory import FakeClock, MemoryQuarantine
from azure_functions_db.testing.stream import MemoryLog, MemoryStreamSource
from azure_functions_db.trigger import default_normalizer, make_normalizer
from azure_functions_db.trigger.runner import PollRunner
from tests.acceptance.host import AppRefusedError, FunctionApp, http, timer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.acceptance.conftest import Sql

FACE = Path(__file__).parent / "apps" / "face"
db = DbBindings()


class OwnError(Exception):
    """What a user's block raises."""


class Item(BaseModel):
    """A row of the table below."""

    id: int
    name: str


class Shop:
    """A database with one table, and a side door behind the library's back."""

    def __init__(self, url: str, provider: EngineProvider) -> None:
        self.url = url
        self.place: dict[str, Any] = {"url": url, "engine_provider": provider}
        self._provider = provider
        self.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name VARCHAR(40))")

    def execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        engine = create_engine(self.url)
        try:
            with engine.begin() as connection:
                result = connection.execute(text(statement), parameters)
                return [tuple(row) for row in result] if result.returns_rows else []
        finally:
            engine.dispose()

    def ids(self) -> list[int]:
        return [row[0] for row in self.execute("SELECT id FROM items ORDER BY id")]

    def fill(self, *ids: int) -> None:
        for key in ids:
            self.execute("INSERT INTO items (id, name) VALUES (:id, :name)", id=key, name=f"item {key}")

    def source(self, **options: Any) -> SqlAlchemySource:
        defaults = {"table": "items", "cursor_column": "id", "pk_columns": ["id"], "in_flight": "ignore"}
        return SqlAlchemySource(**self.place, **(defaults | options))

    def cut(self) -> None:
        """Close the connections of the pool under whoever uses them, as a failover does."""
        for raw in self._raw:
            raw.close()

    def watch(self) -> None:
        self._raw: list[Any] = []
        engine = self._provider.get_engine(DbConfig(connection_url=self.url))
        event.listen(engine, "connect", lambda raw, _record: self._raw.append(raw))


@pytest.fixture
def shop(database_url: str, provider: EngineProvider) -> Shop:
    return Shop(database_url, provider)


@pytest.fixture
def file_shop(sqlite_database: str, provider: EngineProvider) -> Shop:
    return Shop(sqlite_database, provider)


@pytest.fixture
def server(postgres_database: str, provider: EngineProvider) -> Shop:
    shop = Shop(postgres_database, provider)
    shop.watch()
    return shop


@pytest.fixture
def nowhere(postgres_url: str) -> str:
    return make_url(postgres_url).set(port=1).render_as_string(hide_password=False)


class Idle:
    """A source of somebody's own without any change."""

    source_descriptor = SourceDescriptor("idle", "test", "sha256:0")
    cursor_column = "id"
    pk_columns = ("id",)

    def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
        return []


def all_keys(trigger: PollTrigger) -> list[int]:
    """Return the keys of all that one tick hands out."""
    keys: list[int] = []
    trigger.run(timer=None, handler=lambda events: keys.extend(each.pk["id"] for each in events))
    return keys


class TestStatement1FailingRollback:
    """A block that is left by an exception, with a connection that is gone: the user's exception comes out."""

    @staticmethod
    def _of_a_writer(shop: Shop) -> None:
        with DbWriter(**shop.place, table="items") as writer, writer.transaction():
            writer.insert(data={"id": 1, "name": "x"})
            shop.cut()
            raise OwnError

    @staticmethod
    def _of_a_session(shop: Shop) -> None:
        with DbSession(**shop.place) as session:
            session.writer("items").insert(data={"id": 1, "name": "x"})
            shop.cut()
            raise OwnError

    @staticmethod
    def _of_an_injected_writer(shop: Shop) -> None:
        @db.inject_writer("items", **shop.place, table="items")
        def function(items: DbWriter) -> None:
            with items.transaction():
                items.insert(data={"id": 1, "name": "x"})
                shop.cut()
                raise OwnError

        function()

    @staticmethod
    def _of_an_injected_async_writer(shop: Shop) -> None:
        @db.inject_writer("items", **shop.place, table="items")
        async def function(items: AsyncDbWriter) -> None:
            async with items.transaction():
                await items.insert(data={"id": 1, "name": "x"})
                shop.cut()
                raise OwnError

        asyncio.run(function())

    @staticmethod
    def _of_an_async_session(shop: Shop) -> None:
        async def run() -> None:
            async with AsyncDbSession(**shop.place) as session:
                await session.writer("items").insert(data={"id": 1, "name": "x"})
                shop.cut()
                raise OwnError

        asyncio.run(run())

    @pytest.mark.parametrize(
        "block",
        [_of_a_writer, _of_a_session, _of_an_injected_writer, _of_an_injected_async_writer, _of_an_async_session],
    )
    def test_the_users_exception_comes_out_and_the_failure_is_logged(
        self, server: Shop, caplog: pytest.LogCaptureFixture, block: Any
    ) -> None:
        with pytest.raises(OwnError):
            block.__func__(server)
        assert self._warnings(caplog)
        assert server.ids() == []

    def test_so_it_is_for_an_error_of_the_driver_that_nobody_translates(
        self, file_shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(*_: Any) -> None:
            raise OSError("the socket is closed")

        writer = DbWriter(**file_shop.place, table="items")
        with pytest.raises(OwnError), writer.transaction():
            writer.insert(data={"id": 1, "name": "x"})
            monkeypatch.setattr(RootTransaction, "close", gone)
            raise OwnError
        assert set(self._warnings(caplog)) == {"Rolling back failed: OSError"}

    def test_closing_logs_and_never_raises(self, server: Shop, caplog: pytest.LogCaptureFixture) -> None:
        writer = DbWriter(**server.place, table="items")
        block = writer.transaction()
        block.__enter__()
        writer.insert(data={"id": 1, "name": "x"})
        server.cut()
        writer.close()
        assert self._warnings(caplog)
        assert server.ids() == []

    @staticmethod
    def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
        told = [record for record in caplog.records if record.levelno == logging.WARNING]
        return [record.getMessage() for record in told if "Rolling back failed" in record.getMessage()]


class TestStatement2LostConnections:
    """Whichever error a user catches, a lost connection is caught."""

    def test_while_acquiring_to_write(self, nowhere: str) -> None:
        async def write() -> None:
            await AsyncDbOut(url=nowhere, table="items").set({"id": 1})

        attempts: list[Callable[[], Any]] = [
            lambda: DbWriter(url=nowhere, table="items").insert(data={"id": 1}),
            lambda: DbOut(url=nowhere, table="items").set([{"id": 1}]),
            lambda: DbSession(url=nowhere).__enter__(),
            lambda: asyncio.run(write()),
        ]
        for attempt in attempts:
            with pytest.raises(WriteError) as caught:
                attempt()
            assert isinstance(caught.value, DbConnectionError)

    @pytest.mark.parametrize("again", [True, False], ids=["writing", "committing"])
    def test_while_writing_or_committing(self, server: Shop, again: bool) -> None:
        def lose() -> None:
            with DbWriter(**server.place, table="items") as writer, writer.transaction():
                writer.insert(data={"id": 1, "name": "x"})
                server.cut()
                if again:
                    writer.insert(data={"id": 2, "name": "x"})

        with pytest.raises(DbConnectionError) as caught:
            lose()
        assert isinstance(caught.value, WriteError)

    def test_while_reading(self, server: Shop, nowhere: str) -> None:
        def lose() -> None:
            with DbSession(**server.place) as session:
                session.reader().scalar("SELECT 1", params={})
                server.cut()
                session.reader().scalar("SELECT 1", params={})

        async def read() -> None:
            await AsyncDbReader(url=nowhere).scalar("SELECT 1", params={})

        attempts: list[Callable[[], Any]] = [
            lose,
            lambda: DbReader(url=nowhere).scalar("SELECT 1", params={}),
            lambda: asyncio.run(read()),
        ]
        for attempt in attempts:
            with pytest.raises(QueryError) as caught:
                attempt()
            assert isinstance(caught.value, DbConnectionError)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FunctionApp]:
    path = tmp_path_factory.mktemp("face") / "app.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO invoices VALUES (1)")
    connection.close()
    with FunctionApp(FACE, {"APP_DB": f"sqlite:///{path}"}) as running:
        yield running


class TestStatement3Context:
    """Who gets the `PollContext`, and who the host's context."""

    @pytest.mark.parametrize(
        ("function", "got"),
        [
            ("by_annotation", "['PollContext']"),
            ("by_name", "['PollContext']"),
            ("by_name_async", "['PollContext']"),
            ("of_the_host", "['Context']"),
            ("of_both", "['PollContext', 'Context']"),
        ],
    )
    def test_in_the_real_runtime(self, app: FunctionApp, function: str, got: str) -> None:
        invocation = app.invoke(function, timer=timer())
        assert invocation.ok, invocation.traceback
        assert app.says(f"{function} got {got}")

    def test_the_host_is_not_told_of_it(self, app: FunctionApp) -> None:
        for bindings in app.functions.values():
            assert [binding["name"] for binding in bindings] == ["timer"]

    def test_every_parameter_that_asks_gets_it(self, file_shop: Shop) -> None:
        file_shop.fill(1)
        got: list[Any] = []

        @db.trigger(arg_name="events", source=file_shop.source(), checkpoint_store=MemoryStateStore())
        def handler(events: list[RowChange], context, other: PollContext | None = None) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
            got.extend([context, other])

        handler()
        assert [type(each) for each in got] == [PollContext, PollContext]


class TestStatement4Metadata:
    """What the decorators note about a function, for tools."""

    def test_of_a_trigger_with_its_injections(self) -> None:
        source = SqlAlchemySource(url="%SHOP_DB%", table="items", schema="crm", cursor_column="id", pk_columns=["id"])

        @db.trigger(arg_name="events", source=source, checkpoint_store=MemoryStateStore(), model=Item, name="orders")
        @db.inject_reader("reader", url="%SHOP_DB%")
        @db.inject_writer("writer", url="%SHOP_DB%", table="items")
        def handler(timer: Any, events: Any, reader: Any, writer: Any) -> None: ...

        noted = handler._azure_functions_metadata["db"]  # type: ignore[attr-defined]
        assert noted == get_db_metadata(handler)
        assert noted["version"] == 1
        [binding] = noted["bindings"]
        expected = {
            "kind": "trigger",
            "parameter": "events",
            "connection_setting": "%SHOP_DB%",
            "resource": {"table": "items"},
            "model_ref": f"{__name__}:Item",
        }
        assert expected.items() <= binding.items()
        kinds = [(each["kind"], each["parameter"]) for each in noted["injections"]]
        assert sorted(kinds) == [("reader", "reader"), ("writer", "writer")]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"table": "items", "pk": {"id": 1}}, {"query_kind": "pk", "resource": {"table": "items"}}),
            ({"query": "SELECT 1"}, {"query_kind": "text", "resource": {}}),
            ({"query": "SELECT 1", "table": "items"}, {"query_kind": "text", "resource": {"table": "items"}}),
            ({"query": "SELECT 1", "model": Item}, {"model_ref": f"{__name__}:Item"}),
        ],
    )
    def test_of_an_input(self, options: dict[str, Any], expected: dict[str, Any]) -> None:
        bound = db.input("row", url="%SHOP_DB%", **options)(lambda req, row: None)
        [binding] = (get_db_metadata(bound) or {})["bindings"]
        about = {"kind": "input", "parameter": "row", "connection_setting": "%SHOP_DB%", **expected}
        assert about.items() <= binding.items()
        assert ("model_ref" in binding) == ("model" in options)

    def test_of_an_output_with_a_literal_url(self) -> None:
        secret = "postgresql+psycopg://scott:tiger@db.example:5432/shop?sslpassword=hidden"
        bound = db.output("out", url=secret, table="items")(lambda req, out: None)
        [binding] = (get_db_metadata(bound) or {})["bindings"]
        assert binding["connection_setting"] == "postgresql+psycopg://***@db.example:5432/shop?***"
        assert (binding["kind"], binding["parameter"], binding["resource"]) == ("output", "out", {"table": "items"})
        assert "query_kind" not in binding

    def test_of_a_source_of_somebodys_own(self) -> None:
        bound = db.trigger(arg_name="events", source=Idle(), checkpoint_store=MemoryStateStore(), name="x")(
            lambda events: None
        )
        [binding] = (get_db_metadata(bound) or {})["bindings"]
        assert (binding["kind"], binding["resource"]) == ("trigger", {})


class TestStatement5Out:
    """`DbOut` can be made by users, and serves all calls of a function at once."""

    def test_is_made_and_set_by_hand(self, shop: Shop) -> None:
        DbOut(**shop.place, table="items").set({"id": 1, "name": "x"})
        upserting = DbOut(**shop.place, table="items", action="upsert", conflict_columns=["id"])
        upserting.set([{"id": 1, "name": "y"}, Item(id=2, name="z")])
        upserting.set(None)
        assert shop.execute("SELECT id, name FROM items ORDER BY id") == [(1, "y"), (2, "z")]
        config = DbConfig(connection_url=shop.url)
        DbOut(db_config=config, table="items", engine_provider=shop.place["engine_provider"]).set({"id": 3, "name": ""})
        assert shop.ids() == [1, 2, 3]

    def test_has_an_awaited_twin(self, shop: Shop) -> None:
        asyncio.run(AsyncDbOut(**shop.place, table="items").set([{"id": 1, "name": "x"}]))
        assert shop.ids() == [1]

    def test_there_is_one_for_all_calls_of_a_function(self, file_shop: Shop) -> None:
        seen: list[DbOut] = []

        @db.output("out", **file_shop.place, table="items")
        def handler(req: int, out: DbOut) -> None:
            seen.append(out)
            out.set({"id": req, "name": "x"})

        for key in (1, 2):
            handler(key)
        assert seen[0] is seen[1]
        assert vars(seen[0]).keys() == vars(DbOut(**file_shop.place, table="items")).keys()

    def test_is_safe_under_concurrent_calls(self, shop: Shop) -> None:
        together = threading.Barrier(4)

        @db.output("out", **shop.place, table="items")
        def handler(req: int, out: DbOut) -> None:
            together.wait()
            out.set([{"id": req * 10 + n, "name": "x"} for n in range(5)])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(handler, range(8)))
        assert len(shop.ids()) == 40

    def test_an_async_handler_may_set_several_at_once_in_one_transaction(self, shop: Shop) -> None:
        shop.fill(1)
        shop.execute("CREATE TABLE copies (id INTEGER PRIMARY KEY)")

        @db.trigger(
            arg_name="events", source=shop.source(), checkpoint_store=SqlStateStore(**shop.place), transactional=True
        )
        @db.output("out", **shop.place, table="copies")
        async def handler(events: list[RowChange], out: AsyncDbOut) -> None:
            await asyncio.gather(*(out.set({"id": n}) for n in range(20)))

        asyncio.run(handler())
        assert shop.execute("SELECT count(*) FROM copies") == [(20,)]

    @pytest.mark.parametrize("name", ["", "  ", None, 5, Item])
    @pytest.mark.parametrize("kind", [DbWriter, DbOut, AsyncDbWriter, AsyncDbOut])
    def test_an_empty_or_odd_name_is_refused_at_once(self, kind: Any, name: Any) -> None:
        with pytest.raises(ConfigurationError, match="table="):
            kind(url="sqlite://", table=name)

    def test_so_are_an_empty_schema_and_an_empty_name_of_a_reader(self) -> None:
        with pytest.raises(ConfigurationError, match="schema="):
            DbWriter(url="sqlite://", table="items", schema="")
        with pytest.raises(ConfigurationError, match="table="):
            DbReader(url="sqlite://", table="")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"action": "replace"}, "'insert' or 'upsert'"),
            ({"action": "upsert"}, "needs conflict_columns="),
            ({"conflict_columns": ["id"]}, "belong to action='upsert'"),
            ({"url": None}, "exactly one of url="),
        ],
    )
    def test_wrong_options_are_refused_at_once(self, options: dict[str, Any], message: str) -> None:
        given: dict[str, Any] = {"url": "sqlite://", "table": "items", **options}
        with pytest.raises(ConfigurationError, match=message):
            DbOut(**given)


class TestStatement6Input:
    """`on_not_found` concerns keys; a table beside a query documents it."""

    @pytest.mark.parametrize("is_async", [False, True])
    def test_an_empty_result_of_a_query_is_an_empty_list(self, shop: Shop, is_async: bool) -> None:
        bind = db.input("rows", **shop.place, query="SELECT * FROM items", table="items", on_not_found="raise")

        def plain(req: int, rows: Any) -> Any:
            return rows

        async def awaited(req: int, rows: Any) -> Any:
            return rows

        assert (asyncio.run(bind(awaited)(1)) if is_async else bind(plain)(1)) == []

    def test_a_missing_key_is_an_error(self, shop: Shop) -> None:
        @db.input("row", **shop.place, table="items", pk={"id": 9}, on_not_found="raise")
        def handler(req: int, row: Any) -> None: ...

        with pytest.raises(NotFoundError, match="items"):
            handler(1)

    def test_table_and_schema_beside_a_query_are_not_looked_at(self, file_shop: Shop) -> None:
        @db.input("rows", **file_shop.place, query="SELECT 1 AS one", table="no_such_table", schema="nowhere")
        def handler(req: int, rows: Any) -> Any:
            return rows

        assert handler(1) == [{"one": 1}]


ITEMS = Table("items", MetaData(), Column("id", Integer, primary_key=True), Column("name", String(40)))


@pytest.fixture
def no_reflection(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every attempt to read a table's description from the catalog."""
    attempts: list[str] = []
    original = Inspector.reflect_table

    def noting(self: Inspector, table: Table, *args: Any, **options: Any) -> Any:
        attempts.append(table.name)
        return original(self, table, *args, **options)

    monkeypatch.setattr(Inspector, "reflect_table", noting)
    return attempts


class TestStatement7Tables:
    """A SQLAlchemy `Table` in place of a name: nothing is reflected."""

    def test_readers_and_writers(self, shop: Shop, no_reflection: list[str]) -> None:
        with DbWriter(**shop.place, table=ITEMS) as writer:
            writer.insert(data={"id": 1, "name": "a"})
            writer.insert_many(rows=[{"id": 2, "name": "b"}, {"id": 3}])
            writer.upsert(data={"id": 2, "name": "c"}, conflict_columns=["id"])
            writer.update(data={"name": "d"}, pk={"id": 3})
            writer.delete(pk={"id": 1})
        with DbReader(**shop.place, table=ITEMS) as reader:
            assert reader.get(pk={"id": 2}) == {"id": 2, "name": "c"}
        with DbSession(**shop.place) as session:
            assert session.reader(ITEMS).get(pk={"id": 3}) == {"id": 3, "name": "d"}
            session.writer(ITEMS).insert(data={"id": 4})
        assert shop.ids() == [2, 3, 4]
        assert no_reflection == []

    def test_decorators(self, shop: Shop, no_reflection: list[str]) -> None:
        shop.fill(1)

        @db.input("row", **shop.place, table=ITEMS, pk={"id": 1})
        @db.output("out", **shop.place, table=ITEMS)
        def handler(req: int, row: Any, out: DbOut) -> Any:
            out.set({"id": 2, "name": row["name"]})

        @db.inject_reader("reader", **shop.place, table=ITEMS)
        @db.inject_writer("writer", **shop.place, table=ITEMS)
        async def clients(req: int, reader: AsyncDbReader, writer: AsyncDbWriter) -> Any:
            await writer.insert(data={"id": 3})
            return await reader.get(pk={"id": 3})

        handler(1)
        assert asyncio.run(clients(1)) == {"id": 3, "name": None}
        assert no_reflection == []
        assert (get_db_metadata(handler) or {})["bindings"][0]["resource"] == {"table": "items"}

    @pytest.mark.parametrize("in_flight", ["wait", "ignore"])
    def test_sources(self, shop: Shop, no_reflection: list[str], in_flight: str) -> None:
        shop.fill(1, 2, 3)
        source = shop.source(table=ITEMS, in_flight=in_flight)
        trigger = PollTrigger(
            name="x", source=source, checkpoint_store=MemoryStateStore(), batch_size=2, max_batches_per_tick=9
        )
        assert all_keys(trigger) == [1, 2, 3]
        assert no_reflection == []
        assert source.source_descriptor.fingerprint == shop.source().source_descriptor.fingerprint
        source.validate()
        assert no_reflection == []

    def test_a_source_goes_on_from_the_checkpoint_of_its_name(self, shop: Shop) -> None:
        shop.fill(1)
        state = MemoryStateStore()
        assert all_keys(PollTrigger(name="x", source=shop.source(), checkpoint_store=state)) == [1]
        shop.fill(2)
        assert all_keys(PollTrigger(name="x", source=shop.source(table=ITEMS), checkpoint_store=state)) == [2]

    def test_nothing_but_its_own_statements_is_sent(self, sqlite_database: str, provider: EngineProvider) -> None:
        shop = Shop(sqlite_database, provider)
        sent: list[str] = []
        engine = provider.get_engine(DbConfig(connection_url=sqlite_database))
        event.listen(engine, "connect", lambda raw, _record: raw.set_trace_callback(sent.append))
        DbWriter(**shop.place, table=ITEMS).insert(data={"id": 1, "name": "a"})
        DbReader(**shop.place, table=ITEMS).get(pk={"id": 1})
        list(shop.source(table=ITEMS).fetch(None, 10))
        words = [statement.split()[0] for statement in sent if statement.split()[0] not in {"BEGIN", "COMMIT"}]
        assert words == ["INSERT", "SELECT", "SELECT"]
        del sent[:]
        DbReader(**shop.place, table="items").get(pk={"id": 1})
        assert any("PRAGMA" in statement for statement in sent), "a name is looked up, so the trace would have told"

    def test_ties_and_odd_cursors_of_plain_types_are_read_whole(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE odd (id INTEGER PRIMARY KEY, price NUMERIC(12, 4), at TIMESTAMP NULL)")
        stamps = [f"2026-01-0{1 + n // 4} 00:00:00" for n in range(12)]
        for n, at in enumerate(stamps):
            shop.execute("INSERT INTO odd VALUES (:id, :price, :at)", id=n, price=f"{n // 3}.5", at=at)
        odd = Table(
            "odd",
            MetaData(),
            Column("id", Integer, primary_key=True),
            Column("price", Numeric(12, 4)),
            Column("at", DateTime),
        )
        for cursor in ("price", "at"):
            source = shop.source(table=odd, cursor_column=cursor, in_flight="wait")
            trigger = PollTrigger(
                name=cursor,
                source=source,
                checkpoint_store=MemoryStateStore(),
                batch_size=2,
                max_batches_per_tick=99,
            )
            assert all_keys(trigger) == list(range(12))

    def test_only_the_columns_of_the_table_are_read(self, shop: Shop) -> None:
        shop.fill(1)
        narrow = Table("items", MetaData(), Column("id", Integer, primary_key=True))
        assert list(shop.source(table=narrow).fetch(None, 10)) == [{"id": 1}]

    def test_a_column_that_the_table_does_not_describe_is_refused(self, shop: Shop, no_reflection: list[str]) -> None:
        with pytest.raises(ConfigurationError, match="'extra'"):
            DbWriter(**shop.place, table=ITEMS).insert(data={"id": 1, "extra": 1})
        with pytest.raises(SourceConfigurationError, match="'extra'"):
            shop.source(table=ITEMS, cursor_column="extra").fetch(None, 1)
        assert no_reflection == []

    def test_what_would_be_ambiguous_is_refused(self) -> None:
        keyed = Table("items", MetaData(), Column("id", Integer, key="ident", primary_key=True))
        for options in ({"table": ITEMS, "schema": "crm"}, {"table": keyed}):
            with pytest.raises(ConfigurationError, match=r"schema|key="):
                DbReader(url="sqlite://", **options)
            with pytest.raises(SourceConfigurationError, match=r"schema|key="):
                SqlAlchemySource(url="sqlite://", cursor_column="id", pk_columns=["id"], **options)

    def test_a_source_is_disposed_of_and_may_be_used_again(self, file_shop: Shop) -> None:
        file_shop.fill(1)
        source, engine = (
            file_shop.source(),
            file_shop.place["engine_provider"].get_engine(DbConfig(connection_url=file_shop.url)),
        )
        assert len(source.fetch(None, 10)) == 1
        pool = engine.pool
        source.dispose()
        source.dispose()
        assert engine.pool is pool, "connections belong to the provider"
        assert len(source.fetch(None, 10)) == 1


class TestStatement8Names:
    """Leases of others, `PollRunner.tick`, and names where the specification has them."""

    def test_releasing_a_lease_that_is_not_ours_is_a_lost_lease(self) -> None:
        store = MemoryStateStore()
        lease = store.acquire_lease("orders", 60)
        owner, _, token = lease.rpartition(":")
        with pytest.raises(LostLeaseError):
            store.release_lease("orders", f"{owner}:{int(token) + 1}")
        store.renew_lease("orders", lease, 60)
        store.release_lease("orders", lease)
        with pytest.raises(LostLeaseError):
            store.release_lease("never seen", lease)

    def test_a_runner_ticks(self, file_shop: Shop) -> None:
        file_shop.fill(1, 2)
        trigger = PollTrigger(name="x", source=file_shop.source(), checkpoint_store=MemoryStateStore())
        runner = PollRunner(trigger.settings)
        assert [runner.tick(lambda events: None), runner.tick(lambda events: None)] == [2, 0]

    def test_names_are_where_the_specification_has_them(self) -> None:
        from azure_functions_db.core.types import RowDict  # noqa: TC001 - that it can be imported is what is said
        from azure_functions_db.trigger.normalizers import EventNormalizer as ByNormalizers
        from azure_functions_db.trigger.normalizers import RecordNormalizer
        from azure_functions_db.trigger.runner import EventNormalizer

        made: EventNormalizer = RecordNormalizer("id", ["id"])
        row: RowDict = {"id": 1}
        assert EventNormalizer is ByNormalizers
        assert made(row, Idle.source_descriptor).pk == {"id": 1}


class TestStatement9Calls:
    """How a poll function is called, and what it returns."""

    def test_a_function_without_a_host_parameter_takes_the_timer_by_place(self, file_shop: Shop) -> None:
        file_shop.fill(1)
        seen: list[Any] = []

        @db.trigger(arg_name="events", source=file_shop.source(), checkpoint_store=MemoryStateStore())
        def handler(events: list[RowChange]) -> None:
            seen.extend(events)

        assert handler(object()) is None
        assert len(seen) == 1
        handler()
        with pytest.raises(TypeError):
            handler(1, 2)
        assert list(inspect.signature(handler).parameters) == []

    def test_so_does_an_async_one(self, file_shop: Shop) -> None:
        file_shop.fill(1)
        seen: list[Any] = []

        @db.trigger(arg_name="events", source=file_shop.source(), checkpoint_store=MemoryStateStore())
        async def handler(events: list[RowChange], context: PollContext) -> None:
            seen.extend(events)

        asyncio.run(handler("timer"))
        assert len(seen) == 1

    def test_without_a_trigger_nothing_is_taken_that_nobody_asked_for(self, file_shop: Shop) -> None:
        @db.inject_reader("reader", **file_shop.place)
        def handler(reader: DbReader) -> None: ...

        with pytest.raises(TypeError):
            handler(object())

    def test_the_wrapper_returns_none_to_the_host_and_run_the_number(self, file_shop: Shop) -> None:
        file_shop.fill(1, 2)

        @db.trigger(arg_name="events", source=file_shop.source(), checkpoint_store=MemoryStateStore())
        def handler(timer: Any, events: list[RowChange]) -> int:
            return len(events)

        assert handler(timer=None) is None
        trigger = PollTrigger(name="x", source=file_shop.source(), checkpoint_store=MemoryStateStore())
        assert trigger.run(timer=None, handler=lambda events: None) == 2

    def test_in_the_real_runtime_nothing_is_returned(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "app.db") as connection:
            connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
            connection.execute("INSERT INTO invoices VALUES (1)")
        connection.close()
        with FunctionApp(FACE, {"APP_DB": f"sqlite:///{tmp_path / 'app.db'}"}) as app:
            invocation = app.invoke("by_annotation", timer=timer())
        assert invocation.ok, invocation.traceback
        assert (invocation.returned, invocation.outputs) == (None, {})

    def test_the_real_runtime_itself_wants_its_parameter(self, tmp_path: Path) -> None:
        (tmp_path / "function_app.py").write_text(
            (FACE / "function_app.py").read_text()
            + "\n\n@app.timer_trigger(schedule='0 0 * * * *', arg_name='timer')\n@polled()\n"
            "def without_one(events: list[RowChange]) -> None: ...\n"
        )
        with pytest.raises(AppRefusedError, match="timer"), FunctionApp(tmp_path, {"APP_DB": "sqlite://"}):
            pass


class Notebook:
    """What a handler was given, and in which calls."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    @property
    def keys(self) -> list[Any]:
        return [key for call in self.calls for key in call]

    def note(self, events: Sequence[RowChange]) -> list[Any]:
        keys = [event.pk["id"] for event in events]
        self.calls.append(keys)
        return keys


def tied(shop: Shop, count: int = 12) -> None:
    """Make a table whose rows share their cursor by threes: version 0, 0, 0, 1, 1, 1 ..."""
    shop.execute("CREATE TABLE tied (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, note VARCHAR(20))")
    for key in range(count):
        shop.execute("INSERT INTO tied VALUES (:id, :version, 'first')", id=key, version=key // 3)


# Where a value that was passed may come again it is read again; else it is not.
KINDS: list[dict[str, Any]] = [
    {"table": "tied", "cursor_column": "version", "in_flight": "wait"},
    {"table": "tied", "cursor_column": "version", "in_flight": "ignore"},
    {"table": "tied", "cursor_column": "id", "in_flight": "wait"},
    {"query": "SELECT id, version, note FROM tied", "table": None, "cursor_column": "version", "in_flight": "wait"},
]


class TestStatement10Progress:
    """The checkpoint follows each row, or what the handler got through."""

    def _poller(self, source: Any, store: Any, **options: Any) -> PollTrigger:
        return PollTrigger(name="x", source=source, checkpoint_store=store, **options)

    def test_row_by_row_is_one_call_each_within_one_lease(self, shop: Shop) -> None:
        tied(shop)
        book, store, positions = Notebook(), MemoryStateStore(), list[Any]()

        def handle(events: list[RowChange], context: PollContext) -> None:
            positions.append(store.load_checkpoint("x").get("cursor", {}).get("tiebreaker"))
            book.note(events)

        trigger = self._poller(shop.source(**KINDS[0]), store, commit="row", batch_size=5, max_batches_per_tick=2)
        assert trigger.run(timer=None, handler=handle) == 10
        assert book.calls == [[key] for key in range(10)]
        assert positions == [None, *({"id": key} for key in range(9))]
        document = store.inspect("x")
        assert document is not None
        assert document["lease"]["fencing_token"] == 1

    def test_row_by_row_a_failure_costs_its_own_row_only(self, file_shop: Shop) -> None:
        tied(file_shop)
        book, store, is_down = Notebook(), MemoryStateStore(), [False, True]

        def handle(events: list[RowChange]) -> None:
            if book.note(events) == [4] and is_down.pop():
                raise OwnError

        trigger = self._poller(file_shop.source(**KINDS[0]), store, commit="row")
        with pytest.raises(HandlerError):
            trigger.run(timer=None, handler=handle)
        trigger.run(timer=None, handler=handle)
        assert book.keys == [0, 1, 2, 3, 4, 4, *range(5, 12)]

    @pytest.mark.parametrize("how", ["returns", "raises"])
    @pytest.mark.parametrize("kind", range(len(KINDS)))
    def test_the_good_prefix_is_committed_and_the_rest_comes_in_order(self, shop: Shop, kind: int, how: str) -> None:
        self._in_parts(shop, kind, how, is_async=False)

    @pytest.mark.parametrize("how", ["returns", "raises"])
    def test_so_it_is_for_an_async_handler(self, file_shop: Shop, how: str) -> None:
        self._in_parts(file_shop, 0, how, is_async=True)

    def _in_parts(self, shop: Shop, kind: int, how: str, *, is_async: bool) -> None:
        tied(shop)
        done, store, book = list[Any](), MemoryStateStore(), Notebook()

        def handle(events: list[RowChange]) -> Any:
            book.note(events)
            good = min(len(events), 1 + len(book.calls) % 4)  # two, three, four, one ...
            done.extend(event.pk["id"] for event in events[:good])
            if good == len(events):
                return None
            if how == "returns":
                return HandledFirst(good)
            raise RowsFailed({events[good].event_id: "no good", events[-1].event_id: OwnError()})

        async def handle_async(events: list[RowChange]) -> Any:
            return handle(events)

        for _ in range(12):
            trigger = self._poller(shop.source(**KINDS[kind]), store, batch_size=5)
            with nullcontext() if how == "returns" else suppress(HandlerError):
                if is_async:
                    asyncio.run(trigger.run_async(timer=None, handler=handle_async))
                else:
                    trigger.run(timer=None, handler=handle)
        assert done == list(range(12)), "each row once, in order, none skipped"

    def test_naming_failed_rows_still_fails_the_function(self, file_shop: Shop) -> None:
        tied(file_shop)

        @db.trigger(arg_name="events", source=file_shop.source(**KINDS[0]), checkpoint_store=MemoryStateStore())
        def handler(timer: Any, events: list[RowChange]) -> None:
            raise RowsFailed({events[3].event_id: "no good"})

        with pytest.raises(HandlerError) as failed:
            handler(timer=None)
        assert isinstance(failed.value.__cause__, RowsFailed)

    def test_a_decorated_function_may_return_how_far_it_got(self, file_shop: Shop) -> None:
        tied(file_shop)
        book = Notebook()

        @db.trigger(arg_name="events", source=file_shop.source(**KINDS[0]), checkpoint_store=MemoryStateStore())
        def handler(timer: Any, events: list[RowChange]) -> HandledFirst:
            book.note(events)
            return HandledFirst(min(4, len(events)))

        for _ in range(3):
            assert handler(timer=None) is None
        assert book.calls == [list(range(12)), list(range(4, 12)), list(range(8, 12))]

    @pytest.mark.parametrize("returned", [True, False, 0, 3, [], "x", {"handled": 2}, object()])
    def test_what_else_a_handler_returns_means_nothing(self, file_shop: Shop, returned: Any) -> None:
        tied(file_shop)
        trigger = self._poller(file_shop.source(**KINDS[0]), MemoryStateStore())
        assert trigger.run(timer=None, handler=lambda events: returned) == 12
        assert trigger.run(timer=None, handler=lambda events: returned) == 0

    @pytest.mark.parametrize("count", [-1, 0, 13])
    def test_an_impossible_number_fails_and_moves_nothing(self, file_shop: Shop, count: int) -> None:
        tied(file_shop)
        store = MemoryStateStore()
        with pytest.raises(HandlerError, match=r"HandledFirst\(count=-?\d+\) for 12"):
            self._poller(file_shop.source(**KINDS[0]), store).run(
                timer=None, handler=lambda events: HandledFirst(count)
            )
        assert store.load_checkpoint("x").get("cursor") is None

    @pytest.mark.parametrize("count", [True, 1.0, None, "3"])
    def test_no_number_is_refused_where_it_is_made(self, count: Any) -> None:
        with pytest.raises(TypeError, match="number of events"):
            HandledFirst(count)

    @pytest.mark.parametrize("how", ["returns", "raises"])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_in_a_transaction_the_prefix_has_its_effects_once(self, shop: Shop, how: str, is_async: bool) -> None:
        tied(shop)
        shop.execute("CREATE TABLE copies (id INTEGER NOT NULL)")
        state = SqlStateStore(**shop.place)

        def limit(events: list[RowChange]) -> Any:
            if len(events) <= 4:
                return None
            if how == "returns":
                return HandledFirst(4)
            raise RowsFailed({events[4].event_id: "no good"})

        @db.trigger(
            arg_name="events",
            name="x",
            source=shop.source(**KINDS[1]),
            checkpoint_store=state,
            transactional=True,
            batch_size=6,
        )
        @db.inject_writer("copies", **shop.place, table="copies")
        def plain(events: list[RowChange], copies: DbWriter) -> Any:
            copies.insert_many(rows=[{"id": event.pk["id"]} for event in events])
            return limit(events)

        @db.trigger(
            arg_name="events",
            name="x",
            source=shop.source(**KINDS[1]),
            checkpoint_store=state,
            transactional=True,
            batch_size=6,
        )
        @db.inject_writer("copies", **shop.place, table="copies")
        async def awaited(events: list[RowChange], copies: AsyncDbWriter) -> Any:
            await copies.insert_many(rows=[{"id": event.pk["id"]} for event in events])
            return limit(events)

        for _ in range(5):
            with nullcontext() if how == "returns" else suppress(HandlerError):
                asyncio.run(awaited()) if is_async else plain()
        assert [row[0] for row in shop.execute("SELECT id FROM copies ORDER BY id")] == list(range(12))

    def test_a_row_that_changes_under_the_handler_comes_again(self, shop: Shop) -> None:
        tied(shop, 6)
        book, store, notes = Notebook(), MemoryStateStore(), list[tuple[Any, str]]()

        def handle(events: list[RowChange]) -> Any:
            book.note(events)
            notes.extend((event.pk["id"], (event.after or {})["note"]) for event in events)
            if len(book.calls) > 1:
                return None
            shop.execute("UPDATE tied SET note = 'second' WHERE id = 1")  # the cursor stays as it is
            return HandledFirst(2)

        trigger = self._poller(shop.source(**KINDS[0]), store, max_batches_per_tick=9)
        for _ in range(3):
            trigger.run(timer=None, handler=handle)
        assert (1, "second") in notes
        assert set(book.keys) == set(range(6))

    @pytest.mark.parametrize("how", ["goes", "moves", "comes"])
    def test_rows_that_come_and_go_under_the_handler_do_no_harm(self, shop: Shop, how: str) -> None:
        tied(shop, 6)
        book, store = Notebook(), MemoryStateStore()
        change = {
            "goes": "DELETE FROM tied WHERE id = 1",
            "moves": "UPDATE tied SET version = 9 WHERE id = 1",
            "comes": "INSERT INTO tied VALUES (-1, 0, 'late')",
        }[how]

        def handle(events: list[RowChange]) -> Any:
            book.note(events)
            if len(book.calls) > 1:
                return None
            shop.execute(change)
            return HandledFirst(3)

        trigger = self._poller(shop.source(**KINDS[0]), store, max_batches_per_tick=9)
        for _ in range(3):
            trigger.run(timer=None, handler=handle)
        assert set(book.keys) >= set(range(6))
        rest = [key for call in book.calls[1:] for key in call]
        assert rest == {"goes": [3, 4, 5], "moves": [3, 4, 5, 1], "comes": [-1, 3, 4, 5]}[how]

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_a_stream_goes_on_behind_the_prefix_or_behind_a_whole_transaction(self, is_whole: bool) -> None:
        log, store, book = MemoryLog(), MemoryStateStore(), Notebook()
        for start in (0, 3, 6):
            log.commit(*((start + n, {"id": start + n}) for n in range(3)))

        def handle(events: list[RowChange]) -> Any:
            book.note(events)
            return HandledFirst(4) if len(book.calls) == 1 else None

        source = MemoryStreamSource(log, whole_transactions=is_whole)
        trigger = self._poller(source, store, batch_size=9)
        for _ in range(2):
            trigger.run(timer=None, handler=handle)
        assert book.calls == [list(range(9)), list(range(3 if is_whole else 4, 9))]

    def test_inside_a_transaction_that_must_stay_whole_there_is_no_way_to_stand(self) -> None:
        log, store = MemoryLog(), MemoryStateStore()
        log.commit(*((n, {"id": n}) for n in range(3)))
        trigger = self._poller(MemoryStreamSource(log, whole_transactions=True), store)
        with pytest.raises(HandlerError, match="cannot stand"):
            trigger.run(timer=None, handler=lambda events: HandledFirst(2))
        assert trigger.run(timer=None, handler=lambda events: None) == 3

    def test_a_small_source_of_somebodys_own_can_do_it_too(self) -> None:
        class Counting(Idle):
            def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
                start = 0 if cursor is None else cursor[0] + 1
                return [{"id": n} for n in range(start, min(9, start + batch_size))]

        book, store = Notebook(), MemoryStateStore()

        def handle(events: list[RowChange]) -> Any:
            book.note(events)
            return HandledFirst(2) if len(book.calls) == 1 else None

        trigger = self._poller(Counting(), store, batch_size=4)
        for _ in range(4):
            trigger.run(timer=None, handler=handle)
        assert book.calls == [[0, 1, 2, 3], [2, 3, 4, 5], [6, 7, 8]]

    def test_beside_a_quarantine_failed_rows_are_put_aside_and_a_prefix_is_kept(self, file_shop: Shop) -> None:
        tied(file_shop)
        book, sink = Notebook(), MemoryQuarantine()

        def handle(events: list[RowChange]) -> Any:
            keys = book.note(events)
            if 4 in keys:
                raise RowsFailed({events[keys.index(4)].event_id: "no good"})
            return HandledFirst(1) if len(events) > 3 else None

        trigger = self._poller(file_shop.source(**KINDS[0]), MemoryStateStore(), quarantine=sink, max_attempts=1)
        for _ in range(12):
            trigger.run(timer=None, handler=handle)
        assert [entry.event["pk"] for entry in sink.entries()] == [{"id": 4}]
        assert set(book.keys) == set(range(12))

    def test_it_costs_one_read_and_one_commit(self, file_shop: Shop) -> None:
        tied(file_shop)
        source, store = CountedSource(file_shop.source(**KINDS[0])), CountedStore()
        self._poller(source, store).run(timer=None, handler=lambda events: HandledFirst(5))
        assert (source.reads, store.commits) == (1, 1)


class CountedSource:
    """Counts how often it is read."""

    def __init__(self, source: SqlAlchemySource) -> None:
        self._source = source
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    source_descriptor = property(lambda self: self._source.source_descriptor)
    validate = acknowledge = close = lambda self, *_: None

    def open(self) -> None:
        """Do nothing."""

    def fetch_changes(self, checkpoint: Any, limit: int) -> Any:
        """Read, and count it."""
        self.reads += 1
        return self._source.fetch_changes(checkpoint, limit)


class CountedStore(MemoryStateStore):
    """Counts how often a checkpoint is loaded after a look, which only a doubtful commit needs."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0

    def take(self, state: Any, ttl_seconds: float) -> Any:
        """Take the lease and count what is committed under it."""
        held = super().take(state, ttl_seconds)
        commit = held.commit

        def counted(checkpoint: Any, *, release: bool = False) -> bool:
            self.commits += 1
            return commit(checkpoint, release=release)

        held.commit = counted  # type: ignore[method-assign]
        return held


class Farm:
    """A table of rows of several tenants, polled by functions with any number of partitions."""

    def __init__(self, shop: Shop, *, text_keys: bool = False, ties: int = 1) -> None:
        self.shop = shop
        self.ties = ties
        self.made = 0
        self.text_keys = text_keys
        kind = "VARCHAR(20)" if text_keys else "INTEGER"
        shop.execute(f"CREATE TABLE farm (id {kind} PRIMARY KEY, version INTEGER NOT NULL, tenant VARCHAR(20))")

    def grow(self, count: int) -> None:
        engine = create_engine(self.shop.url)
        with engine.begin() as connection:
            for _ in range(count):
                n = self.made
                row = {"id": self.key(n), "version": n // self.ties, "tenant": None if n % 7 == 6 else f"t{n % 7}"}
                connection.execute(text("INSERT INTO farm VALUES (:id, :version, :tenant)"), row)
                self.made += 1
        engine.dispose()

    def key(self, n: int) -> Any:
        return f"k{n}" if self.text_keys else n

    @property
    def keys(self) -> set[Any]:
        return {self.key(n) for n in range(self.made)}

    def source(self, **options: Any) -> SqlAlchemySource:
        return self.shop.source(table="farm", cursor_column="version", **options)

    def polled(
        self, partitions: int, store: Any, seen: list[RowChange], start_at: Any = "beginning", **options: Any
    ) -> Any:
        lock = threading.Lock()
        defaults: dict[str, Any] = {"batch_size": 3, "max_batches_per_tick": 1, "partition": lambda number: number}
        if partitions == 1:
            defaults.pop("partition")

        @db.trigger(
            arg_name="events",
            name="farm",
            source=self.source(start_at=start_at),
            checkpoint_store=store,
            partitions=partitions,
            **(defaults | options),
        )
        def handler(number: int, events: list[RowChange]) -> None:
            with lock:
                seen.extend(events)

        return handler


def keys_of(events: Sequence[RowChange]) -> list[Any]:
    return [event.pk["id"] for event in events]


class TestStatement11Partitions:
    """Rows are shared out by key, by column and by table; another number keeps the positions."""

    @pytest.mark.parametrize("by", ["tenant", "version", ["tenant", "version"]])
    def test_rows_that_are_alike_in_a_column_stay_together(self, shop: Shop, by: Any) -> None:
        farm = Farm(shop, ties=2)
        farm.grow(40)
        shares: dict[str, set[Any]] = {}
        seen: list[RowChange] = []

        @db.trigger(
            arg_name="events",
            source=farm.source(),
            checkpoint_store=MemoryStateStore(),
            partitions=3,
            partition_by=by,
            name="farm",
        )
        def handler(events: list[RowChange], context: PollContext) -> None:
            columns = [by] if isinstance(by, str) else by
            told = {tuple((event.after or {})[name] for name in columns) for event in events}
            shares.setdefault(context.poller_name, set()).update(told)
            seen.extend(events)

        handler()
        assert sorted(keys_of(seen)) == sorted(farm.keys)
        assert len(shares) > 1
        all_values = [value for values in shares.values() for value in values]
        assert len(all_values) == len(set(all_values)), "a value is in one partition"

    def test_the_column_need_not_be_among_the_columns_that_are_wanted(self, file_shop: Shop) -> None:
        farm = Farm(file_shop)
        farm.grow(20)
        shares = [farm.source(columns=["id"], partition=(index, 2), partition_by="tenant") for index in range(2)]
        rows = [row for share in shares for row in share.fetch(None, 100)]
        assert sorted(row["id"] for row in rows) == list(range(20))

    def test_what_cannot_be_is_refused_where_it_is_written(self, file_shop: Shop) -> None:
        options: dict[str, Any] = {"arg_name": "events", "checkpoint_store": MemoryStateStore(), "name": "x"}
        with pytest.raises(ConfigurationError, match="give partitions= too"):
            db.trigger(source=file_shop.source(), partition_by="tenant", **options)(lambda events: None)
        with pytest.raises(SourceConfigurationError, match="partition_by="):
            file_shop.source(partition_by=[])
        with pytest.raises(SourceConfigurationError, match="no column 'nowhere'"):
            file_shop.source(partition=(0, 2), partition_by="nowhere").fetch(None, 1)
        with pytest.raises(ConfigurationError, match="cannot be partitioned"):
            db.trigger(source=Idle(), partitions=2, **options)(lambda events: None)

    @pytest.mark.parametrize("partitions", [1, 2])
    def test_one_trigger_polls_several_tables(self, file_shop: Shop, partitions: int) -> None:
        for table, first in (("orders_eu", 0), ("orders_us", 10)):
            file_shop.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
            for key in range(first, first + 5):
                file_shop.execute(f"INSERT INTO {table} VALUES ({key})")
        store, seen, names = MemoryStateStore(), list[RowChange](), set[str]()

        @db.trigger(
            arg_name="events",
            name="orders",
            source={region: file_shop.source(table=f"orders_{region}") for region in ("eu", "us")},
            checkpoint_store=store,
            partitions=partitions,
        )
        def handler(events: list[RowChange], context: PollContext) -> None:
            seen.extend(events)
            names.add(context.poller_name)

        for _ in range(2):
            handler()
        assert sorted(keys_of(seen)) == [*range(5), *range(10, 15)]
        regions = {
            event.source.name: set(keys_of([each for each in seen if each.source == event.source])) for event in seen
        }
        assert regions == {"orders_eu": set(range(5)), "orders_us": set(range(10, 15))}
        expected = {"orders-eu", "orders-us"}
        if partitions == 2:
            expected = {f"{name}-{index}-of-2" for name in expected for index in (1, 2)}
        assert names == expected == set(store.poller_names())

    def test_sources_with_names_may_stand_in_a_list(self, file_shop: Shop) -> None:
        file_shop.fill(1)
        seen: list[RowChange] = []

        @db.trigger(
            arg_name="events",
            source=[file_shop.source(), file_shop.source(name="again")],
            checkpoint_store=MemoryStateStore(),
        )
        def both(events: list[RowChange]) -> None:
            seen.extend(events)

        both()
        assert {event.source.name for event in seen} == {"items", "again"}

    @pytest.mark.parametrize("sources", [[], {}, [Idle()], {"": Idle()}])
    def test_sources_that_cannot_be_told_apart_are_refused(self, sources: Any) -> None:
        with pytest.raises(ConfigurationError, match="name"):
            db.trigger(arg_name="events", source=sources, checkpoint_store=MemoryStateStore())(lambda events: None)
        twins = [SqlAlchemySource(url="sqlite://", table="t", cursor_column="id", pk_columns=["id"])] * 2
        with pytest.raises(ConfigurationError, match="all of them different"):
            db.trigger(arg_name="events", source=twins, checkpoint_store=MemoryStateStore())(lambda events: None)

    @pytest.mark.parametrize("ties", [1, 10])
    @pytest.mark.parametrize("text_keys", [False, True])
    @pytest.mark.parametrize(("old", "new"), [(4, 6), (6, 4), (1, 4), (4, 1), (2, 4), (4, 2), (3, 5), (5, 3)])
    def test_another_number_keeps_the_positions_and_loses_no_row(
        self, sqlite_database: str, provider: EngineProvider, old: int, new: int, text_keys: bool, ties: int
    ) -> None:
        farm = Farm(Shop(sqlite_database, provider), text_keys=text_keys, ties=ties)
        farm.grow(60)
        store, before, after = MemoryStateStore(), list[RowChange](), list[RowChange]()
        first = farm.polled(old, store, before)
        for share in range(old):
            for _ in range(1 + share):  # each share gets to another place
                first(share)
        handled = {share: store.load_checkpoint(name) for share, name in enumerate(store.poller_names())}
        assert all(checkpoint.get("cursor") for checkpoint in handled.values())
        farm.grow(20)
        second = farm.polled(new, store, after, max_batches_per_tick=99)
        for share in range(new):
            second(share)
        assert {*keys_of(before), *keys_of(after)} == farm.keys
        again = set(keys_of(before)) & set(keys_of(after))
        assert ties > 1 or len(again) < len(set(keys_of(before))), "positions were kept"
        if new % old == 0 and not (text_keys and old > 1):
            assert again == set(), "each new share lies within an old one"

    def test_a_change_that_comes_twice_has_the_same_id(self, sqlite_database: str, provider: EngineProvider) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(30)
        ids: list[dict[Any, str]] = []
        for partitions in (1, 3, 4):
            seen: list[RowChange] = []
            polled = farm.polled(partitions, MemoryStateStore(), seen, max_batches_per_tick=99)
            for share in range(partitions):
                polled(share)
            ids.append({event.pk["id"]: event.event_id for event in seen})
        assert ids[0] == ids[1] == ids[2]

    def test_there_and_back_again_is_no_replay(self, sqlite_database: str, provider: EngineProvider) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(24)
        store = MemoryStateStore()
        counts = []
        for partitions in (4, 6, 4, 2, 4):
            seen: list[RowChange] = []
            polled = farm.polled(partitions, store, seen, max_batches_per_tick=99)
            for share in range(partitions):
                polled(share)
            counts.append(len(set(keys_of(seen))))
            farm.grow(6)
        # Beside what is new, only the rows at and above the lowest of the old positions come again.
        assert counts[0] == 24
        assert all(count <= 6 + 6 for count in counts[1:])

    def test_old_and_new_may_run_beside_each_other(self, sqlite_database: str, provider: EngineProvider) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(30)
        store, seen = MemoryStateStore(), list[RowChange]()
        old, new = farm.polled(4, store, seen), farm.polled(6, store, seen)
        for turn in range(40):
            old(turn % 4)
            new(turn % 6)
            farm.grow(1)
        drain = farm.polled(6, store, seen, max_batches_per_tick=99)
        for share in range(6):
            drain(share)
        assert set(keys_of(seen)) == farm.keys

    @pytest.mark.parametrize("fault", [Fault.UNREACHABLE, Fault.LOST_REPLY, Fault.REFUSED_RETRY])
    @pytest.mark.parametrize("operation", ["read", "create", "replace", "pollers"])
    @pytest.mark.parametrize("after", range(3))
    def test_a_fault_at_any_request_of_the_change_loses_no_row(
        self, sqlite_database: str, provider: EngineProvider, fault: Fault, operation: Any, after: int
    ) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(30)
        store, seen = FaultyStateStore(), list[RowChange]()
        old = farm.polled(4, store, seen)
        for share in range(4):
            old(share)
        new = farm.polled(3, store, seen, max_batches_per_tick=99)
        for share in range(after):
            new(share)
        store.faults.plan(operation, fault, fault)
        for share in (0, 0, 1, 2):
            with suppress(DbError):
                new(share)
        store.faults.clear()
        again = farm.polled(3, store, seen, max_batches_per_tick=99)
        for share in range(3):
            again(share)
        assert set(keys_of(seen)) == farm.keys

    def test_a_handler_that_fails_at_first_loses_no_row(self, sqlite_database: str, provider: EngineProvider) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(30)
        store, seen = MemoryStateStore(), list[RowChange]()
        old = farm.polled(4, store, seen, max_batches_per_tick=2)
        for share in range(4):
            old(share)

        @db.trigger(arg_name="events", name="farm", source=farm.source(), checkpoint_store=store, partitions=3)
        def failing(events: list[RowChange]) -> None:
            raise OwnError

        with pytest.raises(BaseExceptionGroup):
            failing()
        again: list[RowChange] = []
        polled = farm.polled(3, store, again, max_batches_per_tick=99)
        for share in range(3):
            polled(share)
        assert {*keys_of(seen), *keys_of(again)} == farm.keys
        assert len(set(keys_of(seen)) & set(keys_of(again))) < len(seen)

    def test_a_share_that_never_ran_lets_its_rows_begin_anew(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(24)
        store, seen = MemoryStateStore(), list[RowChange]()
        old = farm.polled(4, store, seen, max_batches_per_tick=99)
        for share in (0, 1, 2):
            old(share)
        after: list[RowChange] = []
        new = farm.polled(2, store, after, max_batches_per_tick=99)
        for share in range(2):
            new(share)
        assert {*keys_of(seen), *keys_of(after)} == farm.keys
        assert {key % 2 for key in set(keys_of(seen)) & set(keys_of(after))} <= {0, 1}

    def test_cursors_whose_order_only_the_database_knows_begin_anew(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        shop = Shop(sqlite_database, provider)
        shop.fill(*range(9))
        store, seen = MemoryStateStore(), list[RowChange]()
        for partitions in (2, 3):

            @db.trigger(
                arg_name="events",
                name="x",
                source=shop.source(cursor_column="name"),
                checkpoint_store=store,
                partitions=partitions,
                max_batches_per_tick=99,
            )
            def handler(events: list[RowChange]) -> None:
                seen.extend(events)

            handler()
        assert set(keys_of(seen)) == set(range(9))

    def test_a_changed_source_is_not_taken_for_the_old_one(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(12)
        store, seen = MemoryStateStore(), list[RowChange]()
        farm.polled(2, store, seen, max_batches_per_tick=99)(0)
        after: list[RowChange] = []

        @db.trigger(
            arg_name="events",
            name="farm",
            source=farm.source(where="version >= 0"),
            checkpoint_store=store,
            partitions=3,
            max_batches_per_tick=99,
        )
        def handler(events: list[RowChange]) -> None:
            after.extend(events)

        handler()
        assert set(keys_of(after)) == farm.keys

    def test_on_every_database_and_in_a_blob_container(
        self, shop: Shop, azurite: str, blob_container: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STORAGE", azurite)
        farm = Farm(shop, ties=3)
        farm.grow(30)
        seen: list[RowChange] = []
        for partitions in (2, 3):
            store = BlobCheckpointStore(connection="STORAGE", container=blob_container, app_name="farm")
            polled = farm.polled(partitions, store, seen, batch_size=4, max_batches_per_tick=2)
            for share in range(partitions):
                polled(share)
        store = BlobCheckpointStore(connection="STORAGE", container=blob_container, app_name="farm")
        polled = farm.polled(5, store, seen, max_batches_per_tick=99)
        for share in range(5):
            polled(share)
        assert set(keys_of(seen)) == farm.keys

    def test_steady_partitions_cost_no_request_more(self, sqlite_database: str, provider: EngineProvider) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(6)
        store = FaultyStateStore()
        polled = farm.polled(2, store, [], max_batches_per_tick=9)
        for _ in range(5):
            polled(0)
            polled(1)
        assert store.faults.calls["pollers"] == 1, "other numbers are looked for once in a process"
        farm.polled(1, store, [], max_batches_per_tick=9)(0)
        store.faults.calls.clear()
        farm.polled(1, store, [])(0)
        assert store.faults.calls["pollers"] == 0, "a poller without partitions that has a position does not look"

    @pytest.mark.parametrize("partitions", [1, 2])
    def test_a_store_that_may_not_list_stops_new_partitions_only(
        self, sqlite_database: str, provider: EngineProvider, partitions: int
    ) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(6)
        store, seen = FaultyStateStore(), list[RowChange]()
        store.faults.plan("pollers", Fault.UNREACHABLE)
        polled = farm.polled(partitions, store, seen)
        if partitions == 1:
            polled(0)
        else:
            with pytest.raises(StateStoreError):
                polled(0)
            polled(0)
            store.faults.plan("pollers", Fault.UNREACHABLE)
            farm.polled(2, store, seen)(0)
        assert seen

    def test_what_an_operator_has_reset_stays_there(self, sqlite_database: str, provider: EngineProvider) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(12)
        store = MemoryStateStore()
        for partitions in (3, 2):
            polled = farm.polled(partitions, store, [], max_batches_per_tick=99)
            for share in range(partitions):
                polled(share)
        store.reset_to_beginning("farm-1-of-2")
        store.reset_to_cursor("farm-2-of-2", 4, {"id": 4})
        seen: list[RowChange] = []
        polled = farm.polled(2, store, seen, max_batches_per_tick=99)
        for share in range(2):
            polled(share)
        assert sorted(keys_of(seen)) == sorted([*range(0, 12, 2), *range(5, 12, 2)])

    def test_a_crash_between_taking_the_lease_and_taking_over_is_made_good(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(12)
        clock = FakeClock()
        store = MemoryStateStore(clock=clock)
        farm.polled(1, store, [], max_batches_per_tick=99)(0)
        store.acquire_lease("farm-1-of-2", 60)  # by an instance that is never heard of again
        clock.advance(3600)
        farm.grow(2)
        seen: list[RowChange] = []
        farm.polled(2, store, seen, max_batches_per_tick=99)(0)
        assert keys_of(seen) == [12]

    @pytest.mark.parametrize("rows_before", [0, 8])
    @pytest.mark.parametrize("shares", [range(4), range(3)], ids=["all ran", "one never ran"])
    def test_who_began_at_now_skips_nothing_with_another_number(
        self, sqlite_database: str, provider: EngineProvider, shares: range, rows_before: int
    ) -> None:
        farm = Farm(Shop(sqlite_database, provider))
        farm.grow(rows_before)
        store, seen = MemoryStateStore(), list[RowChange]()
        old = farm.polled(4, store, seen, start_at="now")
        for share in shares:
            old(share)
        farm.grow(20)
        new = farm.polled(3, store, seen, start_at="now", max_batches_per_tick=99)
        for share in range(3):
            new(share)
        expected = {key for key in farm.keys if key >= rows_before}
        assert set(keys_of(seen)) == expected

    def test_who_began_at_now_and_cannot_be_compared_is_refused(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        shop = Shop(sqlite_database, provider)
        shop.fill(*range(9))
        store = MemoryStateStore()

        def polled(partitions: int) -> Any:
            options: dict[str, Any] = {"arg_name": "events", "name": "x", "checkpoint_store": store}
            source = shop.source(cursor_column="name", start_at="now")
            return db.trigger(source=source, partitions=partitions, **options)(lambda events: None)

        polled(2)()
        for key in (90, 91):
            shop.fill(key)
            polled(2)()
        with pytest.raises((SourceConfigurationError, BaseExceptionGroup)):
            polled(3)()


# Coming from release 0.8.3.

CHECKOUT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
APP = APPS / "release_0_8"
SCHEMA = """
    CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric, updated_at timestamptz NOT NULL);
    CREATE TABLE invoices (order_id int PRIMARY KEY, total numeric);
    CREATE TABLE journal (number int PRIMARY KEY, text text);
"""


@pytest.fixture(scope="session")
def release_0_8() -> str:
    """The interpreter of the environment in which release 0.8.3 is installed."""
    python = Path(f"{sys.prefix}-competitor") / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is missing: run `make test`", pytrace=False)
    return str(python)


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="session")
def ask(release_0_8: str) -> Callable[[str], Any]:
    """Ask release 0.8.3 what an expression is there; what the statements before it print is not wanted."""

    def answer(program: str) -> Any:
        *statements, expression = program.strip().splitlines()
        lines = ["import json", *statements, f"print(json.dumps({expression}))"]
        done = subprocess.run(
            [release_0_8, "-c", "\n".join(lines)],
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.splitlines()[-1]
        return json.loads(done.stdout.splitlines()[-1])

    return answer


@pytest.fixture
def settings(tmp_path: Path, postgres_database: str, blob_container: str, site: dict[str, str]) -> dict[str, str]:
    """The settings of the app; its folder holds what its own sources read."""
    (tmp_path / "journal.txt").write_text("".join(f"line {number}\n" for number in range(1, 8)))
    (tmp_path / "ledger.jsonl").write_text("".join(entries(range(1, 4))))
    return {**site, "SHOP_DB": postgres_database, "STATE_CONTAINER": blob_container, "APP_FOLDER": str(tmp_path)}


def entries(numbers: range) -> list[str]:
    return [json.dumps({"day": number // 2, "id": number}) + "\n" for number in numbers]


def place_orders(sql: Sql, url: str, numbers: range) -> None:
    for number in numbers:
        # Pairs of orders share their time: the position is a time and a key.
        moment = f"timestamptz '2026-01-01T00:00:00.123456+02:00' + interval '{number // 2} minutes'"
        sql(url, f"INSERT INTO orders VALUES ({number}, 'new', {number}, {moment})")


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()]


def run_in(python: str, settings: dict[str, str]) -> None:
    """Let the app's pollers run once in the environment of another release."""
    environment = plain_environment() | settings
    command = [python, str(APP / "tick.py"), str(APP)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0.8.3"


def test_an_app_of_release_0_8_runs_unchanged_from_the_checkpoints_that_0_8_wrote(
    release_0_8: str, settings: dict[str, str], tmp_path: Path, sql: Sql
) -> None:
    shop = settings["SHOP_DB"]
    sql(shop, SCHEMA)
    place_orders(sql, shop, range(1, 6))
    run_in(release_0_8, settings)
    assert lines(tmp_path / "orders.log") == [1, 2, 3, 4, 5]
    assert lines(tmp_path / "ledger.log") == [1, 2, 3]
    before = json.loads((tmp_path / "journal.state").read_text())
    assert before["cursor"] == 7
    (tmp_path / "metrics.jsonl").unlink()

    place_orders(sql, shop, range(6, 9))
    shown = subprocess.run(
        [str(Path(sys.prefix) / "bin" / "azfdb"), "status", "orders", "--app", str(APP), "--json"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    [status] = json.loads(shown.stdout)["pollers"]
    assert (status["key"], status["waiting_rows"], status["problems"]) == ({"1": 5}, 3, [])

    (tmp_path / "journal.txt").write_text("".join(f"line {number}\n" for number in range(1, 13)))
    (tmp_path / "ledger.jsonl").write_text("".join(entries(range(1, 6))))
    (tmp_path / "fail-once").touch()
    with FunctionApp(APP, {**settings, "PYTHONWARNINGS": "default::DeprecationWarning"}) as app:
        for _ in range(2):
            for function in ("write_invoices", "keep_journal", "keep_ledger"):
                ticked = app.invoke(function, timer=timer())
                assert ticked.ok, ticked.traceback
        assert app.invoke("get_order", req=http(route={"id": "8"})).json["status"] == "new"
        assert app.invoke("get_order", req=http(route={"id": "99"})).status == 404
        assert app.invoke("get_totals", req=http()).json == {"total": 36.0}
    assert lines(tmp_path / "orders.log") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert lines(tmp_path / "ledger.log") == [1, 2, 3, 4, 5]
    assert sql(shop, "SELECT number FROM journal ORDER BY number") == [*((n,) for n in range(1, 13)), (1000,)]
    assert sql(shop, "SELECT count(*), sum(total) FROM invoices") == [(8, 36)]
    warned = " ".join(line for line in app.log if "DeprecationWarning" in line)
    for word in ("max_attempts=3", "delay_seconds=0.01", "multiplier=2", "cursor_types"):
        assert word in warned
    counted = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert counted == [
        ["azfdb_batches_total", 1, {"poller_name": "orders", "source": "orders", "result": "success"}],
        ["azfdb_events_total", 2, {"poller_name": "orders", "source": "orders"}],
        ["azfdb_batches_total", 1, {"poller_name": "orders", "source": "orders", "result": "success"}],
        ["azfdb_events_total", 1, {"poller_name": "orders", "source": "orders"}],
    ]


class TestStatement12Arguments:
    def test_a_retry_policy_in_the_words_of_0_8_waits_as_0_8_did(self, ask: Callable[[str], Any]) -> None:
        given: dict[str, Any] = {"max_retries": 8, "base_delay_seconds": 0.5, "exponential_base": 3}
        with pytest.warns(DeprecationWarning, match="write") as told:
            policy = RetryPolicy(**given)
        program = f"""
            from azure_functions_db import RetryPolicy
            policy = RetryPolicy(**{given})
            [policy.delay_for_attempt(retry) for retry in range(8)]
        """
        assert list(policy.pauses()) == ask(re.sub(r"^ +", "", program, flags=re.MULTILINE))
        said = [str(warning.message) for warning in told]
        assert [message.split(": ")[1] for message in said] == [
            "write max_attempts=9",
            "write delay_seconds=0.5",
            "write multiplier=3",
        ]
        assert {warning.filename for warning in told} == {__file__}, "it points at the line to change"

    def test_one_thing_is_said_in_one_way(self) -> None:
        former: Any = {"max_retries": 2}
        with pytest.raises(ConfigurationError, match="max_retries= is the former name of max_attempts="):
            RetryPolicy(max_attempts=3, **former)

    def test_an_unknown_argument_of_a_retry_policy_is_answered_with_todays(self) -> None:
        unknown: Any = {"max_tries": 2}
        with pytest.raises(ConfigurationError, match="no argument 'max_tries'; it has: max_attempts, delay_seconds"):
            RetryPolicy(**unknown)

    def test_cursor_types_are_taken_and_not_needed(self) -> None:
        with pytest.warns(DeprecationWarning, match="cursor_types=….* leave it out") as told:
            SqlAlchemySource(
                url="sqlite://", table="t", cursor_column="c", pk_columns=["id"], cursor_types=[dt.datetime, int]
            )
        assert told[0].filename == __file__

    def test_an_unknown_argument_of_a_source_is_answered_with_todays(self) -> None:
        unknown: Any = {"tabel": "orders"}
        with pytest.raises(SourceConfigurationError, match="no argument 'tabel'; it has: url, db_config, table"):
            SqlAlchemySource(url="sqlite://", cursor_column="c", pk_columns=["id"], **unknown)


class Lines:
    """A small source of 0.8 form: numbered rows, few at a time."""

    source_descriptor = SourceDescriptor(name="lines", kind="list", fingerprint="lines-1")

    def __init__(self, count: int, at_once: int = 1000) -> None:
        self.count = count
        self.at_once = at_once
        self.asked: list[Any] = []

    def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
        self.asked.append(cursor)
        start = 0 if cursor is None else cursor if isinstance(cursor, int) else cursor[0]
        return [{"n": n, "id": n * 10} for n in range(start + 1, self.count + 1)][: min(batch_size, self.at_once)]


def scalar(record: Mapping[str, Any], descriptor: SourceDescriptor) -> RowChange:
    key = {"id": record["id"]}
    return RowChange(str(record["n"]), "insert", descriptor, record["n"], key, None, record)


def pair(record: Mapping[str, Any], descriptor: SourceDescriptor) -> RowChange:
    position, key = (record["n"], record["id"]), {"id": record["id"]}
    return RowChange(str(record["n"]), "insert", descriptor, position, key, None, record)


def ticked(source: Any, store: Any = None, **options: Any) -> list[int]:
    """Run one tick; return the numbers of the rows that were handled."""
    seen: list[int] = []
    trigger = PollTrigger(name="lines", source=source, checkpoint_store=store or MemoryStateStore(), **options)
    trigger.run(timer=None, handler=lambda events: seen.extend(event.after["n"] for event in events))
    return seen


class Collector:
    """A collector as 0.8 documents it: labels by keyword only."""

    def __init__(self, broken: str | None = None) -> None:
        self.broken = broken
        self.seen: list[tuple[str, Mapping[str, str] | None]] = []

    def increment(self, name: str, value: float = 1.0, *, labels: Mapping[str, str] | None = None) -> None:
        self._see("increment", name, labels)

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        self._see("observe", name, labels)

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        self._see("set_gauge", name, labels)

    def _see(self, method: str, name: str, labels: Mapping[str, str] | None) -> None:
        if method == self.broken:
            raise LookupError(f"no place for {name}")
        self.seen.append((name, labels))


METRICS_OF_0_8 = """
import logging; logging.disable(50)
from azure_functions_db import PollTrigger
from azure_functions_db.core import SourceDescriptor
class Lines:
    cursor_column, pk_columns = "n", ["id"]
    source_descriptor = SourceDescriptor(name="lines", kind="list", fingerprint="lines-1")
    def fetch(self, cursor, batch_size): return [] if cursor else [dict(n=1, id=10)]
class Store:
    def acquire_lease(self, *a): return "mine:1"
    def renew_lease(self, *a): pass
    def release_lease(self, *a): pass
    def load_checkpoint(self, *a): return {}
    def commit_checkpoint(self, *a): pass
seen = []
class Collector:
    def increment(self, name, value=1, *, labels=None): seen.append((name, labels))
    def observe(self, name, value, *, labels=None): seen.append((name, labels))
    def set_gauge(self, name, value, *, labels=None): seen.append((name, labels))
def fail(events): raise ValueError("no stock")
trigger = PollTrigger(name="lines", source=Lines(), checkpoint_store=Store(), metrics=Collector())
trigger.run(timer=None, handler=lambda events: None)
try: trigger.run(timer=None, handler=fail)
except Exception: pass
seen
"""


class TestStatement13Metrics:
    def test_a_collector_gets_every_metric_of_0_8_with_its_labels(self, ask: Callable[[str], Any]) -> None:
        def fail(_events: Sequence[RowChange]) -> None:
            raise ValueError("no stock")

        collector = Collector()
        ticked(Lines(1), normalizer=scalar, metrics=collector)
        trigger = PollTrigger(
            name="lines",
            source=Lines(1),
            checkpoint_store=MemoryStateStore(),
            normalizer=scalar,
            metrics=collector,
        )
        with pytest.raises(HandlerError):
            trigger.run(timer=None, handler=fail)
        # A failure has one label more than it had: its stage.
        ours = [
            (name, {key: text for key, text in (labels or {}).items() if key != "stage"})
            for name, labels in collector.seen
        ]
        for name, labels in ask(METRICS_OF_0_8):
            assert (name, labels) in ours

    def test_a_collector_that_raises_is_reported_with_what_it_raised_and_gets_the_rest(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        collector = Collector(broken="increment")
        assert ticked(Lines(1), normalizer=scalar, metrics=collector) == [1]
        assert [name for name, _ in collector.seen] == [
            "azfdb_batch_size",
            "azfdb_fetch_duration_ms",
            "azfdb_handler_duration_ms",
            "azfdb_commit_duration_ms",
            "azfdb_last_success_timestamp",
            "azfdb_consecutive_failures",
        ]
        [report] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "LookupError: no place for azfdb_batches_total" in report

    def test_metrics_go_on_after_a_failure_of_the_collector(self) -> None:
        collector = Collector(broken="increment")
        trigger = PollTrigger(
            name="lines",
            source=Lines(2),
            checkpoint_store=MemoryStateStore(),
            normalizer=scalar,
            batch_size=1,
            metrics=collector,
        )
        trigger.run(timer=None, handler=lambda events: None)
        collector.broken = None
        trigger.run(timer=None, handler=lambda events: None)
        assert "azfdb_events_total" in [name for name, _ in collector.seen]


PACKAGES = ["adapter", "binding", "core", "state", "trigger"]
NAMES_OF_0_8 = """
import importlib
def names(package): return [name for name in importlib.import_module("azure_functions_db" + package).__all__]
{package: names(package) for package in ["", ".adapter", ".binding", ".core", ".decorator", ".state", ".trigger"]}
"""
CURSOR_PARTS: list[CursorPart] = [
    1,
    "a",
    1.5,
    True,
    None,
    dt.datetime(2026, 1, 1),  # noqa: DTZ001 - one without a zone
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    Decimal("1.50"),
    UUID(int=5),
]


class TestStatement14Names:
    def test_every_name_that_the_packages_of_0_8_offer_is_there(self, ask: Callable[[str], Any]) -> None:
        for package, names in ask(NAMES_OF_0_8).items():
            module = __import__(f"azure_functions_db{package}", fromlist=names)
            assert [name for name in names if not hasattr(module, name)] == []

    def test_the_packages_are_imported_lazily(self) -> None:
        program = f"""
import sys, importlib
for name in {PACKAGES}:
    importlib.import_module("azure_functions_db." + name)
print([name for name in sys.modules if name.startswith("azure_functions_db.") and name.count(".") > 1])
from azure_functions_db.trigger import RetryPolicy, make_normalizer
from azure_functions_db.core import DbConfig, resolve_env_vars
print([name for name in ("sqlalchemy", "azure", "pydantic", "opentelemetry") if name in sys.modules])
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n[]\n"

    def test_metric_names_and_the_collector_that_keeps_nothing_are_there(self, ask: Callable[[str], Any]) -> None:
        program = """
from azure_functions_db import observability
{name: getattr(observability, name) for name in dir(observability) if name.startswith("METRIC_")}
"""
        from azure_functions_db import observability

        for name, value in ask(program).items():
            assert getattr(observability, name) == value
        assert ticked(Lines(1), normalizer=scalar, metrics=NoOpCollector()) == [1]

    def test_the_helpers_say_what_those_of_0_8_said(
        self, ask: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = f"""
import datetime, decimal, uuid
from datetime import timezone
from decimal import Decimal
from uuid import UUID
from azure_functions_db.core import serialize_cursor_part, parse_checkpoint_cursor
parts = [serialize_cursor_part(part) for part in {CURSOR_PARTS!r}]
[parts, [parse_checkpoint_cursor(raw) for raw in (5, "a", None, [1, "x"])]]
"""
        parts, cursors = ask(program)
        assert [serialize_cursor_part(part) for part in CURSOR_PARTS] == parts
        assert [parse_checkpoint_cursor(raw) for raw in (5, "a", None)] == cursors[:3]
        assert parse_checkpoint_cursor([1, "x"]) == tuple(cursors[3])
        monkeypatch.setenv("SHOP", "sqlite:///shop.db")
        assert resolve_env_vars("%SHOP%") == "sqlite:///shop.db"
        with pytest.raises(ConfigurationError, match="NOWHERE"):
            resolve_env_vars("%NOWHERE%")

    def test_normalizers_of_0_8_make_events(self) -> None:
        descriptor = Lines.source_descriptor
        made = make_normalizer(cursor_column="n", pk_columns=["id"])({"n": 1, "id": 10}, descriptor)
        assert (made.op, made.cursor, made.pk, made.after) == ("upsert", 1, {"id": 10}, {"n": 1, "id": 10})
        bare = default_normalizer({"n": 1}, descriptor)
        assert (bare.op, bare.cursor, bare.pk, bare.after) == ("upsert", None, {}, {"n": 1})


DEFINITIONS: list[dict[str, Any]] = [
    {},
    {"url": "postgresql+psycopg://shop:secret@db.example:5432/shop?sslmode=require&application_name=x"},
    {"url": "postgresql+psycopg://shop:p%40ss@db.example/my%20shop"},
    {"url": "sqlite:///%SHOP_FILE%"},
    {"schema": "sales", "pk_columns": ["shop", "id"]},
    {"where": "a = :a OR b > :b", "parameters": {"b": [1, 2], "a": "é"}},
    {"where": "a > :a", "parameters": {"a": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}},
    {"table": None, "query": "SELECT * FROM t;"},
    {"cursor_types": [dt.datetime, UUID]},
]


class TestStatement15Positions:
    def test_a_scalar_position_of_a_custom_source_is_carried_over(self) -> None:
        store, source = MemoryStateStore(), Lines(5)
        store.commit_checkpoint("lines", {"cursor": 2, "batch_id": "x-0"}, store.acquire_lease("lines", 60))
        store.break_lease("lines")
        assert ticked(source, store, normalizer=scalar, batch_size=2) == [3, 4]
        assert ticked(source, store, normalizer=scalar) == [5]
        assert source.asked == [2, 4], "a scalar stays a scalar"

    def test_a_normalizer_counts_before_the_columns_of_its_source(self) -> None:
        class Named(Lines):
            cursor_column, pk_columns = "n", ("id",)

        store, source = MemoryStateStore(), Named(3)
        assert ticked(source, store, normalizer=scalar, batch_size=2) == [1, 2]
        assert ticked(source, store, batch_size=2, normalizer=scalar) == [3]
        assert source.asked == [None, 2]

    def test_a_source_with_short_pages_is_asked_again_until_it_returns_none(self) -> None:
        source = Lines(7, at_once=2)
        assert ticked(source, normalizer=scalar, batch_size=5, max_batches_per_tick=10) == [1, 2, 3, 4, 5, 6, 7]
        assert source.asked == [None, 2, 4, 6, 7]
        assert ticked(Lines(7, at_once=2), normalizer=scalar, batch_size=5, max_batches_per_tick=2) == [1, 2, 3, 4]

    def test_a_poison_row_of_a_source_with_short_pages_is_put_aside(self, tmp_path: Path) -> None:
        handled: list[int] = []

        def handler(events: Sequence[RowChange]) -> None:
            if any(event.cursor == 1 for event in events):
                raise ValueError("poison")
            handled.extend(int(event.event_id) for event in events)

        sink = FileQuarantine(tmp_path)
        trigger = PollTrigger(
            name="lines",
            source=Lines(3, at_once=1),
            checkpoint_store=MemoryStateStore(),
            normalizer=scalar,
            quarantine=sink,
            max_attempts=1,
            max_batches_per_tick=5,
        )
        for _ in range(3):
            with suppress(HandlerError):
                trigger.run(timer=None, handler=handler)
        assert [row.event_id for row in sink.entries("lines")] == ["1"]
        assert set(handled) == {2, 3}

    def test_a_normalizer_may_return_the_cursor_with_its_key(self) -> None:
        store, source = MemoryStateStore(), Lines(3)
        assert ticked(source, store, normalizer=pair, batch_size=2) == [1, 2]
        assert ticked(source, store, normalizer=pair, batch_size=2) == [3]
        assert source.asked == [None, (2, 20)]

    def test_a_source_that_still_expects_texts_is_told_what_it_is_given(self, caplog: pytest.LogCaptureFixture) -> None:
        class Timed(Lines):
            cursor_column, pk_columns = "at", ("id",)

            def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
                day = 1 if cursor is None else dt.datetime.fromisoformat(cursor[0]).day
                return [{"at": dt.datetime(2026, 1, day, tzinfo=dt.UTC), "id": day, "n": day}]

        store = MemoryStateStore()
        assert ticked(Timed(1), store) == [1]
        with pytest.raises(FetchError):
            ticked(Timed(1), store)
        assert "release 0.8 gave times, Decimals and UUIDs as texts" in caplog.text

    @pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
    @pytest.mark.filterwarnings("ignore:SqlAlchemySource.cursor_types:DeprecationWarning")
    def test_a_source_knows_the_fingerprint_that_0_8_gave_it(
        self, definition: dict[str, Any], ask: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOP_FILE", "shop.db")
        given = {"url": "sqlite:///x.db", "table": "t", "cursor_column": "c", "pk_columns": ["id"]} | definition
        written = (
            repr(given)
            .replace("<class 'datetime.datetime'>", "datetime.datetime")
            .replace("<class 'uuid.UUID'>", "uuid.UUID")
        )
        program = f"""
import datetime, uuid
from datetime import timezone
from azure_functions_db import SqlAlchemySource
SqlAlchemySource(**{written}).source_descriptor.fingerprint
"""
        assert SqlAlchemySource(**given).source_descriptor.former == (ask(program),)


OLD: dict[str, Any] = {
    "version": 1,
    "poller_name": "lines",
    "source_fingerprint": "lines-1",
    "checkpoint": {"cursor": 2, "batch_id": "x-0"},
    "lease": {
        "owner_id": "0e7435aa4cb6458e835c078b912ef2a5",
        "fencing_token": 7,
        "acquired_at": "2026-01-01T19:44:15.056375+00:00",
        "heartbeat_at": "2026-01-01T19:44:15.088924+00:00",
        "expires_at": "2026-01-01T19:44:15.133101+00:00",
    },
}


class TestStatement15OneApp:
    @pytest.fixture
    def container(self, azurite: str, blob_container: str) -> Iterator[ContainerClient]:
        with ContainerClient.from_connection_string(azurite, blob_container) as client:
            client.upload_blob("state/lines.json", json.dumps(OLD))
            yield client

    def test_the_first_app_with_its_source_goes_on_and_the_next_begins_anew(self, container: ContainerClient) -> None:
        shop, copy = (BlobCheckpointStore(container_client=container, app_name=name) for name in ("shop", "copy"))
        assert ticked(Lines(4), shop, normalizer=scalar) == [3, 4]
        assert ticked(Lines(4), copy, normalizer=scalar) == [1, 2, 3, 4]
        assert json.loads(container.download_blob("state/lines.json").readall()) == OLD, "0.8 could go on from it"
        assert ticked(Lines(5), shop, normalizer=scalar) == [5]

    def test_an_app_with_another_source_begins_anew_and_is_told(
        self, container: ContainerClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Others(Lines):
            source_descriptor = SourceDescriptor(name="others", kind="list", fingerprint="others-1")

        stranger, shop = (BlobCheckpointStore(container_client=container, app_name=name) for name in ("other", "shop"))
        assert ticked(Others(4), stranger, normalizer=scalar) == [1, 2, 3, 4]
        [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "of another source: this app begins anew" in warning
        assert ticked(Lines(4), shop, normalizer=scalar) == [3, 4]

    def test_an_app_that_says_so_goes_on_whatever_the_fingerprint(self, container: ContainerClient) -> None:
        class Renamed(Lines):
            source_descriptor = SourceDescriptor(name="lines", kind="list", fingerprint="lines-2")

        for _ in range(2):
            store = BlobCheckpointStore(container_client=container, app_name="shop", carry_over=True)
            assert ticked(Renamed(4), store, normalizer=scalar, batch_size=1) in ([3], [4])
        other = BlobCheckpointStore(container_client=container, app_name="other", carry_over=True)
        assert ticked(Renamed(4), other, normalizer=scalar) == [1, 2, 3, 4]

    def test_an_app_may_leave_it_alone(self, container: ContainerClient) -> None:
        store = BlobCheckpointStore(container_client=container, app_name="shop", carry_over=False)
        assert ticked(Lines(4), store, normalizer=scalar) == [1, 2, 3, 4]

    def test_a_fingerprint_that_the_store_was_given_counts(self, container: ContainerClient) -> None:
        container.upload_blob("state/lines.json", json.dumps(OLD | {"source_fingerprint": "ours"}), overwrite=True)
        store = BlobCheckpointStore(container_client=container, app_name="shop", source_fingerprint="ours")
        assert ticked(Lines(4), store, normalizer=scalar) == [3, 4]
        assert store.load_checkpoint("lines")["cursor"]["value"] == 4

    def test_of_two_apps_at_the_same_moment_one_goes_on(self, container: ContainerClient) -> None:
        stores = [BlobCheckpointStore(container_client=container, app_name=name) for name in ("one", "two")]
        states = [store.look("lines", "lines-1") for store in stores]
        assert [state.checkpoint for state in states] == [OLD["checkpoint"]] * 2
        outcomes: list[str] = []
        turn = threading.Barrier(2)

        def take(number: int) -> None:
            turn.wait()
            try:
                stores[number].take(states[number], 60)
                outcomes.append("took it")
            except LeaseConflictError:
                outcomes.append("was too late")

        threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["took it", "was too late"]

    def test_a_crash_after_the_claim_changes_nothing(self, container: ContainerClient) -> None:
        container.get_blob_client("state/lines.json").set_blob_metadata({"carried_over_by": "shop"})
        shop, copy = (BlobCheckpointStore(container_client=container, app_name=name) for name in ("shop", "copy"))
        assert ticked(Lines(4), copy, normalizer=scalar) == [1, 2, 3, 4]
        assert ticked(Lines(4), shop, normalizer=scalar) == [3, 4]


class TestStatement16Migrate:
    @pytest.fixture
    def app(self, tmp_path: Path) -> Path:
        folder = tmp_path / "app"
        folder.mkdir()
        shutil.copy(APP / "function_app.py", folder)
        (folder / "requirements.txt").write_text("azure-functions\nazure-functions-db==0.8.3\n")
        (folder / "odd.py").write_text(
            "from azure_functions_db.core.config import gone\n"
            "from azure_functions_db.trigger import PollRunner\n"
            "raise SystemExit('whoever runs this app sees it')\n"
            "runner = PollRunner(name='x')\n"
        )
        return folder

    def azfdb(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.prefix) / "bin" / "azfdb"), "migrate", *arguments]
        environment = {**os.environ, "COLUMNS": "1000", **settings}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def test_it_tells_line_by_line_what_an_app_would_have_to_change(self, app: Path) -> None:
        done = self.azfdb("--from-0.8", str(app), "--json")
        assert done.returncode == 1, done.stderr
        told = {
            (advice["file"], advice["line"], advice["grade"], advice["remedy"])
            for advice in json.loads(done.stdout)["advice"]
        }
        source = (app / "function_app.py").read_text().splitlines()
        retry = next(n for n, line in enumerate(source, 1) if "RetryPolicy(max" in line)
        types = next(n for n, line in enumerate(source, 1) if "cursor_types" in line)
        assert {
            ("function_app.py", retry, "warning", "max_attempts=3"),
            ("function_app.py", retry, "warning", "delay_seconds=0.01"),
            ("function_app.py", retry, "warning", "multiplier=2"),
            ("function_app.py", types, "warning", "leave it out"),
            ("odd.py", 1, "change", "see the names of azure_functions_db"),
            ("odd.py", 4, "change", "PollTrigger(…).run(timer=…, handler=…)"),
            ("requirements.txt", 2, "change", "azure-functions-db>=1"),
        } <= told
        assert not [advice for advice in told if advice[0] == "function_app.py" and advice[2] == "change"]

    def test_it_carries_the_checkpoints_of_0_8_over_after_a_dry_run(
        self, app: Path, release_0_8: str, settings: dict[str, str], sql: Sql, azurite: str, blob_container: str
    ) -> None:
        sql(settings["SHOP_DB"], SCHEMA)
        place_orders(sql, settings["SHOP_DB"], range(1, 6))
        run_in(release_0_8, settings)
        state = {"SHOP_STATE": azurite}
        command = ["--from-0.8", str(app / "function_app.py"), "--store", f"azureblob://SHOP_STATE/{blob_container}"]
        command += ["--app-name", "shop", "--backups", str(app / "backups")]
        with ContainerClient.from_connection_string(azurite, blob_container) as container:
            before = sorted(container.list_blob_names())
            assert before == ["state/keep_ledger.json", "state/orders.json"]
            dry = self.azfdb(*command, **state)
            assert dry.returncode == 0, dry.stderr
            assert "orders: ready" in dry.stdout
            assert "keep_journal: not carried over: Poller 'keep_journal' has no state of release 0.8" in dry.stdout
            assert sorted(container.list_blob_names()) == before
            unconfirmed = self.azfdb(*command, "--carry-over", **state)
            assert unconfirmed.returncode == 2
            assert sorted(container.list_blob_names()) == before
            done = self.azfdb(*command, "--carry-over", "--yes", "--json", **state)
            assert done.returncode == 0, done.stderr
            fates = {report["poller"]: report["fate"] for report in json.loads(done.stdout)["checkpoints"]}
            assert fates == {
                "orders": "carried over",
                "keep_journal": "not carried over",
                "keep_ledger": "carried over",
            }
            assert sorted(container.list_blob_names()) == [
                *before,
                "state/shop/keep_ledger.json",
                "state/shop/orders.json",
            ]
            store = BlobCheckpointStore(container_client=container, app_name="shop")
            assert store.load_checkpoint("orders")["cursor"][1] == 5
            again = self.azfdb(*command, "--carry-over", "--yes", **state)
            assert "has a state of its own" in again.stdout
            other = BlobCheckpointStore(container_client=container, app_name="other", carry_over=True)
            with pytest.raises(StateStoreError, match=r"no state of release 0\.8"):
                other.carry_over("orders")

    def test_it_finds_the_container_in_the_app_itself(self, app: Path, azurite: str, blob_container: str) -> None:
        (app / "function_app.py").write_text(
            "import os\n"
            "from azure.storage.blob import ContainerClient\n"
            "from azure_functions_db import BlobCheckpointStore, PollTrigger\n"
            f"client = ContainerClient.from_connection_string(os.environ['SHOP_STATE'], '{blob_container}')\n"
            "store = BlobCheckpointStore(container_client=client, source_fingerprint='x')\n"
            "NAME = 'lines'\n"
            "PollTrigger(name=NAME, source=None, checkpoint_store=store)\n"
        )
        with ContainerClient.from_connection_string(azurite, blob_container) as container:
            container.upload_blob("state/lines.json", json.dumps(OLD))
        command = ["--from-0.8", str(app / "function_app.py")]
        nameless = self.azfdb(*command, "--carry-over", SHOP_STATE=azurite)
        assert (nameless.returncode, "--app-name" in nameless.stderr) == (3, True)
        done = self.azfdb(*command, "--app-name", "shop", SHOP_STATE=azurite)
        assert "lines: ready: goes on where release 0.8 stopped, from 2" in done.stdout, done.stderr

    def test_a_living_lease_of_0_8_is_waited_for(self, app: Path, azurite: str, blob_container: str) -> None:
        later = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=60)).isoformat()
        alive = OLD | {"lease": OLD["lease"] | {"expires_at": later}}
        with ContainerClient.from_connection_string(azurite, blob_container) as container:
            container.upload_blob("state/lines.json", json.dumps(alive))
        command = ["--from-0.8", str(app), "--poller", "lines", "--app-name", "shop"]
        done = self.azfdb(*command, "--store", f"azureblob://SHOP_STATE/{blob_container}", SHOP_STATE=azurite)
        assert "lines: not carried over: The lease of poller 'lines' is held" in done.stdout


class TestStatement17Python314:
    def test_it_is_named_where_versions_are(self) -> None:
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        assert "Programming Language :: Python :: 3.14" in project["classifiers"]

    def test_make_test_all_takes_it_where_it_is_found(self, tmp_path: Path) -> None:
        python = tmp_path / "python3.14"
        python.write_text("#!/bin/sh\nexit 0\n")  # whatever it is asked, it agrees
        python.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        found = subprocess.run(
            [CHECKOUT / "tools" / "find-pythons"], env=environment, capture_output=True, text=True, check=True
        )
        assert str(python) in found.stdout.splitlines()
