"""Every command of `azfdb` with a change stream of MongoDB."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from pymongo import MongoClient

from tests.integration.cli import warm
from tests.integration.cli.shops import Outcome

APP = """
from __future__ import annotations
import os
from pathlib import Path
import azure.functions as func
from azure_functions_db import DbBindings, FileQuarantine, FileStateStore, MongoChangeStreamSource

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
db = DbBindings()
source = MongoChangeStreamSource(uri="%SHOP_MONGO%", database="shop", collection="orders")

@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", name="orders", source=source, checkpoint_store=FileStateStore("state"),
            quarantine=FileQuarantine("quarantine"), max_attempts=1, batch_size=10)
def on_orders(timer: func.TimerRequest, events) -> None:
    for event in events:
        if event.after["item"] == os.environ.get("REFUSED"):
            raise ValueError("cannot digest it")
        with Path("seen").open("a") as seen:
            print(repr(event.pk["_id"]), repr(event.after["price"]), file=seen)
"""
ID = "6560a0000000000000000001"


class App:
    """An app that follows a collection, in a folder of its own."""

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "SHOP_MONGO": uri}
        for name in ("state", "quarantine"):
            (folder / name).mkdir(parents=True)
        (folder / "function_app.py").write_text(APP)

    def azfdb(self, *words: str, **environment: str) -> Any:
        outcome = Outcome(*warm.run(words, self._folder, self._environment | environment, ""))
        assert outcome.code in {0, 1}, outcome
        return outcome

    def told(self, *words: str) -> Any:
        return json.loads(self.azfdb(*words, "--json").out)

    def insert(self, document: dict[str, Any]) -> None:
        with MongoClient[Any](self._environment["SHOP_MONGO"]) as client:
            client["shop"]["orders"].insert_one(document)

    def seen(self) -> str:
        return (self._folder / "seen").read_text()


@pytest.fixture
def app(tmp_path: Path, mongo_uri: str) -> App:
    with MongoClient[Any](mongo_uri) as client:
        client.drop_database("shop")
        client["shop"]["orders"].insert_one({"_id": ObjectId(ID), "item": "lamp", "price": Decimal128("12.50")})
    return App(tmp_path / "app", mongo_uri)


def test_a_poller_of_a_change_stream_runs_and_is_looked_at(app: App) -> None:
    assert app.told("status")["pollers"][0]["waiting_rows"] == 1
    assert ID in app.azfdb("tail", "orders", "--json").out
    app.azfdb("run", "--once", "on_orders")
    assert app.seen() == f"ObjectId('{ID}') Decimal128('12.50')\n"
    [status] = app.told("status")["pollers"]
    assert status["waiting_rows"] == 0
    checks = {finding["check"]: finding["grade"] for finding in app.told("doctor")["pollers"][0]["findings"]}
    assert (checks["server"], checks["rights"], checks["collection"]) == ("ok", "ok", "ok")
    assert app.told("stream", "show", "orders")["stream"]["replica_set"] == "rs0"
    assert app.told("stream", "create", "orders", "--dry-run")["statements"] == []
    assert "mongo-change-stream" in app.azfdb("inspect", "orders").out


def test_what_was_refused_is_replayed_with_its_types_and_a_reset_begins_anew(app: App) -> None:
    app.insert({"_id": 2, "item": "chair", "price": 1})
    app.azfdb("run", "--once", "on_orders", REFUSED="lamp")
    assert '"$oid"' in app.azfdb("quarantine", "list", "--json").out
    app.azfdb("quarantine", "replay", "--all")
    assert set(app.seen().splitlines()) == {"2 1", f"ObjectId('{ID}') Decimal128('12.50')"}
    app.azfdb("reset", "orders", "--to-beginning", "--yes")
    app.azfdb("run", "--once", "on_orders")
    assert app.seen().count(ID) == 2
