"""The README's code runs in the real runtime; `test_as_printed.py` types its commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.host import FunctionApp, http, timer
from tests.support.typist import blocks_of

if TYPE_CHECKING:
    from tests.acceptance.conftest import Sql

CHECKOUT = Path(__file__).parents[2]
BLOCKS = [block for block in blocks_of((CHECKOUT / "README.md").read_text()) if block.kind == "python"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in BLOCKS:
        if block.title:
            (tmp_path / block.title).write_text(block.code)
    return tmp_path


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_make(target: str) -> None:
    assert re.search(rf"^{target}:.*## ", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)


def test_the_code_runs_in_the_real_runtime(folder: Path, sqlite_database: str, site: dict[str, str], sql: Sql) -> None:
    code = "\n\n".join(block.code for block in BLOCKS if block.title != "shop.py")
    (folder / "function_app.py").write_text(code)
    crm = f"sqlite:///{folder / 'crm.db'}"
    for url in (sqlite_database, crm):
        sql(url, "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, version INTEGER)")
    subprocess.run([sys.executable, "shop.py"], cwd=folder, check=True)
    rows = [{"id": 1, "name": "Ada", "version": 1}, {"id": 2, "name": "A. Lovelace", "version": 2}]
    with FunctionApp(folder, {"SHOP_DB": sqlite_database, "CRM_DB": crm, **site}) as app:
        assert app.invoke("changed_orders", timer=timer()).ok
        assert app.invoke("put_customers", req=http("PUT", body=rows)).status == 204
        assert app.invoke("get_customer", req=http(route={"id": "1"})).json == rows[0]
        assert app.invoke("get_customer", req=http(route={"id": "3"})).status == 404
        copied = app.invoke("copy_customers", timer=timer())
        assert copied.ok, copied.traceback
        assert app.invoke("merge_customers", req=http("POST", query={"from": "2", "into": "1"})).status == 204
    assert sql(crm, "SELECT id, name FROM customers ORDER BY id") == [(1, "Ada"), (2, "A. Lovelace")]
    assert sql(sqlite_database, "SELECT id, name FROM customers") == [(1, "A. Lovelace")]
