"""`azfdb export`: a poller's state document as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from azure_functions_db.cli.options import AppName, AppPlace, PollerName, StoreUrl, absolute


def export(
    name: PollerName,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", callback=absolute, help="A new file; standard output otherwise."
        ),
    ] = None,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
) -> None:
    """Write a poller's state document as JSON, in the form that `reset --to-checkpoint` reads."""
    from azure_functions_db.cli.apps import pollers_of
    from azure_functions_db.cli.drawing import write_text
    from azure_functions_db.operations.status import exported

    write_text(exported(pollers_of(app, store, app_name).one(name)), output)
