"""The README does what it says: its commands run as printed, its code runs in the real runtime."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.host import FunctionApp, http, timer

if TYPE_CHECKING:
    from tests.acceptance.conftest import Sql

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]


def named(name: str) -> str:
    return next(code for code in PYTHON if code.startswith(f"# {name}\n"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("function_app.py", "shop.py"):
        (tmp_path / name).write_text(named(name))
    return tmp_path


def test_every_block_is_of_a_kind_that_is_run_here() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    assert COMMANDS == [
        'pip install "azure-functions-db[cli]"',
        "python shop.py",
        "azfdb run",
        "make demo",
        "make test",
    ]


def test_the_extra_that_is_to_be_installed_exists_and_has_the_command() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "azure-functions-db"
    assert "cli" in project["optional-dependencies"]
    assert "azfdb" in project["scripts"]


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_make(target: str) -> None:
    assert re.search(rf"^{target}:.*## ", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)


def test_the_quickstart_runs_as_printed(folder: Path) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "PYTHONUNBUFFERED": "1"}
    place, run = (["/bin/sh", "-c", f"exec {command}"] for command in ("python shop.py", "azfdb run"))
    for printed in ("changed: {'id': 1, 'status': 'new', 'version': 1}", "changed: {'id': 2,"):
        subprocess.run(place, cwd=folder, env=environment, check=True)
        with subprocess.Popen(run, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            # After the first run only the second order is new: it goes on where it was.
            assert running.stdout.readline().startswith(printed)
            running.send_signal(signal.SIGINT)
            assert running.wait(timeout=60) == 0


def test_the_code_runs_in_the_real_runtime(folder: Path, sqlite_database: str, site: dict[str, str], sql: Sql) -> None:
    code = "\n\n".join(code for code in PYTHON if not code.startswith("# shop.py"))
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
