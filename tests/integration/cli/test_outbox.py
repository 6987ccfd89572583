"""Every command of `azfdb` with an outbox."""

from __future__ import annotations

import json
import os
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
import azure.functions as func
from azure_functions_db import DbBindings, FileQuarantine, FileStateStore, OutboxSource

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
db = DbBindings()
source = OutboxSource(url="%SHOP_DB%", retention=dt.timedelta(hours=1))

@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", name="orders", source=source, checkpoint_store=FileStateStore("state"),
            quarantine=FileQuarantine("quarantine"), max_attempts=1, batch_size=10)
def on_orders(timer: func.TimerRequest, events) -> None:
    for event in events:
        if event.after["aggregateid"] == os.environ.get("REFUSED"):
            raise ValueError("cannot digest it")
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
    assert "cannot be read in stretches" in app.azfdb("verify", "orders", "--ledger", str(app.engine.url)).err
    cursor = app.azfdb("inspect", "orders", "--json").json["document"]["checkpoint"]["cursor"]
    first = [f"{name}={value - 2}" for name, value in cursor["tiebreaker"].items()]
    value = cursor["value"] if app.engine.dialect.name == "postgresql" else cursor["value"] - 2
    assert app.azfdb("reset", "orders", "--to-cursor", str(value), "--pk", *first, "--yes").code == 0
    assert app.azfdb("status", "orders", "--json").json["pollers"][0]["waiting_rows"] == 2
    assert app.azfdb("reset", "orders", "--to-beginning", "--yes").code == 0
    assert app.azfdb("status", "orders", "--json").json["pollers"][0]["waiting_rows"] == 3


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
