"""`azfdb backfill`: a stretch of the source once more, beside the live poller."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import NONE, duration, number, shown, text
from azure_functions_db.cli.drawing import rate as per_second
from azure_functions_db.cli.options import AsJson, PollerName, Target, targeted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from azure_functions_db.operations.backfill import BackfillReport, ReplayedRange


@targeted
def backfill(
    target: Target,
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
    keep: Annotated[bool, typer.Option("--keep", help="Leave the backfill's state when it is complete.")] = False,
    as_json: AsJson = False,
) -> None:
    """Deliver a stretch of the source to the app's handler again, under a poller name of its own.

    The live poller's checkpoint is never touched. Stopped by Ctrl-C or a crash, the same command goes on where the
    last batch was committed. Events have the ids that the live poller gives them. Its own state is removed when it is
    complete.
    """
    from azure_functions_db.azure import hurried
    from azure_functions_db.cli.apps import printed_aside
    from azure_functions_db.cli.drawing import Announcement, complain, show
    from azure_functions_db.operations.backfill import backfill_of

    backfill = backfill_of(target.pollers(), name, new, from_, to)
    with progress(new, backfill.count_left(), quiet=as_json) as advance:
        try:
            with printed_aside(), hurried(hurry=False):  # it waits for the storage as the live poller does
                report = backfill.run(rate, advance, Announcement(quiet=as_json), keep=keep)
        except KeyboardInterrupt:
            complain("interrupted: what was committed stays, and the same command goes on from there", as_json=as_json)
            raise
    show(report, _screen, as_json=as_json)


def _screen(result: BackfillReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    done = f"{number(result.rows)} row(s) in {duration(result.seconds)}"
    if result.quarantined:
        done += f", {number(result.quarantined)} of them in quarantine (azfdb quarantine list --poller {result.poller})"
    return text(f"{result.poller}: the stretch of {result.live_poller} is complete; {done}.")


@targeted
def replay(
    target: Target,
    name: PollerName,
    from_: Annotated[str, typer.Option("--from", metavar="CURSOR", help="The first cursor value.")],
    to: Annotated[str, typer.Option("--to", metavar="CURSOR", help="The last cursor value.")],
    as_json: AsJson = False,
) -> None:
    """Give the rows from one cursor value to another, both included, to the app's handler right now.

    No state is read or written: the live poller goes on as it was, and a failure ends it (exit code 1). A long
    stretch is better a backfill, which goes on where it was interrupted.
    """
    from azure_functions_db.cli.apps import printed_aside
    from azure_functions_db.cli.drawing import Announcement, show
    from azure_functions_db.operations.backfill import replay_range

    poller = target.one(name)
    with printed_aside():
        report = replay_range(poller, from_, to, Announcement(quiet=as_json))
    show(report, _replayed, as_json=as_json)


def _replayed(result: ReplayedRange, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    return text(f"{result.poller}: the handler was given {number(result.rows)} row(s).")


@contextmanager
def progress(name: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how many of so many rows are done, how fast, and how long it will take; yields what moves it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _rows: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from azure_functions_db.cli.drawing import console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    began, done = time.monotonic(), 0
    with Progress(*columns, console=console(error=True), expand=True) as bar:
        task = bar.add_task(shown(name), total=total, pace="")

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            bar.update(task, advance=rows, pace=pace(done, total, time.monotonic() - began))

        yield advance


def pace(done: int, total: int, seconds: float) -> str:
    """Return how fast it went so far, and how long the rest takes at that rate."""
    rate = done / max(seconds, 0.001)
    left = duration((total - done) / rate) if done < total else NONE
    return per_second(rate) + ("" if left == NONE else f", {left} left")
