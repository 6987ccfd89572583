"""The real runtime indexes, loads and invokes functions of every signature, sync and async."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.host import AppRefusedError, FunctionApp, http, queue_message, timer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.conftest import Sql

APP = Path(__file__).parent / "apps" / "signatures"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("signatures") / "app.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, customer TEXT)")
        connection.execute("INSERT INTO invoices VALUES (1, 'Ada')")
    connection.close()
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def app(database: str) -> Iterator[FunctionApp]:
    with FunctionApp(APP, {"APP_DB": database}) as running:
        yield running


def test_the_host_is_told_of_its_own_bindings_only(app: FunctionApp) -> None:
    named = {name: [binding["name"] for binding in bindings] for name, bindings in app.functions.items()}
    assert named["hidden_type_is_for_checkers_only"] == ["req", "$return"]
    assert named["on_a_timer"] == ["timer"]
    assert sorted(named["on_a_queue"]) == ["answer", "message"]


@pytest.mark.parametrize(
    ("function", "body"),
    [
        ("hidden_type_is_for_checkers_only", "Ada"),
        ("keyword_only", "1"),
        ("with_default", "1"),
        ("with_context", "with_context in signatures"),
        ("own_decorators_around", "ADA"),
        ("in_a_blueprint", "Ada"),
    ],
)
def test_an_http_function_is_invoked(app: FunctionApp, function: str, body: str) -> None:
    invocation = app.invoke(function, req=http(query={"id": "1"}))
    assert invocation.ok, invocation.traceback
    assert invocation.returned["body"] == body


def test_a_timer_function_is_invoked(app: FunctionApp, database: str, sql: Sql) -> None:
    assert app.invoke("on_a_timer", timer=timer()).ok
    assert sql(database, "SELECT customer FROM invoices WHERE id IN (10, 11)") == [("Alan",), ("Edsger",)]


def test_a_queue_function_with_an_output_of_the_host_is_invoked(app: FunctionApp, database: str, sql: Sql) -> None:
    invocation = app.invoke("on_a_queue", message=queue_message("Barbara"))
    assert invocation.outputs == {"answer": "written"}
    assert sql(database, "SELECT customer FROM invoices WHERE id = 20") == [("Barbara",)]


def test_an_exception_of_the_handler_reaches_the_host_as_it_is(app: FunctionApp, database: str, sql: Sql) -> None:
    invocation = app.invoke("failing", req=http())
    assert invocation.error == 'LookupError("the handler\'s own error")'
    assert 'function_app.py", line' in (invocation.traceback or "")
    assert sql(database, "SELECT count(*) FROM invoices WHERE id = 30") == [(0,)]


def test_indexing_needs_no_settings_and_opens_nothing(tmp_path: Path) -> None:
    with FunctionApp(APP, {"APP_DB": ""}) as app:
        assert "on_a_timer" in app.functions
        failed = app.invoke("keyword_only", req=http())
    assert "ConfigurationError" in (failed.error or "")


def test_what_the_decorators_refuse_fails_the_whole_app_with_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "function_app.py").write_text(
        "import azure.functions as func\n"
        "from azure_functions_db import DbBindings\n"
        "app, db = func.FunctionApp(), DbBindings()\n"
        "@db.inject_reader('reader', url='sqlite://')\n"
        "@app.route(route='x')\n"
        "def wrong_order(req: func.HttpRequest, reader) -> str: ...\n"
    )
    with pytest.raises(AppRefusedError, match="database decorators below them"), FunctionApp(tmp_path):
        pass


def test_any_trigger_of_the_host_can_poll(app: FunctionApp) -> None:
    polled = app.invoke("polled_over_http", req=http())
    assert polled.ok, polled.traceback
    assert json.loads(polled.returned)["handled"] >= 1
    assert app.says("polled_over_http got")
