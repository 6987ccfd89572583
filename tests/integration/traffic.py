"""Writers whose transactions overlap in every way, and pollers that look at them all the time.

One table has a cursor column of every kind, and every change stamps them all, each as an honest user would.
What is promised for a cursor is that a change never lowers it, except against transactions that overlap.
That holds for

- ``stamp``: the database's clock or the client's, taken inside the transaction that writes it;
- ``id``: a sequence or AUTO_INCREMENT; only inserts move it;
- ``moment`` (MariaDB): a TIMESTAMP that DEFAULT and ON UPDATE set, whatever the zones of the sessions are;
- ``second``, ``tenth``: the same clock in whole and tenth seconds: many changes share a value, and
  PostgreSQL rounds up to values that are still to come;
- ``local``: a naive time; all writers mean the same zone, west of the zones of all pollers;
- ``epoch``: whole seconds as a number, by the database's clock;
- ``batch``, ``day``: what a calendar says when the row is written; a coordinator turns it now and then, in
  a transaction of its own. Between two turns all changes share a value, and a row can change without its cursor;
- ``code``: no cursor but a key, stable and unique, and NULL in one row; polled by ``stamp`` in two shares.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from azure_functions_db.sql.failures import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db import SqlAlchemySource

COLUMNS = {
    "postgresql": """
        id bigserial PRIMARY KEY, version int NOT NULL, stamp timestamptz NOT NULL,
        second timestamptz(0) NOT NULL DEFAULT now(),
        tenth timestamptz(1) NOT NULL DEFAULT now(),
        local timestamp(0) NOT NULL DEFAULT (now() AT TIME ZONE 'Pacific/Honolulu'),
        epoch bigint NOT NULL DEFAULT extract(epoch FROM now()),
        batch int NOT NULL DEFAULT 0, day date NOT NULL DEFAULT '2000-01-01',
        code bigint UNIQUE, nap double precision NOT NULL DEFAULT 0""",
    "mysql": """
        id bigint AUTO_INCREMENT PRIMARY KEY, version int NOT NULL, stamp datetime(6) NOT NULL,
        moment timestamp(6) NOT NULL DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6),
        second timestamp NOT NULL DEFAULT current_timestamp ON UPDATE current_timestamp,
        tenth datetime(1) NOT NULL DEFAULT utc_timestamp(1),
        local datetime NOT NULL DEFAULT (utc_timestamp() - INTERVAL 10 HOUR),
        epoch bigint NOT NULL DEFAULT unix_timestamp(),
        batch int NOT NULL DEFAULT 0, day date NOT NULL DEFAULT '2000-01-01',
        code bigint UNIQUE, nap double NOT NULL DEFAULT 0""",
}
CURSORS = {
    "postgresql": ("stamp", "id", "second", "tenth", "local", "epoch", "batch", "day"),
    "mysql": ("stamp", "id", "moment", "second", "tenth", "local", "epoch", "batch", "day"),
}
# An update takes the defaults anew; ON UPDATE does so for the others.
STAMPED_AGAIN = {
    "postgresql": ("second", "tenth", "local", "epoch", "batch", "day"),
    "mysql": ("tenth", "local", "epoch", "batch", "day"),
}
CALENDAR = (
    "CREATE TABLE calendar (batch int NOT NULL, day date NOT NULL)",
    "INSERT INTO calendar VALUES (1, '2026-01-01')",
)
STAMP_BY_CALENDAR = {
    "postgresql": (
        """CREATE FUNCTION stamped() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(NEW.nap);
            SELECT calendar.batch, calendar.day INTO NEW.batch, NEW.day FROM calendar;
            RETURN NEW;
        END $$""",
        "CREATE TRIGGER stamped BEFORE INSERT OR UPDATE ON changes FOR EACH ROW EXECUTE FUNCTION stamped()",
    ),
    "mysql": tuple(
        f"""CREATE TRIGGER stamped_by_{event} BEFORE {event} ON changes FOR EACH ROW BEGIN
            DO SLEEP(NEW.nap);
            SET NEW.batch = (SELECT calendar.batch FROM calendar);
            SET NEW.day = (SELECT calendar.day FROM calendar);
        END"""
        for event in ("INSERT", "UPDATE")
    ),
}
TURN = {
    "postgresql": "UPDATE calendar SET batch = batch + 1, day = day + 1",
    "mysql": "UPDATE calendar SET batch = batch + 1, day = day + INTERVAL 1 DAY",
}
ZONES = {
    "postgresql": ("UTC", "Asia/Tokyo", "America/New_York", "Pacific/Honolulu"),
    "mysql": ("+00:00", "+09:00", "-05:00", "-10:00"),
}
SET_ZONE = {"postgresql": "SET TIME ZONE '{}'", "mysql": "SET time_zone = '{}'"}
# How to wait inside of a statement: for a while, or for a lock that others hold.
SLEEP = {"postgresql": "SELECT pg_sleep(:nap)", "mysql": "SELECT SLEEP(:nap) AS nap"}
AWAIT_LOCK = {"postgresql": "SELECT pg_advisory_xact_lock(7)", "mysql": "SELECT GET_LOCK('traffic', 30) AS held"}
UNLOCK = {"postgresql": "SELECT 1", "mysql": "DO RELEASE_LOCK('traffic')"}
# Busy writers can keep the lock of MariaDB from its turn for long, and a statement that waits holds every poller.
LOCK_TABLE = {"postgresql": "LOCK TABLE changes IN SHARE MODE", "mysql": "LOCK TABLES changes READ WAIT 2"}
UNLOCK_TABLE = {"postgresql": "SELECT 1", "mysql": "UNLOCK TABLES"}
CLOCK = {"postgresql": "now()", "mysql": "utc_timestamp(6)"}
DEADLOCKS = {"40P01", "1213", "1205"}
LONGEST_PAUSE = 0.03
LONGEST_DELAY = 0.3
LONGEST_NAP = 1.0


class Worker(threading.Thread):
    """A thread that goes on until an event is set, and keeps what it failed of for the test."""

    def __init__(self, until: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self._until = until
        self._random = random.Random(seed)

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # noqa: BLE001 - reported by the test
            self.failure = failure

    def work(self) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        """Wait for a moment, and now and then for ten times as long."""
        longest = LONGEST_DELAY if self._random.random() < 0.1 else LONGEST_PAUSE
        time.sleep(self._random.uniform(0, longest))


class Writer(Worker):
    """Writes in transactions of random length and kind, and remembers what it has committed."""

    def __init__(self, url: str, seed: int, until: threading.Event) -> None:
        super().__init__(until, seed)
        self.committed: dict[int, int] = {}
        self._engine = create_engine(url, pool_size=1)
        self._dialect = self._engine.dialect.name
        self._versions = itertools.count(1)
        self._written: dict[int, int] = {}

    def work(self) -> None:
        self.write()
        self._engine.dispose()

    def write(self) -> None:
        with self._engine.connect() as connection:
            while not self._until.is_set():
                self._one_transaction(connection, self._random.choice(self.kinds()))

    def kinds(self) -> list[Callable[[Connection], None]]:
        """What a transaction can be."""
        return [self.insert_at_once, self.insert_late, self.insert_in_savepoint, self.update]

    def _one_transaction(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        self._written = {}
        work(connection)
        self.pause()
        if self._random.random() < 0.15:
            connection.rollback()
        else:
            connection.commit()
            self.committed |= self._written

    def insert_at_once(self, connection: Connection) -> None:
        self._insert(connection, self._stamp(connection))

    def insert_late(self, connection: Connection) -> None:
        """Take the stamp, and on PostgreSQL the number as well, long before the first write."""
        connection.execute(text("SELECT id FROM changes LIMIT 1"))
        stamp = self._stamp(connection)
        number = None
        if self._dialect == "postgresql":
            number = connection.execute(text("SELECT nextval('changes_id_seq')")).scalar_one()
        self.pause()
        self._insert(connection, stamp, number)

    def insert_in_savepoint(self, connection: Connection) -> None:
        connection.execute(text("SAVEPOINT a"))
        self._insert(connection, self._stamp(connection))
        self.pause()
        if self._random.random() < 0.5:
            connection.execute(text("ROLLBACK TO SAVEPOINT a"))
            self._written = {}
        connection.execute(text("SAVEPOINT b"))
        self._insert(connection, self._stamp(connection))

    def update(self, connection: Connection) -> None:
        if not self.committed:
            return self.insert_at_once(connection)
        number = self._chosen()
        version = next(self._versions)
        again = ", ".join(f"{column} = DEFAULT" for column in STAMPED_AGAIN[self._dialect])
        connection.execute(
            text(f"UPDATE changes SET version = :v, stamp = :s, {again} WHERE id = :i"),
            {"v": version, "s": self._stamp(connection), "i": number},
        )
        self._written[number] = version
        return None

    def _chosen(self) -> int:
        return self._random.choice(list(self.committed))

    def _stamp(self, connection: Connection) -> dt.datetime:
        if self._dialect == "mysql":
            # A transaction is known to others once it has touched a table.
            connection.execute(text("SELECT id FROM changes LIMIT 1"))
            return connection.execute(text("SELECT utc_timestamp(6)")).scalar_one()  # type: ignore[no-any-return]
        source = self._random.choice(["now()", "clock_timestamp()", "client"])
        # The first statement begins the transaction, also for a stamp that the client takes.
        clock = connection.execute(text(f"SELECT {'1' if source == 'client' else source}")).scalar_one()
        return dt.datetime.now(dt.UTC) if source == "client" else clock

    def _insert(self, connection: Connection, stamp: dt.datetime, number: int | None = None, nap: float = 0) -> None:
        values: dict[str, Any] = {"version": next(self._versions), "stamp": stamp, "code": self._code(), "nap": nap}
        if number is not None:
            values["id"] = number
        self._run(connection, f"VALUES ({', '.join(f':{name}' for name in values)})", values, list(values))

    def _run(self, connection: Connection, rows: str, values: Mapping[str, Any], columns: Sequence[str]) -> None:
        """Insert one row and note its number and version."""
        statement = f"INSERT INTO changes ({', '.join(columns)}) {rows}"
        if self._dialect == "postgresql":
            number = connection.execute(text(f"{statement} RETURNING id"), values).scalar_one()
        else:
            number = connection.execute(text(statement), values).lastrowid
        assert number is not None
        self._written[number] = values["version"]

    def _code(self) -> int | None:
        return None


class WeatherWriter(Writer):
    """Does all that, and is slow inside of statements, waits for locks and changes its zone besides."""

    def __init__(self, url: str, seed: int, until: threading.Event) -> None:
        super().__init__(url, seed, until)
        # Only the first row of the first writer has no code: keys of which several are NULL would have no order.
        self._codes = itertools.count(seed * 10**9)
        self._favourite: int | None = None

    def kinds(self) -> list[Callable[[Connection], None]]:
        slow = [self.insert_slowly, self.insert_through_slow_trigger, self.insert_behind_lock]
        return [*super().kinds() * 3, *slow]

    def write(self) -> None:
        """Begin with a row that is there for good, to come back to."""
        with self._engine.begin() as connection:
            self.insert_at_once(connection)
        self.committed |= self._written
        super().write()

    def _one_transaction(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        if self._random.random() < 0.3:
            connection.execute(text(SET_ZONE[self._dialect].format(self._random.choice(ZONES[self._dialect]))))
        try:
            super()._one_transaction(connection, work)
        except DBAPIError as failure:
            if code_of(failure) not in DEADLOCKS:
                raise
            connection.rollback()

    def insert_slowly(self, connection: Connection) -> None:
        """Take the stamp where the statement begins, the row much later."""
        self._insert_waiting(connection, SLEEP[self._dialect])

    def insert_through_slow_trigger(self, connection: Connection) -> None:
        columns = ("version", "stamp", "code", "nap")
        values = {"version": next(self._versions), "code": self._code(), "nap": self._random.uniform(0, LONGEST_NAP)}
        self._run(connection, f"VALUES (:version, {CLOCK[self._dialect]}, :code, :nap)", values, columns)

    def insert_behind_lock(self, connection: Connection) -> None:
        """Wait for somebody's lock inside of the statement."""
        try:
            self._insert_waiting(connection, AWAIT_LOCK[self._dialect])
        finally:
            connection.execute(text(UNLOCK[self._dialect]))

    def _insert_waiting(self, connection: Connection, wait: str) -> None:
        rows = f"SELECT :version, {CLOCK[self._dialect]}, CAST(:code AS {self._integer}) FROM ({wait}) AS waiting"
        values = {"version": next(self._versions), "code": self._code(), "nap": self._random.uniform(0, LONGEST_NAP)}
        self._run(connection, rows, values, ("version", "stamp", "code"))

    @property
    def _integer(self) -> str:
        return "signed" if self._dialect == "mysql" else "bigint"

    def _chosen(self) -> int:
        """Come back to the same row often: to the first one, whose code may be NULL, and to the last one changed."""
        if self._favourite is None or self._random.random() < 0.5:
            self._favourite = self._random.choice([super()._chosen(), min(self.committed)])
        return self._favourite

    def _code(self) -> int | None:
        return next(self._codes) or None


