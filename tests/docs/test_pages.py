"""Every Python and SQL block of the documentation runs, page by page."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from azure_functions_db.sql.engine import default_provider
from tests.acceptance.test_as_printed import mariadb_of, postgres_of
from tests.docs.pages import CHECKOUT, Reader, blocks_of, pages, typed_pages
from tests.integration.cli import warm
from tests.support import cosmos, typist
from tests.support.broker import running_broker

# All others run on SQLite.
DATABASES = {
    "how-to/outbox.md": "postgres_database",
    "how-to/postgresql.md": "postgres_database",
    "how-to/postgresql-log.md": "postgres_log_database",
    "how-to/mysql.md": "mariadb_database",
    "how-to/mysql-binlog.md": "mariadb_database",
    "how-to/sql-server.md": "sql_server_database",
    "how-to/sql-server-changes.md": "sql_server_database",
}
# What is told, or typed where there is no server of the tests: in Azure, in a server's own shell.
READ_ONLY = {"console", "ini", "javascript", "mysql", "sh", "text", "tsql"}
TYPED = {str(page.relative_to(CHECKOUT / "docs")): page for page in typed_pages()}
PAGES = {str(page.relative_to(CHECKOUT / "docs")): page for page in pages()}


@pytest.fixture
def database(request: pytest.FixtureRequest, page: str) -> str:
    return str(request.getfixturevalue(DATABASES.get(page, "sqlite_database")))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str) -> Iterator[None]:
    """An empty working directory, the settings that pages use, and no engine left over."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_DB", database)
    yield
    default_provider().dispose_all()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, database: str) -> None:
    Reader(PAGES[page], database).read()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", ["broken.md"])
def test_a_page_that_says_what_is_not_so_is_noticed(page: str, database: str, tmp_path: Path) -> None:
    broken = tmp_path / page
    broken.write_text('```python\nprint("one")\n```\n\n```text title="Output"\ntwo\n```\n')
    assert [block.kind for block in blocks_of(broken)] == ["python", "text"]
    with pytest.raises(AssertionError, match=r"broken\.md:6"):
        Reader(broken, database).read()


class WarmTypist(typist.Typist):
    """Types into the tests' own environment, where the command line is there at once."""

    def _run(self, typed: str) -> int:
        command = typed.removesuffix(" 2>/dev/null")
        words = shlex.split(command, comments=True)
        if words[0] != "azfdb" or any(sign in command for sign in "|;&$>"):
            return super()._run(typed)
        code, out, err = warm.run(tuple(words[1:]), self.folder, self.environment, "")
        self.printed = out + err if command == typed else out
        return code


@pytest.fixture
def own(typed_page: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What this reader has in place of the page's addresses."""
    database = request.getfixturevalue(DATABASES.get(typed_page, "postgres_database"))
    if typed_page == "how-to/relay.md":
        with running_broker(tmp_path) as broker:
            yield postgres_of(database) | {"Events": broker.connection_string} | helped(tmp_path, "padding")
    elif typed_page == "how-to/cosmos.md":
        request.getfixturevalue("cosmos_server")
        yield {"Cosmos": cosmos.connection_to_new("state")} | helped(tmp_path, "cosmos")
    elif typed_page == "how-to/mongodb.md":
        uri = request.getfixturevalue("mongo_uri")
        with MongoClient[Any](uri) as client:
            client.drop_database("shop")
        yield {"SHOP_MONGO": uri}
    elif "postgresql" in database:
        yield postgres_of(database)
    else:
        yield mariadb_of(database, "SHOP_DB") if "mysql" in database else {"SHOP_DB": database}


def helped(folder: Path, module: str) -> dict[str, str]:
    """Let every Python of the reader install what a stand-in of the tests needs on their side."""
    (folder / "sitecustomize.py").write_text(f"from tests.support import {module}\n\n{module}.install()\n")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{CHECKOUT}"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("typed_page", TYPED)
def test_a_page_is_followed_as_printed(typed_page: str, own: dict[str, str], tmp_path: Path) -> None:
    page, folder = TYPED[typed_page], tmp_path / "empty"
    folder.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    left_out = ("COLUMNS", "SHOP_DB")
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | {"PATH": path}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # see `preloaded`
    # A process that was started before does not read what the reader's own Python has at its start.
    reader = (typist.Typist if "PYTHONPATH" in own else WarmTypist)(folder, environment, own)
    blocks = typist.blocks_of(page.read_text())
    for block in blocks:
        assert block.title or block.kind in READ_ONLY, f"{typed_page}:{block.line} belongs to no file"
        if not block.code.startswith('$ pip install "azure-functions-db'):
            reader.take(block, page)
    check_files(folder, " ".join(block.code for block in blocks if block.kind == "console"), reader, page)


def check_files(folder: Path, typed: str, reader: typist.Typist, page: Path) -> None:
    """What no command has run is at least imported, or parsed."""
    used = {"function_app"} if "azfdb " in typed else set()
    for module in {file.stem for file in folder.glob("*.py") if file.name not in typed} - used:
        reader.type(typist.Command(f"python -c 'import {module}'", "", interrupted=False), str(page))
    for file in folder.glob("*.json"):
        json.loads(file.read_text())
    for file in folder.glob("*.toml"):
        tomllib.loads(file.read_text())
