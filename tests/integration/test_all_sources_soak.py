"""Every source on every server that has it, at once, in one process: nothing is lost, and nothing grows.

MongoDB's is among them where `AZFDB_MONGOD` names a server program.

`AZFDB_SOAK_SECONDS` says for how long; a run of eight minutes or more is judged by what it holds as well. Writers make
every change three times in one transaction: in `kept`, where a delete marks the row, in `erased`, where it removes the
row, and in an outbox. What was committed and what came is noted in files: lists of it would grow themselves.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from azure.storage.blob import ContainerClient
from pymongo import MongoClient
from sqlalchemy import Engine, create_engine, make_url, text

from azure_functions_db import (
    BlobCheckpointStore,
    CommitError,
    DbConfig,
    EngineProvider,
    FileStateStore,
    HashDiffSource,
    LeaseAcquireError,
    LostLeaseError,
    MemoryStateStore,
    MongoChangeStreamSource,
    MySqlBinlogSource,
    Outbox,
    OutboxSource,
    PollTrigger,
    PostgresLogicalSource,
    RowChange,
    SqlAlchemySource,
    SqlStateStore,
)
from tests.integration.traffic import Worker
from tests.support.footprint import footprint, leaks, trend
from tests.support.mongo import IS_REAL, replica_set
from tests.support.slots import logged_database
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from pymongo.client_session import ClientSession
    from pymongo.collection import Collection

    from azure_functions_db.core.ports import StateStore
    from tests.support.footprint import Footprint

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "2"))
JUDGED_SECONDS = 480
"""How long a run must be for its footprint to say something: at first, engines fill their caches of statements."""
SAMPLES = 200
LONGEST_PAUSE = 0.5
TICK_SECONDS = 0.5
TABLES = (
    "CREATE TABLE kept (id int PRIMARY KEY, version int NOT NULL, gone int)",
    "CREATE INDEX kept_version ON kept (version, id)",
    "CREATE TABLE erased (id int PRIMARY KEY, version int NOT NULL)",
)
STATEMENTS = {
    "insert": ("INSERT INTO kept VALUES (:id, :version, NULL)", "INSERT INTO erased VALUES (:id, :version)"),
    "update": tuple(f"UPDATE {table} SET version = :version WHERE id = :id" for table in ("kept", "erased")),
    "delete": ("UPDATE kept SET version = :version, gone = 1 WHERE id = :id", "DELETE FROM erased WHERE id = :id"),
}
OUTBOX = Outbox()


@dataclass
class Place:
    """Where changes are made, the store of the pollers that look for them, and the folder of what is noted."""

    url: str
    store: StateStore
    notes: Path
    writers: int = 2
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.notes.mkdir()

    def session(self) -> AbstractContextManager[Session]:
        raise NotImplementedError

    def rows(self) -> dict[str, str]:
        """What is there now, by its key."""
        raise NotImplementedError

    def pollers(self, provider: EngineProvider, until: threading.Event) -> Iterator[Poller]:
        """One for each source that can read this place."""
        raise NotImplementedError

    def committed(self) -> set[str]:
        return {line for file in self.notes.glob("writer-*") for line in file.read_text().splitlines()}


class Session(Protocol):
    """A writer's connection, with one transaction after the other."""

    def begin(self) -> None: ...
    def change(self, kind: str, key: int, version: int, line: str) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class Database(Place):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine: Engine = create_engine(self.url)
        self.dialect = self.engine.dialect.name
        with self.engine.begin() as connection:
            for statement in TABLES:
                connection.exec_driver_sql(statement)
        OUTBOX.create(self.engine)

    @contextmanager
    def session(self) -> Iterator[Session]:
        engine = create_engine(self.url)
        yield SqlSession(engine)
        engine.dispose()

    def rows(self) -> dict[str, str]:
        with self.engine.connect() as connection:
            return {str(row.id): str(row.version) for row in connection.execute(text("SELECT * FROM erased"))}

    def pollers(self, provider: EngineProvider, until: threading.Event) -> Iterator[Poller]:
        """One for each source that can read this database; the first stays to look again."""
        tls = {"ssl_disabled": True} if self.dialect == "mysql" else {}
        config = DbConfig(connection_url=self.url, connect_args=tls)
        common: dict[str, Any] = {"db_config": config, "engine_provider": provider}
        keyset: dict[str, Any] = {"table": "kept", "cursor_column": "version", "deleted_column": "gone"}
        yield Poller(self, SqlAlchemySource(pk_columns=["id"], **keyset, **common), until, linger_seconds=2)
        yield Poller(self, HashDiffSource(table="erased", pk_columns=["id"], **common), until)
        yield Poller(self, OutboxSource(**common), until)
        if self.dialect == "postgresql":
            slot = str(make_url(self.url).database)
            yield Poller(self, PostgresLogicalSource(tables="erased", slot=slot, **common), until)
        if self.dialect == "mysql":
            yield Poller(self, MySqlBinlogSource(tables=["erased"], **common), until)


