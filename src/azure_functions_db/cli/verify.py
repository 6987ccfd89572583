"""`azfdb verify`: was every row of the source delivered?"""

from __future__ import annotations

from typing import Annotated

import typer

from azure_functions_db.cli.options import AppPlace, AsJson, PollerName


def verify(
    name: PollerName,
    sample: Annotated[
        float, typer.Option("--sample", metavar="SHARE", min=0.0001, max=1, help="Check this share of the keys only.")
    ] = 1,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="CURSOR", help="The first cursor value; the beginning otherwise.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger", metavar="URL", help="The delivered ledger's database URL[#TABLE]; the trigger's own otherwise."
        ),
    ] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Deliver what is missing to the app's handler.")] = False,
    app: AppPlace = None,
    as_json: AsJson = False,
) -> None:
    """Compare the source with the delivered ledger, up to the checkpoint.

    Exit code 1 when rows are missing and were not replayed.
    """
    from azure_functions_db.cli.exits import Exit
    from azure_functions_db.cli.output import show
    from azure_functions_db.cli.targets import Targets
    from azure_functions_db.cli.verification import ledger_of, verified

    target = Targets(app).one(name)
    report = verified(target, ledger_of(target, ledger), first=from_, share=sample, replay=replay)
    show(report, as_json=as_json)
    raise typer.Exit(Exit.FAILED if report.missing and not report.replayed else Exit.OK)
