"""How far a source reads beside late commits; who is running is told by hand, and the rows are in SQLite."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Select, create_engine, select, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.sources.keyset.horizon import DrainingWatch, Transaction
from azure_functions_db.sources.keyset.reader import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from azure_functions_db.core.types import CheckpointJson, FetchResult


class HandWatch(DrainingWatch):
    """Sees whoever the database says is running."""

    database: Database

    def _look(self, connection: Connection, plan: Any, start: Any) -> bool:
        observed = self._observed(connection, plan, start)
        if self.database.is_hiding:
            self._give_up(self.database.why)
        else:
            self._see_again()
        if observed.newest is None or self.is_blind:
            return observed.newest is not None
        self._know(self.database.server, self.database.time)
        self._see(observed.newest, None)
        running = dict(self.database.running)
        self._list(running, lambda then: [running[then.key]] if then.key in running else [])
        return True

    def _doubted(self, connection: Connection, plan: Any) -> str | None:
        self.database.examinations += 1
        return self.database.doubt

    def _beside(self, newest: Select[Any], plan: Any) -> Select[Any]:
        return select(newest.scalar_subquery().label("newest"))


class Database:
    """A table, and transactions that begin and end as they are told to."""

    server = "first start"
    is_hiding = False
    why = "it hides them"
    doubt: str | None = None
    examinations = 0

    def __init__(self, folder: Path, provider: EngineProvider) -> None:
        self.url = f"sqlite:///{folder / 'rows.db'}"
        self.running: dict[Any, Transaction] = {}
        self.time = 1000.0
        self.waits = 0
        self.while_waiting: Callable[[], None] = lambda: None
        self._provider = provider
        self._engine = create_engine(self.url)
        self._connection = self._engine.connect()
        self._execute("PRAGMA synchronous = OFF")  # nobody pulls the plug
        self._execute("CREATE TABLE rows_ (id integer PRIMARY KEY, version bigint)")

    def _execute(self, statement: str, **values: Any) -> None:
        self._connection.execute(text(statement), values)
        self._connection.commit()

    def begin(self, name: str, *, writes: bool = True) -> None:
        self.running[name] = Transaction(name, name, "ann", writes)

    def end(self, name: str) -> None:
        del self.running[name]

    def insert(self, *versions: int, key: int | None = None) -> None:
        for version in versions:
            self._execute("INSERT INTO rows_ VALUES (:key, :version)", key=key or version, version=version)

    def stamp(self, **ages: float) -> None:
        """Make a table of rows that were stamped so many seconds ago."""
        self._execute("CREATE TABLE stamped (id text PRIMARY KEY, version datetime)")
        now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
        for key, age in ages.items():
            stamp = (now - dt.timedelta(seconds=age)).isoformat(" ")
            self._execute("INSERT INTO stamped VALUES (:key, :stamp)", key=key, stamp=stamp)

    def source(self, *, booted: float = 0.0, table: str = "rows_", **options: Any) -> SqlAlchemySource:
        """A source as a new process makes it, with a clock that counts from some moment of its own."""
        source = SqlAlchemySource(
            url=self.url,
            table=table,
            cursor_column="version",
            pk_columns=["id"],
            engine_provider=self._provider,
            clock=lambda: self.time - booted,
            sleep=self._sleep,
            **options,
        )
        relation = source._relation
        with relation.connected() as (plan, _):
            watch = HandWatch(
                source.name,
                plan.shape.types["version"],
                settle_seconds=options.get("settle_seconds"),
                cap_seconds=relation.patience.cap_seconds,
                abandon_seconds=relation.patience.abandon_seconds,
                clock=lambda: self.time - booted,
            )
        watch.database = self
        relation._watch, relation._is_watched = watch, True
        return source

    def _sleep(self, seconds: float) -> None:
        self.time += seconds
        self.waits += 1
        self.while_waiting()

    def dispose(self) -> None:
        self._connection.close()
        self._engine.dispose()


@pytest.fixture
def database(tmp_path: Path, provider: EngineProvider) -> Iterator[Database]:
    database = Database(tmp_path, provider)
    yield database
    database.dispose()


class Poller:
    """Reads page after page, as ticks do."""

    def __init__(self, source: SqlAlchemySource, checkpoint: CheckpointJson | None = None) -> None:
        self.source = source
        self.checkpoint: CheckpointJson = checkpoint or {}
        self.last: FetchResult | None = None

    def read(self, limit: int = 10, *, briefly: bool = False) -> list[Any]:
        reader = self.source.open()
        self.last = (reader.look if briefly else reader.fetch_changes)(self.checkpoint, limit)
        self.checkpoint = self.last.next_checkpoint
        return [record["id"] for record in self.last.records]


def test_nothing_is_read_past_what_a_running_transaction_may_still_write(database: Database) -> None:
    poller = Poller(database.source())
    database.begin("t1")
    database.insert(2)
    assert poller.read() == []
    database.insert(1)
    database.end("t1")
    assert poller.read() == [1, 2]


def test_a_fetch_waits_for_it_and_no_longer_than_it_was_told_to(database: Database) -> None:
    poller = Poller(database.source(horizon_wait_seconds=10 * STEP_SECONDS))
    database.begin("t1")
    database.insert(2)
    assert poller.read() == []
    assert database.waits in {10, 11}
    database.while_waiting = database.running.clear
    assert poller.read() == [2]
    assert database.waits in {11, 12}


def test_whoever_begins_later_holds_nobody_back(database: Database) -> None:
    poller = Poller(database.source())
    database.begin("t1")
    database.insert(2)
    assert poller.read() == []
    database.end("t1")
    database.begin("t2")
    assert poller.read() == [2]


def test_the_next_process_waits_for_the_same_ones_and_for_nobody_else(database: Database) -> None:
    first = Poller(database.source())
    database.begin("t1")
    database.insert(2)
    assert first.read() == []
    database.begin("t2")
    assert Poller(database.source(), first.checkpoint).read() == [], "t1 is still running"
    database.end("t1")
    assert Poller(database.source(), first.checkpoint).read() == [2]
    assert Poller(database.source()).read() == [], "who remembers nothing waits for all"


def test_what_another_start_of_the_server_has_shown_counts_for_nothing(database: Database) -> None:
    first = Poller(database.source())
    database.begin("t1")
    database.insert(2)
    assert first.read() == []
    database.end("t1")
    database.server = "second start"
    database.begin("t9")
    assert Poller(database.source(), first.checkpoint).read() == []
    assert first.read() == [], "nor in the process that has seen the first"
    assert (first.checkpoint["horizon"]["server"], set(first.checkpoint["horizon"]["waits"])) == (
        database.server,
        {"t9"},
    )
    database.end("t9")
    assert first.read() == [2]


def test_in_a_backlog_too_rows_at_the_newest_value_wait_for_whoever_may_join_them(database: Database) -> None:
    poller = Poller(database.source())
    database.insert(1, 2, 3, 4)
    assert poller.read(limit=2) == [1, 2]
    database.begin("t1")
    database.insert(4, key=40)
    database.insert(4, key=41)
    assert poller.read(limit=2) == [3]
    assert poller.last is not None
    assert poller.last.more, "it is asked for at once"
    database.insert(4, key=5)
    database.end("t1")
    assert poller.read() == [4, 5, 40, 41]


def test_a_backlog_below_the_last_bound_is_read_without_a_look(database: Database) -> None:
    poller = Poller(database.source())
    database.insert(*range(1, 8))
    assert poller.read(limit=2) == [1, 2]
    database.begin("t1")
    database.insert(9)
    assert poller.read(limit=2) == [3, 4]
    assert poller.read(limit=10) == [5, 6, 7]
    assert poller.read() == []
    database.insert(8)
    database.end("t1")
    assert poller.read() == [8, 9]


def test_a_look_waits_for_nobody_and_tells_that_something_is_there(database: Database) -> None:
    poller = Poller(database.source())
    assert poller.read(briefly=True) == []
    assert poller.last is not None
    assert not poller.last.more, "nothing is there"
    database.begin("t1")
    database.insert(2)
    for _ in range(2):
        assert poller.read(briefly=True) == []
        assert poller.last.more
    database.insert(1)
    database.end("t1")
    assert poller.read(briefly=True) == [1, 2]
    assert not poller.last.more
    assert database.waits == 0


def test_whoever_holds_the_source_back_is_told(database: Database) -> None:
    poller = Poller(database.source(horizon_wait_seconds=0))
    database.insert(1)
    database.begin("t1")
    poller.read()
    database.insert(3)
    database.time += 5
    assert poller.read() == []
    assert poller.last is not None
    horizon: Any = poller.last.facts[0]
    assert [holder.session for holder in horizon.holders] == ["t1"]


def test_whoever_has_written_nothing_is_waited_for_until_the_cap(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    poller = Poller(database.source(horizon_cap_seconds=60, horizon_wait_seconds=0))
    database.begin("reads", writes=False)
    database.insert(2)
    assert poller.read() == []
    database.time += 60
    assert poller.read() == []
    database.time += 1
    with caplog.at_level(logging.WARNING):
        assert poller.read() == [2]
    assert "no longer waits for session reads of ann, which has not written anything" in caplog.text
    database.begin("writes")
    database.insert(4)
    assert poller.read() == []
    database.time += 1000
    assert poller.read() == [], "no cap is set for those who write"


def test_how_long_somebody_was_waited_for_survives_a_restart(database: Database) -> None:
    first = Poller(database.source(horizon_cap_seconds=60, horizon_wait_seconds=0))
    database.begin("reads", writes=False)
    database.insert(2)
    assert first.read() == []
    database.time += 61
    again = Poller(database.source(horizon_cap_seconds=60, horizon_wait_seconds=0, booted=900), first.checkpoint)
    assert again.read() == [2]


def test_a_database_that_hides_its_transactions_is_read_with_a_warning_and_trusted_again_later(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    source = database.source(horizon_wait_seconds=0)
    poller = Poller(source)
    database.is_hiding = True
    database.begin("t1")
    database.insert(2)
    with caplog.at_level(logging.WARNING):
        assert poller.read() == [2]
        database.insert(3)
        assert poller.read() == [3]
    assert caplog.text.count("may miss rows that commit late: it hides them") == 1, "it is told once"
    watch = source._relation._watch
    assert watch is not None
    assert (watch.grade, watch.reason, watch.is_settled) == ("none", "it hides them", True)
    database.why = "it follows another one"
    database.insert(4)
    with caplog.at_level(logging.WARNING):
        assert poller.read() == [4]
    assert "may miss rows that commit late: it follows another one" in caplog.text
    database.is_hiding = False
    database.insert(5)
    with caplog.at_level(logging.WARNING):
        assert poller.read() == []
    assert "sees the running transactions again" in caplog.text
    assert (watch.grade, watch.reason) == ("exact", None)


def test_a_database_that_hides_its_transactions_is_read_at_the_distance_that_was_given(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.stamp(old=3600, young=5)
    source = database.source(table="stamped", settle_seconds=60, horizon_wait_seconds=0)
    poller, watch = Poller(source), source._relation._watch
    assert watch is not None
    database.begin("t1")
    assert poller.read() == [], "whoever is running is waited for at first"
    database.is_hiding = True
    with caplog.at_level(logging.WARNING):
        assert poller.read() == ["old"]
    assert poller.read() == []
    assert (watch.grade, watch.includes_bound, watch.is_settled) == ("settled", True, True)
    assert "may miss rows that commit later than settle_seconds=60 after their stamp: it hides them" in caplog.text


def test_a_beginning_at_now_is_behind_nobody_who_is_running(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.insert(1, 2)
    poller = Poller(database.source(start_at="now"))
    assert poller.read() == []
    database.insert(3)
    assert poller.read() == [3]
    database.begin("t1")
    with caplog.at_level(logging.WARNING):
        late = Poller(database.source(start_at="now"))
        assert late.read() == []
    assert "while transactions are running (sessions t1)" in caplog.text
    database.end("t1")
    database.insert(4)
    assert late.read() == [4]


def test_a_beginning_at_now_waits_a_little_for_whoever_is_running(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.insert(1, 2)
    database.begin("t1")
    database.while_waiting = database.running.clear
    poller = Poller(database.source(start_at="now"))
    with caplog.at_level(logging.WARNING):
        assert poller.read() == []
    assert "while transactions are running" not in caplog.text
    assert database.waits == 1


def test_what_was_seen_before_a_database_began_to_hide_bounds_nothing_any_more(database: Database) -> None:
    poller = Poller(database.source(horizon_wait_seconds=0))
    database.insert(1)
    assert poller.read() == [1]
    database.begin("t1")
    database.insert(3)
    assert poller.read() == []
    database.is_hiding = True
    assert poller.read() == [3]
    assert poller.last is not None
    assert not [fact for fact in poller.last.facts if hasattr(fact, "holders")], "nobody is known to hold it"
    database.is_hiding = False
    database.insert(5)
    assert poller.read() == [], "from now on they are waited for again"
    database.end("t1")
    assert poller.read() == [5]


def test_a_doubt_is_looked_for_every_five_minutes_and_told_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    source = database.source(horizon_wait_seconds=0)
    poller, watch = Poller(source), source._relation._watch
    assert watch is not None
    database.insert(1)
    poller.read()
    assert (database.examinations, watch.grade, watch.reason) == (1, "exact", None)
    database.doubt = "the sequence has a cache"
    database.insert(2)
    poller.read()
    assert database.examinations == 1
    with caplog.at_level(logging.WARNING):
        for number in (3, 4):
            database.time += 300
            database.insert(number)
            assert poller.read() == [number]
    assert (database.examinations, watch.grade, watch.reason) == (3, "none", "the sequence has a cache")
    assert caplog.text.count("may miss rows that commit late: the sequence has a cache") == 1
    database.doubt = None
    database.time += 300
    database.insert(5)
    poller.read()
    assert watch.grade == "exact"


def test_what_the_next_process_should_remember_is_written_as_long_as_somebody_is_waited_for(database: Database) -> None:
    poller = Poller(database.source(horizon_wait_seconds=0))
    database.insert(1)
    poller.read()
    assert "horizon" not in poller.checkpoint
    database.begin("t1")
    database.insert(3)
    poller.read()
    first = poller.checkpoint["horizon"]
    assert set(first["waits"]) == {"t1"}
    database.begin("t2")
    database.insert(4)
    poller.read()
    assert poller.checkpoint["horizon"] == first, "it is not written anew as long as it holds"
    database.running.clear()
    assert poller.read() == [3, 4]
    assert "horizon" not in poller.checkpoint


def test_an_end_is_not_worth_a_write_while_another_of_those_remembered_is_waited_for(database: Database) -> None:
    poller = Poller(database.source(horizon_wait_seconds=0))
    database.begin("t1")
    database.begin("t2")
    database.insert(3)
    poller.read()
    first = poller.checkpoint["horizon"]
    assert set(first["waits"]) == {"t1", "t2"}
    database.end("t2")
    assert poller.read() == []
    assert poller.checkpoint["horizon"] == first
    database.server = "second start"
    assert poller.read() == []
    assert set(poller.checkpoint["horizon"]["waits"]) == {"t1"}, "it is news to another start of the server"


def test_a_source_that_keeps_a_distance_from_the_clock_reads_no_younger_rows(
    sqlite_database: str, provider: EngineProvider
) -> None:
    engine, now = create_engine(sqlite_database), dt.datetime.now(dt.UTC).replace(tzinfo=None)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE rows_ (id integer PRIMARY KEY, version datetime, number integer)"))
        for key, age in ((1, 3600), (2, 120), (3, 30), (4, -60)):
            stamp = (now - dt.timedelta(seconds=age)).isoformat(" ")
            connection.execute(text("INSERT INTO rows_ VALUES (:key, :stamp, 1)"), {"key": key, "stamp": stamp})
    engine.dispose()

    def source(cursor: str, **options: Any) -> SqlAlchemySource:
        return SqlAlchemySource(
            url=sqlite_database,
            table="rows_",
            cursor_column=cursor,
            pk_columns=["id"],
            engine_provider=provider,
            **options,
        )

    for in_flight in ("wait", "ignore"):
        poller = Poller(source("version", settle_seconds=60, in_flight=in_flight))
        assert poller.read() == [1, 2]
        assert poller.read() == []
    assert Poller(source("version", in_flight="ignore")).read() == [1, 2, 3, 4]
    with pytest.raises(SourceConfigurationError, match="needs a cursor of date and time"):
        Poller(source("number", settle_seconds=60)).read()
