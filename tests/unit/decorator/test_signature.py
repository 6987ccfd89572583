"""What the Functions worker reads off a decorated function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
import types
import typing
from typing import Any

import azure.functions as func
import pytest

from azure_functions_db import ConfigurationError
from azure_functions_db.decorator.composition import disguised

USER_MODULE = """
from __future__ import annotations
from typing import TYPE_CHECKING
import azure.functions as func
if TYPE_CHECKING:
    from somewhere import Invoice, Writer

def handler(req: func.HttpRequest, user: Invoice, *, out: Writer, limit: int = 5) -> func.HttpResponse:
    raise ValueError("from the handler")
"""


def user_handler(source: str = USER_MODULE) -> Any:
    module = types.ModuleType("function_app")
    exec(compile(source, "/app/function_app.py", "exec"), module.__dict__)
    return module.handler


def hidden(handler: Any, *names: str, run: Any = dict) -> Any:
    return disguised(handler, names, run)


def test_the_host_sees_only_its_own_parameters() -> None:
    face = hidden(user_handler(), "user", "out")
    assert list(inspect.signature(face).parameters) == ["req", "limit"]
    assert inspect.signature(face).parameters["limit"].default == 5


def test_type_hints_resolve_although_injected_types_are_imported_for_checkers_only() -> None:
    face = hidden(user_handler(), "user", "out")
    assert typing.get_type_hints(face) == {"req": func.HttpRequest, "limit": int, "return": func.HttpResponse}


def test_the_file_is_the_users_own() -> None:
    assert inspect.getfile(hidden(user_handler(), "user", "out")) == "/app/function_app.py"


def test_name_doc_and_module_are_the_handlers() -> None:
    def handler(req: Any, user: Any) -> None:
        """Say hello."""

    face = hidden(handler, "user")
    assert (face.__name__, face.__doc__, face.__module__) == ("handler", "Say hello.", __name__)


def test_an_async_handler_stays_one() -> None:
    async def handler(req: Any, user: Any) -> str:
        return "done"

    async def run(given: Any) -> str:
        return await handler(**given, user=1)

    face = hidden(handler, "user", run=run)
    assert inspect.iscoroutinefunction(face)
    assert asyncio.run(face(req=1)) == "done"


def test_a_sync_handler_stays_one() -> None:
    assert not inspect.iscoroutinefunction(hidden(user_handler(), "user", "out"))


def test_arguments_may_be_given_by_place_or_name_and_defaults_are_filled_in() -> None:
    face = hidden(user_handler(), "user", "out")
    assert face("request") == face(req="request") == {"req": "request", "limit": 5}


def test_an_injected_parameter_cannot_be_passed_from_outside() -> None:
    with pytest.raises(TypeError, match="user"):
        hidden(user_handler(), "user", "out")(req=1, user=2)


def test_tracebacks_name_the_users_file_and_function() -> None:
    handler = user_handler()
    face = hidden(handler, "user", "out", run=lambda given: handler(**given, user=1, out=2))
    with pytest.raises(ValueError, match="from the handler") as raised:
        face(req=1)
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [(f.filename, f.name) for f in frames if f.filename == "/app/function_app.py"] == [
        ("/app/function_app.py", "handler"),
        ("/app/function_app.py", "handler"),
    ]


def test_a_decorator_of_the_users_own_in_between_is_no_obstacle() -> None:
    inner = user_handler()

    @functools.wraps(inner)
    def logged(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    face = hidden(logged, "user", "out")
    assert list(inspect.signature(face).parameters) == ["req", "limit"]
    assert set(typing.get_type_hints(face)) == {"req", "limit", "return"}


class Callable_:  # noqa: N801
    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (staticmethod(print), "not on a staticmethod"),
        (Callable_, "not on a type"),
        (5, "not on a int"),
        (lambda *rows: rows, r"'\*rows'"),
        (lambda **rows: rows, r"'\*\*rows'"),
        (lambda row, /: row, "positional-only"),
        ((lambda: (yield)), "not yield"),
    ],
)
def test_what_cannot_be_a_handler_is_refused(broken: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hidden(broken, "row")


def test_standing_above_an_app_decorator_is_explained() -> None:
    app = func.FunctionApp()

    @app.route(route="x")
    def handler(req: func.HttpRequest) -> str:
        return ""

    with pytest.raises(ConfigurationError, match="come first, database decorators below"):
        hidden(handler, "user")
