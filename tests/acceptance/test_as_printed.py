"""README, tutorial and examples as their reader follows them: in an empty folder, with nothing but the built wheel."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement
from pymongo import MongoClient
from sqlalchemy import make_url

from azure_functions_db import __version__
from tests.acceptance.conftest import EXAMPLES
from tests.acceptance.host import FunctionApp, served
from tests.support.broker import running_broker
from tests.support.typist import Typist, blocks_of, fresh_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    At = Callable[..., Typist]
    Follow = Callable[..., None]

CHECKOUT = Path(__file__).parents[2]
README = CHECKOUT / "README.md"
TUTORIAL = CHECKOUT / "docs" / "tutorial" / "first-poller.md"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
BUILT_OF = ("README.md", "LICENSE", "CHANGELOG.md", "hatch_build.py", "pyproject.toml", "src")
EXTRAS = ("cli", "postgres", "mysql", "mssql", "mongo", "eventhubs", "servicebus")
# Sends what it is given with -Q, or has in the file behind -i.
SQLCMD = """#!/usr/bin/env python
import os, pathlib, sys
from sqlalchemy import create_engine
kind, given = sys.argv[-2:]
with create_engine(os.environ["SHOP_DB"]).begin() as connection:
    connection.exec_driver_sql(given if kind == "-Q" else pathlib.Path(given).read_text())
"""


# Many small processes: on a busy machine they take their time, and none of it says anything about the pages.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of an environment into which the README's own commands have installed the library."""
    # The workers of a run share the folder above theirs: the first one makes it, the others wait.
    shared = tmp_path_factory.getbasetemp().parent / "fresh-environment"
    shared.mkdir(exist_ok=True)
    ready = shared / "variables.json"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            ready.write_text(json.dumps(installed_as_printed(shared)))
    variables: dict[str, str] = json.loads(ready.read_text())
    return variables


def installed_as_printed(shared: Path) -> dict[str, str]:
    extras = [need for extra in EXTRAS for need in PROJECT["optional-dependencies"][extra]]
    fresh = fresh_environment(shared / "venv", [*PROJECT["dependencies"], *extras, "pytest", "hatchling"])
    checkout = shared / "checkout"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *BUILT_OF],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, files.stdout.split("\0")):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((CHECKOUT / name).read_bytes())
    newcomer = Typist(checkout, fresh)
    [install] = [block for block in blocks_of(README.read_text()) if "pip wheel" in block.code]
    newcomer.take(install, README)
    return newcomer.environment


@pytest.fixture
def at(environment: Mapping[str, str], tmp_path: Path) -> At:
    """Return a reader in an empty folder, with services of their own."""

    def reader(**own: str) -> Typist:
        (tmp_path / "empty").mkdir()
        return Typist(tmp_path / "empty", dict(environment), own)

    return reader


def test_what_the_readme_installs_is_this_library(at: At) -> None:
    newcomer = at()
    question = "import azure_functions_db as it; print(it.__version__, it.__file__)"
    newcomer._run(f'python -c "{question}"')
    version, place = newcomer.printed.split()
    assert version == __version__
    assert "fresh-environment" in place
    newcomer._run("pip show -f azure-functions-db")
    assert "Location: " in newcomer.printed
    assert "Editable" not in newcomer.printed


def test_the_quickstart(at: At) -> None:
    newcomer = at()
    for block in blocks_of(README.read_text()):
        if "pip wheel" not in block.code:
            newcomer.take(block, README)


def test_the_tutorial(at: At) -> None:
    at().follow(TUTORIAL)


def postgres_of(url: str) -> dict[str, str]:
    """Return the variables that psql and a URL without a host read."""
    place = make_url(url)
    facts = {"HOST": place.host, "PORT": place.port, "USER": place.username, "PASSWORD": place.password}
    return {f"PG{name}": str(value) for name, value in {**facts, "DATABASE": place.database}.items()}


def mariadb_of(url: str, setting: str) -> dict[str, str]:
    """Return the setting, and what the client is called with in place of a file with the login."""
    place = make_url(url)
    login = f"--host={place.host} --port={place.port} --user={place.username} --password={place.password}"
    calls = {f"mariadb {option}shop": f"mariadb {login} {option}{place.database}" for option in ("", "-t ")}
    return {setting: url, **calls}


