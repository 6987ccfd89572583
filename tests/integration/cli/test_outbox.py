"""Every command of `azfdb` with an outbox."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import Outbox
from tests.integration.cli import warm
from tests.integration.cli.shops import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

APP = """
from __future__ import annotations
import datetime as dt
import os
import time
import azure.functions as func
from azure_functions_db import DbBindings, FileQuarantine, FileStateStore, OutboxSource
from azure_functions_db.ledger import DeliveredLedger

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
db = DbBindings()
source = OutboxSource(url="%SHOP_DB%", retention=dt.timedelta(hours=1))

@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", name="orders", source=source, checkpoint_store=FileStateStore("state"),
            quarantine=FileQuarantine("quarantine"), max_attempts=1, batch_size=10,
            observers=[DeliveredLedger(url="%SHOP_DB%")])
def on_orders(timer: func.TimerRequest, events) -> None:
    for event in events:
        if event.after["aggregateid"] == os.environ.get("REFUSED"):
            raise ValueError("cannot digest it")
    with open("handled.txt", "a") as out:
        out.writelines(f"{event.after['aggregateid']} {event.event_id}\\n" for event in events)
"""


class App:
    """An app that consumes an outbox, in a folder of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "SHOP_DB": database}
        self.engine: Engine = create_engine(database)
        for name in ("state", "quarantine"):
            (folder / name).mkdir(parents=True)
        (folder / "function_app.py").write_text(APP)

    def azfdb(self, *words: str, **environment: str) -> Outcome:
        return Outcome(*warm.run(words, self._folder, self._environment | environment, ""))

    def add(self, *keys: str) -> None:
        with self.engine.begin() as connection:
            Outbox().add_many(connection, [{"topic": "orders", "key": key, "payload": {"n": 1}} for key in keys])

    def add_apart(self, keys: str) -> None:
        """Add one event after the other, no two of them at one time: SQLite tells times by the millisecond."""
        for key in keys:
            began = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 == began:
                pass
            self.add(key)

    @property
    def handled(self) -> str:
        """The keys of the events that the handler was given, in order."""
        return "".join(line[0] for line in (self._folder / "handled.txt").read_text().splitlines())

    @property
    def ids(self) -> set[str]:
        return {line.split()[1] for line in (self._folder / "handled.txt").read_text().splitlines()}

    def row(self, key: str) -> tuple[str, int, str]:
        """Return the id, the number and the time of the event of a key."""
        written = "to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24\\:MI\\:SS.US')"
        if self.engine.dialect.name != "postgresql":
            written = "created_at"
        with self.engine.connect() as connection:
            wanted = text(f"SELECT id, sequence, {written} FROM outbox WHERE aggregateid = :key")
            found = connection.execute(wanted, {"key": key}).one()
        return str(found[0]), int(found[1]), str(found[2])

    def rows(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM outbox")).scalar_one())


@pytest.fixture
def app(tmp_path: Path, database_url: str) -> Iterator[App]:
    app = App(tmp_path / "app", database_url)
    yield app
    app.engine.dispose()


def test_an_outbox_is_made_by_the_statements_that_a_dry_run_prints(app: App) -> None:
    planned = app.azfdb("outbox", "create", "--dry-run", "--json").json["outboxes"][0]
    assert not planned["done"]
    assert planned["statements"][0].startswith("CREATE TABLE outbox")
    assert app.azfdb("outbox", "create", "--dry-run").out.count("CREATE TABLE outbox") == 1
    made = app.azfdb("outbox", "create", "--json").json["outboxes"][0]
    assert made == planned | {"done": True}
    assert "nothing is missing" in app.azfdb("outbox", "create").out
    url = app.engine.url.render_as_string(hide_password=False)
    assert app.azfdb("outbox", "create", "--url", f"{url}#second", "--json").json["outboxes"][0]["table"] == "second"


def test_every_command_works_with_an_outbox(app: App) -> None:
    Outbox().create(app.engine)
    app.add("1", "2", "3")
    assert [each["after"]["aggregateid"] for each in app.azfdb("tail", "orders", "--json").json["events"]] == list(
        "123"
    )
    assert app.azfdb("status", "orders", "--json").json["pollers"][0]["waiting_rows"] == 3
    assert app.azfdb("run", "--once", "on_orders", REFUSED="2").code == 0
    [entry] = app.azfdb("quarantine", "list", "--json").json["rows"]
    assert entry["event"]["after"]["payload"] == {"n": 1}
    assert app.azfdb("quarantine", "replay", "--all").code == 0
    seen = app.azfdb("outbox", "status", "--json").json["outboxes"][0]
    assert (seen["rows"], seen["waiting"], seen["left"]) == (3, 0, 3)
    assert app.azfdb("status", "orders", "--json").json["pollers"][0]["waiting_rows"] == 0
    checks = {each["check"]: each["grade"] for each in app.azfdb("doctor", "--json").json["pollers"][0]["findings"]}
    assert checks["late commits"] == "ok"
    assert "error" not in checks.values()
    first = app.row("1")
    assert app.azfdb("reset", "orders", "--to-cursor", first[0], "--yes").code == 0
    assert app.azfdb("status", "orders", "--json").json["pollers"][0]["waiting_rows"] == 2
    assert app.azfdb("reset", "orders", "--to-beginning", "--yes").code == 0
    assert app.azfdb("status", "orders", "--json").json["pollers"][0]["waiting_rows"] == 3


def test_a_poller_goes_back_to_an_event_or_a_time(app: App) -> None:
    Outbox().create(app.engine)
    app.add_apart("12345")
    assert app.azfdb("run", "--once", "on_orders").code == 0
    number, moment = app.row("2")[1], app.row("4")[2].replace(" ", "T")
    for place, again in ((app.row("3")[0], "45"), (str(number), "345"), (f"{moment}Z", "45"), ("beginning", "12345")):
        before = app.handled
        assert app.azfdb("reset", "orders", "--to-cursor", place, "--yes").code == 0
        assert app.azfdb("run", "--once", "on_orders").code == 0
        assert app.handled == before + again, place
    for wrong, said in (
        ("00000000-0000-0000-0000-000000000000", "has no row"),
        ("99999", "has no row"),
        ("2999-01-01", "no row written since"),
        ("number=5", "A position is written"),
    ):
        refused = app.azfdb("reset", "orders", "--to-cursor", wrong, "--yes")
        assert (refused.code, said in refused.complaint) == (3, True), refused.err
    app.add("6", "7")
    assert app.azfdb("reset", "orders", "--to-end", "--yes").code == 0
    app.add("8")
    assert app.azfdb("run", "--once", "on_orders").code == 0
    assert app.handled.endswith("58")
    assert app.rows() == 8, "whoever goes back or forth has nothing removed"


def test_events_that_are_kept_are_delivered_again_by_a_backfill(app: App) -> None:
    Outbox().create(app.engine)
    app.add_apart("12345")
    assert app.azfdb("run", "--once", "on_orders").code == 0
    app.add("6")
    command = ("backfill", "orders", "--as", "some", "--from", app.row("2")[0], "--to", app.row("4")[0], "--json")
    assert app.azfdb(*command).json["rows"] == 3
    assert app.handled == "12345" + "234"
    assert app.azfdb("backfill", "orders", "--as", "all", "--json").json["rows"] == 5
    assert app.handled[8:] == "12345", "up to the live poller's checkpoint"
    since = app.row("5")[2].replace(" ", "T")
    assert app.azfdb("backfill", "orders", "--as", "since", "--from", since, "--to", "2999-01-01").code == 0
    assert app.handled[13:] == "56"
    assert app.azfdb("replay", "orders", "--from", app.row("1")[0], "--to", app.row("2")[0]).code == 0
    assert app.handled[15:] == "12"
    assert len(app.ids) == 6, "an event has one id, whoever delivers it"
    assert app.rows() == 6, "a backfill removes nothing"
    refused = app.azfdb("backfill", "orders", "--as", "other", "--from", "nobody").complaint
    assert "has no row 'nobody'" in refused or "'nobody' is no value of id (UUID)" in refused


def test_what_is_kept_is_compared_with_the_ledger(app: App) -> None:
    Outbox().create(app.engine)
    app.add("1", "2", "3")
    assert app.azfdb("verify", "orders").out == "0 missing of 0\n"
    assert app.azfdb("run", "--once", "on_orders", REFUSED="3").code == 0
    app.add("4")
    assert app.azfdb("verify", "orders").out == "0 missing of 3, 1 in quarantine\n", "the last one is not due"
    with app.engine.begin() as connection:
        connection.execute(text("DELETE FROM azfdb_delivered WHERE cursor_value = :it"), {"it": str(app.row("2")[1])})
    lost = app.azfdb("verify", "orders", "--json")
    assert (lost.code, [row["key"] for row in lost.json["missing"]]) == (1, [{"aggregateid": "2"}])
    assert app.azfdb("verify", "orders", "--from", app.row("3")[0]).out == "0 missing of 1, 1 in quarantine\n" or (
        app.engine.dialect.name == "postgresql"  # where the events of one transaction share their cursor
    )
    assert app.azfdb("verify", "orders", "--replay").out.endswith("1 missing of 3, now replayed, 1 in quarantine\n")
    assert app.handled[-1] == "2"
    assert app.azfdb("verify", "orders", "--sample", "0.5").code == 0


def test_only_what_was_delivered_is_pruned(app: App) -> None:
    Outbox().create(app.engine)
    app.add("1", "2")
    assert app.azfdb("outbox", "prune", "orders", "--json").json["rows"] == 0
    assert app.azfdb("run", "--once", "on_orders").code == 0
    app.add("3")
    assert app.azfdb("outbox", "prune", "orders", "--older-than", "1h", "--json").json["rows"] == 0
    assert app.azfdb("outbox", "prune", "orders", "--dry-run", "--json").json == {
        "poller": "orders",
        "table": "outbox",
        "rows": 2,
        "done": False,
    }
    assert app.azfdb("outbox", "prune", "orders").code == 2
    assert app.rows() == 3
    assert app.azfdb("outbox", "prune", "orders", "--yes", "--json").json["rows"] == 2
    assert app.rows() == 1
    assert len(app.azfdb("tail", "orders", "--json").json["events"]) == 1


def test_bad_input_is_one_clear_line(app: App, tmp_path: Path) -> None:
    assert "is no age" in app.azfdb("outbox", "prune", "orders", "--older-than", "soon").err
    assert "no table 'outbox'" in app.azfdb("outbox", "status").complaint
    assert "not both" in app.azfdb("outbox", "create", "orders", "--url", "sqlite://").err
    assert json.loads(app.azfdb("outbox", "status", "--json").err)["error_type"] == "SourceConfigurationError"
