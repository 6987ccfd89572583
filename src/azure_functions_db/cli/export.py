"""`azfdb export`: a poller's state document as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from azure_functions_db.cli.options import PollerName, Target, absolute, targeted


@targeted
def export(
    target: Target,
    name: PollerName,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", callback=absolute, help="A new file; standard output otherwise."
        ),
    ] = None,
) -> None:
    """Write a poller's state document as JSON, in the form that `reset --to-checkpoint` reads."""
    from azure_functions_db.cli.drawing import write_text
    from azure_functions_db.operations.status import exported

    write_text(exported(target.one(name)), output)
