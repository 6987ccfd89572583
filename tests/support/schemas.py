"""What `azfdb` prints for machines, held against the schemas that it ships."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema

from azure_functions_db.cli.schema import OUTPUTS, schema_of


def check_json(words: Sequence[str], out: str, err: str) -> None:
    """Hold all that a command has printed with --json against its schemas; what they do not name may not be there."""
    if "--json" not in words or not (command := _command(words)):
        return
    told = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    for each in told:
        _validator("run" if "level" in each else "error").validate(each)
    if command == "run":
        return  # what it prints is the app's
    if out:
        _validator(command).validate(json.loads(out))
    else:
        assert told or err.startswith("Usage: "), "a machine is told nothing"


def _command(words: Sequence[str]) -> str | None:
    return next((name for name in (" ".join(words[:2]), words[0]) if name in OUTPUTS), None)


@cache
def _validator(command: str) -> jsonschema.Draft202012Validator:
    schema = schema_of(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema if command == "run" else _closed(schema), format_checker=checker)


def _closed(schema: Any) -> Any:
    """Return the schema without room for what it does not name."""
    match schema:
        case {"properties": dict()}:
            return {name: _closed(value) for name, value in schema.items()} | {"additionalProperties": False}
        case dict():
            return {name: _closed(value) for name, value in schema.items()}
        case list():
            return [_closed(value) for value in schema]
        case _:
            return schema