class Coordinator(Worker):
    """Turns the calendar, and holds locks that others have to wait for."""

    def __init__(self, url: str, until: threading.Event) -> None:
        super().__init__(until, 0)
        self._engine = create_engine(url, pool_size=1)
        self._dialect = self._engine.dialect.name
        with self._engine.begin() as connection:
            for statement in (*CALENDAR, *STAMP_BY_CALENDAR[self._dialect]):
                connection.exec_driver_sql(statement)

    def work(self) -> None:
        while not self._until.is_set():
            self._random.choice([*[self.turn] * 4, self.hold_lock, self.lock_table])()
            self._until.wait(self._random.uniform(0, LONGEST_DELAY))
        self._engine.dispose()

    def turn(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(TURN[self._dialect]))
            self.pause()

    def hold_lock(self) -> None:
        self._hold(AWAIT_LOCK[self._dialect], UNLOCK[self._dialect])

    def lock_table(self) -> None:
        try:
            self._hold(LOCK_TABLE[self._dialect], UNLOCK_TABLE[self._dialect])
        except DBAPIError as failure:
            if code_of(failure) not in DEADLOCKS:
                raise

    def _hold(self, lock: str, unlock: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(lock))
            time.sleep(self._random.uniform(0, LONGEST_DELAY))
            connection.execute(text(unlock))


