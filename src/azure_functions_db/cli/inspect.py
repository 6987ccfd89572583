"""`azfdb inspect`: a poller's state document, readable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from azure_functions_db.cli.options import AppName, AppPlace, AsJson, PollerName, StoreUrl

if TYPE_CHECKING:
    from azure_functions_db.cli.targets import Target


@dataclass(frozen=True, slots=True)
class Inspected:
    """A poller's document, or what is there in its place and what is wrong with it."""

    poller: str
    document: dict[str, Any] | None
    problem: str | None = None
    raw: str | None = None


def inspect(
    name: PollerName,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Show a poller's state document, also one that makes no sense (exit code 1)."""
    from azure_functions_db.cli.exits import Exit
    from azure_functions_db.cli.output import show
    from azure_functions_db.cli.targets import Targets

    found = inspected(Targets(app, store, app_name).one(name))
    show(found, as_json=as_json)
    raise typer.Exit(Exit.OK if found.problem is None else Exit.FAILED)


def inspected(target: Target) -> Inspected:
    """Return a poller's document; where it cannot be read, what is there and why not."""
    from azure_functions_db.core.errors import StateStoreError

    try:
        return Inspected(target.name, target.existing())
    except StateStoreError as error:
        content = target.documents.raw_document(target.name)
        if content is None:
            raise
        return Inspected(target.name, None, str(error), content.decode(errors="replace"))
