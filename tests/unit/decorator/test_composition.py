"""Which decorators go together, in which order, and what is said about those that do not."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import types
from itertools import permutations
from typing import Any

import azure.functions as func
import pytest

from azure_functions_db import (
    AsyncDbOut,
    AsyncDbReader,
    AsyncDbWriter,
    ConfigurationError,
    DbBindings,
    DbOut,
    DbReader,
    DbWriter,
    MemoryStateStore,
    get_db_metadata,
)
from azure_functions_db.core.types import SourceDescriptor

URL = "sqlite:///never-opened.db"
db = DbBindings()


class Source:
    source_descriptor = SourceDescriptor("orders", "test", "sha256:0")
    cursor_column = "id"
    pk_columns = ("id",)

    def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
        return []


def decorator(kind: str, arg_name: str) -> Any:
    match kind:
        case "trigger":
            return db.trigger(arg_name=arg_name, source=Source(), checkpoint_store=MemoryStateStore())
        case "input":
            return db.input(arg_name, url=URL, table="users", pk={"id": 1})
        case "output":
            return db.output(arg_name, url=URL, table="users")
        case "inject_reader":
            return db.inject_reader(arg_name, url=URL)
        case _:
            return db.inject_writer(arg_name, url=URL, table="users")


def decorated(*kinds: str) -> Any:
    def handler(req: func.HttpRequest, first: Any, second: Any) -> None: ...

    fn: Any = handler
    for kind, arg_name in zip(kinds, ("first", "second"), strict=False):
        fn = decorator(kind, arg_name)(fn)
    return fn


VALID = [
    ("trigger", "output"),
    ("trigger", "inject_writer"),
    ("trigger", "input"),
    ("trigger", "inject_reader"),
    ("input", "output"),
    ("input", "inject_writer"),
    ("inject_reader", "inject_writer"),
    ("inject_reader", "output"),
]
KINDS = ("trigger", "input", "output", "inject_reader", "inject_writer")


@pytest.mark.parametrize("pair", [order for pair in VALID for order in permutations(pair)])
def test_what_goes_together_goes_in_either_order(pair: tuple[str, str]) -> None:
    assert list(inspect.signature(decorated(*pair)).parameters) == ["req"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stands_twice(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"@db\.{kind} stands twice on the function 'handler'"):
        decorated(kind, kind)


@pytest.mark.parametrize(
    ("pair", "instead"),
    [(("input", "inject_reader"), "injected reader"), (("output", "inject_writer"), "injected writer")],
)
def test_a_refused_pair_is_told_what_to_use_instead(pair: tuple[str, str], instead: str) -> None:
    for order in permutations(pair):
        with pytest.raises(ConfigurationError, match=f"cannot stand on one function.*{instead}"):
            decorated(*order)


def test_the_rules_hold_across_a_decorator_of_the_users_own() -> None:
    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def logging(**given: Any) -> Any:
            return fn(**given)

        return logging

    with pytest.raises(ConfigurationError, match="cannot stand on one function"):
        decorator("inject_writer", "second")(logged(decorated("output")))
    kept = decorator("inject_reader", "second")(logged(decorated("output")))
    assert list(inspect.signature(kept).parameters) == ["req"]
    noted = get_db_metadata(kept)
    assert noted is not None
    assert (len(noted["bindings"]), len(noted["injections"])) == (1, 1)


def test_two_decorators_cannot_fill_one_parameter() -> None:
    with pytest.raises(ConfigurationError, match="want to fill the parameter 'first'"):
        decorator("output", "first")(decorated("input"))


def test_a_parameter_that_the_function_does_not_have_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no parameter 'third'.*'req', 'first', 'second'"):
        decorator("input", "third")(decorated())


def test_standing_above_the_apps_decorator_is_explained() -> None:
    app = func.FunctionApp()
    with pytest.raises(ConfigurationError, match="come first, database decorators below"):
        decorator("input", "first")(app.route(route="x")(decorated()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_call_is_explained(kind: str) -> None:
    with pytest.raises(ConfigurationError, match="must be the name of a parameter"):
        decorator(kind, decorated)(decorated())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of pk"),
        ({"table": "t", "pk": {"id": 1}, "query": "SELECT 1"}, "exactly one of pk"),
        ({"pk": {"id": 1}}, "give table= too"),
        ({"table": "t", "pk": {}}, "names no column"),
        ({"table": "t", "pk": 5}, "a dict or a function"),
        ({"table": "t", "pk": {"id": 1}, "params": {"a": 1}}, "params= belong to query="),
        ({"table": "", "query": "SELECT 1"}, "the name of a table"),
        ({"query": " "}, "the text of an SQL query"),
        ({"query": "SELECT 1", "params": [1]}, "a dict or a function"),
        ({"query": "SELECT 1", "on_not_found": "ignore"}, "'none' or 'raise'"),
        ({"query": "SELECT 1", "model": dict}, "Pydantic model class"),
        ({"table": "t", "pk": lambda request: {"id": request}}, "wants 'request'.*'req'"),
        ({"table": "t", "pk": lambda **all_: all_}, "name each of its parameters"),
        ({"table": "t", "pk": dict.fromkeys}, "name each of its parameters|wants 'iterable'"),
    ],
)
def test_wrong_options_of_an_input_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        db.input("first", url=URL, **options)(decorated())


def test_a_resolver_must_not_be_async() -> None:
    async def key(req: Any) -> dict[str, Any]:
        return {}

    with pytest.raises(ConfigurationError, match="must not be async"):
        db.input("first", url=URL, table="t", pk=key)  # type: ignore[arg-type]


def test_a_resolver_cannot_ask_for_an_injected_value_wherever_the_other_decorator_stands() -> None:
    asking = db.input("first", url=URL, table="t", pk=lambda second: second)
    with pytest.raises(ConfigurationError, match="wants 'second'"):
        asking(decorator("output", "second")(decorated()))
    with pytest.raises(ConfigurationError, match="wants 'second'"):
        decorator("output", "second")(asking(decorated()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "t", "action": "replace"}, "'insert' or 'upsert'"),
        ({"table": "t", "action": "upsert"}, "needs conflict_columns="),
        ({"table": "t", "action": "upsert", "conflict_columns": "id"}, "the list of columns"),
        ({"table": "t", "conflict_columns": ["id"]}, "belong to action='upsert'"),
        ({"table": ""}, "must be the name of a table"),
        ({"table": None}, "must name the table"),
    ],
)
def test_wrong_options_of_an_output_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        db.output("first", url=URL, **options)


@pytest.mark.parametrize("kind", ["input", "output", "inject_reader", "inject_writer"])
@pytest.mark.parametrize("place", [{}, {"url": URL, "db_config": URL}, {"url": 5}])
def test_exactly_one_database_is_given(kind: str, place: dict[str, Any]) -> None:
    needs = {"input": {"table": "t", "pk": {"id": 1}}, "inject_reader": {}}.get(kind, {"table": "t"})
    with pytest.raises(ConfigurationError, match="exactly one of url="):
        getattr(db, kind)("first", **place, **needs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 0}, "from 1 up"),
        ({"partitions": True}, "from 1 up"),
        ({"partitions": 2}, "A Source cannot be partitioned"),
        ({"partition": lambda req: 0}, "give partitions= too"),
        ({"batch_size": 0}, "batch_size"),
        ({"lease_ttl_seconds": 0}, "lease_ttl_seconds"),
        ({"batchsize": 10}, "no option 'batchsize'; it has: .*batch_size"),
        ({"quarantine": "file"}, "quarantine= was given a str, which has no put"),
        ({"metrics": print}, "has no increment"),
        ({"retry_policy": 3}, "has no pauses"),
        ({"normalizer": "x"}, "has no __call__"),
        ({"transactional": True}, "SqlStateStore"),
        ({"source": "orders"}, "str"),
        ({"checkpoint_store": "blob"}, "no state store"),
    ],
)
def test_wrong_options_of_a_trigger_are_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"source": Source(), "checkpoint_store": MemoryStateStore(), **options}
    with pytest.raises(ConfigurationError, match=message):
        db.trigger(arg_name="first", **given)(decorated())


def test_metadata_tells_what_is_bound_without_credentials() -> None:
    def handler(req: func.HttpRequest, user: Any, out: Any) -> None: ...

    handler._azure_functions_metadata = {"other": {"kept": True}}  # type: ignore[attr-defined]
    secret = "postgresql+psycopg://scott:ti/g@er@db.example/shop?sslpassword=hidden"
    bound = db.output("out", url=secret, table="orders", action="upsert", conflict_columns=["id"])(
        db.inject_reader("user", url="%SHOP_DB%", table="users", schema="crm")(handler)
    )
    out = {
        "kind": "output",
        "parameter": "out",
        "connection_setting": "postgresql+psycopg://***@db.example/shop?***",
        "resource": {"table": "orders"},
    }
    user = {"kind": "reader", "parameter": "user", "connection_setting": "%SHOP_DB%", "resource": {"table": "users"}}
    assert get_db_metadata(bound) == {
        "version": 1,
        "bindings": [out | {"action": "upsert", "conflict_columns": ["id"]}],
        "injections": [user | {"schema": "crm"}],
    }
    assert bound._azure_functions_metadata["other"] == {"kept": True}  # type: ignore[attr-defined]
    assert "db" not in handler._azure_functions_metadata  # type: ignore[attr-defined]


def test_metadata_is_found_through_the_apps_decorator_and_cannot_be_changed() -> None:
    app = func.FunctionApp()
    registered = app.route(route="x")(decorated("output"))
    found = get_db_metadata(registered)
    assert found is not None
    assert found["bindings"][0]["resource"] == {"table": "users"}
    found["bindings"].clear()
    again = get_db_metadata(registered)
    assert again is not None
    assert again["bindings"]


def test_an_undecorated_function_has_no_metadata() -> None:
    assert get_db_metadata(decorated()) is None


@pytest.mark.parametrize(
    "url",
    [
        "%SERVER%;Pwd=hidden",
        "mssql+pyodbc:///?odbc_connect=Pwd%3Dhidden",
        "x://u:hi/dden@h",
        "x://u:hi?dden@h",
        "x://hidden@h",
    ],
)
def test_no_form_of_a_url_shows_its_password(url: str) -> None:
    bound = db.inject_reader("first", url=url)(decorated())
    assert "dden" not in str(get_db_metadata(bound))


def test_making_an_app_loads_neither_sqlalchemy_nor_azure_nor_pydantic() -> None:
    program = """if True:
        import sys
        from azure_functions_db import BlobCheckpointStore, DbBindings, SqlAlchemySource

        db = DbBindings()
        place = {"url": "sqlite://", "table": "t"}
        source = SqlAlchemySource(**place, cursor_column="id", pk_columns=["id"])

        @db.input("row", **place, pk={"id": 1})
        @db.output("out", **place)
        def bound(req, row, out): ...

        @db.trigger(arg_name="events", source=source, checkpoint_store=BlobCheckpointStore())
        async def poll(timer, events): ...

        print([heavy for heavy in ("sqlalchemy", "azure", "pydantic") if heavy in sys.modules])
    """
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


FACES = [
    ("output", DbOut, AsyncDbOut),
    ("inject_reader", DbReader, AsyncDbReader),
    ("inject_writer", DbWriter, AsyncDbWriter),
]


@pytest.mark.parametrize(("kind", "plain", "awaited"), FACES)
@pytest.mark.parametrize("form", ["class", "text", "optional", "unknown"])
def test_an_annotation_that_promises_the_other_face_is_refused(
    kind: str, plain: type[Any], awaited: type[Any], form: str
) -> None:
    def annotation(face: type[Any]) -> Any:
        text = f"azure_functions_db.{face.__name__}"
        return {"class": face, "text": text, "optional": face | None, "unknown": face.__name__}[form]

    async def waiting(req: func.HttpRequest, first: Any) -> None: ...

    def plainly(req: func.HttpRequest, first: Any) -> None: ...

    waiting.__annotations__["first"] = annotation(plain)
    with pytest.raises(ConfigurationError, match=rf"receives an {awaited.__name__}: annotate it so, and await"):
        decorator(kind, "first")(waiting)
    plainly.__annotations__["first"] = annotation(awaited)
    with pytest.raises(ConfigurationError, match=rf"receives a {plain.__name__}: annotate it so, or make"):
        decorator(kind, "first")(plainly)
    waiting.__annotations__["first"], plainly.__annotations__["first"] = annotation(awaited), annotation(plain)
    decorator(kind, "first")(waiting)
    decorator(kind, "first")(plainly)


SPELLINGS = [
    "{face}",
    "'{face}'",
    "{face} | None",
    "None | {face}",
    "Optional[{face}]",
    "Optional['{face}']",
    "typing.Union[None, {face}]",
    "Annotated[{face}, 'where rows go']",
    "Annotated[Optional[{face}], 'where rows go']",
    "Optional[Annotated[{face}, 'where rows go']]",
    "package.{face}",
    "package.decorator.injection.{face}",
    "Optional[package.{face}]",
    "Alias",
    "MaybeAlias",
    "TextAlias",
    "Optional['MaybeAlias']",
]
PROGRAM = """
{postponed}
import typing
from typing import Annotated, Optional, Union
import azure_functions_db as package
from azure_functions_db import {face}
Alias, MaybeAlias, TextAlias = {face}, Optional[{face}], "{face}"
{kind} handler(req, first: {spelling}): ...
"""


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("postponed", ["", "from __future__ import annotations"], ids=["at once", "postponed"])
def test_the_other_face_is_refused_however_it_is_spelled(spelling: str, postponed: str) -> None:
    def handler(face: str, kind: str) -> Any:
        names: dict[str, Any] = {"__name__": "app"}
        words = {"face": face, "kind": kind, "postponed": postponed, "spelling": spelling.format(face=face)}
        exec(compile(PROGRAM.format(**words), "app", "exec", dont_inherit=True), names)
        return names["handler"]

    with pytest.raises(ConfigurationError, match="receives an AsyncDbOut: annotate it so, and await"):
        decorator("output", "first")(handler("DbOut", "async def"))
    with pytest.raises(ConfigurationError, match="receives a DbOut: annotate it so, or make"):
        decorator("output", "first")(handler("AsyncDbOut", "def"))
    decorator("output", "first")(handler("DbOut", "def"))
    decorator("output", "first")(handler("AsyncDbOut", "async def"))


@pytest.mark.parametrize("spelling", ["list[DbOut]", "others.DbOut", "Callable[[DbOut], None]", "not a type"])
def test_what_only_mentions_a_face_is_left_alone(spelling: str) -> None:
    async def handler(req: func.HttpRequest, first: Any) -> None: ...

    handler.__globals__["others"] = types.ModuleType("others")
    handler.__annotations__["first"] = spelling
    decorator("output", "first")(handler)


@pytest.mark.parametrize(("kind", "plain", "awaited"), FACES)
def test_an_annotation_for_both_faces_or_a_namesake_is_left_alone(
    kind: str, plain: type[Any], awaited: type[Any]
) -> None:
    namesake = type(plain.__name__, (), {})

    async def either(req: func.HttpRequest, first: Any) -> None: ...

    for hint in (plain | awaited, namesake):
        either.__annotations__["first"] = hint
        decorator(kind, "first")(either)
