"""`azfdb backfill`: a stretch of the source once more, beside the live poller."""

from __future__ import annotations

from typing import Annotated

import typer

from azure_functions_db.cli.options import AppPlace, AsJson, PollerName


def backfill(
    name: PollerName,
    new: Annotated[str, typer.Option("--as", metavar="NEW", help="The backfill's own poller name.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="CURSOR", help="The first cursor value; the beginning otherwise.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="CURSOR", help="The last cursor value; the live poller's checkpoint otherwise."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", metavar="ROWS/S", min=0.01, help="At most so many.")] = None,
    app: AppPlace = None,
    as_json: AsJson = False,
) -> None:
    """Deliver a stretch of the source to the app's handler again, under a poller name of its own.

    The live poller's checkpoint is never touched. Stopped by Ctrl-C or a crash, the same command goes on where the
    last batch was committed. Events have the ids that the live poller gives them.
    """
    from azure_functions_db.cli.filling import filling_of
    from azure_functions_db.cli.output import complain, show
    from azure_functions_db.cli.progress import progress
    from azure_functions_db.cli.targets import Targets
    from azure_functions_db.cli.waiting import Announcement

    filling = filling_of(Targets(app), name, new, from_, to)
    with progress(new, filling.count_left(), quiet=as_json) as advance:
        try:
            report = filling.run(rate, advance, Announcement(quiet=as_json))
        except KeyboardInterrupt:
            complain("interrupted: what was committed stays, and the same command goes on from there", as_json=as_json)
            raise
    show(report, as_json=as_json)
