"""The public face, statement by statement: each test says what a user can rely on."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
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
from sqlalchemy.engine.reflection import Inspector

from azure_functions_db import (
    AsyncDbOut,
    AsyncDbReader,
    AsyncDbSession,
    AsyncDbWriter,
    ConfigurationError,
    DbBindings,
    DbConfig,
    DbConnectionError,
    DbOut,
    DbReader,
    DbSession,
    DbWriter,
    EngineProvider,
    LostLeaseError,
    MemoryStateStore,
    NotFoundError,
    PollContext,
    PollTrigger,
    QueryError,
    RowChange,
    SourceConfigurationError,
    SqlAlchemySource,
    SqlStateStore,
    WriteError,
    get_db_metadata,
)
from azure_functions_db.core.types import SourceDescriptor
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

    def test_every_parameter_that_asks_gets_it(self, shop: Shop) -> None:
        shop.fill(1)
        got: list[Any] = []

        @db.trigger(arg_name="events", source=shop.source(), checkpoint_store=MemoryStateStore())
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

    def test_there_is_one_for_all_calls_of_a_function(self, shop: Shop) -> None:
        seen: list[DbOut] = []

        @db.output("out", **shop.place, table="items")
        def handler(req: int, out: DbOut) -> None:
            seen.append(out)
            out.set({"id": req, "name": "x"})

        for key in (1, 2):
            handler(key)
        assert seen[0] is seen[1]
        assert vars(seen[0]).keys() == vars(DbOut(**shop.place, table="items")).keys()

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

    def test_table_and_schema_beside_a_query_are_not_looked_at(self, shop: Shop) -> None:
        @db.input("rows", **shop.place, query="SELECT 1 AS one", table="no_such_table", schema="nowhere")
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

    def test_a_source_is_disposed_of_and_may_be_used_again(self, shop: Shop) -> None:
        shop.fill(1)
        source, engine = shop.source(), shop.place["engine_provider"].get_engine(DbConfig(connection_url=shop.url))
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

    def test_a_runner_ticks(self, shop: Shop) -> None:
        shop.fill(1, 2)
        trigger = PollTrigger(name="x", source=shop.source(), checkpoint_store=MemoryStateStore())
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

    def test_a_function_without_a_host_parameter_takes_the_timer_by_place(self, shop: Shop) -> None:
        shop.fill(1)
        seen: list[Any] = []

        @db.trigger(arg_name="events", source=shop.source(), checkpoint_store=MemoryStateStore())
        def handler(events: list[RowChange]) -> None:
            seen.extend(events)

        assert handler(object()) is None
        assert len(seen) == 1
        handler()
        with pytest.raises(TypeError):
            handler(1, 2)
        assert list(inspect.signature(handler).parameters) == []

    def test_so_does_an_async_one(self, shop: Shop) -> None:
        shop.fill(1)
        seen: list[Any] = []

        @db.trigger(arg_name="events", source=shop.source(), checkpoint_store=MemoryStateStore())
        async def handler(events: list[RowChange], context: PollContext) -> None:
            seen.extend(events)

        asyncio.run(handler("timer"))
        assert len(seen) == 1

    def test_without_a_trigger_nothing_is_taken_that_nobody_asked_for(self, shop: Shop) -> None:
        @db.inject_reader("reader", **shop.place)
        def handler(reader: DbReader) -> None: ...

        with pytest.raises(TypeError):
            handler(object())

    def test_the_wrapper_returns_none_to_the_host_and_run_the_number(self, shop: Shop) -> None:
        shop.fill(1, 2)

        @db.trigger(arg_name="events", source=shop.source(), checkpoint_store=MemoryStateStore())
        def handler(timer: Any, events: list[RowChange]) -> int:
            return len(events)

        assert handler(timer=None) is None
        trigger = PollTrigger(name="x", source=shop.source(), checkpoint_store=MemoryStateStore())
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
