"""What loses rows, led step by step amid the traffic, on a table of its own.

Each incident names the guards of `tests.chaos.guards` without which it goes wrong.
"""

from __future__ import annotations

import datetime as dt
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Connection, create_engine, make_url, text

from azure_functions_db import DbConfig, SqlAlchemySource, SqlStateStore
from azure_functions_db.core.errors import LostLeaseError
from tests.integration.traffic import Incident, Poller
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from azure_functions_db import EngineProvider
    from tests.support.followers import Follower

COLUMNS = {
    "postgresql": "stamp timestamptz(6) NOT NULL",
    "mysql": "stamp datetime(6) NOT NULL, moment timestamp(6) NOT NULL DEFAULT current_timestamp(6)",
}
CLOCK = {"postgresql": "clock_timestamp()", "mysql": "utc_timestamp(6)"}
PATIENCE = 60
LOOKS = 3


@dataclass(frozen=True)
class Place:
    """Where incidents happen."""

    url: str
    provider: EngineProvider
    follower: Follower | None = None
    stranger: str | None = None
    """The URL of somebody who is not shown what others do, on a server that does not show it to everybody."""

    @property
    def dialect(self) -> str:
        return make_url(self.url).get_backend_name()


class TableIncident(Incident):
    """Writes into a table of its own and polls it at the moments that matter."""

    guards: ClassVar[tuple[str, ...]]
    dialects: ClassVar[tuple[str, ...]] = ("postgresql", "mysql")
    source: ClassVar[dict[str, Any]] = {"cursor_column": "stamp"}

    def __init__(self, place: Place, until: threading.Event) -> None:
        super().__init__(until)
        self.table = f"of_{self.name.lower()}"
        self._place = place
        self._engine = create_engine(place.url)
        self._numbers = itertools.count(1)
        self._past = (dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=n) for n in itertools.count())
        self._pollers = [Poller(self.name, self.new_source, until)]
        self.execute(
            f"CREATE TABLE {self.table} (id bigint PRIMARY KEY, code bigint UNIQUE, version int NOT NULL DEFAULT 1, "
            f"batch int NOT NULL DEFAULT 0, {COLUMNS[place.dialect]})"
        )

    def finish(self) -> None:
        self._engine.dispose()

    def execute(self, *statements: str) -> None:
        with self._engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def write(self, **values: Any) -> int:
        """Commit a row and return its number."""
        with self._engine.begin() as connection:
            return self.insert(connection, **values)

    def insert(self, connection: Connection, **values: Any) -> int:
        """Write a row: with the next number and the time, unless they are given."""
        values = {"id": values.get("id") or next(self._numbers), **values}
        placed = {"stamp": CLOCK[self._place.dialect]} | {name: f":{name}" for name in values}
        statement = f"INSERT INTO {self.table} ({', '.join(placed)}) VALUES ({', '.join(placed.values())})"
        connection.execute(text(statement), values)
        return int(values["id"])

    @contextmanager
    def late(self, **values: Any) -> Iterator[int]:
        """A row that is written now and committed at the end of the block."""
        with self._engine.begin() as connection:
            yield self.insert(connection, **values)

    def past(self) -> dt.datetime:
        """The next moment of a past that nobody's clock shows, in the zone of the servers."""
        moment = next(self._past)
        return moment if self._place.dialect == "postgresql" else moment.replace(tzinfo=None)

    def new_source(self, **options: Any) -> SqlAlchemySource:
        config = DbConfig(connection_url=self._place.url, connect_args=options.pop("connect_args", {}))
        given = {"db_config": config, "table": self.table, "pk_columns": ["id"], **self.source}
        usual = {"engine_provider": self._place.provider, "horizon_wait_seconds": 0.2}
        return SqlAlchemySource(**{**usual, **given, **options})

    def new_sources(self, **options: Any) -> list[SqlAlchemySource]:
        return [self.new_source(**options)]

    def look(self, sources: list[SqlAlchemySource]) -> None:
        """Poll as often as it takes to go too far, for those who would."""
        for _ in range(LOOKS):
            for poller, source in zip(self._pollers, sources, strict=True):
                poller.fetch(source)

    def deliver(self, sources: list[SqlAlchemySource], *numbers: int) -> None:
        """Poll until some rows have come."""

        def have_come() -> bool:
            for poller, source in zip(self._pollers, sources, strict=True):
                poller.fetch(source)
            return all(self._seen(number) for number in numbers)

        wait_for(have_come, PATIENCE, f"{self.name}: rows {numbers} do not come")

    def expect(self, number: int, version: int = 1) -> None:
        """Note a row as lost that has not come, now that later ones have."""
        if self._seen(number) < version:
            self.faults.append(f"row {number} is lost")

    def expect_grade(self, source: SqlAlchemySource, *grades: str) -> None:
        told = source.late_commit_grade()
        if told not in grades:
            self.faults.append(f"it is called {told}")

    def _seen(self, number: int) -> int:
        return max(poller.seen.get(number, 0) for poller in self._pollers)


