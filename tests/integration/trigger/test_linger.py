"""What a tick that lingers asks of a real database, and when it delivers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    MemoryStateStore,
    MySqlBinlogSource,
    Outbox,
    OutboxSource,
    PollTrigger,
    PostgresLogicalSource,
    SqlAlchemySource,
)
from azure_functions_db.trigger.pace import end_lingering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Act = Callable[[], object]

# By then a busy machine has let everybody's transactions end.
_MOST_LOOKS = 500


class Looks:
    """Runs a tick that lingers; before each look something is done, and after the last it ends."""

    def __init__(self, writer: Engine) -> None:
        self.writer = writer
        self.ids: list[Any] = []
        self.asked: list[str] = []
        self.statements: list[int] = []
        """How many statements each look has sent."""

    def note(self, _connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        self.asked.append(statement)

    def run(self, source: Any, *acts: Act, store: Any = None, until: int | None = None) -> None:
        """Do one thing before each look; then look until so many events have come."""
        following = iter(acts)

        def sleep(_seconds: float) -> None:
            self.statements.append(len(self.asked))
            act = next(following, None)
            if act is not None:
                act()
            elif until is None or len(self.ids) >= until or len(self.statements) > _MOST_LOOKS:
                end_lingering()
            else:
                time.sleep(0.02)  # the tick's own pause
            self.asked.clear()

        trigger = PollTrigger(
            name="orders",
            source=source,
            checkpoint_store=store or MemoryStateStore(),
            linger_seconds=600,
            sleep=sleep,
            lease_ttl_seconds=900,
        )
        trigger.run(timer=None, handler=lambda events: self.ids.extend(each.pk.get("id") for each in events))

    def insert(self, *rows: int) -> None:
        with self.writer.begin() as connection:
            for row in rows:
                connection.execute(text("INSERT INTO orders VALUES (:row, :row)"), {"row": row})


@pytest.fixture
def looks_at() -> Iterator[Callable[[str], Looks]]:
    """What looks at a database with a table of orders."""
    all_looks: list[Looks] = []

    def looks_at(url: str) -> Looks:
        writer = create_engine(url)
        with writer.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id integer PRIMARY KEY, version integer NOT NULL)"))
            connection.execute(text("CREATE INDEX orders_by_version ON orders (version, id)"))
            connection.execute(text("CREATE TABLE others (id integer PRIMARY KEY)"))
        looks = Looks(writer)
        event.listen(Engine, "before_cursor_execute", looks.note)
        all_looks.append(looks)
        return looks

    yield looks_at
    for looks in all_looks:
        event.remove(Engine, "before_cursor_execute", looks.note)
        looks.writer.dispose()


def nothing() -> None:
    """Let the next look find nothing new."""


@pytest.mark.parametrize("cursor", ["id", "version"])
def test_a_look_is_one_statement(database_url: str, looks_at: Any, provider: EngineProvider, cursor: str) -> None:
    looks = looks_at(database_url)
    looks.insert(1)
    source = SqlAlchemySource(
        url=database_url, table="orders", cursor_column=cursor, pk_columns=["id"], engine_provider=provider
    )
    looks.run(source, nothing, nothing, nothing, nothing, nothing)
    assert looks.statements[1:] == [1] * (len(looks.statements) - 1)
    looks.run(source, nothing, lambda: looks.insert(2, 3), until=3)
    assert looks.ids[-2:] == [2, 3]


@pytest.mark.parametrize("cursor", ["id", "version"])
def test_a_row_that_is_held_back_comes_with_the_end_of_whoever_holds_it(
    postgres_database: str, looks_at: Any, provider: EngineProvider, cursor: str
) -> None:
    looks = looks_at(postgres_database)
    looks.insert(1)
    source = SqlAlchemySource(
        url=postgres_database, table="orders", cursor_column=cursor, pk_columns=["id"], engine_provider=provider
    )
    with looks.writer.connect() as late:
        begun = text("INSERT INTO orders VALUES (2, 2)")
        held = [lambda: late.execute(begun), lambda: looks.insert(3), *[nothing] * 20]
        looks.run(source, *held, late.commit, until=3)
    assert looks.ids == [1, 2, 3], "in the order of their cursors"
    waiting = looks.statements[4:20]
    assert waiting == [1] * len(waiting), "to wait costs one statement a look as well"


def test_a_row_that_is_held_back_on_mariadb_comes_too(
    mariadb_database: str, looks_at: Any, provider: EngineProvider
) -> None:
    looks = looks_at(mariadb_database)
    source = SqlAlchemySource(
        url=mariadb_database, table="orders", cursor_column="id", pk_columns=["id"], engine_provider=provider
    )
    with looks.writer.connect() as late:
        begun = text("INSERT INTO orders VALUES (2, 2)")
        looks.run(source, lambda: late.execute(begun), lambda: looks.insert(3), *[nothing] * 5, late.commit, until=2)
    assert looks.ids == [2, 3]


def test_the_horizon_is_written_when_the_tick_ends_and_not_before(
    postgres_database: str, looks_at: Any, provider: EngineProvider
) -> None:
    looks, store = looks_at(postgres_database), MemoryStateStore()
    looks.insert(1)
    source = SqlAlchemySource(
        url=postgres_database, table="orders", cursor_column="id", pk_columns=["id"], engine_provider=provider
    )
    stored: list[Any] = []

    def see() -> None:
        stored.append(store.load_checkpoint("orders").get("horizon"))

    with looks.writer.connect() as late:
        begun = text("INSERT INTO orders VALUES (2, 2)")
        looks.run(source, lambda: late.execute(begun), lambda: looks.insert(3), nothing, nothing, see, store=store)
        see()
        late.rollback()
    assert stored[0] is None
    assert stored[1]["waits"]


def test_a_settled_source_asks_once_as_long_as_nothing_comes(
    postgres_database: str, looks_at: Any, provider: EngineProvider
) -> None:
    looks = looks_at(postgres_database)
    with looks.writer.begin() as connection:
        connection.execute(text("CREATE TABLE notes (id integer PRIMARY KEY, at timestamp NOT NULL)"))
        connection.execute(text("INSERT INTO notes VALUES (1, '2020-01-01')"))
    source = SqlAlchemySource(
        url=postgres_database,
        table="notes",
        cursor_column="at",
        pk_columns=["id"],
        in_flight="ignore",
        settle_seconds=5,
        engine_provider=provider,
    )
    looks.run(source, *[nothing] * 5)
    assert looks.ids == [1]
    assert looks.statements[1:] == [1] * (len(looks.statements) - 1)


def test_an_outbox_is_asked_once_and_empties_itself(database_url: str, looks_at: Any, provider: EngineProvider) -> None:
    looks, outbox = looks_at(database_url), Outbox()
    with looks.writer.begin() as connection:
        for statement in outbox.ddl(connection.dialect.name).split(";"):
            if statement.strip():
                connection.execute(text(statement))

    def add() -> None:
        with looks.writer.begin() as connection:
            outbox.add(connection, topic="orders", key="1", payload={"id": 1})

    source = OutboxSource(url=database_url, outbox=outbox, engine_provider=provider)
    looks.run(source, nothing, nothing, nothing, add, until=1)
    assert len(looks.ids) == 1
    assert looks.statements[1:4] == [1, 1, 1]
    with looks.writer.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM outbox")).scalar_one() == 0


class TestALog:
    """One statement tells that a log has grown; where it has, by others' doing, it is read: one more, and the log."""

    def check(self, looks: Looks, source: Any) -> None:
        def write_elsewhere() -> None:
            with looks.writer.begin() as connection:
                connection.execute(text("INSERT INTO others VALUES (1)"))

        looks.insert(1)
        looks.run(source, nothing, write_elsewhere, lambda: looks.insert(2), *[nothing] * 6, until=2)
        assert looks.ids == [1, 2]
        assert set(looks.statements[5:]) <= {1, 2}

    def test_of_postgresql(self, postgres_log_database: str, looks_at: Any, provider: EngineProvider) -> None:
        source = PostgresLogicalSource(
            url=postgres_log_database, tables=["orders"], slot=slot_of(postgres_log_database), engine_provider=provider
        )
        self.check(looks_at(postgres_log_database), source)

    def test_of_mariadb(self, mariadb_database: str, looks_at: Any, provider: EngineProvider) -> None:
        source = MySqlBinlogSource(url=mariadb_database, tables=["orders"], engine_provider=provider)
        self.check(looks_at(mariadb_database), source)


def slot_of(url: str) -> str:
    return f"linger_{DbConfig(connection_url=url).connection_url.rpartition('/')[2]}"
