"""Servers restart, crash, run out of log and fail over; connections are cut: nothing is lost unless that is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url

from azure_functions_db import DbConfig, FetchError, MemoryStateStore, PositionLostError, PostgresLogicalSource
from tests.integration.postgres_log.scene import COLUMNS, Scene
from tests.integration.postgres_log.servers import KINDS, OwnServer, own_server
from tests.support.followers import standby_of
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[OwnServer]:
    with own_server(kind, fsync="on", synchronous_commit="on", min_wal_size="32MB", wal_sender_timeout="3s") as server:
        yield server


@pytest.fixture
def scene(server: OwnServer) -> Iterator[Scene]:
    scene = Scene(server.url)
    scene.run(f"CREATE TABLE %t ({COLUMNS})")
    yield scene
    scene.close()


def ids(events: list[Any]) -> list[Any]:
    return [event.pk["id"] for event in events]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_server_that_goes_down_in_the_middle_of_a_tick_costs_a_tick_and_no_change(
    scene: Scene, server: OwnServer, how: str
) -> None:
    source = scene.streaming()
    scene.run("INSERT INTO %t SELECT n, 'x' FROM generate_series(1, 5000) n")
    seen: list[Any] = []

    def interrupt(events: list[Any]) -> None:
        if len(seen) == 1000:
            getattr(server, how)()
            scene.engine.dispose()
        seen.extend(ids(events))

    for _ in range(10):
        try:
            scene.poller(source, batch_size=500).run(timer=None, handler=interrupt)
        except FetchError:
            continue
        break
    assert sorted(set(seen)) == list(range(1, 5001))
    assert len(seen) <= 5500


def test_a_crash_that_takes_the_slot_back_repeats_nothing(scene: Scene, server: OwnServer) -> None:
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    assert ids(scene.delivered(source)) == [1]
    server.crash()  # where a slot stands is written down by checkpoints only
    scene.engine.dispose()
    scene.provider.dispose_all()
    scene.run("INSERT INTO %t VALUES (2, 'b')")
    assert ids(scene.delivered(source)) == [2]


def test_a_connection_that_is_cut_in_the_middle_of_a_message_costs_nothing(scene: Scene) -> None:
    scene.run("ALTER TABLE %t ALTER v SET STORAGE EXTERNAL")
    url = make_url(scene.url)
    with CuttingProxy(str(url.host), int(url.port or 0)) as proxy:
        through = url.set(port=proxy.port).render_as_string(hide_password=False)
        source = scene.source(url=None, db_config=DbConfig(connection_url=through), snapshot="never")
        source.create_stream()
        scene.run("INSERT INTO %t SELECT n, repeat('x', 1000) FROM generate_series(1, 2000) n")
        proxy.cut_after(500_000)
        seen: list[Any] = []
        for _ in range(10):
            try:
                scene.poller(source, batch_size=100).run(timer=None, handler=lambda events: seen.extend(ids(events)))
            except FetchError:
                continue
            break
        assert proxy.cuts
        assert sorted(set(seen)) == list(range(1, 2001))
        assert len(seen) == 2000
        scene.provider.dispose_all()


class CuttingProxy(Proxy):
    """Cuts every connection once, when so many bytes have come from the server."""

    cuts = 0
    _left: int | None = None

    def cut_after(self, count: int) -> None:
        self._left = count

    def _pump(self, source: Any, target: Any, from_client: bool) -> None:
        if not from_client:
            source = _Counted(source, self)
        super()._pump(source, target, from_client)


class _Counted:
    def __init__(self, connection: Any, proxy: CuttingProxy) -> None:
        self._connection = connection
        self._proxy = proxy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def recv(self, size: int) -> bytes:
        data: bytes = self._connection.recv(size)
        proxy = self._proxy
        if proxy._left is None:
            return data
        proxy._left -= len(data)
        if proxy._left > 0:
            return data
        proxy._left = None
        proxy.cuts += 1
        raise OSError("cut")


@pytest.fixture
def little_log(scene: Scene) -> Iterator[None]:
    """The server keeps hardly any log for slots."""
    configure(scene.url, "SET max_slot_wal_keep_size = '4MB'")
    yield
    configure(scene.url, "RESET max_slot_wal_keep_size")


def configure(url: str, change: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"ALTER SYSTEM {change}")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    engine.dispose()


def test_a_slot_that_has_lost_its_log_is_told_and_the_tables_are_read_anew_where_that_is_wanted(
    scene: Scene, little_log: None
) -> None:
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    assert ids(scene.delivered(source)) == [1]
    scene.run("INSERT INTO %t VALUES (2, 'lost')")
    wait_for(lambda: lose_log(scene), 60, "the server keeps the log")
    with pytest.raises(PositionLostError, match="invalidated"):
        scene.delivered(source)
    assert any("changes are lost" in finding.text for finding in source.examine())
    anew = scene.source(on_position_lost="snapshot")
    assert ids(scene.delivered(anew)) == [1, 2]
    scene.run("INSERT INTO %t VALUES (3, 'b')")
    assert ids(scene.delivered(anew)) == [3]


def lose_log(scene: Scene) -> bool:
    """Write more log than the server keeps for a slot."""
    scene.run("SELECT pg_logical_emit_message(true, 'noise', repeat('x', 1000000)) FROM generate_series(1, 20)")
    engine = create_engine(scene.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_switch_wal()")
        connection.exec_driver_sql("CHECKPOINT")
    engine.dispose()
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = :s"
    return bool(scene.value(status, s=scene.table) == "lost")


def test_after_a_failover_a_slot_that_came_along_goes_on_and_one_that_did_not_is_told(
    kind: str, server: OwnServer, scene: Scene
) -> None:
    source, slot = scene.streaming(), f"phys_{scene.table}"
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    assert ids(scene.delivered(source)) == [1]
    newer = {"sync_replication_slots": "on", "hot_standby_feedback": "on"} if kind == "postgres18" else {}
    with standby_of(scene.url, KINDS[kind], slot, **newer) as standby:
        if kind == "postgres18":
            wait_for(lambda: came_along(scene, standby.url), 60, "the slot does not come along")
        scene.run("INSERT INTO %t VALUES (2, 'b')")
        standby.catch_up()
        standby.promote()
        moved = Scene(standby.url)
        moved.table, moved.store = scene.table, scene.store
        moved.run("INSERT INTO %t VALUES (3, 'c')")
        followed = moved.source(snapshot="never")
        if kind == "postgres18":
            from_here = scene.store.load_checkpoint("poller")
            [before] = names(source, from_here)
            wait_for(lambda: len(names(followed, from_here)) == 2, 60, "what came after the failover is missing")
            same, after = names(followed, from_here)
            assert (same, "@" in before) == (before, False)
            assert after.endswith("@2:1")  # the old server may have had another change at this place
            got: list[int] = []

            def all_came() -> bool:
                got.extend(ids(moved.delivered(followed)))  # a server that was just promoted may tell a part only
                return len(got) >= 2

            wait_for(all_came, 60, "what came after the failover is missing")
            assert got == [2, 3]
            assert moved.store.load_checkpoint("poller")["cursor"]["timeline"] == 2
        else:
            with pytest.raises(PositionLostError, match="does not exist any more"):
                moved.delivered(followed)
        moved.provider.dispose_all()
        moved.engine.dispose()


def test_what_was_read_and_never_reached_the_promoted_server_is_told(kind: str, scene: Scene) -> None:
    source, slot = scene.streaming(), f"phys_{scene.table}"
    scene.delivered(source)
    with standby_of(scene.url, KINDS[kind], slot) as standby:
        standby.promote()
        moved = Scene(standby.url)
        moved.table = scene.table
        ahead = moved.source(snapshot="never")
        ahead.create_stream() if ahead.show_stream()["slot"] is None else None
        checkpoint = scene.store.load_checkpoint("poller")["cursor"]
        moved.run("SELECT pg_logical_emit_message(true, 'noise', repeat('x', 1000))")
        end = moved.value("SELECT pg_current_wal_flush_lsn()::text")
        with pytest.raises(PositionLostError, match="promoted or restored"):
            ahead.fetch_changes({"cursor": {**checkpoint, "value": end, "timeline": 1}}, 1)
        moved.close()


def names(source: PostgresLogicalSource, checkpoint: Any) -> list[str]:
    found: list[Any] = list(source.fetch_changes(checkpoint, 10).records)
    return [change.position for change in found]


# Where no slot comes along, every failover is told.
@pytest.mark.parametrize("kind", ["postgres18"], indirect=True, scope="module")
def test_what_a_later_page_of_a_snapshot_showed_and_never_reached_the_promoted_server_is_told(
    kind: str, scene: Scene
) -> None:
    scene.run("INSERT INTO %t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    scene.source().create_stream()
    slot, one_row = f"phys_{scene.table}", {"batch_size": 1, "max_batches_per_tick": 1}
    with standby_of(scene.url, KINDS[kind], slot, sync_replication_slots="on", hot_standby_feedback="on") as standby:
        wait_for(lambda: came_along(scene, standby.url), 60, "the slot does not come along")
        scene.store = MemoryStateStore()
        assert scene.told(scene.source(), **one_row) == [("upsert", {"id": 1, "v": "a"})]
        standby.catch_up()
        standby.cut_off()
        scene.run("UPDATE %t SET v = 'undone' WHERE id = 2")
        assert scene.told(scene.source(), **one_row) == [("upsert", {"id": 2, "v": "undone"})]
        standby.promote()
        moved = Scene(standby.url)
        moved.table, moved.store = scene.table, scene.store
        with pytest.raises(PositionLostError, match="promoted or restored"):
            moved.delivered(moved.source())
        anew = moved.source(on_position_lost="snapshot")
        assert ("upsert", {"id": 2, "v": "b"}) in moved.told(anew)
        moved.provider.dispose_all()
        moved.engine.dispose()


def came_along(scene: Scene, standby: str) -> bool:
    """Let the slot move, and have it copied; a copy lasts once the slot has moved past the standby's beginning."""
    scene.run("SELECT pg_logical_emit_message(true, 'noise', 'x'), pg_log_standby_snapshot()")
    scene.delivered(scene.source(snapshot="never", heartbeat_seconds=0))
    return synced(standby, scene.table)


def synced(standby: str, slot: str) -> bool:
    engine = create_engine(standby, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}' AND synced AND NOT temporary"
        ).scalar_one()
    engine.dispose()
    return bool(found)