class Load(TableIncident):
    """All transactions of a load carry the same stamp, and commit in another order than that of their keys."""

    guards = ("boundary",)

    def stage(self) -> None:
        sources, load = self.new_sources(), self.past()
        self.deliver(sources, self.write(stamp=load))
        with self.late(stamp=load) as late:
            self.write(stamp=load)
            self.look(sources)
        self.deliver(sources, self.write(stamp=self.past()))
        self.expect(late)


class Batch(TableIncident):
    """A number that was read is given once more, to a row with a smaller key."""

    guards = ("same_value",)
    source: ClassVar = {"cursor_column": "batch"}

    def stage(self) -> None:
        sources, batch = self.new_sources(), 2 * self.staged
        smaller, greater = next(self._numbers), next(self._numbers)
        self.deliver(sources, self.write(id=greater, batch=batch))
        self.write(id=smaller, batch=batch)
        self.look(sources)
        self.deliver(sources, self.write(batch=batch + 1))
        self.expect(smaller)


class Distance(TableIncident):
    """A late commit where nobody shows who is running: only a distance helps."""

    guards: ClassVar[tuple[str, ...]] = ("settling",)

    def stage(self) -> None:
        distant = self.new_sources(settle_seconds=3600)
        self._begin_anew()
        with self.late() as late:
            last = self.write()
            self.arrive()
            self.look(distant)
        self.arrive()
        self.deliver(self.new_sources(settle_seconds=0.001), last)
        self.expect(late)
        self.expect_grade(distant[0], "settled")

    def arrive(self) -> None:
        """Wait until what was committed can be read."""

    def _begin_anew(self) -> None:
        """Begin with a row that is old enough in any case, so that there is something to read."""
        self.execute(f"DELETE FROM {self.table}")
        self.write(stamp=self.past())
        self._pollers = [Poller(self.name, self.new_source, self._until)]


class Stranger(Distance):
    """The user of the poller lacks the PROCESS privilege."""

    dialects = ("mysql",)

    def new_source(self, **options: Any) -> SqlAlchemySource:
        assert self._place.stranger
        return super().new_source(db_config=DbConfig(connection_url=self._place.stranger), **options)


class Failover(Distance):
    """The poller reads from a server that follows the one with the writers, and is promoted in the end."""

    guards = ("settling", "replica", "standby")

    def new_source(self, **options: Any) -> SqlAlchemySource:
        return super().new_source(db_config=DbConfig(connection_url=self._follower.url), **options)

    def arrive(self) -> None:
        self._follower.catch_up()

    def finish(self) -> None:
        self.arrive()
        sources = self.new_sources()
        self.look(sources)
        self.expect_grade(sources[0], "none")
        self._follower.promote()
        self._engine.dispose()
        self._engine = create_engine(self._follower.url)
        with self.late() as late:
            self.write()
            self.look(sources)
        self.deliver(sources, self.write())
        self.expect(late)
        self.expect_grade(sources[0], "exact")
        super().finish()

    @property
    def _follower(self) -> Follower:
        assert self._place.follower
        return self._place.follower


