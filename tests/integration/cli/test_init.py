"""`azfdb init`: the app that it writes runs and passes its own test; nothing is overwritten, nothing half written."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, DateTime, Integer, MetaData, String, Table, create_engine, insert

from azure_functions_db.operations.init import FILES
from tests.acceptance.host import FunctionApp, timer
from tests.integration.cli import warm
from tests.integration.cli.shops import AZFDB, Outcome

HOSTILE = [
    "'); DROP TABLE orders; --",
    'three """ quotes\n#',
    "back\\slash {x} $url %SOURCE_DB%",
    "Ünïcode \u202e 日本",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    return tmp_path / "app"


def azfdb(folder: Path, *words: str, **environment: str) -> Outcome:
    outcome = Outcome(*warm.run(words, folder, {**os.environ, **environment}, ""))
    for left in (".in", ".out", ".err"):  # the test's own
        (folder / left).unlink()
    return outcome


def make(url: str, name: str = "orders", *columns: Column[Any], rows: int = 2) -> None:
    """Make a table, with rows that are numbered in every column."""
    table = Table(name, MetaData(), *(columns or [Column("id", Integer, primary_key=True), Column("version", Integer)]))
    engine = create_engine(url)
    with engine.begin() as connection:
        table.create(connection)
        for number in range(1, rows + 1):
            texts = {column.name: str(number) for column in table.columns if isinstance(column.type, String)}
            connection.execute(insert(table).values({column.name: number for column in table.columns} | texts))
    engine.dispose()


def test_the_app_runs_at_once_on_every_database(folder: Path, database_url: str) -> None:
    make(database_url)
    told = azfdb(folder, "init", "--url", database_url, "--table", "orders")
    assert (told.code, told.err) == (0, "")
    assert "changed_orders follows orders by version, key id." in told.out
    assert "CREATE INDEX ix_orders_version_id ON orders (version, id)" in told.out
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert stat.S_IMODE((folder / "local.settings.json").stat().st_mode) == 0o600
    assert database_url not in (folder / "function_app.py").read_text()
    run = azfdb(folder, "run", "--once", "changed_orders")
    assert run.code == 0, run.err
    assert "2 change(s), the last one {'id': 2}" in run.out


@pytest.mark.parametrize("store", ["azure", "files", "database"])
def test_the_app_is_loaded_by_the_real_runtime_whatever_its_store(
    folder: Path, postgres_database: str, azurite: str, store: str
) -> None:
    make(postgres_database)
    assert azfdb(folder, "init", "--url", postgres_database, "--store", store).code == 0
    settings = json.loads((folder / "local.settings.json").read_text())["Values"] | {"AzureWebJobsStorage": azurite}
    with FunctionApp(folder, settings | {"WEBSITE_SITE_NAME": folder.parent.name}) as app:
        assert list(app.functions) == ["changed_orders"]
        ticked = app.invoke("changed_orders", timer=timer())
        assert ticked.ok, ticked.traceback
    assert (folder / "changes.db").is_file()
    assert (folder / "state").is_dir() == (store == "files")


def test_the_app_passes_its_own_test_and_fails_it_when_it_does_things_twice(folder: Path, sqlite_database: str) -> None:
    make(
        sqlite_database,
        "Orders of 2026",
        Column("nr", Integer, primary_key=True),
        Column("changed_at", DateTime),
        rows=0,
    )
    assert azfdb(folder, "init", "--url", sqlite_database).code == 0
    assert "survived duplicates, crash-and-redeliver, poison-rows, lost-leases" in own_test(folder, passes=True)
    script = folder / "function_app.py"
    script.write_text(script.read_text().replace("PRIMARY KEY", "").replace("OR REPLACE ", ""))
    test = folder / "test_function_app.py"
    test.write_text(test.read_text().replace("PRIMARY KEY", ""))
    assert "does not survive duplicates" in own_test(folder, passes=False)


def own_test(folder: Path, *, passes: bool) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode == 0) == passes, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_tables_and_columns_stay_names(folder: Path, database_url: str, name: str) -> None:
    if "mysql" in database_url:
        name = name.replace("\n", " ")  # SQLAlchemy reads MariaDB's own description of a table line by line
    key, cursor = f"{name[:40]} key", f"{name[:40]} version"
    columns = [Column(key, Integer, primary_key=True), Column(cursor, Integer)]
    make(database_url, name, *columns)
    told = azfdb(folder, "init", "--url", database_url, "--table", name)
    assert told.code == 0, told.err
    assert "%%" not in told.out, "the statement can be typed as it is"
    code = ast.parse((folder / "function_app.py").read_text())
    values = [node.value for node in ast.walk(code) if isinstance(node, ast.Constant)]
    assert {name, key, cursor} <= set(values), "each is one literal"
    [function] = [node.name for node in ast.walk(code) if isinstance(node, ast.FunctionDef)]
    assert re.fullmatch(r"changed_[a-z0-9_]+", function)
    run = azfdb(folder, "run", "--once", function)
    assert run.code == 0, run.err
    assert "2 change(s)" in run.out
    ast.parse((folder / "test_function_app.py").read_text())


@pytest.mark.parametrize("there", FILES)
def test_nothing_is_overwritten_and_nothing_else_written(folder: Path, sqlite_database: str, there: str) -> None:
    make(sqlite_database)
    (folder / there).symlink_to("/nowhere/at/all")
    told = azfdb(folder, "init", "--url", sqlite_database, "--table", "orders")
    assert told.code == 3
    assert f"has {there} already" in told.complaint
    assert [path.name for path in folder.iterdir()] == [there]


