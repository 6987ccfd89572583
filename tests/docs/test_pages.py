"""Every Python and SQL block of the documentation runs, page by page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from azure_functions_db.sql.engine import default_provider
from tests.docs.pages import CHECKOUT, Reader, blocks_of, pages

# All others run on SQLite.
DATABASES = {
    "how-to/postgresql.md": "postgres_database",
    "how-to/postgresql-log.md": "postgres_log_database",
    "how-to/mysql.md": "mariadb_database",
    "how-to/mysql-binlog.md": "mariadb_database",
    "how-to/sql-server-changes.md": "sql_server_database",
}
PAGES = {str(page.relative_to(CHECKOUT / "docs")): page for page in pages()}


@pytest.fixture
def database(request: pytest.FixtureRequest, page: str) -> str:
    return str(request.getfixturevalue(DATABASES.get(page, "sqlite_database")))


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, database: str) -> None:
    Reader(PAGES[page], database).read()


@pytest.mark.parametrize("page", ["broken.md"])
def test_a_page_that_says_what_is_not_so_is_noticed(page: str, database: str, tmp_path: Path) -> None:
    broken = tmp_path / page
    broken.write_text('```python\nprint("one")\n```\n\n```text title="Output"\ntwo\n```\n')
    assert [block.kind for block in blocks_of(broken)] == ["python", "text"]
    with pytest.raises(AssertionError, match=r"broken\.md:6"):
        Reader(broken, database).read()