class SqlSession:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self) -> None:
        self._connection = self._engine.connect()
        self._connection.execute(text("SELECT id FROM kept LIMIT 1"))  # it begins before it takes its versions

    def change(self, kind: str, key: int, version: int, line: str) -> None:
        for statement in STATEMENTS[kind]:
            self._connection.execute(text(statement), {"id": key, "version": version})
        OUTBOX.add(self._connection, topic="changes", key=key, payload=line)

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.close()


class Documents(Place):
    """A collection of MongoDB that keeps each document as a change has left it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.client: MongoClient[Any] = MongoClient(self.url)
        self.client["soak"].create_collection("erased", changeStreamPreAndPostImages={"enabled": True})

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self.client.start_session() as session:
            yield DocumentSession(self.client["soak"]["erased"], session)

    def rows(self) -> dict[str, str]:
        return {str(row["_id"]): str(row["version"]) for row in self.client["soak"]["erased"].find()}

    def pollers(self, provider: EngineProvider, until: threading.Event) -> Iterator[Poller]:
        source = MongoChangeStreamSource(
            uri=self.url, database="soak", collection="erased", full_document="required", snapshot="never"
        )
        yield Poller(self, source, until)


class DocumentSession:
    def __init__(self, rows: Collection[Any], session: ClientSession) -> None:
        self._rows, self._session = rows, session

    def begin(self) -> None:
        self._session.start_transaction()

    def change(self, kind: str, key: int, version: int, line: str) -> None:
        match kind:
            case "insert":
                self._rows.insert_one({"_id": key, "version": version}, session=self._session)
            case "update":
                self._rows.update_one({"_id": key}, {"$set": {"version": version}}, session=self._session)
            case _:
                self._rows.delete_one({"_id": key}, session=self._session)

    def commit(self) -> None:
        self._session.commit_transaction()

    def rollback(self) -> None:
        self._session.abort_transaction()


class Writer(Worker):
    """Inserts, updates and deletes rows of its own in small transactions, some of which it rolls back."""

    def __init__(self, place: Place, number: int, until: threading.Event) -> None:
        super().__init__(until, number)
        self._place = place
        self._file = place.notes / f"writer-{number}"
        self._new_keys = itertools.count(number, place.writers)
        self._keys: list[int] = []

    def work(self) -> None:
        with self._place.session() as session:
            while not self._until.wait(self._random.uniform(0, LONGEST_PAUSE)):
                self._transact(session)

    def _transact(self, session: Session) -> None:
        session.begin()
        keys = self._keys.copy()
        lines = [self._change(session, keys) for _ in range(self._random.randint(1, 4))]
        self.pause()
        if self._random.random() < 0.15:
            return session.rollback()
        session.commit()
        self._keys = keys
        return note(self._file, lines)

    def _change(self, session: Session, keys: list[int]) -> str:
        kind = self._random.choice(list(STATEMENTS)) if keys else "insert"
        if kind == "insert":
            keys.append(next(self._new_keys))
        key = keys[-1] if kind == "insert" else self._random.choice(keys)
        if kind == "delete":
            keys.remove(key)
        version = next(self._place.versions)
        line = f"{key} {'gone' if kind == 'delete' else version}"
        session.change(kind, key, version, line)
        return line


class Poller(Worker):
    """Ticks as a timer would have it, and notes what comes."""

    def __init__(self, place: Place, source: Any, until: threading.Event, **options: Any) -> None:
        super().__init__(until, 0)
        self.place = place
        self.title = f"{type(source).__name__} on {place.notes.name}"
        self.file = place.notes / type(source).__name__
        self.file.touch()
        self.ticks = 0
        self.out_of_reach = 0
        """How many ticks ended because the storage of their state did not answer."""
        self.tells_every_change = not isinstance(source, SqlAlchemySource | HashDiffSource)
        self._trigger = PollTrigger(name=self.file.name, source=source, checkpoint_store=place.store, **options)

    def work(self) -> None:
        while not self._until.wait(TICK_SECONDS):
            try:
                self._trigger.run(timer=None, handler=lambda events: note(self.file, map(line_of, events)))
            except (LeaseAcquireError, CommitError, LostLeaseError):
                if not isinstance(self.place.store, BlobCheckpointStore):
                    raise
                # An emulator stalls now and then within an hour: as with any host, the next tick goes on.
                self.out_of_reach += 1
            self.ticks += 1

    def has_begun(self) -> bool:
        """Whether it knows where what is still to come begins, or has failed."""
        return bool(self.ticks or self.failure or not self.tells_every_change)

    def has_caught_up(self) -> bool:
        return self.failure is not None or not self.faults()

    def faults(self) -> str:
        """What somebody lacks who has applied all that came, or has too much."""
        lines = self.file.read_text().splitlines()
        if self.tells_every_change and (wrong := set(lines) ^ self.place.committed()):
            return f"{self.title}: lost or never committed: {sorted(wrong)[:20]}"
        if (mirror := replayed(lines)) != (rows := self.place.rows()):
            return f"{self.title}: the mirror differs in {sorted(mirror.items() ^ rows.items())[:20]}"
        return ""


def note(file: Path, lines: Iterable[str]) -> None:
    with file.open("a") as notes:
        notes.writelines(f"{line}\n" for line in lines)


def line_of(event: RowChange) -> str:
    row: Any = event.after or {}
    if "payload" in row:
        return str(row["payload"])
    what = "gone" if event.op == "delete" else row["version"]
    return f"{next(iter(event.pk.values()))!s} {what}"


def replayed(lines: Iterable[str]) -> dict[str, str]:
    rows = dict(line.split() for line in lines)
    return {key: version for key, version in rows.items() if version != "gone"}


@pytest.fixture
def places(request: pytest.FixtureRequest, provider: EngineProvider, tmp_path: Path) -> Iterator[list[Place]]:
    """A database on each server, each with another store for the state of its pollers."""
    wanted = request.getfixturevalue
    with ExitStack() as stack:
        postgres, postgres18 = (
            stack.enter_context(logged_database(wanted(server))) for server in ("postgres_url", "postgres18_url")
        )
        container = ContainerClient.from_connection_string(wanted("azurite"), wanted("blob_container"))
        stores: dict[str, tuple[str, StateStore]] = {
            "postgres": (postgres, BlobCheckpointStore(container_client=stack.enter_context(container))),
            "postgres18": (postgres18, SqlStateStore(url=postgres18, engine_provider=provider)),
            "mariadb": (wanted("mariadb_database"), FileStateStore(tmp_path / "state")),
            "sqlite": (wanted("sqlite_database"), MemoryStateStore()),
        }
        databases = [Database(url, store, tmp_path / name) for name, (url, store) in stores.items()]
        databases[-1].writers = 1  # SQLite has one at a time
        documents = [
            Documents(member.uri, MemoryStateStore(), tmp_path / "mongodb")
            for member in (stack.enter_context(replica_set()) if IS_REAL else [])
        ]
        yield [*databases, *documents]
        for database in databases:
            database.engine.dispose()
        for collection in documents:
            collection.client.close()


@pytest.mark.timeout(SECONDS + 300)
def test_nothing_is_lost_and_nothing_grows_while_all_sources_are_polled(
    places: list[Place], provider: EngineProvider
) -> None:
    writing, polling = threading.Event(), threading.Event()
    readers = [poller for place in places for poller in place.pollers(provider, polling)]
    writers = [Writer(place, number, writing) for place in places for number in range(place.writers)]
    workers: list[Worker] = [*readers, *writers]
    try:
        started(readers)
        # Of what is there before a stream begins, only the newest state is told.
        wait_for(lambda: all(reader.has_begun() for reader in readers), 60, "a poller does not begin")
        started(writers)
        samples = list(sampled(workers, [place.engine for place in places if isinstance(place, Database)]))
        print(report(readers, samples))  # noqa: T201 - the measure of a soak, whatever becomes of its end
        ended(writers, writing)
        with suppress(AssertionError):  # what is still missing then is told below
            wait_for(lambda: all(reader.has_caught_up() for reader in readers), 60, "a poller is behind")
    finally:
        writing.set()
        ended(readers, polling)
    assert [worker.failure for worker in workers if worker.failure] == []
    assert [fault for reader in readers if (fault := reader.faults())] == []
    assert SECONDS < JUDGED_SECONDS or leaks(samples) == []


def sampled(workers: list[Worker], databases: list[Engine]) -> Iterator[Footprint]:
    """Look at what is held, as often as is enough, until the time is over or somebody has failed."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not any(worker.failure for worker in workers):
        time.sleep(SECONDS / SAMPLES)
        yield footprint(databases)