def test_what_cannot_be_finished_leaves_nothing(folder: Path, sqlite_database: str, monkeypatch: Any) -> None:
    from azure_functions_db import ConfigurationError
    from azure_functions_db.operations import init

    make(sqlite_database)
    monkeypatch.setattr(init, "write_new", _full_disk)
    choice = init.Choice(sqlite_database, "orders", "version", ["id"])
    with pytest.raises(ConfigurationError, match="No space left"):
        init.init(choice, folder)
    assert list(folder.iterdir()) == []


def _full_disk(path: Path, content: bytes) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("", 2, "database URL"),
        ("--url nonsense", 3, "The database URL cannot be read"),
        ("--url sqlite:///nowhere.db", 3, "There is no SQLite file nowhere.db"),
        ("--url postgresql+psycopg://nobody:hush@127.0.0.1:9/x", 4, "cannot be reached"),
        ("--url %NO_SUCH_SETTING%", 3, "NO_SUCH_SETTING"),
        ("--url %SHOP%", 2, "there are keyless, orders"),
        ("--url %SHOP% --table parcels", 3, "There is no table 'parcels'"),
        ("--url %SHOP% --table orders --cursor changed", 3, "There is no column 'changed'"),
        ("--url %SHOP% --table keyless", 2, "cannot be guessed: column that grows with every change"),
        ("--url %SHOP% --table keyless --cursor note", 2, "cannot be guessed: column that tells rows apart"),
        ("--url %SHOP% --table orders --store tape", 2, "tape"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    folder: Path, sqlite_database: str, words: str, code: int, reason: str
) -> None:
    make(sqlite_database)
    make(sqlite_database, "keyless", Column("note", String(20)), Column("other", String(20)))
    told = azfdb(folder, "init", *words.split(), SHOP=sqlite_database, COLUMNS="1000")
    assert told.code == code
    [line] = [line for line in told.err.splitlines() if "Usage:" not in line and "Try '" not in line and line.strip()]
    assert reason in line
    assert "hush" not in told.err
    assert list(folder.iterdir()) == []


def test_a_url_that_names_a_setting_is_left_to_the_environment(folder: Path, sqlite_database: str) -> None:
    make(sqlite_database)
    assert azfdb(folder, "init", "--url", "%SHOP_DB%", SHOP_DB=sqlite_database).code == 0
    assert 'SOURCE = "%SHOP_DB%"' in (folder / "function_app.py").read_text()
    assert sqlite_database not in "".join(path.read_text() for path in folder.iterdir())
    assert azfdb(folder, "run", "--once", "changed_orders", SHOP_DB=sqlite_database).code == 0


def test_an_app_in_another_folder_finds_the_file_that_was_meant_here(folder: Path) -> None:
    make(f"sqlite:///{folder}/shop.db")
    assert azfdb(folder, "init", "new/app", "--url", "sqlite:///shop.db").code == 0
    run = azfdb(folder, "run", "new/app", "--once", "changed_orders")
    assert "2 change(s)" in run.out


@pytest.mark.parametrize(
    ("columns", "cursor", "told"),
    [
        ([Column("version", Integer), Column("updated_at", DateTime)], "updated_at", ""),
        ([Column("lastModifiedDate", DateTime)], "lastModifiedDate", ""),
        ([Column("RowVersion", Integer)], "RowVersion", ""),
        ([Column("conversion", Integer)], "id", "inserts are seen, updates are not"),
        ([Column("version", String(9))], "id", "inserts are seen, updates are not"),
    ],
)
def test_the_cursor_that_is_proposed(
    folder: Path, postgres_database: str, columns: list[Column[Any]], cursor: str, told: str
) -> None:
    make(postgres_database, "orders", Column("id", Integer, primary_key=True), *columns, rows=0)
    report = azfdb(folder, "init", "--url", postgres_database, "--json").json
    assert (report["cursor"], report["key"]) == (cursor, ["id"])
    assert told in json.dumps(report["findings"])


def test_a_version_that_each_row_counts_for_itself_is_questioned(folder: Path, sqlite_database: str) -> None:
    make(sqlite_database, rows=0)
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        for number in range(20):
            connection.exec_driver_sql("INSERT INTO orders VALUES (?, ?)", (number, number % 3))
    engine.dispose()
    assert "is it counted row by row?" in azfdb(folder, "init", "--url", sqlite_database).out


def test_on_a_terminal_it_asks_and_an_empty_answer_takes_the_proposal(folder: Path, sqlite_database: str) -> None:
    make(sqlite_database)
    make(sqlite_database, "parcels")
    leader, follower = pty.openpty()
    os.write(leader, f"{sqlite_database}\nparcels\n\nfiles\n".encode())
    done = subprocess.run(
        [str(AZFDB), "init"], cwd=folder, stdin=follower, stdout=follower, stderr=follower, check=False
    )
    asked = os.read(leader, 10_000).decode()
    os.close(leader)
    os.close(follower)
    assert done.returncode == 0, asked
    assert "Table (there are orders, parcels): " in asked
    assert "Column that grows with every change [version]: " in asked
    assert 'table="parcels"' in (folder / "function_app.py").read_text()
    assert 'state = FileStateStore("state")' in (folder / "function_app.py").read_text()


def test_the_files_that_are_written_pass_a_strict_linter(folder: Path, sqlite_database: str) -> None:
    make(sqlite_database)
    assert azfdb(folder, "init", "--url", sqlite_database).code == 0
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    rules = ["--isolated", "--select=E,F,I,UP,B,W", "--line-length=120"]
    subprocess.run([ruff, "check", *rules, str(folder)], check=True)
    subprocess.run([ruff, "format", "--isolated", "--line-length=120", "--check", str(folder)], check=True)
