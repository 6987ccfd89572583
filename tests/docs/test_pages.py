"""Every Python and SQL block of the documentation runs, page by page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from azure_functions_db.sql.engine import default_provider
from tests.acceptance.test_as_printed import mariadb_of, postgres_of
from tests.docs.pages import CHECKOUT, Reader, blocks_of, pages, typed_pages
from tests.integration.cli import warm
from tests.support import typist

# All others run on SQLite.
DATABASES = {
    "how-to/postgresql.md": "postgres_database",
    "how-to/postgresql-log.md": "postgres_log_database",
    "how-to/mysql.md": "mariadb_database",
    "how-to/mysql-binlog.md": "mariadb_database",
    "how-to/sql-server-changes.md": "sql_server_database",
}
TYPED = {str(page.relative_to(CHECKOUT / "docs")): page for page in typed_pages()}
PAGES = {str(page.relative_to(CHECKOUT / "docs")): page for page in pages()}


@pytest.fixture
def database(request: pytest.FixtureRequest, page: str) -> str:
    return str(request.getfixturevalue(DATABASES.get(page, "sqlite_database")))


@pytest.fixture
def place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str, page: str, request: pytest.FixtureRequest
) -> Iterator[None]:
    """An empty working directory, the settings that pages use, and no engine left over."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_DB", database)
    if page == "how-to/mongodb.md":
        monkeypatch.setenv("SHOP_MONGO", request.getfixturevalue("mongo_uri"))
        with MongoClient[Any](os.environ["SHOP_MONGO"]) as client:
            client.drop_database("shop")
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
        words = shlex.split(typed, comments=True)
        if words[0] != "azfdb" or any(sign in typed for sign in "|;&$"):
            return super()._run(typed)
        code, out, err = warm.run(tuple(words[1:]), self.folder, self.environment, "")
        self.printed = out + err
        return code


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", TYPED)
def test_a_page_is_followed_as_printed(page: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    database = request.getfixturevalue(DATABASES.get(page, "postgres_database"))
    own = mariadb_of(database, "SHOP_DB") if "mysql" in database else postgres_of(database)
    (tmp_path / "empty").mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    left_out = ("COLUMNS", "SHOP_DB")
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | {"PATH": path}
    reader = WarmTypist(tmp_path / "empty", environment, own)
    for block in typist.blocks_of(TYPED[page].read_text()):
        assert block.title or block.kind in {"console", "ini", "mysql", "sh", "text"}, (
            f"{page}:{block.line} belongs to no file"
        )
        if not block.code.startswith('$ pip install "azure-functions-db'):
            reader.take(block, TYPED[page])
    # What no command has run is at least imported.
    typed = " ".join(block.code for block in typist.blocks_of(TYPED[page].read_text()) if block.kind == "console")
    unused = {file.stem for file in (tmp_path / "empty").glob("*.py") if file.name not in typed} - {"function_app"}
    for module in unused:
        reader.type(typist.Command(f"python -c 'import {module}'", "", interrupted=False), page)