class Zones(TableIncident):
    """A TIMESTAMP is read by sessions of one zone, and then by those of another."""

    guards = ("utc",)
    dialects = ("mysql",)
    source: ClassVar = {"cursor_column": "moment"}

    def stage(self) -> None:
        east, west = (self.new_sources(connect_args=self._zone(hours)) for hours in ("+02:00", "-01:00"))
        self.deliver(east, self.write(moment=self.past()))
        soon = self.write(moment=self.past())
        for _ in range(3):
            self.past()
        self.deliver(west, self.write(moment=self.past()))
        self.expect(soon)

    @staticmethod
    def _zone(hours: str) -> dict[str, Any]:
        return {"init_command": f"SET time_zone = '{hours}'"}


class Waiting(TableIncident):
    """A statement has taken its stamp and waits for a lock, in no list of transactions."""

    guards = ("statements",)
    dialects = ("mysql",)

    def stage(self) -> None:
        sources = self.new_sources()
        with self._waiting() as number:
            self.write()
            self.look(sources)
        self.deliver(sources, self.write())
        self.expect(number)

    @contextmanager
    def _waiting(self) -> Iterator[int]:
        number, lock = next(self._numbers), f"{self._engine.url.database}.{self.table}"
        wait = f"SELECT GET_LOCK('{lock}', 600)"
        insert = f"INSERT INTO {self.table} (id, stamp) SELECT {number}, utc_timestamp(6) FROM ({wait}) AS waiting"
        release = f"DO RELEASE_LOCK('{lock}')"
        waits = f"SELECT 1 FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE '%{lock}%'"
        with ThreadPoolExecutor() as aside, self._engine.connect() as holder:
            holder.execute(text(wait))
            inserted = aside.submit(self.execute, insert, release)
            try:
                wait_for(lambda: holder.execute(text(waits)).first(), PATIENCE, "the statement does not wait")
                yield number
            finally:
                holder.execute(text(release))
        inserted.result()


class Shares(TableIncident):
    """Two pollers share the rows by a key that is NULL in one of them."""

    guards = ("null_share",)
    source: ClassVar = {"cursor_column": "stamp", "pk_columns": ["code"]}

    def __init__(self, place: Place, until: threading.Event) -> None:
        super().__init__(place, until)
        self._pollers = [Poller(self.name, self.new_source, until) for _ in range(2)]
        self._nameless = self.write(version=0)

    def new_sources(self, **options: Any) -> list[SqlAlchemySource]:
        return [self.new_source(partition=(share, 2), **options) for share in range(2)]

    def stage(self) -> None:
        sources, version = self.new_sources(), self.staged + 1
        clock = CLOCK[self._place.dialect]
        self.execute(f"UPDATE {self.table} SET version = {version}, stamp = {clock} WHERE id = {self._nameless}")
        others = [self.write(code=2 * version + share) for share in range(2)]  # one of each share
        self.deliver(sources, *others)
        self.expect(self._nameless, version)


class MaterializedView(Distance):
    """Rows appear when the view is refreshed, whoever wrote them."""

    guards = ("grade",)
    dialects = ("postgresql",)

    def __init__(self, place: Place, until: threading.Event) -> None:
        super().__init__(place, until)
        self.execute(f"CREATE MATERIALIZED VIEW {self.table}_kept AS SELECT * FROM {self.table}")

    def new_source(self, **options: Any) -> SqlAlchemySource:
        return super().new_source(table=f"{self.table}_kept", **options)

    def arrive(self) -> None:
        self.execute(f"REFRESH MATERIALIZED VIEW {self.table}_kept")


