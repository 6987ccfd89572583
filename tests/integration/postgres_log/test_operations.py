"""What operators see and do: doctor, status, metrics, azfdb stream, rights, the dead man's switch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from azure_functions_db import FileStateStore, PollTrigger, PositionLostError, SourceConfigurationError
from tests.integration.cli import warm
from tests.integration.postgres_log.scene import COLUMNS, Scene

# Other tests write to the log of the same server meanwhile, if not so much.
LIMIT = 32
APP = """
import azure.functions as func
from azure_functions_db import DbBindings, FileStateStore, PostgresLogicalSource

app = func.FunctionApp()
db = DbBindings()
source = PostgresLogicalSource(url={url!r}, tables={table!r}, slot={table!r}, max_retained_mb={limit})


@app.timer_trigger(arg_name="timer", schedule="*/5 * * * * *")
@db.trigger(arg_name="events", source=source, checkpoint_store=FileStateStore({state!r}), name="orders")
def orders(timer: func.TimerRequest, events) -> None:
    print([event.op for event in events])
"""


@pytest.fixture(autouse=True)
def table(scene: Scene) -> None:
    scene.run(f"CREATE TABLE %t ({COLUMNS})")


def azfdb(app: Path, *arguments: str) -> tuple[int, str]:
    code, out, err = warm.run((*arguments, "--app", str(app)), app, {"PATH": "/usr/bin:/bin"}, "")
    return code, out + err


@pytest.fixture
def app(scene: Scene, tmp_path: Path) -> Path:
    content = APP.format(url=scene.url, table=scene.table, state=str(tmp_path / "state"), limit=LIMIT)
    (tmp_path / "function_app.py").write_text(content)
    return tmp_path


def test_slot_and_publication_are_shown_made_and_dropped_from_the_command_line(scene: Scene, app: Path) -> None:
    code, planned = azfdb(app, "stream", "create", "orders", "--dry-run")
    assert (code, "CREATE PUBLICATION" in planned, "pg_create_logical_replication_slot" in planned) == (0, True, True)
    assert scene.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = :s", s=scene.table) == 0
    assert json.loads(azfdb(app, "stream", "create", "orders", "--dry-run", "--json")[1])["done"] is False
    assert azfdb(app, "stream", "create", "orders") == (0, planned.replace("This would be done:", "Done:"))
    code, shown = azfdb(app, "stream", "show", "orders", "--json")
    assert json.loads(shown)["stream"]["slot"] == scene.table
    assert azfdb(app, "stream", "drop", "orders")[0] == 2
    assert json.loads(azfdb(app, "stream", "drop", "orders", "--dry-run", "--json")[1])["done"] is False
    code, dropped = azfdb(app, "stream", "drop", "orders", "--yes")
    assert (code, "pg_drop_replication_slot" in dropped) == (0, True)
    assert azfdb(app, "stream", "create", "orders", "--dry-run")[1] == planned


def test_the_status_shows_how_much_log_is_held_and_warns_past_the_limit(scene: Scene, app: Path) -> None:
    azfdb(app, "stream", "create", "orders")
    code, healthy = azfdb(app, "status", "--json")
    facts = json.loads(healthy)["pollers"][0]["facts"]
    assert (code, facts["retained_limit_bytes"], facts["wal_status"]) == (0, LIMIT * 2**20, "reserved")
    abandon(scene, LIMIT)
    code, status = azfdb(app, "status", "--json")
    poller = json.loads(status)["pollers"][0]
    assert code == 1
    assert poller["facts"]["retained_bytes"] > LIMIT * 2**20
    assert f"max_retained_mb={LIMIT}" in poller["problems"][0]
    assert "retained bytes" in azfdb(app, "status")[1]
    code, found = azfdb(app, "doctor", "--json")
    assert f"max_retained_mb={LIMIT}" in found


def abandon(scene: Scene, megabytes: int = 1) -> None:
    """Let the log grow while nobody reads the slot."""
    written = f"generate_series(1, {20 + 12 * megabytes})"
    scene.run(f"SELECT pg_logical_emit_message(true, 'noise', repeat('x', 100000)) FROM {written}")


class Gauges:
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def increment(self, name: str, value: float = 1, labels: Any = None) -> None: ...

    def observe(self, name: str, value: float, labels: Any = None) -> None: ...

    def set_gauge(self, name: str, value: float, labels: Any = None) -> None:
        self.values[name] = value


def fail(events: Any) -> None:
    raise ValueError("a handler that has been broken for days")


def test_an_abandoned_source_warns_and_is_measured(scene: Scene, caplog: Any) -> None:
    source, gauges = scene.streaming(max_retained_mb=1), Gauges()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    abandon(scene)
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="broken"):
        scene.poller(source, metrics=gauges).run(timer=None, handler=fail)
    assert any(record.message == "stream_health" and record.levelno == logging.WARNING for record in caplog.records)
    assert gauges.values["azfdb_stream_retained_bytes"] > 2**20
    assert gauges.values["azfdb_stream_lag_bytes"] >= 0


def test_an_abandoned_slot_is_dropped_where_that_was_asked_for_and_only_there(scene: Scene) -> None:
    source = scene.streaming(max_retained_mb=1, on_max_retained="drop")
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    scene.delivered(source)
    abandon(scene)
    with pytest.raises(PositionLostError, match="was dropped, as on_max_retained='drop' says"):
        scene.poller(source).run(timer=None, handler=fail)
    assert scene.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = :s", s=scene.table) == 0
    with pytest.raises(PositionLostError, match="does not exist any more"):
        scene.delivered(source)


def test_lag_and_the_last_commit_are_told_when_a_tick_has_caught_up(scene: Scene) -> None:
    source, gauges = scene.streaming(), Gauges()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    scene.delivered(source, metrics=gauges)
    assert gauges.values["azfdb_stream_lag_seconds"] == 0
    [fact] = source.report(scene.store.load_checkpoint("poller"))
    assert "last_commit_at" in fact.log_fields()


def test_the_doctor_is_content_with_a_running_source(scene: Scene) -> None:
    source = scene.streaming()
    assert {finding.grade for finding in source.examine()} <= {"ok", "note"}


def test_the_doctor_says_what_the_first_tick_will_make(scene: Scene) -> None:
    notes = [finding.text for finding in scene.source().examine() if finding.grade == "note"]
    assert len([note for note in notes if "the first tick makes it" in note]) == 2


@pytest.mark.parametrize(
    ("statement", "check", "cure"),
    [
        ("ALTER TABLE %t REPLICA IDENTITY NOTHING", "replica identity", "REPLICA IDENTITY FULL"),
        ("ALTER TABLE %t DROP CONSTRAINT %t_pkey", "replica identity", "ADD PRIMARY KEY"),
        ("CREATE PUBLICATION %t", "publication", "ADD TABLE"),
        ("CREATE PUBLICATION %t FOR TABLE %t WITH (publish = 'insert')", "publication", "SET (publish ="),
        ("SELECT pg_create_logical_replication_slot('%t', 'pgoutput')", "publication", "azfdb stream drop"),
    ],
)
def test_the_doctor_finds_what_is_wrong_and_says_what_cures_it(
    scene: Scene, statement: str, check: str, cure: str
) -> None:
    scene.run(statement)
    found = [finding for finding in scene.source().examine() if finding.grade in {"error", "warning"}]
    assert [finding.check for finding in found] == [check]
    assert cure in (found[0].remedy or "")


def test_a_table_without_identity_is_not_published_as_that_would_stop_its_writers(scene: Scene) -> None:
    scene.run("ALTER TABLE %t DROP CONSTRAINT %t_pkey")
    with pytest.raises(SourceConfigurationError, match="neither a primary key nor a replica identity"):
        scene.source().create_stream()


def test_a_table_that_is_not_there_is_told(scene: Scene) -> None:
    with pytest.raises(SourceConfigurationError, match=r"no table public\.nowhere"):
        scene.source(tables="nowhere", slot=f"{scene.table}_x").validate()


@pytest.fixture
def login(scene: Scene) -> Any:
    """A login with a password and no right at all; its URL."""
    name = f"r_{scene.table}"
    scene.run(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield make_url(scene.url).set(username=name, password="secret").render_as_string(hide_password=False)
    scene.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_these_rights_are_enough_and_none_of_them_can_be_missing(scene: Scene, login: str) -> None:
    role = f"r_{scene.table}"
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    scene.source().create_stream()
    source = scene.source(url=login, create=False)
    for wanted, grant in [
        ("may not replicate", f"ALTER ROLE {role} REPLICATION"),
        ("cannot be read", f"GRANT USAGE ON SCHEMA public TO {role}"),
        ("cannot be read", f"GRANT SELECT ON %t TO {role}"),
    ]:
        with pytest.raises(SourceConfigurationError, match=wanted):
            source.validate()
        with pytest.raises(Exception):  # noqa: B017 - whichever step needs it first
            scene.delivered(source)
        scene.run(grant)
    source.validate()
    told = scene.told(source)
    scene.run("UPDATE %t SET v = 'b'")
    told += scene.told(source)
    assert told == [("upsert", {"id": 1, "v": "a"}), ("update", {"id": 1, "v": "b"})]


def test_a_login_that_may_not_publish_is_told_who_can(scene: Scene, login: str) -> None:
    role = f"r_{scene.table}"
    scene.run(
        f"ALTER ROLE {role} REPLICATION", f"GRANT USAGE ON SCHEMA public TO {role}", f"GRANT SELECT ON %t TO {role}"
    )
    with pytest.raises(SourceConfigurationError, match="owner of the tables"):
        scene.source(url=login).create_stream()
    with pytest.raises(SourceConfigurationError, match="azfdb stream create"):
        scene.source(url=login).validate()


def test_the_slot_survives_a_failover_where_the_server_can_do_that(scene: Scene) -> None:
    source = scene.streaming()
    version = int(scene.value("SHOW server_version_num"))
    assert source.show_stream()["failover"] is (version >= 170000)


def test_a_lost_position_is_shown_by_the_status(scene: Scene, app: Path) -> None:
    store = FileStateStore(app / "state")
    PollTrigger(name="orders", source=scene.source(), checkpoint_store=store).run(
        timer=None, handler=lambda events: None
    )
    azfdb(app, "stream", "drop", "orders", "--yes")
    code, status = azfdb(app, "status", "--json")
    assert (code, "does not exist any more" in json.loads(status)["pollers"][0]["problems"][0]) == (1, True)