class Poller(Worker):
    """Fetches all the time and remembers the newest version of each row that it was given.

    It has many lives, as if each were a new process: with a new source, and with the checkpoint as it comes
    back from a store.
    """

    def __init__(self, cursor: str, new_source: Callable[[], SqlAlchemySource], until: threading.Event) -> None:
        super().__init__(until, 0)
        self.cursor = cursor
        self.seen: dict[int, int] = {}
        self.fetches = 0
        self._new_source = new_source
        self._checkpoint: dict[str, Any] = {}

    def work(self) -> None:
        while not self._until.is_set():
            self.live(self._random.uniform(0.2, 2))

    def live(self, seconds: float) -> None:
        source, end = self._new_source(), time.monotonic() + seconds
        self._checkpoint = json.loads(json.dumps(self._checkpoint))
        while time.monotonic() < end and not self._until.is_set():
            self.fetch(source)
            time.sleep(0.02)

    def fetch(self, source: SqlAlchemySource) -> None:
        result = source.fetch_changes(self._checkpoint, 100)
        self._checkpoint = result.next_checkpoint
        self.fetches += 1
        for record in result.records:
            number = record["id"]
            self.seen[number] = max(record["version"], self.seen.get(number, 0))


def create_table(url: str) -> None:
    engine = create_engine(url)
    dialect = engine.dialect.name
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE changes ({COLUMNS[dialect]})")
        for cursor in set(CURSORS[dialect]) - {"id"}:
            connection.exec_driver_sql(f"CREATE INDEX changes_{cursor} ON changes ({cursor}, id)")
        connection.exec_driver_sql("CREATE INDEX changes_code ON changes (stamp, code)")
    engine.dispose()


