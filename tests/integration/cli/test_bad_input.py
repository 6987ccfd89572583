"""What goes wrong is told in one line with a code for scripts, and nothing is changed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, inspect

from azure_functions_db import FileStateStore
from tests.integration.cli.shops import AZFDB

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop

CLOSED = "postgresql+psycopg://somebody:hush@127.0.0.1:9/shop"
CHANGES = [
    ("reset", "orders", "--to-beginning"),
    ("reset", "orders", "--to-cursor", "1", "--pk", "id=1"),
    ("clone", "orders", "copy"),
    ("lease", "break", "orders"),
]


@pytest.fixture
def used(shop: Shop) -> Shop:
    """A shop whose poller has come to order 2."""
    shop.sell(1, 2)
    FileStateStore(shop.folder / "state").reset_to_cursor("orders", 2, {"id": 2})
    return shop


def state_of(shop: Shop) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (shop.folder / "state").rglob("*.json")}


def test_what_is_wrong_is_json_for_machines(used: Shop) -> None:
    told = used.azfdb("inspect", "orders", "--store", CLOSED, "--json")
    assert (told.code, told.out) == (4, "")
    assert json.loads(told.err)["error_type"] == "StateStoreError"
    assert "hush" not in told.err


@pytest.mark.parametrize("words", [("tail", "orders"), ("backfill", "orders", "--as", "again")], ids=" ".join)
def test_a_database_that_does_not_answer(used: Shop, words: tuple[str, ...]) -> None:
    before = state_of(used)
    told = used.azfdb(*words, SHOP_DB=CLOSED)
    assert told.code == 4
    assert "hush" not in told.complaint
    assert state_of(used) == before


def test_a_database_that_does_not_answer_is_a_finding_and_a_problem(used: Shop) -> None:
    examined = used.azfdb("doctor", "--json", SHOP_DB=CLOSED)
    assert examined.code == 1
    wrong = [found["text"] for found in examined.json["pollers"][0]["findings"] if found["grade"] == "error"]
    assert "cannot be reached" in wrong[0]
    shown = used.azfdb("status", "--json", SHOP_DB=CLOSED)
    assert shown.code == 1
    assert shown.json["pollers"][0]["cursor"] == 2, "what can be known is shown"
    assert "hush" not in shown.out + examined.out


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_nothing_is_changed_without_a_backup(used: Shop, words: tuple[str, ...]) -> None:
    used.azfdb("clone", "orders", "copy", "--yes")
    (used.folder / "no-folder").write_text("")
    before = state_of(used)
    told = used.azfdb(*words, "--yes", "--force", "--backups", "no-folder/backups")
    assert told.code == 3
    assert "no backup can be written" in told.complaint
    assert state_of(used) == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--to-cursor", "soon", "--pk", "id=1"), "'soon' is no value of version"),
        (("--to-cursor", "1", "--pk", "id=one"), "'one' is no value of id"),
        (("--to-cursor", "1", "--pk", "name=1"), "give --pk id=…"),
        (("--to-cursor", "1", "--pk", "id"), "--pk takes NAME=VALUE"),
    ],
)
def test_a_position_that_cannot_be(used: Shop, words: tuple[str, ...], reason: str) -> None:
    before = state_of(used)
    told = used.azfdb("reset", "orders", *words, "--yes")
    assert told.code == 3
    assert reason in told.complaint
    assert state_of(used) == before


def test_more_than_one_goal(used: Shop) -> None:
    told = used.azfdb("reset", "orders", "--to-beginning", "--adopt-fingerprint", "--yes")
    assert told.code == 2
    assert "exactly one of --to-beginning" in told.err


def test_a_look_makes_no_table(used: Shop, postgres_database: str) -> None:
    assert used.azfdb("status", "--store", postgres_database).code == 3
    assert used.azfdb("inspect", "orders", "--store", postgres_database).code == 3
    engine = create_engine(postgres_database)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


def test_a_document_that_makes_no_sense(used: Shop) -> None:
    [path] = (used.folder / "state").rglob("*.json")
    path.write_text('{"version": 1, "poller_')
    shown = used.azfdb("inspect", "orders")
    assert shown.code == 1
    assert '{"version": 1, "poller_' in shown.out
    assert used.azfdb("status").code == 1
    assert used.azfdb("reset", "orders", "--to-beginning", "--yes").code == 1
    assert path.read_text() == '{"version": 1, "poller_'
    assert used.azfdb("reset", "orders", "--to-beginning", "--yes", "--force").code == 0
    assert used.document()["checkpoint"] == {}


def test_a_changed_source_is_seen_and_adopted(used: Shop) -> None:
    used.sell(3)
    used.tick()
    app = used.folder / "function_app.py"
    app.write_text(app.read_text().replace('table="orders"', 'table="orders", where="id > 0"'))
    assert "another definition" in used.azfdb("status").out
    assert used.azfdb("doctor").code == 1
    assert used.azfdb("reset", "orders", "--adopt-fingerprint", "--yes").code == 0
    assert used.azfdb("doctor").code == 0
    assert used.position() == 3


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        (None, "There is no function app"),
        ("raise RuntimeError('postgresql://me:hush@db/shop')", "cannot be imported: RuntimeError"),
        ("x = 1", "defines no function app"),
    ],
)
def test_an_app_that_is_none(tmp_path: Path, used: Shop, app: str | None, reason: str) -> None:
    if app is not None:
        (tmp_path / "function_app.py").write_text(app)
    told = used.azfdb("status", "--app", str(tmp_path))
    assert told.code == 3
    assert reason in told.complaint
    assert "hush" not in told.complaint


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--store", "somewhere"), "take a URL"),
        (("--store", "file:///nowhere/at/all"), "There is no directory"),
        (("--store", "nosuchdialect://host/x"), "nosuchdialect"),
        (("--store", "azureblob://NO_SUCH_SETTING/x"), "NO_SUCH_SETTING"),
        (("--store", "%NO_SUCH_SETTING%"), "NO_SUCH_SETTING"),
        (("--store", CLOSED, "--app", "."), "not both"),
    ],
)
def test_a_place_that_is_none(used: Shop, words: tuple[str, ...], reason: str) -> None:
    told = used.azfdb("inspect", "orders", *words)
    assert told.code == 3
    assert reason in told.complaint


def test_a_backfill_keeps_its_stretch_and_its_name(used: Shop) -> None:
    assert "a name of its own" in used.azfdb("backfill", "orders", "--as", "orders").complaint
    used.azfdb("clone", "orders", "copy", "--yes")
    assert "no backfill's" in used.azfdb("backfill", "orders", "--as", "copy").complaint
    assert used.azfdb("backfill", "orders", "--as", "again", "--to", "1", "--keep").code == 0
    other = used.azfdb("backfill", "orders", "--as", "again", "--to", "2")
    assert other.code == 3
    assert "needs another name" in other.complaint


def test_a_typed_name_confirms_and_another_does_not(used: Shop) -> None:
    def typed(answer: str) -> int:
        leader, follower = pty.openpty()
        os.write(leader, answer.encode())
        command = [str(AZFDB), "reset", "orders", "--to-beginning"]
        try:
            done = subprocess.run(command, cwd=used.folder, stdin=follower, capture_output=True, check=False)
        finally:
            os.close(leader)
            os.close(follower)
        return done.returncode

    before = state_of(used)
    assert typed("order\n") == 2
    assert state_of(used) == before
    assert typed("orders\n") == 0
    assert used.document()["checkpoint"] == {}