@pytest.fixture
def follow(at: At, site: dict[str, str], environment: Mapping[str, str]) -> Follow:
    """Follow the README of an example in a copy of its folder; HTTP goes to the real runtime."""

    def follow_example(example: str, *, serves: bool = False, **own: str) -> None:
        reader = at(**site, **own)
        shutil.copytree(EXAMPLES / example, reader.folder, dirs_exist_ok=True)
        page = reader.folder / "README.md"
        if not serves:
            reader.follow(page)
            return
        python = Path(environment["PATH"].partition(os.pathsep)[0]) / "python"
        values = next(json.loads(block.code)["Values"] for block in blocks_of(page.read_text()) if block.kind == "json")
        with FunctionApp(reader.folder, values | reader.own, str(python)) as app, served(app) as address:
            reader.own = {**reader.own, "localhost:7071": address}
            reader.follow(page)

    return follow_example


def test_every_example_is_followed_here() -> None:
    named = {path.name for path in EXAMPLES.iterdir() if (path / "function_app.py").exists()}
    assert named == {
        *ON_POSTGRES,
        *SERVED,
        "quickstart",
        "postgres_mirror",
        "postgres_to_mariadb",
        "mysql_mirror",
        "sqlserver_mirror",
        "mongo_mirror",
        "relay",
    }


ON_POSTGRES = ("hash_diff", "tombstones", "transactional")
SERVED = ("async_handlers", "http_api", "outbox", "partitions", "quarantine")


@pytest.mark.parametrize("example", ON_POSTGRES)
def test_an_example_on_postgresql(follow: Follow, postgres_database: str, example: str) -> None:
    follow(example, **postgres_of(postgres_database))


@pytest.mark.parametrize("example", SERVED)
def test_an_example_that_is_served(follow: Follow, postgres_database: str, example: str) -> None:
    container = f"state-{secrets.token_hex(8)}"
    follow(example, serves=True, **postgres_of(postgres_database), STATE_CONTAINER=container)


def test_the_example_quickstart(follow: Follow) -> None:
    follow("quickstart")


def test_the_example_postgres_to_mariadb(follow: Follow, postgres_database: str, mariadb_database: str) -> None:
    follow("postgres_to_mariadb", **postgres_of(postgres_database), **mariadb_of(mariadb_database, "CATALOGUE_DB"))


def test_the_example_postgres_mirror(follow: Follow, postgres_log_database: str, mariadb_database: str) -> None:
    follow("postgres_mirror", **postgres_of(postgres_log_database), **mariadb_of(mariadb_database, "MIRROR_DB"))


def test_the_example_mysql_mirror(follow: Follow, postgres_database: str, mariadb_database: str) -> None:
    follow("mysql_mirror", **postgres_of(postgres_database), **mariadb_of(mariadb_database, "SHOP_DB"))


def test_the_example_sqlserver_mirror(
    follow: Follow, postgres_database: str, sql_server: Any, environment: Mapping[str, str], tmp_path: Path
) -> None:
    client = tmp_path / "sqlcmd"
    client.write_text(SQLCMD)
    client.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    follow("sqlserver_mirror", **postgres_of(postgres_database), SHOP_DB=sql_server.url("pyodbc"), PATH=path)


def test_the_example_mongo_mirror(follow: Follow, postgres_database: str, mongo_uri: str) -> None:
    with MongoClient[Any](mongo_uri) as client:
        client.drop_database("shop")
    follow("mongo_mirror", **postgres_of(postgres_database), SHOP_MONGO=mongo_uri)


def test_the_example_relay(follow: Follow, postgres_database: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("from tests.support import padding\n\npadding.install()\n")
    with running_broker(tmp_path) as broker:
        brokers = {"Events": broker.connection_string, "Bus": broker.connection_string}
        path = f"{tmp_path}{os.pathsep}{CHECKOUT}"
        follow("relay", **postgres_of(postgres_database), **brokers, PYTHONPATH=path)
        assert len(broker.received()) == 201


def test_every_command_that_installs_the_library_asks_for_this_one() -> None:
    """Without a version, pip would take what another library has left on the package index."""
    pages = [README, *sorted((CHECKOUT / "docs").rglob("*.md")), *sorted((CHECKOUT / "examples").rglob("*"))]
    asked = re.compile(r"(?:pip install[^\n]*?|^)(azure-functions-db(?:\[[\w,]+\])?(?![\w/-])[^\s\"`]*)", re.MULTILINE)
    texts = [page for page in pages if page.is_file() and page.suffix != ".pyc"]
    found = [(page, name) for page in texts for name in asked.findall(page.read_text())]
    wanted = [(page, name) for page, name in found if "moving-from-0-8" not in page.name]
    assert [(page, name) for page, name in wanted if not asks_for_this_one(Requirement(name))] == []
    assert len(wanted) > 15


def asks_for_this_one(requirement: Requirement) -> bool:
    return __version__ in requirement.specifier and "0.8.3" not in requirement.specifier
