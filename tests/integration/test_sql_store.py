"""State in SQL tables: making the table, sharing a transaction with the handler, failing clearly."""

from __future__ import annotations

import contextvars
import secrets
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from sqlalchemy import Engine, create_engine, event, text

from azure_functions_db import (
    ConfigurationError,
    DbConfig,
    EngineProvider,
    LostLeaseError,
    SqlStateStore,
    StateStoreError,
)
from azure_functions_db.core.ports import TransactionalStateStore
from azure_functions_db.sql.transactions import ambient_connection
from azure_functions_db.state.backend import document_name
from azure_functions_db.testing.memory import FakeClock

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.engine import ExceptionContext

POLLER = "orders"
FIRST, SECOND = {"cursor": [1]}, {"cursor": [2]}


@pytest.fixture
def other_provider() -> Iterator[EngineProvider]:
    provider = EngineProvider()
    yield provider
    provider.dispose_all()


@pytest.fixture
def store(database_url: str, provider: EngineProvider) -> SqlStateStore:
    return SqlStateStore(url=database_url, engine_provider=provider)


@pytest.fixture
def engine(database_url: str, provider: EngineProvider) -> Engine:
    """The engine that a writer on the same URL would use."""
    engine = provider.get_engine(DbConfig(connection_url=database_url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE written (id INTEGER PRIMARY KEY)"))
    return engine


def write(engine: Engine, row: int) -> None:
    """Write as a handler's writer does, inside whatever transaction is open."""
    connection = ambient_connection(engine)
    assert connection is not None
    connection.execute(text("INSERT INTO written VALUES (:row)"), {"row": row})


def written(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT id FROM written ORDER BY id")))


def until_somebody_waits_for_a_lock(engine: Engine) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(1000):
        with engine.connect() as connection:
            if connection.scalar(text(waiting)):
                return
        time.sleep(0.01)
    pytest.fail("nobody waits")


class TestTheTable:
    def test_can_be_made_by_hand(self, store: SqlStateStore, database_url: str) -> None:
        engine = create_engine(database_url)
        with engine.begin() as connection:
            connection.execute(text(store.ddl()))
        engine.dispose()
        store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
        assert store.load_checkpoint(POLLER) == FIRST

    def test_that_counted_its_versions_goes_on(self, store: SqlStateStore, engine: Engine) -> None:
        store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
        with engine.begin() as connection:
            connection.execute(text("UPDATE azfdb_state SET version = 7"))
        lease_id = store.acquire_lease(POLLER, 60)
        with engine.begin() as older_instance:
            older_instance.execute(text("UPDATE azfdb_state SET version = version + 1"))
        store._lease(POLLER, lease_id).commit(SECOND, release=True)
        assert store.load_checkpoint(POLLER) == SECOND

    def test_is_named_as_wished(self, database_url: str, provider: EngineProvider) -> None:
        store = SqlStateStore(url=database_url, table="my state", engine_provider=provider)
        store.acquire_lease(POLLER, 60)
        with provider.get_engine(DbConfig(connection_url=database_url)).connect() as connection:
            quote = connection.dialect.identifier_preparer.quote
            assert connection.scalar(text(f"SELECT count(*) FROM {quote('my state')}")) == 1

    def test_holds_large_documents(self, store: SqlStateStore) -> None:
        large = {"cursor": ["x" * 300_000]}
        store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(large, release=True)
        assert store.load_checkpoint(POLLER) == large

    def test_in_a_schema_of_its_own(self, postgres_database: str, provider: EngineProvider) -> None:
        with provider.get_engine(DbConfig(connection_url=postgres_database)).begin() as connection:
            connection.execute(text("CREATE SCHEMA ops"))
        store = SqlStateStore(url=postgres_database, schema="ops", engine_provider=provider)
        store.acquire_lease(POLLER, 60)
        assert "ops.azfdb_state" in store.ddl()
        assert store.poller_names() == [POLLER]

    def test_made_by_another_process_in_the_same_moment_is_used(
        self, postgres_database: str, provider: EngineProvider
    ) -> None:
        store = SqlStateStore(url=postgres_database, engine_provider=provider)
        admin = provider.get_engine(DbConfig(connection_url=postgres_database))
        acquiring = threading.Thread(target=store.acquire_lease, args=(POLLER, 60), daemon=True)
        with admin.begin() as other_process:
            other_process.execute(text(store.ddl()))
            acquiring.start()
            until_somebody_waits_for_a_lock(admin)
        acquiring.join(timeout=30)
        assert store.poller_names() == [POLLER]

    def test_that_may_not_be_made_is_a_clear_error(self, postgres_database: str, provider: EngineProvider) -> None:
        role = f"reader_{secrets.token_hex(4)}"
        admin = provider.get_engine(DbConfig(connection_url=postgres_database))
        with admin.begin() as connection:
            connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'hush'"))
        limited = admin.url.set(username=role, password="hush").render_as_string(hide_password=False)
        try:
            with pytest.raises(StateStoreError, match=r"azfdb_state is missing.*42501.*ddl") as failed:
                SqlStateStore(url=limited, engine_provider=provider).acquire_lease(POLLER, 60)
            assert "hush" not in "".join(traceback.format_exception(failed.value))
        finally:
            with admin.begin() as connection:
                connection.execute(text(f"DROP ROLE {role}"))

    def test_that_is_missing_is_named_and_made_by_the_first_lease(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        store = SqlStateStore(url=sqlite_database, engine_provider=provider)
        assert store.poller_names() == []
        with pytest.raises(ConfigurationError, match="There is no table azfdb_state here"):
            store.check_place()
        store.acquire_lease(POLLER, 60)
        store.check_place()

    def test_that_somebody_makes_during_a_look_is_looked_into(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        late = SqlStateStore(url=sqlite_database, engine_provider=provider)
        early = SqlStateStore(db_config=DbConfig(connection_url=sqlite_database, pool_size=2), engine_provider=provider)

        def make(_context: ExceptionContext) -> None:
            early._lease(POLLER, early.acquire_lease(POLLER, 60)).commit(FIRST, release=True)

        event.listen(late.engine, "handle_error", make, once=True)
        assert late.load_checkpoint(POLLER) == FIRST

    def test_is_not_taken_for_missing_inside_a_transaction(self, store: SqlStateStore) -> None:
        with pytest.raises(StateStoreError, match="azfdb_state failed on the state") as failed, store.transaction():
            store.look(POLLER)
        assert "isolation level" not in str(failed.value)

    def test_may_hold_documents_as_bytes(self, sqlite_database: str, provider: EngineProvider) -> None:
        store = SqlStateStore(url=sqlite_database, engine_provider=provider)
        store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
        with store.engine.begin() as connection:
            connection.execute(text("UPDATE azfdb_state SET document = CAST(document AS BLOB)"))
        assert store.look(POLLER).checkpoint == FIRST

    def test_is_in_a_database_that_tells_the_time(self, postgres_database: str, provider: EngineProvider) -> None:
        told = SqlStateStore(url=postgres_database, engine_provider=provider).storage_time()
        assert told is not None
        assert told.tzinfo is not None


class TestATransaction:
    def test_is_offered_through_the_port(self, store: SqlStateStore) -> None:
        assert isinstance(store, TransactionalStateStore)

    def test_keeps_the_handlers_writes_and_the_checkpoint_together(self, store: SqlStateStore, engine: Engine) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        with store.transaction():
            write(engine, 1)
            store.commit_checkpoint(POLLER, FIRST, lease_id)
        with store.transaction():
            write(engine, 2)
            store._lease(POLLER, lease_id).commit(SECOND, release=True)
        assert (written(engine), store.load_checkpoint(POLLER)) == ([1, 2], SECOND)

    def test_that_fails_keeps_neither(self, store: SqlStateStore, engine: Engine) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        store.commit_checkpoint(POLLER, FIRST, lease_id)
        with pytest.raises(ZeroDivisionError), store.transaction():
            write(engine, 1)
            store.commit_checkpoint(POLLER, SECOND, lease_id)
            raise ZeroDivisionError
        assert (written(engine), store.load_checkpoint(POLLER)) == ([], FIRST)
        with store.transaction():
            write(engine, 1)
            store._lease(POLLER, lease_id).commit(SECOND, release=True)
        assert (written(engine), store.load_checkpoint(POLLER)) == ([1], SECOND)

    def test_of_a_release_that_fails_leaves_the_lease_usable(self, store: SqlStateStore, engine: Engine) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        with pytest.raises(ZeroDivisionError), store.transaction():
            store._lease(POLLER, lease_id).commit(FIRST, release=True)
            raise ZeroDivisionError
        store.renew_lease(POLLER, lease_id, 60)
        store.release_lease(POLLER, lease_id)
        assert store.load_checkpoint(POLLER) == {}

    def test_of_a_stale_owner_is_rolled_back_with_its_writes(
        self, database_url: str, provider: EngineProvider, engine: Engine
    ) -> None:
        clock = FakeClock()
        store = SqlStateStore(url=database_url, engine_provider=provider, clock=lambda: FakeClock().now)
        lease_id = store.acquire_lease(POLLER, 60)
        clock.advance(100)
        taker = SqlStateStore(url=database_url, engine_provider=provider, clock=clock)
        taker._lease(POLLER, taker.acquire_lease(POLLER, 60)).commit(SECOND, release=True)
        with pytest.raises(LostLeaseError), store.transaction():
            write(engine, 1)
            store.commit_checkpoint(POLLER, FIRST, lease_id)
        assert (written(engine), taker.load_checkpoint(POLLER)) == ([], SECOND)

    def test_loses_to_a_taker_that_came_while_it_was_open(
        self, database_url: str, provider: EngineProvider, other_provider: EngineProvider, engine: Engine
    ) -> None:
        if database_url.startswith("sqlite"):
            return  # one writer at a time: nobody can come in between
        clock = FakeClock()
        store = SqlStateStore(url=database_url, engine_provider=provider, clock=lambda: FakeClock().now)
        lease_id = store.acquire_lease(POLLER, 60)
        clock.advance(100)
        taker = SqlStateStore(url=database_url, engine_provider=other_provider, clock=clock)
        with pytest.raises(LostLeaseError), store.transaction() as connection:
            write(engine, 1)
            connection.execute(text("SELECT count(*) FROM azfdb_state"))  # fixes a snapshot where there is one
            taker._lease(POLLER, taker.acquire_lease(POLLER, 60)).commit(SECOND, release=True)
            store.commit_checkpoint(POLLER, FIRST, lease_id)
        assert (written(engine), taker.load_checkpoint(POLLER)) == ([], SECOND)

    def test_goes_on_while_the_lease_is_renewed_beside_it(self, store: SqlStateStore, engine: Engine) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        before = expiry(store)
        with pytest.raises(ZeroDivisionError), store.transaction() as connection:
            connection.execute(text("SELECT count(*) FROM written"))
            assert beat(store, lease_id) is None
            raise ZeroDivisionError
        assert expiry(store) > before
        with store.transaction():
            store._lease(POLLER, lease_id).commit(FIRST, release=True)
        assert store.load_checkpoint(POLLER) == FIRST

    def test_that_has_written_lets_no_heartbeat_wait(self, store: SqlStateStore, engine: Engine) -> None:
        lease_id = store.acquire_lease(POLLER, 60)
        with store.transaction():
            store.commit_checkpoint(POLLER, FIRST, lease_id)
            assert "open transaction" in str(beat(store, lease_id))
            store.commit_checkpoint(POLLER, SECOND, lease_id)
        assert beat(store, lease_id) is None
        store.release_lease(POLLER, lease_id)
        assert store.load_checkpoint(POLLER) == SECOND

    def test_whose_answer_was_lost_is_not_written_over(
        self, sqlite_database: str, provider: EngineProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = SqlStateStore(url=sqlite_database, engine_provider=provider)
        lease = store.take(store.look(POLLER), 60)
        transaction = store.transaction

        @contextmanager
        def unanswered() -> Iterator[Connection]:
            with transaction() as connection:
                yield connection
            raise ConnectionError("no answer")

        monkeypatch.setattr(store, "transaction", unanswered)
        with pytest.raises(ConnectionError), lease.transaction():
            lease.commit(FIRST)
        with pytest.raises(StateStoreError, match="a commit that was given up has taken effect"):
            lease.commit({"metadata": {"failed_attempts": 1}})
        assert store.look(POLLER).checkpoint == FIRST

    def test_that_has_ended_lets_the_lease_be_renewed(self, sqlite_database: str, provider: EngineProvider) -> None:
        store = SqlStateStore(url=sqlite_database, engine_provider=provider)
        lease = store.take(store.look(POLLER), 60)
        with lease.transaction():
            lease.commit(FIRST)
        before = expiry(store)
        lease.renew(600)
        assert expiry(store) > before

    def test_that_has_written_nothing_keeps_no_lease_beyond_its_time(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        clock = FakeClock()
        store = SqlStateStore(url=sqlite_database, engine_provider=provider, clock=clock)
        lease = store.take(store.look(POLLER), 60)
        with pytest.raises(LostLeaseError), lease.transaction():
            clock.advance(100)
            lease.commit(FIRST)

    def test_makes_no_look_wait_and_waits_for_none(self, postgres_database: str, provider: EngineProvider) -> None:
        hasty = DbConfig(connection_url=postgres_database, connect_args={"options": "-c lock_timeout=1s"})
        store = SqlStateStore(db_config=hasty, engine_provider=provider)
        lease_id = store.acquire_lease(POLLER, 60)
        with store.transaction():
            store.look(POLLER)
            assert beat(store, lease_id) is None, "who has only looked locks nothing"
            store.commit_checkpoint(POLLER, FIRST, lease_id)
            assert contextvars.Context().run(store.look, POLLER).checkpoint == {}, "who only looks waits for nobody"


def beat(store: SqlStateStore, lease_id: str) -> BaseException | None:
    """Renew the lease as a heartbeat does: in a thread that was given a copy of the handler's context."""
    outcome: Queue[BaseException | None] = Queue()

    def renew() -> None:
        try:
            store.renew_lease(POLLER, lease_id, 600)
        except StateStoreError as failure:
            outcome.put(failure)
        else:
            outcome.put(None)

    threading.Thread(target=contextvars.copy_context().run, args=(renew,), daemon=True).start()
    return outcome.get(timeout=30)


def expiry(store: SqlStateStore) -> str:
    document = store.inspect(POLLER)
    assert document is not None
    return str(document["lease"]["expires_at"])


class TestFailure:
    def test_of_the_database_is_an_error_of_the_store_without_secrets(self) -> None:
        store = SqlStateStore(url="postgresql+psycopg://me:hush@127.0.0.1:1/none")
        with pytest.raises(StateStoreError) as failed:
            store.acquire_lease(POLLER, 60)
        assert "hush" not in "".join(traceback.format_exception(failed.value)) + repr(store)

    @pytest.mark.parametrize("act", ["read", "create", "replace", "delete", "pollers", "missing_place", "now"])
    def test_of_the_database_is_told_whatever_was_asked(self, act: str, provider: EngineProvider) -> None:
        backend = SqlStateStore(url="postgresql+psycopg://127.0.0.1:1/none", engine_provider=provider)._backend
        name = document_name("app", POLLER)
        arguments: dict[str, tuple[Any, ...]] = {
            "read": (name,),
            "create": (name, b"{}"),
            "replace": (name, b"{}", 1),
            "delete": (name, 1),
            "pollers": ("app",),
        }
        of_poller = " of poller 'orders'" if act in {"read", "create", "replace", "delete"} else ""
        with pytest.raises(
            StateStoreError, match=rf"azfdb_state failed on the state{of_poller}: the database does not answer"
        ) as failed:
            getattr(backend, act)(*arguments.get(act, ()))
        assert failed.value.poller_name == (POLLER if of_poller else None)
        assert "isolation level" not in str(failed.value)

    def test_outside_a_transaction_is_not_laid_to_its_isolation_level(
        self, postgres_database: str, provider: EngineProvider
    ) -> None:
        store = SqlStateStore(url=postgres_database, engine_provider=provider)
        lease_id = store.acquire_lease(POLLER, 60)
        with store.engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$;"
                "CREATE TRIGGER refuse BEFORE UPDATE ON azfdb_state EXECUTE FUNCTION refuse()"
            )
        with pytest.raises(StateStoreError, match="40001") as failed:
            store.commit_checkpoint(POLLER, FIRST, lease_id)
        assert "isolation level" not in str(failed.value)

    def test_of_the_pool_says_that_no_connection_became_free(
        self, sqlite_database: str, provider: EngineProvider
    ) -> None:
        config = DbConfig(connection_url=sqlite_database, pool_size=1, max_overflow=0, pool_timeout=0)
        store = SqlStateStore(db_config=config, engine_provider=provider)
        with store.engine.connect(), pytest.raises(StateStoreError, match=r"does not answer \(TimeoutError\)"):
            store.load_checkpoint(POLLER)

    def test_of_a_login_by_token_says_what_is_missing(self, provider: EngineProvider) -> None:
        class Nobody:
            def get_token(self, *_: object) -> NoReturn:
                raise PermissionError("who are you?")

        config = DbConfig(
            connection_url="postgresql+psycopg://127.0.0.1:1/none", credential=Nobody(), allow_unverified_tls=True
        )
        with pytest.raises(StateStoreError, match="No Entra token for the database: PermissionError"):
            SqlStateStore(db_config=config, engine_provider=provider).load_checkpoint(POLLER)

    def test_of_the_arguments_is_noticed_at_once(self) -> None:
        with pytest.raises(ConfigurationError):
            SqlStateStore()
        with pytest.raises(ConfigurationError):
            SqlStateStore(url="sqlite://", db_config=DbConfig(connection_url="sqlite://"))
