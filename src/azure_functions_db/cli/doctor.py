"""`azfdb doctor`: what could go wrong, before it does."""

from __future__ import annotations

from typing import Annotated

import typer

from azure_functions_db.cli.options import AnyPoller, AppPlace, AsJson


def doctor(
    name: AnyPoller = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 on warnings, too.")] = False,
    app: AppPlace = None,
    as_json: AsJson = False,
) -> None:
    """Examine sources, stores and schedules of an app; nothing is changed.

    Exit code 1 when there are errors.
    """
    from azure_functions_db.cli.examination import examined
    from azure_functions_db.cli.exits import Exit
    from azure_functions_db.cli.output import show
    from azure_functions_db.cli.targets import Targets

    report = examined(Targets(app).chosen(name))
    show(report, as_json=as_json)
    wrong = {"error", "warning"} if strict else {"error"}
    raise typer.Exit(Exit.FAILED if wrong & report.grades else Exit.OK)
