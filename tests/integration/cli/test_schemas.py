"""Every command's output for machines has a schema and is as that says; `warm.run` holds all others against it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import typer

from azure_functions_db.cli.main import app
from azure_functions_db.cli.schema import OUTPUTS, schema_of
from tests.support.schemas import check_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.cli.shops import Shop


def commands(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Return every command by the words that call it."""
    if not hasattr(group, "list_commands"):
        yield " ".join(names), group
        return
    for name in group.list_commands(None):
        yield from commands(group.get_command(None, name), *names, name)


def test_every_command_that_prints_json_has_a_schema() -> None:
    printing = {name for name, each in every_command() if any("--json" in option.opts for option in each.params)}
    assert printing == set(OUTPUTS) - {"error"}


def test_every_command_that_is_about_pollers_takes_the_same_options_of_where_they_are() -> None:
    target = {"--app", "--store", "--app-name", "--quarantine"}
    taken = {name: target & {word for each in one.params for word in each.opts} for name, one in every_command()}
    # They are about an app, or about files: what they take beside it has another meaning, or none.
    assert {name for name in taken if taken[name] != target} == {"init", "run", "demo", "plan", "schema", "migrate"}


def every_command() -> Iterator[tuple[str, Any]]:
    return commands(typer.main.get_command(app))


def test_every_schema_is_one_and_is_printed(shop: Shop) -> None:
    printed = shop.azfdb("schema").json
    assert printed == {name: schema_of(name) for name in OUTPUTS}
    for name, schema in printed.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"] == f"azfdb {name} --json"
    assert shop.azfdb("schema", "quarantine", "list").json == printed["quarantine list"]
    assert "did you mean 'status'?" in shop.azfdb("schema", "statsu").complaint


COMMANDS = [
    "status",
    "doctor",
    "inspect orders",
    "tail orders",
    "verify orders",
    "quarantine list",
    "quarantine show ID",
    "quarantine replay --all",
    "quarantine drop --all --yes",
    "quarantine restore --all",
    "pause orders",
    "status --max-lag 1",
    "resume orders",
    "replay orders --from 1",
    "backfill orders --as again",
    "clone orders copy --yes",
    "forget copy --yes",
    "reset orders --to-beginning --yes",
    "lease break orders --yes",
    "migrate --from-0.8 function_app.py",
    "plan --rows-per-second 100 --handler-ms 5",
    "tail nobody",
    "run --once on_orders",
    "run --once nobody",
]


def test_what_commands_print_is_as_their_schemas_say(used_shop: Shop) -> None:
    entry = used_shop.azfdb("quarantine", "list", "--json").json["rows"][0]["event_id"]
    for line in COMMANDS:
        words = [entry if word == "ID" else word for word in line.split()]
        told = used_shop.azfdb(*words, "--json")  # held against the schema on the way
        assert told.out or "{" in told.err, line


def test_a_field_that_is_missing_or_that_nobody_knows_is_noticed(shop: Shop) -> None:
    told = shop.azfdb("status", "--json")
    check_json(["status", "--json"], told.out, told.err)
    more, less, other = told.json, told.json, told.json
    more["pollers"][0]["mood"] = "good"
    del less["pollers"][0]["problems"]
    other["at"] = 12
    for wrong in (more, less, other):
        with pytest.raises(jsonschema.ValidationError):
            check_json(["status", "--json"], json.dumps(wrong), "")