class Incident(Worker):
    """Something that goes wrong by a plan, over and over, amid the traffic."""

    def __init__(self, until: threading.Event) -> None:
        super().__init__(until, 0)
        self.name = type(self).__name__
        self.staged = 0
        self.faults: list[str] = []
        """What should not have happened."""

    def work(self) -> None:
        while not self._until.is_set():
            self.stage()
            self.staged += 1
            self.pause()

    def stage(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Do what is done once, after everybody has written."""


class Traffic:
    """Four writers and a coordinator on one table, the pollers that watch it, and incidents among them."""

    def __init__(
        self,
        url: str,
        sources: Sequence[tuple[str, Callable[[], SqlAlchemySource]]],
        incidents: Sequence[Callable[[threading.Event], Incident]] = (),
    ) -> None:
        self._writing_over, self._polling_over = threading.Event(), threading.Event()
        self.coordinator = Coordinator(url, self._writing_over)
        self.writers = [WeatherWriter(url, seed, self._writing_over) for seed in range(4)]
        self.pollers = [Poller(cursor, new_source, self._polling_over) for cursor, new_source in sources]
        self.incidents = [new_incident(self._writing_over) for new_incident in incidents]
        self.committed: dict[int, int] = {}

    def run(self, longest: float, patience: float, enough: Callable[[float], bool]) -> None:
        """Let all run until it is enough, which is asked with the seconds that have passed, or takes too long.

        Then let the pollers catch up, as long as they get on within the patience.
        """
        workers: list[Worker] = [*self.pollers, self.coordinator, *self.writers, *self.incidents]
        for worker in workers:
            worker.start()
        began = time.monotonic()
        while (passed := time.monotonic() - began) < longest and not enough(passed):
            if any(worker.failure for worker in workers):
                break
            time.sleep(0.1)
        self._end_writing()
        self._catch_up(patience)
        self._polling_over.set()
        for worker in workers:
            worker.join(60)
            if worker.failure:
                raise worker.failure

    def rows(self) -> int:
        """How many rows the writers have committed so far."""
        return sum(len(writer.committed) for writer in self.writers)

    def lost(self) -> dict[str, int]:
        """How many rows each kind of poller did not get in their newest version; shares of one kind count together."""
        return {cursor: len(self._lost_by(cursor)) for cursor in dict.fromkeys(each.cursor for each in self.pollers)}

    def faults(self) -> list[str]:
        """All that should not have happened."""
        lost = [f"{cursor}: {count} rows are lost" for cursor, count in self.lost().items() if count]
        return lost + [f"{incident.name}: {fault}" for incident in self.incidents for fault in incident.faults]

    def report(self) -> str:
        fetches = sum(poller.fetches for poller in self.pollers)
        lost = ", ".join(f"{cursor} {count}" for cursor, count in self.lost().items())
        staged = ", ".join(f"{one.name} {len(one.faults)} of {one.staged}" for one in self.incidents)
        return f"{len(self.committed)} rows, {fetches} fetches; lost: {lost}; faults: {staged}"

    def _end_writing(self) -> None:
        self._writing_over.set()
        for worker in (*self.writers, *self.incidents):
            worker.join(120)
        for writer in self.writers:
            self.committed |= writer.committed
        for incident in self.incidents:
            if incident.failure is None:
                incident.finish()

    def _lost_by(self, cursor: str) -> list[int]:
        given = [poller.seen for poller in self.pollers if poller.cursor == cursor]
        newest = {number: max(seen.get(number, 0) for seen in given) for number in self.committed}
        # An update does not move a number: then it is enough that the row has come.
        return [n for n, version in self.committed.items() if newest[n] < (1 if cursor == "id" else version)]

    def _catch_up(self, patience: float) -> None:
        least, since = sum(self.lost().values()), time.monotonic()
        while least and time.monotonic() - since < patience and not any(poller.failure for poller in self.pollers):
            time.sleep(0.1)
            missing = sum(self.lost().values())
            if missing < least:
                least, since = missing, time.monotonic()