class ForeignTable(Distance):
    """Rows are written on a server that this one knows little of."""

    guards = ("grade",)
    dialects = ("postgresql",)

    def __init__(self, place: Place, until: threading.Event) -> None:
        super().__init__(place, until)
        url = self._engine.url
        self.execute(
            "CREATE EXTENSION postgres_fdw",
            "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw "
            f"OPTIONS (host '{url.host}', port '{url.port}', dbname '{url.database}')",
            f"CREATE USER MAPPING FOR {url.username} SERVER far "
            f"OPTIONS (user '{url.username}', password '{url.password}')",
            f"CREATE FOREIGN TABLE {self.table}_far (id bigint, version int, {COLUMNS[place.dialect]}) SERVER far "
            f"OPTIONS (table_name '{self.table}')",
        )

    def new_source(self, **options: Any) -> SqlAlchemySource:
        return super().new_source(table=f"{self.table}_far", **options)


class CachedSequence(TableIncident):
    """Each session has numbers in stock: below a view, in a query, and switched on after a source began."""

    guards = ("grade",)
    dialects = ("postgresql",)
    source: ClassVar = {"cursor_column": "id"}

    def __init__(self, place: Place, until: threading.Event) -> None:
        super().__init__(place, until)
        self.execute(
            "CREATE SEQUENCE stock",
            f"ALTER TABLE {self.table} ALTER id SET DEFAULT nextval('stock')",
            f"CREATE VIEW {self.table}_view AS SELECT * FROM {self.table}",
        )

    def stage(self) -> None:
        view = self.new_source(table=f"{self.table}_view")
        query = self.new_source(table=None, query=f"SELECT id, version FROM {self.table}_view")
        self.expect_grade(view, "exact")
        self.execute("ALTER SEQUENCE stock CACHE 20")
        for source in (view, query):
            self.expect_grade(source, "none")
        self.execute("ALTER SEQUENCE stock CACHE 1")


class WithoutTransactions(TableIncident):
    """A table whose rows appear without any transaction, below a view, and a cursor that is computed."""

    guards = ("grade",)
    dialects = ("mysql",)
    source: ClassVar = {"cursor_column": "id"}

    def __init__(self, place: Place, until: threading.Event) -> None:
        super().__init__(place, until)
        self.execute(
            f"CREATE TABLE {self.table}_aria (id bigint PRIMARY KEY, version int) ENGINE = Aria",
            f"CREATE VIEW {self.table}_view AS SELECT * FROM {self.table}_aria",
        )

    def stage(self) -> None:
        self.expect_grade(self.new_source(table=f"{self.table}_view"), "none")
        self.expect_grade(self.new_source(table=None, query=f"SELECT id + 0 AS id FROM {self.table}"), "none")


class MadeAnew(TableIncident):
    """The state of a poller is deleted and made anew while its owner works."""

    guards = ("versions",)

    def stage(self) -> None:
        former, owner = self._store(), self._store()
        stale = former.acquire_lease(self.name, 600)
        self.execute(f"DELETE FROM {self.table}_state")
        lease = owner.take(owner.look(self.name), 600)
        try:
            former.commit_checkpoint(self.name, {"cursor": "stale"}, stale)
        except LostLeaseError:
            lease.commit({"cursor": "new"}, release=True)
        else:
            self.faults.append("the former owner's write is taken")
            self.execute(f"DELETE FROM {self.table}_state")

    def _store(self) -> SqlStateStore:
        return SqlStateStore(
            url=self._place.url, table=f"{self.table}_state", app_name="soak", engine_provider=self._place.provider
        )


INCIDENTS: tuple[type[TableIncident], ...] = (
    *(Load, Batch, Stranger, Failover, Zones, Waiting, Shares),
    *(MaterializedView, ForeignTable, CachedSequence, WithoutTransactions, MadeAnew),
)
