"""Every verb against pollers that read a log: it does what it says, or says in a sentence why it cannot."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.integration.cli import warm

SOURCES = {
    "postgres": "PostgresLogicalSource(url={url!r}, tables='orders', slot={slot!r})",
    "mariadb": "MySqlBinlogSource(url={url!r}, tables=['orders'])",
}
APP = """
from pathlib import Path

import azure.functions as func
from azure_functions_db import DbBindings, FileStateStore, MySqlBinlogSource, PostgresLogicalSource
from azure_functions_db.quarantine import FileQuarantine

app, db, folder = func.FunctionApp(), DbBindings(), Path(__file__).parent
source = {source}


@app.timer_trigger(arg_name="timer", schedule="*/5 * * * * *")
@db.trigger(
    arg_name="events",
    source=source,
    checkpoint_store=FileStateStore(folder / "state"),
    quarantine=FileQuarantine(folder / "quarantine"),
    max_attempts=1,
    name="orders",
)
def on_orders(timer: func.TimerRequest, events) -> None:
    if not (folder / "mended").exists() and any((event.after or {{}}).get("v") == "bad" for event in events):
        raise ValueError("this one is bad")
    with (folder / "told").open("a") as file:
        file.writelines(f"{{event.op}} {{event.pk['id']}}\\n" for event in events)
"""


@dataclass
class Shop:
    """An app that follows the log of a table."""

    folder: Path
    engine: Engine

    def write(self, *statements: str) -> None:
        for statement in statements:
            with self.engine.begin() as connection:
                connection.execute(text(statement))

    def azfdb(self, *words: str) -> tuple[int, str]:
        code, out, err = warm.run(words, self.folder, os.environ, "")
        return code, out if code == 0 or "--json" in words else out + err

    def tick(self) -> list[str]:
        """What a tick hands out."""
        (self.folder / "told").write_text("")
        code, out = self.azfdb("run", "--once", "on_orders")
        assert code == 0, out
        return (self.folder / "told").read_text().splitlines()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.azfdb("status", "orders", "--json")[1])["pollers"][0]
        return found


@pytest.fixture(params=SOURCES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_log_database" if is_postgres else "mariadb_database")
    source = SOURCES[request.param].format(url=url, slot=url.rpartition("/")[2].lower())
    (tmp_path / "function_app.py").write_text(APP.format(source=source))
    shop = Shop(tmp_path, create_engine(url))
    shop.write("CREATE TABLE orders (id int PRIMARY KEY, v varchar(20))", "INSERT INTO orders VALUES (1, 'first')")
    yield shop
    shop.engine.dispose()


def test_an_operator_reads_where_the_poller_stands_and_how_far_behind_it_is(shop: Shop) -> None:
    shop.tick()
    began = dt.datetime.now(dt.UTC).replace(microsecond=0)
    shop.write("UPDATE orders SET v = 'second'")
    assert shop.tick() == ["update 1"]
    shop.write("INSERT INTO orders VALUES (2, 'third')")
    status = shop.status()
    assert isinstance(status["cursor"], str)
    assert (status["waiting_unit"], status["waiting_rows"] > 0, status["lag_seconds"] >= 0) == ("bytes", True, True)
    facts = status["facts"]
    assert began <= dt.datetime.fromisoformat(facts["last_commit_at"]) <= dt.datetime.now(dt.UTC)
    assert (facts["lag_bytes"] > 0, facts["stream_lag_seconds"] >= 0) == (True, True)
    assert facts["oldest_log"] if "oldest_log" in facts else facts["retention_left_bytes"] > 0
    code, told = shop.azfdb("tail", "orders")
    assert (code, "bytes wait; only the poller itself may read this source." in " ".join(told.split())) == (0, True)
    assert shop.tick() == ["insert 2"], "looking has taken nothing"


def test_a_poller_goes_to_a_place_that_somebody_types_or_saved_or_to_the_beginning(shop: Shop) -> None:
    assert shop.tick() == ["upsert 1"]
    place, saved = shop.status()["cursor"], shop.folder / "saved.json"
    saved.write_text(shop.azfdb("export", "orders")[1])
    for goal in (("--to-cursor", place), ("--to-checkpoint", str(saved))):
        code, told = shop.azfdb("reset", "orders", *goal, "--yes")
        assert code == 0, told
    shop.write("INSERT INTO orders VALUES (2, 'second')")
    shop.azfdb("reset", "orders", "--to-cursor", place, "--yes")
    assert shop.tick() == ["insert 2"]
    for wrong, words in ((("last tuesday",), "is no"), ((place, "--pk", "id=1"), "leave --pk out")):
        code, told = shop.azfdb("reset", "orders", "--to-cursor", *wrong, "--yes")
        assert (code, words in told) == (3, True), told
    assert shop.azfdb("reset", "orders", "--to-beginning", "--yes")[0] == 0
    assert shop.tick() == ["upsert 1", "upsert 2"]
    shop.write("INSERT INTO orders VALUES (3, 'skipped')")
    assert shop.azfdb("reset", "orders", "--to-end", "--yes")[0] == 0
    shop.write("INSERT INTO orders VALUES (4, 'third')")
    assert shop.tick() == ["insert 4"]


def test_what_a_log_cannot_do_is_refused_with_what_can_be_done(shop: Shop) -> None:
    shop.tick()
    ledger = shop.engine.url.render_as_string(hide_password=False)
    for words in (("backfill", "orders", "--as", "again"), ("verify", "orders", "--ledger", ledger)):
        code, told = shop.azfdb(*words)
        assert (code, "azfdb reset NAME --to-beginning" in told) == (3, True), told


def test_a_row_that_was_put_aside_is_replayed(shop: Shop) -> None:
    shop.tick()
    shop.write("INSERT INTO orders VALUES (2, 'bad')", "INSERT INTO orders VALUES (3, 'good')")
    assert set(shop.tick()) == {"insert 3"}
    assert shop.status()["quarantined"] == 1
    (shop.folder / "mended").touch()
    (shop.folder / "told").write_text("")
    code, report = shop.azfdb("quarantine", "replay", "--all", "--poller", "orders")
    assert code == 0, report
    assert (shop.folder / "told").read_text() == "insert 2\n"
    assert shop.status()["quarantined"] == 0


def test_the_other_verbs_do_with_a_log_what_they_do_with_a_table(shop: Shop) -> None:
    shop.tick()
    for words in (
        ("doctor", "orders"),
        ("clone", "orders", "copy", "--yes"),
        ("lease", "break", "orders", "--yes", "--force"),
        ("stream", "create", "orders", "--dry-run"),
        ("stream", "create", "orders"),
        ("stream", "show", "orders"),
        ("stream", "drop", "orders", "--yes"),
    ):
        code, told = shop.azfdb(*words)
        assert code == 0, (words, told)
