"""A connection that dies costs one failure at most, whichever way it is used next."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions
from sqlalchemy import create_engine, make_url, text

from azure_functions_db import DbReader, DbWriter, PollTrigger, SqlAlchemySource, SqlStateStore
from azure_functions_db.core.config import DbConfig
from azure_functions_db.core.errors import DbError
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from azure_functions_db.sql.engine import EngineProvider


class Line:
    """A database behind a network device, and what two clients of one URL keep there."""

    def __init__(self, direct: str, proxy: Proxy, provider: EngineProvider) -> None:
        url = make_url(direct).set(host="127.0.0.1", port=proxy.port)
        self.url = url.render_as_string(hide_password=False)
        self.config = DbConfig(connection_url=self.url)
        self.provider = provider
        self._proxy = proxy
        self._direct = create_engine(direct)

    def engine(self) -> Engine:
        return self.provider.get_engine(self.config)

    def reader(self) -> DbReader:
        return DbReader(url=self.url, engine_provider=self.provider, table="orders")

    def writer(self) -> DbWriter:
        return DbWriter(url=self.url, engine_provider=self.provider, table="orders")

    def execute(self, *statements: str) -> None:
        """Do something on the server, past the device."""
        with self._direct.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def open_connections(self, count: int) -> None:
        """Leave this many connections in the pool, all of them used a moment ago."""
        with ExitStack() as used:
            for _ in range(count):
                used.enter_context(self.engine().connect()).execute(text("SELECT 1"))

    def forget(self) -> None:
        """Let the device forget every connection there is: what is said on one is answered with a reset."""
        self._proxy.forget()

    def end_sessions(self) -> None:
        """Let the server end every session that came through the device."""
        with self._direct.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                )
                return
            others = text(
                "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
            )
            for session in connection.scalars(others).all():
                connection.execute(text(f"KILL {session}"))

    def close(self) -> None:
        self._direct.dispose()


@pytest.fixture(params=["postgres", "mariadb"])
def line(request: pytest.FixtureRequest, provider: EngineProvider) -> Iterator[Line]:
    direct = request.getfixturevalue(f"{request.param}_database")
    url = make_url(direct)
    with Proxy(url.host or "", url.port or 0) as proxy:
        line = Line(direct, proxy, provider)
        line.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER NOT NULL)",
            "INSERT INTO orders VALUES (1, 1), (2, 2)",
        )
        yield line
        line.close()
        provider.dispose_all()


def failures(calls: int, work: Callable[[], object]) -> list[str]:
    """Return what went wrong in a number of calls."""
    told = []
    for _ in range(calls):
        try:
            work()
        except DbError as error:
            told.append(str(error))
    return told


def ticking(line: Line, handler: Callable[[list[Any]], object], *, transactional: bool = False) -> Callable[[], object]:
    """Return a poller's tick; its source and its state are on one URL, and so in one pool."""
    config = line.config
    trigger = PollTrigger(
        name="orders",
        source=SqlAlchemySource(
            db_config=config,
            table="orders",
            cursor_column="version",
            pk_columns=["id"],
            engine_provider=line.provider,
        ),
        checkpoint_store=SqlStateStore(db_config=config, engine_provider=line.provider),
        transactional=transactional,
    )
    return lambda: trigger.run(timer=None, handler=handler)


@pytest.mark.parametrize("end", [Line.forget, Line.end_sessions])
@pytest.mark.parametrize("pool_size", [1, 5])
def test_a_poller_goes_on_after_one_failed_tick_at_most(
    line: Line, pool_size: int, end: Callable[[Line], None]
) -> None:
    delivered: list[Any] = []
    line.config = DbConfig(connection_url=line.url, pool_size=pool_size)
    tick = ticking(line, delivered.extend)
    assert failures(2, tick) == []
    line.execute("INSERT INTO orders VALUES (3, 3)")
    end(line)
    assert len(failures(4, tick)) <= 1
    assert [event.pk["id"] for event in delivered] == [1, 2, 3]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_connection_that_dies_while_the_handler_runs_costs_that_batch_once(line: Line, transactional: bool) -> None:
    batches: list[list[int]] = []

    def handle(events: list[Any]) -> None:
        batches.append([event.pk["id"] for event in events])
        if len(batches) == 1:
            line.forget()

    tick = ticking(line, handle, transactional=transactional)
    assert len(failures(4, tick)) <= 1
    assert batches == [[1, 2]] * len(batches)
    assert len(batches) <= 2
    assert SqlStateStore(url=line.url, engine_provider=line.provider).load_checkpoint("orders")["cursor"]["value"] == 2


def reading(line: Line) -> Callable[[], object]:
    reader = line.reader()
    return lambda: reader.get(pk={"id": 1})


def querying(line: Line) -> Callable[[], object]:
    reader = line.reader()
    return lambda: reader.query("SELECT id FROM orders", params={})


def writing(line: Line) -> Callable[[], object]:
    writer = line.writer()
    return lambda: writer.upsert(data={"id": 7, "version": 7}, conflict_columns=["id"])


def writing_many(line: Line) -> Callable[[], object]:
    writer = line.writer()
    rows = [{"id": number, "version": number} for number in range(100, 400)]
    return lambda: writer.upsert_many(rows=rows, conflict_columns=["id"])


def sharing_a_transaction(line: Line) -> Callable[[], object]:
    writer = line.writer()

    def work() -> None:
        with writer.transaction():
            writer.upsert(data={"id": 8, "version": 8}, conflict_columns=["id"])

    return work


WAYS = [reading, querying, writing, writing_many, sharing_a_transaction]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("used_by", ["a single statement", "a transaction"])
def test_a_binding_fails_once_at_most_however_many_connections_have_died(
    line: Line, way: Callable[[Line], Callable[[], object]], used_by: str
) -> None:
    work = way(line)
    work()  # it knows its tables
    line.open_connections(4)
    if used_by == "a single statement":
        reading(line)()
    line.forget()
    assert len(failures(5, work)) <= 1


def test_an_answer_that_was_not_read_to_its_end_is_nobody_elses(
    mariadb_database: str, provider: EngineProvider
) -> None:
    hurt = {"times": 1}

    def number(text: str) -> int:
        if text == "77" and hurt["times"]:
            hurt["times"] -= 1
            raise MemoryError
        return int(text)

    config = DbConfig(connection_url=mariadb_database, connect_args={"conv": {**conversions, FIELD_TYPE.LONG: number}})
    writer = DbWriter(db_config=config, engine_provider=provider, table="orders")
    reader = DbReader(db_config=config, engine_provider=provider, table="orders")
    with provider.get_engine(config).begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER NOT NULL)"))
    writer.insert_many(rows=[{"id": number, "version": number} for number in range(600)])
    with pytest.raises(MemoryError):
        reader.query("SELECT id FROM orders ORDER BY id", params={})
    assert reader.get(pk={"id": 599}) == {"id": 599, "version": 599}
