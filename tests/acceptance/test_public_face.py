"""The public face, statement by statement: each test says what a user can rely on."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
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
    DbBindings,
    DbConfig,
    DbConnectionError,
    DbError,
    DbOut,
    DbReader,
    DbSession,
    DbWriter,
    EngineProvider,
    HandledFirst,
    HandlerError,
    LostLeaseError,
    MemoryStateStore,
    NotFoundError,
    PollContext,
    PollTrigger,
    QueryError,
    RowChange,
    RowsFailed,
    SourceConfigurationError,
    SqlAlchemySource,
    SqlStateStore,
    StateStoreError,
    WriteError,
    get_db_metadata,
)
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.testing.faults import Fault, FaultyStateStore
from azure_functions_db.testing.memory import FakeClock, MemoryQuarantine
from azure_functions_db.testing.stream import MemoryLog, MemoryStreamSource
from azure_functions_db.trigger.runner import PollRunner
from tests.acceptance.host import AppRefusedError, FunctionApp, timer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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
        assert any(f"{function} got {got}" in line for line in app.log)

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
        from azure_functions_db.core.types import RowDict
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