def started(workers: Iterable[Worker]) -> None:
    for worker in workers:
        worker.start()


def ended(workers: Iterable[Worker], event: threading.Event) -> None:
    event.set()
    for worker in workers:
        worker.join(60)


def report(readers: list[Poller], samples: list[Footprint]) -> str:
    told = [
        f"{reader.title}: {len(reader.file.read_text().splitlines())} events, {reader.ticks} ticks, "
        f"{reader.out_of_reach} without an answer of the storage"
        for reader in readers
    ]
    held = [f"{name}: {first:.1f}, at last {last:.1f}" for name, (first, last) in trend(samples).items()]
    return "\n".join(["", *told, *held])


def keep_memory(kept: ExitStack, _engine: Engine) -> None:
    pages = mmap.mmap(-1, 1 << 20)  # from the system: what the allocator has at hand would not be seen to grow
    pages.write(b"1" * (1 << 20))
    kept.callback(pages.close)


def keep_thread(kept: ExitStack, _engine: Engine) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    kept.callback(thread.join)
    kept.callback(end.set)


def keep_file(kept: ExitStack, _engine: Engine) -> None:
    kept.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def keep_connection(kept: ExitStack, engine: Engine) -> None:
    kept.enter_context(engine.connect())


@pytest.mark.parametrize(
    ("measure", "keep"),
    [("MiB", keep_memory), ("threads", keep_thread), ("files", keep_file), ("connections", keep_connection)],
)
def test_the_judge_finds_what_is_never_given_back(
    measure: str, keep: Callable[[ExitStack, Engine], None], postgres_database: str
) -> None:
    with ExitStack() as kept:
        engine = create_engine(postgres_database, pool_size=20)
        kept.callback(engine.dispose)
        flat = [footprint([engine]) for _ in range(18)]
        growing = []
        for _ in range(18):
            keep(kept, engine)
            growing.append(footprint([engine]))

    assert leaks(flat) == []
    assert measure in "".join(leaks(growing))
