"""`azfdb verify`: was every row of the source delivered?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import number, position, stacked, text
from azure_functions_db.cli.options import AsJson, Exit, PollerName, Target, targeted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.operations.verify import VerifyReport


@targeted
def verify(
    target: Target,
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
    as_json: AsJson = False,
) -> None:
    """Compare the source with the delivered ledger, up to the checkpoint.

    Exit code 1 when rows are missing and were not replayed.
    """
    from azure_functions_db.cli.apps import printed_aside
    from azure_functions_db.cli.drawing import Announcement, show
    from azure_functions_db.operations.verify import ledger_of, verify

    poller = target.one(name)
    kept = ledger_of(poller, ledger)
    with printed_aside():
        report = verify(poller, kept, first=from_, share=sample, replay=replay, announce=Announcement())
    show(report, _screen, as_json=as_json)
    raise typer.Exit(Exit.FAILED if report.missing and not report.replayed else Exit.OK)


def _screen(result: VerifyReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    rows = [text(f"missing: {position(row.cursor, row.key)}", "red") for row in result.missing]
    counted = f"{number(len(result.missing))} missing of {number(result.checked)}"
    quarantined = f", {number(result.quarantined)} in quarantine" if result.quarantined else ""
    waiting = f", {number(result.waiting)} change(s) wait for the next tick" if result.waiting else ""
    return stacked(*rows, text(counted + (", now replayed" if result.replayed else "") + quarantined + waiting))
