"""The binary log as a source: every change in commit order, none lost without a word.

With `AZFDB_MYSQLD`, the path of a MySQL server program, all of it runs against MySQL too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    FetchError,
    MySqlBinlogSource,
    PollTrigger,
    PositionLostError,
    SourceConfigurationError,
)
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.trigger.events import RowChange
from tests.conftest import temporary_database
from tests.integration.binlog_servers import KINDS, OwnServer, own_server
from tests.support.binlog import end_of_log, purge, run
from tests.support.proxy import Proxy, cut
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from azure_functions_db.core.types import Change, CheckpointJson

TABLE = "CREATE TABLE items (id int PRIMARY KEY, name varchar(40), amount int unsigned)"


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    with own_server(request.param) as server:
        yield server


@pytest.fixture
def url(server: OwnServer) -> Iterator[str]:
    with temporary_database(server.url, "DROP DATABASE {name}") as url:
        yield url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url, pool_pre_ping=True, connect_args={"ssl_disabled": True})
    run(engine, TABLE)
    yield engine
    engine.dispose()


class Mirror:
    """A source with its checkpoint, and a copy of the tables made of its changes."""

    def __init__(self, url: str, provider: EngineProvider, **options: Any) -> None:
        self.source = self._new_source = MySqlBinlogSource(
            **({"tables": ["items"], "snapshot": "never"} | options),
            db_config=DbConfig(connection_url=url, connect_args={"ssl_disabled": True}),
            engine_provider=provider,
        )
        self.checkpoint: CheckpointJson = {}
        self.rows: dict[Any, Any] = {}
        self.changes: list[Change] = []
        self.facts: list[Any] = []

    def drain(self, limit: int = 100) -> list[Change]:
        """Read to the end, page by page, each with a reader of its own, as ticks do."""
        new: list[Change] = []
        while True:
            page = self.source.fetch_changes(json.loads(json.dumps(self.checkpoint)), limit)
            assert len(page.records) <= limit
            self.checkpoint = page.next_checkpoint
            self.facts += page.facts
            new += page.records
            if not page.more:
                break
        for change in new:
            self.apply(change)
        self.changes += new
        return new

    def apply(self, change: Change) -> None:
        key = (change.metadata["table"].partition(".")[2], *change.key.values())
        match change.op:
            case "truncate":
                self.rows = {other: row for other, row in self.rows.items() if other[0] != key[0]}
            case "delete":
                self.rows.pop(key, None)
            case _:
                self.rows[key] = change.after


@pytest.fixture
def new_mirror(engine: Engine, url: str, provider: EngineProvider) -> Any:
    def new_mirror(**options: Any) -> Mirror:
        mirror = Mirror(url, provider, **options)
        if options.get("snapshot", "never") == "never":
            mirror.drain()  # it begins here
        return mirror

    return new_mirror


def told(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [(change.op, change.before, change.after) for change in changes]


def test_inserts_updates_and_deletes_come_with_their_images_in_commit_order(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 4000000000), (2, NULL, NULL)")
    run(engine, "UPDATE items SET name = 'b' WHERE id = 1", "DELETE FROM items WHERE id = 2")
    first, second = {"id": 1, "name": "a", "amount": 4000000000}, {"id": 2, "name": None, "amount": None}
    assert told(mirror.drain()) == [
        ("insert", None, first),
        ("insert", None, second),
        ("update", first, {**first, "name": "b"}),
        ("delete", second, None),
    ]
    transactions = [change.metadata["transaction"] for change in mirror.changes]
    assert transactions[0] == transactions[1] != transactions[2] == transactions[3]


def test_a_change_that_moves_the_key_is_a_delete_and_an_insert(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)", "UPDATE items SET id = 5 WHERE id = 1")
    for limit in (1, 2, 3):
        mirror.checkpoint, mirror.changes = {**mirror.checkpoint}, []
        copy = new_mirror()
        copy.checkpoint = dict(mirror.checkpoint)
        assert [(change.op, change.key) for change in copy.drain(limit)] == [
            ("insert", {"id": 1}),
            ("delete", {"id": 1}),
            ("insert", {"id": 5}),
        ]


def test_what_a_rollback_or_a_savepoint_took_back_never_comes(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO items VALUES (1, 'gone', 1)"))
        connection.rollback()
        connection.execute(text("INSERT INTO items VALUES (2, 'kept', 1)"))
        inner = connection.begin_nested()
        connection.execute(text("INSERT INTO items VALUES (3, 'gone', 1)"))
        inner.rollback()
        connection.commit()
    assert [change.key for change in mirror.drain()] == [{"id": 2}]


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_resuming_inside_a_transaction_neither_drops_nor_repeats_a_row(
    engine: Engine, new_mirror: Any, limit: int
) -> None:
    mirror = new_mirror()
    with engine.begin() as connection:
        for start in range(0, 60, 20):
            rows = ", ".join(f"({key}, 'x', 1)" for key in range(start, start + 20))
            connection.execute(text(f"INSERT INTO items VALUES {rows}"))
            connection.execute(text("UPDATE items SET amount = amount + 1 WHERE id % 5 = 0"))
    run(engine, "INSERT INTO items VALUES (1000, 'y', 1)")
    mirror.drain(limit)
    assert len(mirror.changes) == 60 + 4 + 8 + 12 + 1
    assert len({change.position for change in mirror.changes}) == len(mirror.changes)
    assert {key[1]: row["amount"] for key, row in mirror.rows.items()} == dict(
        run(engine, "SELECT id, amount FROM items")
    )


def test_several_tables_come_in_commit_order_and_others_do_not_come(engine: Engine, new_mirror: Any) -> None:
    run(
        engine,
        "CREATE TABLE more (a int, b varchar(5), PRIMARY KEY (a, b))",
        "CREATE TABLE others (id int PRIMARY KEY)",
    )
    mirror = new_mirror(tables=["items", "more"])
    run(
        engine,
        "INSERT INTO more VALUES (1, 'x')",
        "INSERT INTO others VALUES (1)",
        "INSERT INTO items VALUES (1, 'a', 1)",
    )
    run(engine, "DELETE FROM more")
    schema = make_url(str(engine.url)).database
    assert [(c.op, c.metadata["table"], c.key) for c in mirror.drain()] == [
        ("insert", f"{schema}.more", {"a": 1, "b": "x"}),
        ("insert", f"{schema}.items", {"id": 1}),
        ("delete", f"{schema}.more", {"a": 1, "b": "x"}),
    ]


def test_columns_that_are_added_renamed_retyped_and_dropped_in_between_are_followed(
    engine: Engine, new_mirror: Any
) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    run(engine, "ALTER TABLE items ADD extra decimal(5,2) DEFAULT 1.5 AFTER id")
    run(engine, "INSERT INTO items (id, name) VALUES (2, 'b')")
    run(engine, "ALTER TABLE items CHANGE name title varchar(9) CHARACTER SET latin1, MODIFY amount bigint")
    run(engine, "UPDATE items SET title = 'é', amount = -1 WHERE id = 2")
    run(engine, "ALTER TABLE items DROP extra")
    run(engine, "INSERT INTO items VALUES (3, 'c', 2)")
    rows = [change.after and {name: str(value) for name, value in change.after.items()} for change in mirror.drain(1)]
    assert rows == [
        {"id": "1", "name": "a", "amount": "1"},
        {"id": "2", "extra": "1.50", "name": "b", "amount": "None"},
        {"id": "2", "extra": "1.50", "title": "é", "amount": "-1"},
        {"id": "3", "title": "c", "amount": "2"},
    ]


@pytest.mark.parametrize(
    "statement",
    ["TRUNCATE TABLE items", "truncate /* all */ `items`", "/* now */ TRUNCATE {schema}.items", "DROP TABLE items"],
)
def test_a_table_that_is_emptied_at_once_is_a_truncate(engine: Engine, new_mirror: Any, statement: str) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement.format(schema=engine.url.database))
    run(engine, "CREATE TABLE IF NOT EXISTS items (id int PRIMARY KEY, name varchar(40), amount int unsigned)")
    run(engine, "INSERT INTO items VALUES (2, 'b', 1)")
    assert [(change.op, dict(change.key)) for change in mirror.drain(1)] == [
        ("insert", {"id": 1}),
        ("truncate", {}),
        ("insert", {"id": 2}),
    ]
    assert list(mirror.rows) == [("items", 2)]


def test_a_table_that_is_replaced_by_the_rows_of_a_query_is_emptied_once_and_then_filled(
    engine: Engine, new_mirror: Any
) -> None:
    if not getattr(engine.dialect, "is_mariadb", False):
        return  # MySQL cannot do that at once
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (9, 'old', 1)")
    rows = " UNION ALL ".join(f"SELECT {key} AS id, 'new' AS name, 1 AS amount" for key in (1, 2, 3))
    run(engine, f"CREATE OR REPLACE TABLE items (PRIMARY KEY (id)) {rows}")
    pages = [("insert", {"id": 9}), ("truncate", {}), *(("insert", {"id": key}) for key in (1, 2, 3))]
    for page in pages:
        result = mirror.source.fetch_changes(mirror.checkpoint, 1)
        mirror.checkpoint = result.next_checkpoint
        assert [(change.op, dict(change.key)) for change in result.records] == [page]


def test_the_snapshot_comes_first_and_resumes_where_it_was(engine: Engine, new_mirror: Any) -> None:
    run(engine, "INSERT INTO items VALUES " + ", ".join(f"({key}, 'old', 1)" for key in range(25)))
    mirror = new_mirror(snapshot="initial")
    page = mirror.source.fetch_changes({}, 10)
    run(engine, "UPDATE items SET name = 'new' WHERE id IN (3, 20)", "DELETE FROM items WHERE id = 4")
    run(engine, "INSERT INTO items VALUES (99, 'new', 1)")
    for change in page.records:
        mirror.apply(change)
    mirror.checkpoint = page.next_checkpoint
    mirror.drain(10)
    assert [change.op for change in page.records] == ["upsert"] * 10
    assert all(change.metadata["snapshot"] for change in page.records)
    assert mirror.rows == {
        ("items", row["id"]): row
        for row in (
            dict(zip(("id", "name", "amount"), each, strict=True)) for each in run(engine, "SELECT * FROM items")
        )
    }
    keys = [change.key["id"] for change in (*page.records, *mirror.changes) if change.op == "upsert"]
    assert keys == sorted(set(keys))


def test_a_transaction_that_is_in_the_log_and_does_not_show_in_the_table_yet_is_not_lost(
    engine: Engine, new_mirror: Any, held_commits: None
) -> None:
    before = end_of_log(engine, with_offset=True)
    writer = Thread(target=run, args=(engine, "INSERT INTO items VALUES (1, 'a', 1)"))
    writer.start()
    wait_for(lambda: end_of_log(engine, with_offset=True) != before, 30, "the writer does not write")
    assert run(engine, "SELECT count(*) FROM items") == [(0,)]
    mirror = new_mirror(snapshot="initial")
    mirror.drain()
    run(engine, "SET GLOBAL rpl_semi_sync_master_enabled = OFF")
    writer.join()
    mirror.drain()
    assert list(mirror.rows) == [("items", 1)]


@pytest.fixture
def held_commits(server: OwnServer, engine: Engine) -> Iterator[None]:
    """Commits wait, written to the log, for a replica that never comes: their rows do not show meanwhile."""
    if not getattr(engine.dialect, "is_mariadb", False):
        pytest.skip("in MySQL this takes a plugin")
    engine.connect().close()
    held = {"wait_point": "'AFTER_SYNC'", "timeout": "60000", "wait_no_slave": "ON", "enabled": "ON"}
    run(engine, *(f"SET GLOBAL rpl_semi_sync_master_{name} = {value}" for name, value in held.items()))
    yield
    run(engine, "SET GLOBAL rpl_semi_sync_master_enabled = OFF")


def test_the_snapshot_alone_ends_with_the_tables(engine: Engine, new_mirror: Any) -> None:
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror = new_mirror(snapshot="only")
    assert [change.op for change in mirror.drain()] == ["upsert"]
    run(engine, "INSERT INTO items VALUES (2, 'a', 1)")
    assert mirror.drain() == []


@pytest.mark.parametrize("place", ["beginning", "file"])
def test_reading_begins_where_it_is_told_to(engine: Engine, new_mirror: Any, place: str) -> None:
    purge(engine)
    start = {"beginning": "beginning", "file": f"{end_of_log(engine)}:4"}[place]
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror = Mirror(str(engine.url.render_as_string(hide_password=False)), EngineProvider(), start_at=start)
    assert [change.key for change in mirror.drain(1)] == [{"id": 1}]
    assert mirror.source.describe(mirror.checkpoint).startswith(end_of_log(engine))
    again = mirror.source.parse(mirror.source.describe(mirror.checkpoint))
    assert "cursor" in again


# Idle.


def test_changes_of_others_move_the_checkpoint_only_when_it_is_worth_a_write(engine: Engine, new_mirror: Any) -> None:
    run(engine, "CREATE TABLE others (id int AUTO_INCREMENT PRIMARY KEY, filler varchar(2000))")
    mirror = new_mirror(idle_bytes=20_000)
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    before = mirror.checkpoint
    run(engine, "INSERT INTO others VALUES (NULL, repeat('x', 1000))")
    mirror.drain()
    assert mirror.checkpoint == before
    for _ in range(20):
        run(engine, "INSERT INTO others VALUES (NULL, repeat('x', 1000))")
    mirror.drain()
    assert mirror.checkpoint != before


def test_an_idle_tick_asks_the_server_once_and_writes_nothing(
    engine: Engine, url: str, provider: EngineProvider
) -> None:
    place = make_url(url)
    with Proxy(str(place.host), int(place.port or 0)) as proxy:
        mirror = Mirror(place.set(port=proxy.port).render_as_string(hide_password=False), provider)
        mirror.drain()
        run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
        mirror.drain()
        before, requests = mirror.checkpoint, proxy.requests
        assert mirror.drain() == []
        assert mirror.checkpoint == before
        assert proxy.requests - requests <= 3
        store = MemoryStateStore()
        poller = PollTrigger(name="items", source=mirror.source, checkpoint_store=store)
        poller.run(timer=None, handler=lambda _events: None)
        document, requests = store.inspect("items"), proxy.requests
        assert poller.run(timer=None, handler=lambda _events: None) == 0
        assert store.inspect("items") == document, "not even a lease was taken"
        assert proxy.requests - requests <= 3


# Losing the position.


@pytest.mark.parametrize("has_read", [True, False])
def test_a_purged_log_is_a_lost_position(engine: Engine, new_mirror: Any, has_read: bool) -> None:
    mirror = new_mirror()
    if has_read:
        run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
        mirror.drain()
    run(engine, "INSERT INTO items VALUES (2, 'lost', 1)")
    purge(engine)
    run(engine, "INSERT INTO items VALUES (3, 'c', 1)")
    for _ in range(2):
        with pytest.raises(PositionLostError, match="1236"):
            mirror.drain()


@pytest.mark.parametrize("has_read", [True, False])
def test_a_purged_log_of_which_nothing_was_left_to_read_is_no_loss_where_gtids_prove_it(
    server: OwnServer, engine: Engine, new_mirror: Any, has_read: bool
) -> None:
    mirror = new_mirror()
    if has_read:
        run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
        mirror.drain()
    purge(engine)
    run(engine, "INSERT INTO items VALUES (2, 'b', 1)")
    if server.has_gtids:
        assert [change.key for change in mirror.drain()] == [{"id": 2}]
    else:
        with pytest.raises(PositionLostError):
            mirror.drain()


@pytest.mark.parametrize("policy", ["snapshot", "continue"])
def test_after_a_loss_the_policy_says_how_to_go_on_and_the_gap_is_kept(
    engine: Engine, new_mirror: Any, policy: str
) -> None:
    mirror = new_mirror(on_position_lost=policy)
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    run(engine, "INSERT INTO items VALUES (2, 'lost', 1)")
    purge(engine)
    run(engine, "INSERT INTO items VALUES (3, 'c', 1)")
    told = [(change.op, change.key["id"]) for change in mirror.drain()]
    if policy == "snapshot":
        assert [each for each in told if each[0] == "upsert"] == [("upsert", 1), ("upsert", 2), ("upsert", 3)]
    else:
        assert told == [("insert", 3)]
    assert "position_lost" in [fact.log_event for fact in mirror.facts]
    assert mirror.checkpoint["cursor"]["gap"]["from"]
    run(engine, "INSERT INTO items VALUES (4, 'd', 1)")
    assert [change.key for change in mirror.drain()] == [{"id": 4}]


def reset_log(engine: Engine) -> None:
    is_mariadb = getattr(engine.dialect, "is_mariadb", False)
    with engine.connect() as connection:
        connection.exec_driver_sql("RESET MASTER" if is_mariadb else "RESET BINARY LOGS AND GTIDS")


def test_a_log_that_was_reset_is_a_lost_position(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    reset_log(engine)
    run(engine, "INSERT INTO items VALUES (2, 'b', 1)")
    with pytest.raises(PositionLostError):
        mirror.drain()


def test_a_restored_server_with_the_same_files_places_and_gtids_is_a_lost_position(
    engine: Engine, new_mirror: Any
) -> None:
    """Everything is as it was, to the byte and the GTID, but for what was written."""
    reset_log(engine)
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    place = {name: mirror.checkpoint["cursor"].get(name) for name in ("file", "offset", "gtids")}
    run(engine, "DELETE FROM items")
    reset_log(engine)
    other = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'b', 1)")
    other.drain()
    assert {name: other.checkpoint["cursor"].get(name) for name in place} == place
    run(engine, "INSERT INTO items VALUES (2, 'c', 1)")
    with pytest.raises(PositionLostError, match="Another event"):
        mirror.drain()


def test_another_server_behind_the_same_address_is_a_lost_position(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    cursor = mirror.checkpoint["cursor"]
    if getattr(engine.dialect, "is_mariadb", False):
        cursor["gtids"] = f"7-{cursor['gtids'].partition('-')[2]}"
    else:
        cursor["server"] = "00000000-0000-0000-0000-000000000001"
    run(engine, "INSERT INTO items VALUES (2, 'b', 1)")
    with pytest.raises(PositionLostError):
        mirror.drain()


# Traps that others fall into without a word.

SETTINGS = {
    "binlog_format": ("STATEMENT", "ROW"),
    "binlog_row_image": ("MINIMAL", "FULL"),
    "binlog_row_metadata": ("MINIMAL", "FULL"),
    "log_bin_compress": ("ON", "OFF"),
    "binlog_transaction_compression": ("ON", "OFF"),
    "binlog_row_value_options": ("PARTIAL_JSON", ""),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_log_that_would_lack_something_is_refused_with_the_statement_that_cures_it(
    engine: Engine, new_mirror: Any, setting: str
) -> None:
    mirror = new_mirror()
    if not run(engine, f"SHOW GLOBAL VARIABLES LIKE '{setting}'"):
        return  # a setting of the other kind of server
    bad, good = SETTINGS[setting]
    run(engine, f"SET GLOBAL {setting} = '{bad}'")
    try:
        for refused in (mirror.drain, mirror.source.validate):
            with pytest.raises(SourceConfigurationError, match=f"SET GLOBAL {setting} = '?{good}"):
                refused()
        assert [finding.check for finding in mirror.source.examine() if finding.grade == "error"] == [setting]
    finally:
        run(engine, f"SET GLOBAL {setting} = '{good}'")
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    assert len(mirror.drain()) == 1


@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("binlog_format", "STATEMENT", "as a statement"),
        ("binlog_row_image", "MINIMAL", "without all of its columns"),
        ("binlog_transaction_compression", "ON", "compressed"),
    ],
)
def test_a_session_that_logs_otherwise_is_told_and_never_passed_over(
    engine: Engine, new_mirror: Any, setting: str, value: str, complaint: str
) -> None:
    mirror = new_mirror()
    if not run(engine, f"SHOW GLOBAL VARIABLES LIKE '{setting}'"):
        return  # a setting of the other kind of server
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    with engine.connect() as connection:
        connection.execute(text(f"SET SESSION {setting} = '{value}'"))
        connection.execute(text("UPDATE items SET name = 'b' WHERE id = 1"))
        connection.commit()
        connection.invalidate()
    for _ in range(2):
        with pytest.raises(SourceConfigurationError, match=complaint):
            mirror.drain()


def test_a_compressed_event_of_mariadb_is_told(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    if not getattr(engine.dialect, "is_mariadb", False):
        return  # MySQL compresses whole transactions, as above
    run(engine, "ALTER TABLE items MODIFY name varchar(1000)", "SET GLOBAL log_bin_compress = ON")
    run(engine, "INSERT INTO items VALUES (1, repeat('a', 900), 1)")
    run(engine, "SET GLOBAL log_bin_compress = OFF")
    with pytest.raises(SourceConfigurationError, match="compressed"):
        mirror.drain()


def test_metadata_that_was_minimal_in_between_is_told(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    run(engine, "SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    run(engine, "SET GLOBAL binlog_row_metadata = 'FULL'")
    with pytest.raises(SourceConfigurationError, match="binlog_row_metadata"):
        mirror.drain()


def test_an_xa_transaction_is_told(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (
            "XA START 'x'",
            "INSERT INTO items VALUES (1, 'a', 1)",
            "XA END 'x'",
            "XA PREPARE 'x'",
            "XA COMMIT 'x'",
        ):
            connection.exec_driver_sql(statement)
        connection.invalidate()
    with pytest.raises(SourceConfigurationError, match="XA"):
        mirror.drain()


def test_two_readers_at_a_time_do_not_throw_each_other_out(engine: Engine, new_mirror: Any) -> None:
    run(engine, "ALTER TABLE items ADD filler varchar(8000)")
    one, other = new_mirror(), new_mirror()
    # More than the buffers between hold: the server is still sending when the second comes.
    for start in range(0, 3000, 1000):
        rows = ", ".join(f"({key}, 'x', 1, repeat('y', 8000))" for key in range(start, start + 1000))
        run(engine, f"INSERT INTO items VALUES {rows}")
    readers = [mirror.source.open() for mirror in (one, other)]
    pages = [reader.fetch_changes(one.checkpoint, 100) for reader in readers]
    for _ in range(29):
        pages = [reader.fetch_changes(page.next_checkpoint, 100) for reader, page in zip(readers, pages, strict=True)]
        assert [len(page.records) for page in pages] == [100, 100]
    for reader in readers:
        reader.close()


# Bad weather.


def test_a_restarted_server_is_read_on_where_it_was(server: OwnServer, engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    for round_, crash in enumerate((False, True)):
        run(engine, f"INSERT INTO items VALUES ({2 * round_}, 'before', 1)")
        server.restart(crash=crash)
        run(engine, f"INSERT INTO items VALUES ({2 * round_ + 1}, 'after', 1)")
        with_retries(mirror)
    assert [change.key["id"] for change in mirror.changes] == [0, 1, 2, 3]


def with_retries(mirror: Mirror) -> None:
    """Read on as a tick does: a connection of the pool that died with the server is a passing failure."""
    for _ in range(5):
        try:
            mirror.drain()
        except FetchError as error:
            if not error.transient:
                raise
        else:
            return
    pytest.fail("the source does not come back")


def test_a_connection_cut_in_the_middle_of_a_message_loses_nothing(
    engine: Engine, url: str, provider: EngineProvider
) -> None:
    place = make_url(url)
    run(engine, "ALTER TABLE items ADD filler varchar(500)")
    with CuttingProxy(str(place.host), int(place.port or 0)) as proxy:
        mirror = Mirror(place.set(port=proxy.port).render_as_string(hide_password=False), provider)
        mirror.drain()
        for start in range(0, 1000, 200):
            rows = ", ".join(f"({key}, 'x', 1, repeat('y', 400))" for key in range(start, start + 200))
            run(engine, f"INSERT INTO items VALUES {rows}")
        proxy.cut_after = 50_011
        cuts = 0
        while len(mirror.rows) < 1000:
            try:
                page = mirror.source.fetch_changes(mirror.checkpoint, 50)
            except FetchError as error:
                if not error.transient:
                    raise
                cuts += 1
                proxy.cut_after += 10_007
                continue
            mirror.checkpoint = page.next_checkpoint
            for change in page.records:
                assert change.key["id"] == len(mirror.rows), "out of order or twice"
                mirror.apply(change)
    assert cuts


def test_a_reader_that_is_asked_again_after_a_cut_loses_nothing(
    engine: Engine, url: str, provider: EngineProvider
) -> None:
    """As a tick does it: the database failed in passing, and the same reader is asked for the same page."""
    place = make_url(url)
    with CuttingProxy(str(place.host), int(place.port or 0)) as proxy:
        mirror = Mirror(place.set(port=proxy.port).render_as_string(hide_password=False), provider)
        mirror.drain()
        for key in range(600):
            run(engine, f"INSERT INTO items VALUES ({key}, repeat('x', 40), 1)")
        proxy.cut_after = 60_011
        reader = mirror.source.open()
        page = reader.fetch_changes(mirror.checkpoint, 10)
        keys = [change.key["id"] for change in page.records]
        while len(keys) < 600:
            try:
                page = reader.fetch_changes(page.next_checkpoint, 200)
            except FetchError:
                proxy.cut_after = None
                continue
            keys += [change.key["id"] for change in page.records]
            assert page.records
        reader.close()
    assert proxy.cut_after is None
    assert keys == list(range(600))


class CuttingProxy(Proxy):
    """Ends each connection after so many bytes of the server's."""

    cut_after: int | None = None

    def _pump(self, source: Any, target: Any, from_client: bool) -> None:
        if from_client:
            super()._pump(source, target, from_client)
            return
        passed = 0
        with suppress(OSError):
            while data := source.recv(4096):
                passed += len(data)
                if self.cut_after is not None and passed > self.cut_after:
                    target.sendall(data[: len(data) // 2])
                    break
                target.sendall(data)
        cut(source)
        cut(target)


# Operators.


def test_doctor_says_which_right_is_missing_and_a_login_with_just_the_rights_can_read(
    server: OwnServer, engine: Engine, url: str, provider: EngineProvider
) -> None:
    run(engine, "DROP USER IF EXISTS reader", "CREATE USER reader IDENTIFIED BY 'secret'")
    run(engine, f"GRANT SELECT ON {engine.url.database}.* TO reader")
    place = make_url(url).set(username="reader", password="secret")
    mirror = Mirror(place.render_as_string(hide_password=False), provider, snapshot="initial")
    wrong = [finding for finding in mirror.source.examine() if finding.grade == "error"]
    assert [finding.check for finding in wrong] == ["rights"]
    assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.*" in str(wrong[0].remedy)
    with pytest.raises(SourceConfigurationError):
        mirror.drain()
    run(engine, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader")
    provider.dispose_all()
    if not server.has_gtids:
        with pytest.raises(SourceConfigurationError, match="GRANT LOCK TABLES"):
            mirror.drain()
        run(engine, f"GRANT LOCK TABLES ON {engine.url.database}.* TO reader")
        provider.dispose_all()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    run(engine, "DELETE FROM items")
    assert [change.op for change in mirror.drain()] == ["delete"]
    assert [finding for finding in mirror.source.examine() if finding.grade == "error"] == []


def test_doctor_sees_tables_without_a_key_cascades_and_a_short_retention(engine: Engine, new_mirror: Any) -> None:
    run(engine, "CREATE TABLE keyless (id int)")
    run(
        engine,
        "CREATE TABLE children (id int PRIMARY KEY, item int, "
        "FOREIGN KEY (item) REFERENCES items (id) ON DELETE CASCADE)",
    )
    source = new_mirror(tables=["keyless", "children", "missing"], snapshot="only").source
    before = run(engine, "SELECT @@GLOBAL.binlog_expire_logs_seconds")[0][0]
    run(engine, "SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        found = {finding.check.rpartition(".")[2]: finding for finding in source.examine()}
    finally:
        run(engine, f"SET GLOBAL binlog_expire_logs_seconds = {before}")
    assert (found["keyless"].grade, found["missing"].grade) == ("error", "error")
    assert found["children"].grade == "warning"
    assert found["retention"].grade == "warning"
    assert "SET GLOBAL binlog_expire_logs_seconds" in str(found["retention"].remedy)


def test_an_operator_lets_the_settings_be_cured_and_looks_at_the_log(engine: Engine, new_mirror: Any) -> None:
    source = new_mirror(snapshot="only").source
    run(engine, "SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    statements = ["SET GLOBAL binlog_row_metadata = 'FULL'"]
    assert source.create_stream(dry_run=True) == statements
    assert source.show_stream()["binlog_row_metadata"].startswith("binlog_row_metadata is MINIMAL")
    assert source.create_stream() == statements
    assert source.create_stream() == source.drop_stream() == []
    view = source.show_stream()
    assert (view["binlog_row_metadata"], view["newest_log"]) == ("FULL", end_of_log(engine))


def test_the_backlog_is_told_in_bytes_and_seconds(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    assert mirror.source.backlog(mirror.checkpoint).amount == 0
    run(engine, "INSERT INTO items VALUES (2, 'b', 1)")
    behind = mirror.source.backlog(mirror.checkpoint)
    assert (behind.unit, behind.amount > 0) == ("bytes", True)
    assert behind.lag_seconds is not None
    [health] = mirror.source.report(mirror.checkpoint)
    assert health.gauges()["azfdb_stream_lag_bytes"] == behind.amount
    assert health.log_fields()["oldest_log"]
    assert health.log_fields()["last_commit_at"]


def test_a_log_that_is_about_to_go_is_a_warning(engine: Engine, new_mirror: Any) -> None:
    mirror = new_mirror()
    run(engine, "INSERT INTO items VALUES (1, 'a', 1)")
    mirror.drain()
    run(engine, "INSERT INTO items VALUES (2, 'b', 1)")
    mirror.checkpoint["cursor"]["time"] -= 3500
    before = run(engine, "SELECT @@GLOBAL.binlog_expire_logs_seconds")[0][0]
    run(engine, "SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        [health] = mirror.source.report(mirror.checkpoint)
    finally:
        run(engine, f"SET GLOBAL binlog_expire_logs_seconds = {before}")
    assert "more hours only" in str(health.warning)
    assert health.log_level == logging.WARNING


@pytest.mark.parametrize(
    "wrong",
    [
        {"tables": []},
        {"tables": "items"},
        {"tables": ["a", "a"]},
        {"snapshot": "sometimes"},
        {"on_position_lost": "shrug"},
        {"server_id": 0},
        {"start_at": ""},
        {"start_at": "now", "undecodable": "maybe"},
    ],
)
def test_wrong_arguments_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(SourceConfigurationError):
        MySqlBinlogSource(**({"url": "mysql+pymysql://nowhere/x", "tables": ["items"]} | wrong))


def test_another_driver_is_refused(provider: EngineProvider) -> None:
    source = MySqlBinlogSource(url="sqlite://", tables=["main.items"], engine_provider=provider)
    for refused in (lambda: source.fetch_changes({}, 1), lambda: source.source_descriptor, source.validate):
        with pytest.raises(SourceConfigurationError, match="PyMySQL"):
            refused()


def test_a_checkpoint_of_another_source_is_refused(new_mirror: Any) -> None:
    mirror = new_mirror()
    mirror.checkpoint = {"cursor": {"kind": "stream", "value": "1:1"}}
    with pytest.raises(SourceConfigurationError, match="reset"):
        mirror.drain()


def test_events_of_a_poller_have_ids_of_their_own(engine: Engine, new_mirror: Any) -> None:
    source = new_mirror(snapshot="initial").source
    run(engine, "INSERT INTO items VALUES (1, 'a', 1), (2, 'b', 2)")
    store, seen = MemoryStateStore(), list[RowChange]()
    trigger = PollTrigger(name="p", source=source, checkpoint_store=store, max_batches_per_tick=50, batch_size=1)
    trigger.run(timer=None, handler=seen.extend)
    run(engine, "UPDATE items SET amount = 7")
    trigger.run(timer=None, handler=seen.extend)
    assert [event.op for event in seen] == ["upsert", "upsert", "update", "update"]
    assert len({event.event_id for event in seen}) == 4
    assert [event.to_json()["after"]["amount"] for event in seen[2:]] == [7, 7]
