"""`azfdb schema`: the JSON schemas of what commands print for machines."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from azure_functions_db.core.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTPUTS: Mapping[str, str] = {
    "backfill": "operations.backfill:BackfillReport",
    "clone": "operations.reset:ChangeReport",
    "doctor": "operations.doctor:Health",
    "error": "cli.drawing:Complaint",
    "forget": "operations.reset:ChangeReport",
    "init": "operations.init:InitReport",
    "inspect": "operations.status:Inspection",
    "lease break": "operations.reset:ChangeReport",
    "migrate": "operations.migrate:Migration",
    "outbox create": "operations.outbox:CreateReports",
    "outbox prune": "operations.outbox:PruneReport",
    "outbox status": "operations.outbox:OutboxStatuses",
    "pause": "operations.reset:Marks",
    "plan": "operations.plan:CapacityPlan",
    "quarantine drop": "cli.quarantine:DropReport",
    "quarantine list": "cli.quarantine:EntryList",
    "quarantine replay": "operations.quarantine:ReplayReport",
    "quarantine restore": "cli.quarantine:EntryList",
    "quarantine show": "cli.quarantine:EntryDetail",
    "replay": "operations.backfill:ReplayedRange",
    "reset": "operations.reset:ChangeReport",
    "resume": "operations.reset:Marks",
    "run": "cli.run:LogLine",
    "status": "operations.status:Status",
    "stream create": "operations.stream:StreamReport",
    "stream drop": "operations.stream:StreamReport",
    "stream show": "operations.stream:StreamView",
    "tail": "operations.status:Tail",
    "verify": "operations.verify:VerifyReport",
}
"""What each command prints with --json: its fields are the schema. ``error`` is what any of them may complain with."""


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Such as status, or quarantine list; error.")
    ] = None,
) -> None:
    """Print the JSON schema of what a command prints with --json, of all of them where none is named."""
    found: Any = schema_of(" ".join(command)) if command else {name: schema_of(name) for name in OUTPUTS}
    print(json.dumps(found, indent=2))


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON schema of what a command prints with --json; later releases may add fields."""
    from azure_functions_db.operations.reports import json_schema

    if command not in OUTPUTS:
        raise ConfigurationError(
            f"There is no schema of {command!r}; there are: {', '.join(OUTPUTS)}{did_you_mean(command, OUTPUTS)}"
        )
    module, _, name = OUTPUTS[command].partition(":")
    return {"title": f"azfdb {command} --json", **json_schema(_type_in(module, name))}


def _type_in(module: str, name: str) -> type[Any]:
    found: type[Any] = getattr(import_module(f"azure_functions_db.{module}"), name)
    return found
