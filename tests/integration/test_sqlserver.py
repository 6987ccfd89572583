"""Change tracking, through real drivers.

Unless a real server is named (see `tests.support.sqlserver`), it is a stand-in: it shows that the source asks in the
right order and draws the right conclusions, not how a server isolates and cleans up.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    FetchError,
    MemoryStateStore,
    PollTrigger,
    PositionLostError,
    SourceConfigurationError,
    SqlAlchemySource,
    SqlServerChangeTrackingSource,
)
from azure_functions_db.testing.sources import pages_of
from tests.integration.cli import warm
from tests.support.sqlserver import DRIVERS, Model, running
from tests.support.tds import Hangup, ServerError
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from azure_functions_db.core.types import Change

ORDERS = (
    "CREATE TABLE [dbo].[orders] ([id] INT NOT NULL PRIMARY KEY, [name] NVARCHAR(50) NULL, [total] DECIMAL(10, 2) NULL)"
)
NewSource = Callable[..., SqlServerChangeTrackingSource]


@pytest.fixture
def new_source(sql_server: Any, provider: EngineProvider) -> NewSource:
    sql_server.run(ORDERS)
    sql_server.track("orders")
    return partial(SqlServerChangeTrackingSource, url=sql_server.url(), table="orders", engine_provider=provider)


@pytest.fixture
def stand_in(sql_server: Any) -> Model:
    """The stand-in: for what a real server cannot be made to do."""
    if not isinstance(sql_server, Model):
        pytest.skip("a real server cannot be made to do this")
    return sql_server


def insert(*keys: int, table: str = "orders", name: str = "new") -> str:
    rows = ", ".join(f"({key}, N'{name}')" for key in keys)
    return f"INSERT INTO [dbo].[{table}] (id, name) VALUES {rows}"


def read(source: SqlServerChangeTrackingSource, checkpoint: Any, limit: int = 100) -> tuple[list[Change], Any]:
    """Return all changes after a checkpoint and the checkpoint after them."""
    pages = pages_of(source, limit, checkpoint)
    changes = [change for page in pages for change in page.records]
    return changes, pages[-1].next_checkpoint if pages else checkpoint


def started(source: SqlServerChangeTrackingSource) -> Any:
    """Return the checkpoint of a source that has read all there is."""
    return read(source, {})[1]


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_driver_tells_inserts_updates_and_deletes(sql_server: Any, provider: EngineProvider, driver: str) -> None:
    sql_server.run(ORDERS)
    sql_server.track("orders")
    sql_server.run(insert(1, 2))
    source = SqlServerChangeTrackingSource(url=sql_server.url(driver), table="orders", engine_provider=provider)

    changes, checkpoint = read(source, {})
    assert [(change.op, change.key, change.metadata["snapshot"]) for change in changes] == [
        ("upsert", {"id": 1}, True),
        ("upsert", {"id": 2}, True),
    ]

    sql_server.run("UPDATE dbo.orders SET total = 1.5 WHERE id = 1", "DELETE FROM dbo.orders WHERE id = 2", insert(3))
    changes, _ = read(source, checkpoint)
    assert [(change.op, change.key, change.metadata.get("changed")) for change in changes] == [
        ("update", {"id": 1}, ["total"]),
        ("delete", {"id": 2}, None),
        ("insert", {"id": 3}, None),
    ]
    assert changes[0].after == {"id": 1, "name": "new", "total": pytest.approx(1.5)}
    assert changes[1].after is None


def test_a_version_with_many_rows_is_split(sql_server: Any, new_source: NewSource) -> None:
    checkpoint = started(new_source())
    sql_server.run(insert(*range(1, 8)))

    pages = pages_of(new_source(), 2, checkpoint)

    assert [[change.key["id"] for change in page.records] for page in pages if page.records] == [
        [1, 2],
        [3, 4],
        [5, 6],
        [7],
    ]
    assert pages[0].next_checkpoint["cursor"]["key"] == [2]


def test_a_row_that_changes_between_two_pages_comes_with_its_newest_state(
    sql_server: Any, new_source: NewSource
) -> None:
    source, checkpoint = new_source(), started(new_source())
    sql_server.run(insert(1, 2, 3))
    first = source.fetch_changes(checkpoint, 1)
    sql_server.run("UPDATE dbo.orders SET name = N'again' WHERE id = 2", insert(4))

    changes, _ = read(source, first.next_checkpoint, 1)

    assert [(change.key["id"], change.after and change.after["name"]) for change in changes] == [
        (3, "new"),
        (2, "again"),
        (4, "new"),
    ]
    # The reader has never seen 2, but may have: only what is certain is told.
    assert [change.op for change in changes] == ["insert", "upsert", "insert"]


def test_a_commit_while_changes_are_read_is_not_jumped_over(stand_in: Model, new_source: NewSource) -> None:
    source = new_source(idle_versions=1)
    checkpoint = started(source)
    stand_in.run(insert(1))
    said: list[str] = []

    def commit(sql: str) -> None:
        said.append(sql)
        if len(said) > 1 and "CHANGES [dbo]" in said[-2]:
            stand_in.run(insert(2))

    stand_in.before = commit
    first = source.fetch_changes(checkpoint, 10)

    assert [change.key["id"] for change in first.records] == [1]
    stand_in.before = lambda _: None
    assert [change.key["id"] for change in read(source, first.next_checkpoint)[0]] == [2]


def test_a_snapshot_goes_on_where_it_was_and_joins_what_has_happened_since(
    sql_server: Any, new_source: NewSource
) -> None:
    sql_server.run(insert(1, 2, 3))
    first = new_source().fetch_changes({}, 2)
    sql_server.run("DELETE FROM dbo.orders WHERE id = 1", insert(4))

    changes, _ = read(new_source(), json.loads(json.dumps(first.next_checkpoint)), 2)

    assert [(change.op, change.key["id"]) for change in changes] == [
        ("upsert", 3),
        ("upsert", 4),
        ("delete", 1),
        ("insert", 4),
    ]


@pytest.mark.parametrize(
    ("mode", "expected"), [("initial", [1, 2]), ("never", [2]), ("only", [1])], ids=["initial", "never", "only"]
)
def test_rows_come_first_alone_or_not_at_all(
    sql_server: Any, new_source: NewSource, mode: Any, expected: list[int]
) -> None:
    sql_server.run(insert(1))
    source = new_source(snapshot=mode)
    changes, checkpoint = read(source, {})
    # Where nothing has come, the position is not yet worth a write: it is the same one tick later.
    checkpoint = checkpoint or source.parse("now")
    sql_server.run(insert(2))

    assert [change.key["id"] for change in [*changes, *read(source, checkpoint)[0]]] == expected


def test_a_column_that_is_added_comes_along(sql_server: Any, new_source: NewSource) -> None:
    source = new_source()
    sql_server.run(insert(1))
    checkpoint = started(source)
    sql_server.run("ALTER TABLE [dbo].[orders] ADD [note] NVARCHAR")
    sql_server.run("UPDATE dbo.orders SET note = N'x' WHERE id = 1")

    [change], _ = read(source, checkpoint)

    assert change.after == {"id": 1, "name": "new", "total": None, "note": "x"}


def test_a_key_of_several_columns_and_odd_names_is_read_in_its_order(stand_in: Model, provider: EngineProvider) -> None:
    stand_in.run(
        "CREATE TABLE [dbo].[a:b] ([k:1] NVARCHAR(20) NOT NULL, [k 2] INT NOT NULL, [it's] INT NULL, "
        "PRIMARY KEY ([k:1], [k 2]))"
    )
    source = SqlServerChangeTrackingSource(url=stand_in.url(), table="a:b", engine_provider=provider)
    source.create_stream()
    checkpoint = started(source)
    for key in (("b", 1), ("a", 2), ("a", 1)):
        stand_in.run(f"INSERT INTO [dbo].[a:b] ([k:1], [k 2], [it's]) VALUES (N'{key[0]}', {key[1]}, 1)")
    stand_in.run("UPDATE [dbo].[a:b] SET [it's] = 2")

    changes, _ = read(source, checkpoint, 1)

    assert [tuple(change.key.values()) for change in changes] == [("a", 1), ("a", 2), ("b", 1)]


@pytest.mark.parametrize("kind", ["DATETIME2(7)", "FLOAT", "TIME(7)", "DATETIMEOFFSET(7)"])
def test_a_key_that_python_cannot_hold_is_refused(stand_in: Model, provider: EngineProvider, kind: str) -> None:
    stand_in.run(f"CREATE TABLE [dbo].[odd] ([id] {kind} NOT NULL PRIMARY KEY)")
    stand_in.track("odd")
    source = SqlServerChangeTrackingSource(url=stand_in.url(), table="odd", engine_provider=provider)

    with pytest.raises(SourceConfigurationError, match="Python does not hold every"):
        source.fetch_changes({}, 1)
    with pytest.raises(SourceConfigurationError, match="Python does not hold every"):
        source.validate()


# Lost positions.


def test_changes_that_were_cleaned_up_are_a_lost_position(sql_server: Any, new_source: NewSource) -> None:
    source = new_source()
    checkpoint = started(source)
    sql_server.run(insert(1))
    sql_server.lose("orders")

    with pytest.raises(PositionLostError, match="after version 0 are gone"):
        source.fetch_changes(checkpoint, 1)
    with pytest.raises(PositionLostError):
        source.backlog(checkpoint)
    assert "are gone" in str(source.report(checkpoint)[0].log_fields()["warning"])


def test_a_cleanup_between_two_statements_is_a_lost_position(stand_in: Model, new_source: NewSource) -> None:
    source = new_source()
    checkpoint = started(source)
    stand_in.run(insert(1))
    stand_in.before = lambda sql: stand_in.clean_up("orders") if "CHANGES [dbo]" in sql else None

    with pytest.raises(PositionLostError):
        source.fetch_changes(checkpoint, 1)


def test_a_cleanup_behind_the_position_loses_nothing_and_one_inside_its_version_is_told(
    stand_in: Model, new_source: NewSource
) -> None:
    source = new_source()
    checkpoint = started(source)
    stand_in.run(insert(1))
    stand_in.run(insert(2, 3, 4))
    first = source.fetch_changes(checkpoint, 2)
    stand_in.clean_up("orders", 1)
    stand_in.run("UPDATE dbo.orders SET name = N'again' WHERE id = 1")

    # What had been delivered at the last standstill is no longer known: the update may be of a row never seen.
    changes, _ = read(source, first.next_checkpoint, 1)
    assert [(change.op, change.key["id"]) for change in changes] == [("insert", 3), ("insert", 4), ("upsert", 1)]

    stand_in.clean_up("orders", 2)
    with pytest.raises(PositionLostError):
        source.fetch_changes(first.next_checkpoint, 1)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_connection_goes_back_with_the_isolation_it_had(
    sql_server: Any, provider: EngineProvider, driver: str
) -> None:
    sql_server.run(ORDERS)
    sql_server.track("orders")
    url = sql_server.url(driver)
    source = SqlServerChangeTrackingSource(url=url, table="orders", engine_provider=provider)
    started(source)

    with provider.get_engine(DbConfig(connection_url=url)).connect() as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"


def test_a_loss_while_the_table_is_read_is_told_at_once(stand_in: Model, new_source: NewSource) -> None:
    stand_in.run(insert(1, 2))
    first = new_source().fetch_changes({}, 1)
    stand_in.run(insert(3))
    stand_in.clean_up("orders")

    with pytest.raises(PositionLostError):
        new_source().fetch_changes(first.next_checkpoint, 1)


@pytest.mark.parametrize(("policy", "expected"), [("snapshot", [1, 2]), ("continue", [2])])
def test_after_a_loss_it_goes_on_as_it_was_told(
    stand_in: Model, new_source: NewSource, policy: Any, expected: list[int]
) -> None:
    source = new_source(on_position_lost=policy)
    checkpoint = started(source)
    stand_in.run(insert(1))
    stand_in.clean_up("orders")
    stand_in.run(insert(2))

    first = source.fetch_changes(checkpoint, 10)

    assert [change.key["id"] for change in first.records] == expected
    assert first.facts[0].log_event == "position_lost"
    assert first.next_checkpoint["cursor"]["gap"]["from"] == "0"


def test_a_table_that_was_made_anew_is_a_lost_position(sql_server: Any, new_source: NewSource) -> None:
    source = new_source()
    checkpoint = started(source)
    sql_server.run("DROP TABLE [dbo].[orders]", ORDERS)
    sql_server.run("ALTER TABLE [dbo].[orders] ENABLE CHANGE_TRACKING WITH (TRACK_COLUMNS_UPDATED = ON)")

    with pytest.raises(PositionLostError, match="made anew"):
        source.fetch_changes(checkpoint, 1)


def test_a_database_of_an_earlier_moment_is_a_lost_position(new_source: NewSource) -> None:
    source = new_source()
    checkpoint = source.parse("1000")

    with pytest.raises(PositionLostError, match="restored to an earlier moment"):
        source.fetch_changes(checkpoint, 1)


# What is wrong.


def test_a_table_that_is_not_tracked_is_told_with_the_cure(sql_server: Any, provider: EngineProvider) -> None:
    sql_server.run(ORDERS, "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    source = SqlServerChangeTrackingSource(url=sql_server.url(), table="orders", engine_provider=provider)

    with pytest.raises(SourceConfigurationError, match="azfdb stream create"):
        source.fetch_changes({}, 1)
    with pytest.raises(SourceConfigurationError, match="SET CHANGE_TRACKING = ON"):
        source.validate()


def test_without_snapshot_isolation_nothing_is_read(sql_server: Any, provider: EngineProvider) -> None:
    sql_server.run(ORDERS)
    source = SqlServerChangeTrackingSource(url=sql_server.url(), table="orders", engine_provider=provider)

    with pytest.raises(SourceConfigurationError, match="SET ALLOW_SNAPSHOT_ISOLATION ON"):
        source.fetch_changes({}, 1)


def test_a_table_that_is_not_there_and_a_database_of_another_kind_are_told(
    sql_server: Any, provider: EngineProvider
) -> None:
    with pytest.raises(SourceConfigurationError, match=r"no table dbo\.nowhere"):
        SqlServerChangeTrackingSource(url=sql_server.url(), table="nowhere", engine_provider=provider).validate()
    with pytest.raises(SourceConfigurationError, match=r"SQL Server's; the URL is one of sqlite"):
        SqlServerChangeTrackingSource(url="sqlite://", table="orders").validate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": ""}, "table= must be a name"),
        ({"table": "orders", "snapshot": "later"}, "snapshot= must be one of"),
        ({"table": "orders", "start_at": "soon"}, "A position is a version"),
        ({"table": "orders", "retention_days": 0}, "retention_days= is a whole number"),
        ({"table": "orders", "pk_columns": "id"}, "pk_columns= is a list"),
    ],
)
def test_a_wrong_argument_is_told_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceConfigurationError, match=message):
        SqlServerChangeTrackingSource(url="mssql+pyodbc://server/shop", **arguments)


def test_a_key_that_is_not_the_primary_one_is_refused(new_source: NewSource) -> None:
    with pytest.raises(SourceConfigurationError, match="changes are tracked by"):
        new_source(pk_columns=["name"]).fetch_changes({}, 1)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("number", "message", "error", "transient"),
    [
        (229, "The VIEW CHANGE TRACKING permission was denied on the object 'orders'", SourceConfigurationError, None),
        (208, "Invalid object name 'orders'.", SourceConfigurationError, None),
        (1205, "Transaction was deadlocked on lock resources and has been chosen as the victim.", FetchError, True),
        (3960, "Snapshot isolation transaction aborted due to update conflict.", FetchError, True),
        (40613, "Database 'shop' on server 's' is not currently available.", FetchError, True),
        (8134, "Divide by zero error encountered.", FetchError, False),
        (0, "the line is cut", FetchError, True),
    ],
)
def test_what_the_server_says_is_understood_whichever_driver_tells_it(
    stand_in: Model,
    provider: EngineProvider,
    driver: str,
    number: int,
    message: str,
    error: Any,
    transient: bool | None,
) -> None:
    stand_in.run(ORDERS)
    stand_in.track("orders")
    source = SqlServerChangeTrackingSource(url=stand_in.url(driver), table="orders", engine_provider=provider)
    checkpoint = started(source)

    def fail(sql: str) -> None:
        if "CHANGES [dbo]" in sql:
            raise ServerError(number, message) if number else Hangup

    stand_in.before = fail
    with pytest.raises(error) as raised:
        source.fetch_changes(checkpoint, 1)
    assert getattr(raised.value, "transient", None) is transient

    stand_in.before = lambda _: None
    stand_in.run(insert(1))
    assert [change.key["id"] for change in read(source, checkpoint)[0]] == [1]


# Random histories.

KEYS = st.integers(1, 5)
TRANSACTIONS = st.lists(st.tuples(KEYS, st.sampled_from(["write", "delete"])), min_size=1, max_size=4)
# Writes come first, and more often than anything else: without a backlog there is nothing to lose.
STEPS = st.one_of(
    st.tuples(st.just("write"), TRANSACTIONS),
    st.tuples(st.just("write"), TRANSACTIONS),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.tuples(st.just("crash"), st.integers(1, 3)),
    st.tuples(st.just("meanwhile"), st.tuples(st.integers(1, 8), TRANSACTIONS)),
    st.tuples(st.just("fail"), st.tuples(st.integers(1, 12), st.sampled_from([1205, 40613, 0]))),
)


class Mirror:
    """A table, a copy that a poller keeps of it, and what happens to both."""

    def __init__(self, model: Model, source: SqlServerChangeTrackingSource, table: str) -> None:
        self.model, self.source, self.table = model, source, table
        self.rows: dict[int, str] = {}
        self.copy: dict[int, str] = {}
        self.checkpoint: Any = {}
        self.number = 0
        self.asked = 0
        self.plans: list[tuple[int, Callable[[], None]]] = []
        model.before = self.meanwhile

    def meanwhile(self, _: str) -> None:
        self.asked += 1
        due = [plan for at, plan in self.plans if at <= self.asked]
        self.plans = [(at, plan) for at, plan in self.plans if at > self.asked]
        for plan in due:
            plan()

    def write(self, changes: list[tuple[int, str]]) -> None:
        statements = []
        for key, action in changes:
            self.number += 1
            if action == "delete":
                self.rows.pop(key, None)
                statements.append(f"DELETE FROM [dbo].[{self.table}] WHERE id = {key}")
                continue
            value = f"v{self.number}"
            known = key in self.rows
            self.rows[key] = value
            statements.append(
                f"UPDATE [dbo].[{self.table}] SET name = N'{value}' WHERE id = {key}"
                if known
                else insert(key, table=self.table, name=value)
            )
        self.model.run(*statements)

    def plan(self, at: int, action: Callable[[], None]) -> None:
        self.plans.append((self.asked + at, action))

    def read(self, limit: int, *, commits: bool = True) -> bool:
        """Read a page into the copy; tell whether it was the last."""
        try:
            page = self.source.fetch_changes(self.checkpoint, limit)
        except FetchError as error:
            if not error.transient:
                raise
            return False
        if page.start is not None:  # which a poller commits before it handles anything
            self.checkpoint = json.loads(json.dumps(page.start))
        for change in page.records:
            self.apply(change)
        if commits:
            self.checkpoint = json.loads(json.dumps(page.next_checkpoint))
        return commits and not page.more

    def apply(self, change: Change) -> None:
        key: Any = change.key["id"]
        if change.after is None:
            self.copy.pop(key, None)
            return
        if change.op == "update":
            assert key in self.copy, "an update of a row that was never delivered"
        self.copy[key] = change.after["name"]

    def catch_up(self) -> None:
        self.plans.clear()
        while not self.read(2):
            pass
        while self.source.backlog(self.checkpoint).amount:
            self.read(100)


def fault(number: int) -> None:
    raise ServerError(number, "is not currently available: Serialization failure") if number else Hangup


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, EngineProvider]]:
    if os.environ.get("AZFDB_TEST_SQLSERVER_URL"):
        pytest.skip("a real server cannot be made to do this")
    provider = EngineProvider()
    with running(tmp_path_factory.mktemp("histories")) as model:
        yield model, provider
        provider.dispose_all()


@settings(
    max_examples=int(os.environ.get("AZFDB_SQLSERVER_HISTORIES", "60")), derandomize=True, phases=[Phase.generate]
)
@given(history=st.lists(STEPS, min_size=8, max_size=30), driver=st.sampled_from(sorted(DRIVERS)))
def test_whatever_happens_in_whatever_order_the_copy_becomes_the_table(
    histories: tuple[Model, EngineProvider], history: list[Any], driver: str
) -> None:
    model, provider = histories
    model.before = lambda _: None
    table = f"t{len(model.keys)}"
    model.run(f"CREATE TABLE [dbo].[{table}] ([id] INT NOT NULL PRIMARY KEY, [name] NVARCHAR(50) NULL)")
    model.track(table)
    source = SqlServerChangeTrackingSource(
        url=model.url(driver), table=table, idle_versions=1, engine_provider=provider
    )
    mirror = Mirror(model, source, table)
    for step, argument in history:
        match step:
            case "write":
                mirror.write(argument)
            case "read":
                mirror.read(argument)
            case "crash":
                mirror.read(argument, commits=False)
            case "meanwhile":
                mirror.plan(argument[0], partial(mirror.write, argument[1]))
            case "fail":
                mirror.plan(argument[0], partial(fault, argument[1]))

    mirror.catch_up()

    assert mirror.copy == mirror.rows


def test_a_poller_that_is_killed_over_and_over_loses_nothing(stand_in: Model, tmp_path: Path) -> None:
    stand_in.run("CREATE TABLE [dbo].[soaked] ([id] INT NOT NULL PRIMARY KEY, [version] INT NULL)")
    stand_in.track("soaked")
    file, stop = tmp_path / "mirror.db", tmp_path / "stop"
    command = [sys.executable, "-m", "tests.integration.binlog_mirror", stand_in.url("pymssql"), str(file), str(stop)]
    for round_ in range(4):
        process = subprocess.Popen(command)
        before = delivered(file)
        for version in range(round_ * 30, round_ * 30 + 30):
            stand_in.run(f"INSERT INTO dbo.soaked (id, version) VALUES ({version}, {version})")
            stand_in.run(f"UPDATE dbo.soaked SET version = {version} WHERE id = {version // 2}")
        wait_for(partial(has_more_than, file, before + 5), 60, "nothing was delivered")
        process.kill()
        process.wait()
    stop.touch()
    assert subprocess.run(command, check=False).returncode == 0

    with closing(sqlite3.connect(file)) as mirror, closing(stand_in.connect()) as table:
        copied = mirror.execute("SELECT id, version FROM mirror ORDER BY id").fetchall()
        assert copied == table.execute("SELECT id, version FROM dbo.soaked ORDER BY id").fetchall()
        assert len(copied) == 120


def has_more_than(file: Path, count: int) -> bool:
    return delivered(file) > count


def delivered(file: Path) -> int:
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as mirror:
        try:
            return int(mirror.execute("SELECT COUNT(*) FROM delivered").fetchone()[0])
        except sqlite3.OperationalError:  # it is not made yet
            return 0


# As a poller.


def test_a_poller_delivers_and_its_idle_position_moves_on_before_it_is_cleaned_up(
    sql_server: Any, new_source: NewSource
) -> None:
    sql_server.run("CREATE TABLE [dbo].[others] ([id] INT NOT NULL PRIMARY KEY, [name] NVARCHAR(50) NULL)")
    sql_server.run("ALTER TABLE [dbo].[others] ENABLE CHANGE_TRACKING")
    source, store = new_source(idle_versions=3), MemoryStateStore()
    seen: list[Any] = []
    poller = PollTrigger(name="orders", source=source, checkpoint_store=store, batch_size=2)
    run = partial(poller.run, timer=None, handler=seen.extend)
    sql_server.run(insert(1))
    run()
    assert [event.op for event in seen] == ["upsert"]

    for key in range(2):
        sql_server.run(insert(key, table="others"))
    before = store.load_checkpoint("orders")["cursor"]["version"]
    run()
    assert store.load_checkpoint("orders")["cursor"]["version"] == before
    for key in range(2, 4):
        sql_server.run(insert(key, table="others"))
    run()
    assert store.load_checkpoint("orders")["cursor"]["version"] > before


def test_the_stream_is_made_shown_and_dropped(sql_server: Any, provider: EngineProvider) -> None:
    sql_server.run(ORDERS)
    source = SqlServerChangeTrackingSource(
        url=sql_server.url(), table="orders", retention_days=7, engine_provider=provider
    )
    statements = [
        "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON)",
        "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
        "ALTER TABLE [dbo].[orders] ENABLE CHANGE_TRACKING WITH (TRACK_COLUMNS_UPDATED = ON)",
    ]
    assert source.show_stream()["tracked"] is False
    assert source.create_stream(dry_run=True) == statements
    assert source.show_stream()["tracked"] is False
    assert source.create_stream() == statements
    assert source.create_stream() == []
    shown = source.show_stream()
    assert (shown["tracked"], shown["snapshot_isolation"], shown["retention_seconds"]) == (True, True, 7 * 86400)
    assert {finding.grade for finding in source.examine()} == {"ok", "note"}
    assert source.drop_stream() == ["ALTER TABLE [dbo].[orders] DISABLE CHANGE_TRACKING"]
    assert source.drop_stream() == []


def test_the_command_line_makes_the_stream_and_examines_it(stand_in: Model, tmp_path: Path) -> None:
    stand_in.run("CREATE TABLE dbo.products (id INT NOT NULL PRIMARY KEY, name NVARCHAR(50) NOT NULL)")
    example = Path(__file__).parents[2] / "examples" / "sqlserver_mirror"
    app = (
        (example / "function_app.py").read_text().replace("BlobCheckpointStore()", f"FileStateStore({str(tmp_path)!r})")
    )
    (tmp_path / "function_app.py").write_text(app.replace("BlobCheckpointStore", "FileStateStore"))

    def azfdb(*words: str) -> str:
        environment = {"PATH": "/usr/bin:/bin", "SHOP_DB": stand_in.url(), "COPY_DB": "sqlite://", "COLUMNS": "200"}
        _, out, err = warm.run((*words, "mirror_products", "--app", str(tmp_path)), tmp_path, environment, "")
        return " ".join((out + err).split())

    enabled = "ALTER TABLE [dbo].[products] ENABLE CHANGE_TRACKING WITH (TRACK_COLUMNS_UPDATED = ON)"
    assert enabled in azfdb("stream", "create", "--dry-run")
    assert "change tracking is off in this database" in azfdb("doctor")
    assert enabled in azfdb("stream", "create")
    assert "nothing to do" in azfdb("stream", "create")
    examined = azfdb("doctor")
    assert "allowed" in examined
    assert "a real SQL Server have not been seen" in examined
    assert "retention seconds 259200" in azfdb("stream", "show")


def test_a_position_is_described_and_parsed(sql_server: Any, new_source: NewSource) -> None:
    source = new_source()
    assert source.describe({}) == "beginning"
    assert source.parse("beginning") == {}
    sql_server.run(insert(1))
    assert source.describe(source.parse("now")) == str(sql_server.current())
    with pytest.raises(SourceConfigurationError, match="A position is a version"):
        source.parse("yesterday")


# A rowversion as the cursor of a keyset source.


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_rowversion_is_an_exact_cursor(sql_server: Any, provider: EngineProvider, driver: str) -> None:
    sql_server.run(
        "CREATE TABLE [dbo].[stamped] "
        "([id] INT NOT NULL PRIMARY KEY, [name] NVARCHAR(50) NULL, [version] ROWVERSION NOT NULL)"
    )
    source = SqlAlchemySource(
        url=sql_server.url(driver),
        table="stamped",
        schema="dbo",
        cursor_column="version",
        pk_columns=["id"],
        engine_provider=provider,
    )
    sql_server.run(insert(1, 2, table="stamped"))
    first = source.fetch_changes({}, 10)
    assert [row["id"] for row in first.records] == [1, 2]
    sql_server.run("UPDATE dbo.stamped SET name = N'again' WHERE id = 1", insert(3, table="stamped"))
    second = source.fetch_changes(json.loads(json.dumps(first.next_checkpoint)), 10)
    assert [(row["id"], row["name"]) for row in second.records] == [(1, "again"), (3, "new")]
    assert any("exact" in finding.text for finding in source.examine())
