"""How far a source reads beside late commits; who is running is told by hand, and the rows are in SQLite."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Select, create_engine, event, select, text

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.types import NullCursors
from azure_functions_db.sources.keyset import source as keyset_source
from azure_functions_db.sources.keyset.horizon import DrainingWatch, Transaction, warn_of_running
from azure_functions_db.sources.keyset.reader import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from azure_functions_db.core.types import CheckpointJson, FetchResult


class HandWatch(DrainingWatch):
    """Sees whoever the database says is running."""

    database: Database

    def _look(self, connection: Connection, plan: Any, start: Any) -> bool:
        self.database.looks += 1
        observed = self._observed(connection, plan, start)
        self.database.after_a_look()
        if self.database.is_hiding:
            self._give_up(self.database.why)
        else:
            self._see_again()
        if observed.newest is None:
            return False
        if not self.is_blind:
            self._know(self.database.server, self.database.time)
        self._see(observed.newest, None)
        if not self.database.has_list:
            return True
        running = {} if self.is_blind else dict(self.database.running)
        self._list(running, lambda then: [running[then.key]] if then.key in running else [])
        self.database.after_a_list()
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
    has_list = True
    """Whether it shows a list that is younger than what was seen, as InnoDB sometimes does not."""
    why = "it hides them"
    doubt: str | None = None
    examinations = 0
    looks = 0

    def __init__(self, folder: Path, provider: EngineProvider) -> None:
        self.url = f"sqlite:///{folder / 'rows.db'}"
        self.running: dict[Any, Transaction] = {}
        self.time = 1000.0
        self.waits = 0
        self.while_waiting: Callable[[], None] = lambda: None
        self.after_a_look: Callable[[], None] = lambda: None
        self.after_a_list: Callable[[], None] = lambda: None
        self._provider = provider
        self._engine = create_engine(self.url)
        self._connection = self._engine.connect()
        self._execute("PRAGMA synchronous = OFF")  # nobody pulls the plug
        self._execute("CREATE TABLE rows_ (id integer PRIMARY KEY, version bigint)")

    def _execute(self, statement: str, **values: Any) -> None:
        self._connection.execute(text(statement), values)
        self._connection.commit()

    def crowd(self, version: int, count: int) -> None:
        """Insert that many rows of one value, with a free key behind each of theirs."""
        self._execute(
            "INSERT INTO rows_ WITH RECURSIVE keys (key) AS "
            "(SELECT 10 UNION ALL SELECT key + 2 FROM keys LIMIT :count) SELECT key, :version FROM keys",
            count=count,
            version=version,
        )

    def begin(self, name: str, *, writes: bool = True) -> None:
        self.running[name] = Transaction(name, name, "ann", writes)

    def end(self, name: str) -> None:
        del self.running[name]

    def insert(self, *versions: int, key: int | None = None) -> None:
        for version in versions:
            self._execute("INSERT INTO rows_ VALUES (:key, :version)", key=key or version, version=version)

    def fail_over(self, server: str, *, without: int) -> None:
        """Be another server from now on, which a row has not reached."""
        self.server = server
        self._execute("DELETE FROM rows_ WHERE id = :key", key=without)
        self._provider.get_engine(DbConfig(connection_url=self.url)).dispose()

    def use_transactions(self) -> None:
        """Let what is read on a connection be of one moment, until its transaction ends."""
        self._execute("PRAGMA journal_mode = WAL")
        engine = self._provider.get_engine(DbConfig(connection_url=self.url))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        event.listen(engine, "before_cursor_execute", lambda *_: None)  # whoever watches gets no short ways

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


@pytest.mark.parametrize("briefly", [False, True])
def test_what_is_committed_while_it_is_looked_who_is_running_is_read_or_waited_for(
    database: Database, briefly: bool
) -> None:
    """The rows come from a younger moment than the list of those who may still have written some."""
    database.use_transactions()
    poller = Poller(database.source())
    database.begin("t1")
    database.insert(2)

    def commit() -> None:
        if database.running:
            database.insert(1)
            database.end("t1")

    database.after_a_look = commit
    assert [*poller.read(briefly=briefly), *poller.read(briefly=briefly)] == [1, 2]


def test_a_distance_is_kept_from_the_clock_also_where_the_running_transactions_are_seen(database: Database) -> None:
    database.stamp(old=100, young=1)
    poller = Poller(database.source(table="stamped", settle_seconds=60))
    assert poller.read() == ["old"]
    assert poller.read() == []


def test_whoever_watches_statements_sees_those_of_a_look(database: Database) -> None:
    seen: list[str] = []
    engine = database._provider.get_engine(DbConfig(connection_url=database.url))
    event.listen(engine, "before_cursor_execute", lambda *sent: seen.append(sent[2]))
    database.insert(1)
    assert Poller(database.source()).read() == [1]
    assert any("azfdb_ties" in statement for statement in seen)


def test_a_fetch_waits_for_it_and_no_longer_than_it_was_told_to(database: Database) -> None:
    poller = Poller(database.source(horizon_wait_seconds=10 * STEP_SECONDS))
    database.begin("t1")
    database.insert(2)
    assert poller.read() == []
    assert poller.last is not None
    assert not poller.last.more, "whoever has waited need not ask at once"
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


def test_what_was_remembered_outlives_a_process_that_sees_nobody(database: Database) -> None:
    first = Poller(database.source())
    database.begin("t1")
    database.insert(2)
    assert first.read() == []
    database.is_hiding = True
    remembered = first.checkpoint["horizon"]
    for blind in (Poller(database.source(), first.checkpoint), first):
        assert blind.read() == [2]
        assert blind.checkpoint["horizon"] == remembered


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


def test_among_too_many_rows_of_one_value_to_count_each_page_waits_for_whoever_may_join_them(
    database: Database,
) -> None:
    poller = Poller(database.source(horizon_wait_seconds=0))
    database.crowd(5, 10_001)
    assert len(poller.read(limit=4000)) == 4000
    assert len(poller.read(limit=2000)) == 2000
    database.begin("t1")
    assert poller.read(limit=4000) == []
    assert "horizon" not in poller.checkpoint, "the next process cannot know that rows have not joined them"
    database.insert(5, key=16_001)
    database.end("t1")
    assert 16_001 in poller.read(limit=4000)
    assert len(poller.read(limit=4000)) == 2
    database.insert(6, key=1)
    database.insert(6, key=2)
    database.begin("t2")
    assert poller.read() == []
    database.end("t2")
    database.begin("t3")
    database.insert(6, key=4)
    assert poller.read() == [], "rows of another value are counted again, and one has joined them"
    database.insert(6, key=3)
    database.end("t3")
    assert poller.read() == [1, 2, 3, 4]


def test_a_list_that_was_taken_before_a_value_was_ripe_does_not_count_however_late_it_comes(
    database: Database,
) -> None:
    database.stamp(young=5)
    watch: Any = database.source(table="stamped")._relation._watch
    seen_at = database.time
    watch._see("a stamp", None)
    database.time += 10
    watch._list({}, lambda _: [], at=seen_at)
    assert watch.bound is None
    watch._list({}, lambda _: [])
    assert watch.bound == "a stamp"


def test_a_stamp_that_is_certainly_older_than_any_that_can_be_taken_now_need_not_ripen(database: Database) -> None:
    database.stamp(young=5)
    watch: Any = database.source(table="stamped")._relation._watch
    now = dt.datetime(2026, 11, 17, 12)  # noqa: DTZ001 - a column without a zone
    for age, bound in ((0, None), (48, now - dt.timedelta(hours=48))):
        watch._see(now - dt.timedelta(hours=age), now)
        watch._list({}, lambda _: [])
        assert watch.bound == bound


def test_a_backlog_below_the_last_bound_is_read_without_a_look(database: Database) -> None:
    poller = Poller(database.source())
    database.insert(*range(1, 8))
    assert poller.read(limit=2) == [1, 2]
    database.begin("t1")
    database.insert(9)
    assert poller.read(limit=2) == [3, 4]
    assert database.looks == 1
    assert poller.read(limit=10) == [5, 6, 7]
    assert poller.read() == []
    assert poller.last is not None
    assert not poller.last.more, "what waits is not asked for without a pause"
    database.insert(8)
    database.end("t1")
    assert poller.read() == [8, 9]


def test_a_backlog_is_bounded_anew_on_another_connection_which_may_lead_to_another_server(database: Database) -> None:
    poller = Poller(database.source())
    database.insert(*range(1, 8))
    assert poller.read(limit=2) == [1, 2]
    database.fail_over("second start", without=4)
    database.begin("t9")  # it has taken the 4 once more
    assert poller.read(limit=2) == []
    database.insert(4)
    database.end("t9")
    assert poller.read() == [3, 4, 5, 6, 7]


def test_a_backlog_ends_with_its_last_row(database: Database) -> None:
    poller = Poller(database.source())
    database.insert(*range(1, 6))
    for rows, more in (([1, 2], True), ([3, 4], True), ([5], False)):
        assert poller.read(limit=2) == rows
        assert poller.last is not None
        assert poller.last.more is more


def test_whoever_reads_from_before_the_last_bound_again_looks_again(database: Database) -> None:
    source = database.source(horizon_wait_seconds=0)
    database.insert(1, 2, 4, 5)
    assert Poller(source).read() == [1, 2, 4, 5]
    database.server = "second start"
    database.begin("t9")
    again = Poller(source)
    assert again.read(limit=2) == [], "what another start has shown bounds nothing"
    database.insert(3)
    database.end("t9")
    assert again.read() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("briefly", [False, True])
def test_what_is_safe_is_read_at_once_while_what_has_come_later_waits(database: Database, briefly: bool) -> None:
    poller = Poller(database.source())
    database.begin("t1")
    database.insert(1, 2)
    assert poller.read(briefly=True) == []
    database.end("t1")
    database.begin("t2")
    database.insert(4)
    assert poller.read(briefly=briefly) == [1, 2]
    assert poller.last is not None
    assert (poller.last.more, database.waits) == (False, 0)
    assert poller.last.cut is not None
    first = poller.last.cut(1)
    assert first["horizon"] == poller.checkpoint["horizon"]
    assert set(first["horizon"]["waits"]) == {"t2"}
    assert Poller(poller.source, first).read(briefly=True) == [2], "a part of a page ends where it ends"


def test_nobody_is_looked_for_where_nothing_has_come(database: Database) -> None:
    first = Poller(database.source())
    database.insert(1)
    assert first.read() == [1]
    database.begin("t1")
    assert Poller(database.source(), first.checkpoint).read() == []
    assert (database.looks, database.waits) == (1, 0)
    once = Poller(database.source(in_flight="ignore"), {"cursor": first.checkpoint["cursor"]})
    assert once.read() == []
    assert database.waits == 0, "nor where a value that was passed is not looked at again"


def test_nobody_is_waited_for_where_only_rows_of_others_have_come(database: Database) -> None:
    poller = Poller(database.source(where="id < 100"))
    database.insert(200)
    assert poller.read() == []
    assert database.waits == 0


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
        database.insert(3)
        assert poller.read() == [3], "nor by what comes after that"
    assert caplog.text.count("no longer waits for session reads of ann, which has not written anything") == 1
    database.begin("writes")
    database.insert(4)
    assert poller.read() == []
    database.time += 1000
    assert poller.read() == [], "no cap is set for those who write"


def test_whoever_has_written_is_waited_for_until_the_second_limit(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    poller = Poller(database.source(horizon_abandon_seconds=600, horizon_wait_seconds=0))
    database.begin("writes")
    database.insert(2)
    assert poller.read() == []
    database.time += 600
    assert poller.read() == []
    database.time += 1
    assert poller.read() == [2]
    assert "no longer waits for session writes of ann, which has written something" in caplog.text


def test_whoever_was_passed_by_is_so_for_the_next_process_too(database: Database) -> None:
    limits: dict[str, Any] = {"horizon_cap_seconds": 60, "horizon_wait_seconds": 0}
    first = Poller(database.source(**limits))
    database.begin("reads", writes=False)
    database.insert(2)
    assert first.read() == []
    database.time += 61
    assert first.read() == [2]
    assert (set(first.checkpoint["horizon"]["waits"]), set(first.checkpoint["horizon"]["passed"])) == (set(), {"reads"})
    second = Poller(database.source(**limits), first.checkpoint)
    assert second.read() == []
    assert second.checkpoint == first.checkpoint, "nothing is forgotten before there is something to look at"
    database.is_hiding = True
    third = Poller(database.source(**limits), first.checkpoint)
    database.insert(3)
    assert third.read() == [3]
    database.is_hiding = False
    database.insert(4)
    assert third.read() == [4], "nor while the database hides who is running"
    assert second.read() == [3, 4]


def test_whoever_was_passed_by_is_so_too_where_rows_are_too_many_to_count(database: Database) -> None:
    limits: dict[str, Any] = {"horizon_cap_seconds": 60, "horizon_wait_seconds": 0}
    first = Poller(database.source(**limits))
    database.begin("reads", writes=False)
    database.crowd(5, 10_001)
    assert first.read() == []
    database.time += 61
    assert len(first.read(limit=4000)) == 4000
    database.begin("t1")
    assert first.read() == []
    database.end("t1")
    second = Poller(database.source(**limits), json.loads(json.dumps(first.checkpoint)))
    assert len(second.read(limit=4000)) == 4000


def test_how_long_a_source_was_held_back_is_told_from_the_first_of_those_who_are_waited_for(database: Database) -> None:
    first = Poller(database.source(horizon_wait_seconds=0))
    database.begin("t1")
    database.begin("t2")
    database.insert(2)
    assert first.read() == []
    waits = {"t1": database.time - 10, "t2": database.time - 100}
    checkpoint = {**first.checkpoint, "horizon": {**first.checkpoint["horizon"], "waits": waits}}
    second = Poller(database.source(horizon_wait_seconds=0), checkpoint)
    assert second.read() == []
    assert second.last is not None
    horizon: Any = second.last.facts[0]
    assert horizon.age_seconds == pytest.approx(100)


def test_an_end_is_not_worth_a_write_where_nothing_was_read(database: Database) -> None:
    limits: dict[str, Any] = {"horizon_cap_seconds": 60, "horizon_wait_seconds": 0}
    poller = Poller(database.source(where="id < 100", in_flight="ignore", **limits))
    database.begin("reads", writes=False)
    database.insert(2)
    assert poller.read() == []
    database.time += 61
    assert poller.read() == [2]
    passed = poller.checkpoint
    database.end("reads")
    database.insert(200)
    assert poller.read() == [], "it is no row of this source"
    assert poller.checkpoint == passed


def test_what_was_remembered_is_gone_on_from_once(database: Database) -> None:
    first = Poller(database.source(horizon_wait_seconds=0))
    database.begin("t1")
    database.insert(2)
    assert first.read() == []
    second = Poller(database.source(horizon_wait_seconds=0), first.checkpoint)
    database.begin("t2")
    database.insert(3)
    for poller in (first, second):
        assert poller.read() == []
    database.begin("t9")
    database.end("t1")
    database.end("t2")
    for poller in (first, second):
        assert poller.read() == [2, 3], "who has come later is waited for by nobody"


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
    database.is_hiding = True
    caplog.clear()
    assert poller.read() == [5], "for the same reason as before, but once more"
    assert "may miss rows that commit late: it follows another one" in caplog.text
    assert watch.grade == "none"


def test_what_comes_once_a_server_has_been_promoted_waits_for_those_who_are_running_there(database: Database) -> None:
    poller = Poller(database.source(horizon_wait_seconds=0))
    database.insert(2)
    database.is_hiding = True

    def promote() -> None:
        database.after_a_list = lambda: None
        database.is_hiding = False
        database.begin("late")
        database.insert(4)

    database.after_a_list = promote
    assert poller.read() == [2]
    assert [poller.read() for _ in range(3)] == [[], [], []]
    database.insert(3)
    database.end("late")
    assert poller.read() == [3, 4]


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
    assert "Give settle_seconds=" not in caplog.text, "it was given"


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


def test_a_beginning_at_now_is_no_further_than_what_is_safe(database: Database) -> None:
    database.insert(1, 2)
    database.begin("t1")

    def go_on() -> None:
        if database.running.pop("t1", None):
            database.begin("t2")
            database.insert(4)

    database.while_waiting = go_on
    poller = Poller(database.source(start_at="now"))
    assert poller.read() == []
    database.insert(3)
    database.end("t2")
    assert poller.read() == [3, 4]


def test_a_beginning_at_now_in_a_table_without_rows_is_before_the_first_that_comes(database: Database) -> None:
    database.after_a_look = lambda: database.insert(database.looks)
    poller = Poller(database.source(start_at="now"))
    assert poller.read()[:1] == [1]


def test_a_beginning_at_now_where_nobody_can_be_seen_is_behind_all_rows_and_waits_for_nobody(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.insert(1, 2)
    database.is_hiding = True
    poller = Poller(database.source(start_at="now"))
    assert poller.read() == []
    assert database.waits == 0
    assert "while transactions are running" not in caplog.text
    database.insert(3)
    assert poller.read() == [3]


def test_a_beginning_at_now_where_nobody_can_be_seen_does_not_wait_for_a_list(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.insert(1, 2)
    database.is_hiding, database.has_list = True, False
    poller = Poller(database.source(start_at="now", horizon_wait_seconds=0))
    assert poller.read() == []
    assert database.waits == 0
    assert "while transactions are running" not in caplog.text
    database.insert(3)
    assert poller.read() == [], "what came after that may wait for somebody"
    database.has_list = True
    assert poller.read() == [3], "and not those that were there before"


def test_a_beginning_at_now_is_that_of_the_first_look_until_it_is_written(database: Database) -> None:
    database.insert(1)
    source = database.source(start_at="now")
    assert Poller(source).read() == []
    database.insert(2)
    assert Poller(source).read() == [2], "whoever could not write its checkpoint begins there again"


def test_now_in_a_table_without_rows_is_a_place_that_is_written(database: Database) -> None:
    first = Poller(database.source(start_at="now"))
    assert first.read() == []
    database.insert(1)
    assert Poller(database.source(start_at="now"), first.checkpoint).read() == [1]


def test_a_checkpoint_that_has_not_moved_stays_as_it_was_written(database: Database) -> None:
    poller = Poller(database.source())
    assert poller.read() == []
    assert poller.checkpoint == {}, "nothing was read, and nothing is written"
    database.insert(1)
    former: CheckpointJson = {"cursor": [1, 1]}
    for start_at in ("beginning", "now"):
        poller = Poller(database.source(start_at=start_at), former)
        assert poller.read() == []
        assert poller.checkpoint == former


def test_a_warning_tells_once_of_more_rows_of_one_value_than_can_be_remembered(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.insert(1, 2, 3)
    poller = Poller(database.source())
    poller.read()
    plain = Poller(database.source(in_flight="ignore"))
    database.crowd(5, 1001)
    assert len(plain.read(limit=2000)) == 1004
    assert "rows of one version" not in caplog.text
    assert len(poller.read(limit=2000)) == 1001
    assert caplog.text.count("more than 1,000 rows of one version") == 1
    database.insert(6)
    database._execute("UPDATE rows_ SET version = 7")
    assert len(poller.read(limit=2000)) == 1005
    assert caplog.text.count("rows of one version") == 1
    assert len(Poller(database.source()).read(limit=2000)) == 1005
    assert caplog.text.count("rows of one version") == 2, "it is news to another process that begins with them"


def test_rows_of_one_value_that_become_too_many_with_the_next_page_are_warned_of(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.crowd(5, 1001)
    poller = Poller(database.source())
    assert len(poller.read(limit=900)) == 900
    assert "rows of one version" not in caplog.text
    assert len(poller.read(limit=900)) == 101
    assert "more than 1,000 rows of one version" in caplog.text


def test_rows_behind_a_place_that_does_not_tell_what_was_delivered_are_not_taken_for_too_many(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for key in (1, 2, 3):
        database.insert(5, key=key)
    assert Poller(database.source(), {"cursor": [5, 1]}).read() == [2, 3]
    assert "rows of one version" not in caplog.text


def test_rows_without_a_cursor_are_counted_at_first_and_every_hour(database: Database) -> None:
    database._execute("INSERT INTO rows_ VALUES (100, NULL)")
    poller = Poller(database.source())

    def counted() -> list[Any]:
        poller.read()
        assert poller.last is not None
        return list(poller.last.facts)

    assert counted() == [NullCursors(1)]
    database.time += 1800
    assert counted() == []
    database.time += 1800
    assert counted() == [NullCursors(1)]


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
    assert caplog.text.count("may miss rows") == 1, "that it is over is no news to warn of"


def test_how_well_late_commits_are_guarded_against_is_told_as_it_is_now(database: Database) -> None:
    source = database.source()
    assert (source.late_commit_grade(), source.grade()) == ("exact", "exact")
    database.doubt = "the sequence has a cache"
    assert (source.late_commit_grade(), source.grade()) == ("none", "none")
    database.doubt = None
    assert source.late_commit_grade() == "exact"
    database.is_hiding = True
    assert source.late_commit_grade() == "none"


def test_a_backlog_tells_who_holds_it_back_and_since_when(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    source = database.source(horizon_wait_seconds=0)
    poller = Poller(source)

    def watch_of_its_own(*_: Any) -> Any:
        return database.source()._relation._watch

    monkeypatch.setattr(keyset_source, "watch_for", watch_of_its_own)
    assert source.backlog({}).horizon is None
    assert database.looks == 0, "nobody is looked for where nothing waits"
    database.begin("t1")
    database.insert(3)
    poller.read()
    database.time += 5
    horizon = source.backlog(poller.checkpoint).horizon
    assert horizon is not None
    assert ([holder.session for holder in horizon.holders], round(horizon.age_seconds)) == (["t1"], 5)
    database.end("t1")
    assert source.backlog(poller.checkpoint).horizon is None


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


def test_a_distance_is_refused_where_no_clock_can_be_compared_whoever_is_watched(database: Database) -> None:
    with pytest.raises(SourceConfigurationError, match="needs a cursor of date and time"):
        database.source(settle_seconds=60)


def test_a_distance_from_the_clock_is_kept_in_the_form_that_the_writers_have_chosen(
    sqlite_database: str, provider: EngineProvider
) -> None:
    engine, now = create_engine(sqlite_database), dt.datetime.now(dt.UTC).replace(tzinfo=None)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE rows_ (id integer PRIMARY KEY, version datetime)"))
        for key, age in ((1, 120), (2, 30)):
            stamp = (now - dt.timedelta(seconds=age)).isoformat("T") + "Z"
            connection.execute(text("INSERT INTO rows_ VALUES (:key, :stamp)"), {"key": key, "stamp": stamp})
    engine.dispose()
    source = SqlAlchemySource(
        url=sqlite_database,
        table="rows_",
        cursor_column="version",
        pk_columns=["id"],
        engine_provider=provider,
        settle_seconds=60,
    )
    assert Poller(source).read() == [1]


def test_a_beginning_at_now_says_so_too_where_nobody_knows_who_is_running(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_running("orders", None)
    assert "while transactions are running (sessions unknown)" in caplog.text
