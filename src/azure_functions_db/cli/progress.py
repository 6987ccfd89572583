"""A progress bar on the terminal; nothing in a pipe."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress(name: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how many of so many rows are done, how fast, and how long it will take; yields what moves it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _rows: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from azure_functions_db.cli.output import console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(error=True), expand=True) as bar:
        task = bar.add_task(name, total=total, speed="")

        def advance(rows: int) -> None:
            bar.advance(task, rows)
            speed = bar.tasks[0].speed
            bar.update(task, speed="" if speed is None else f"{speed:,.0f} rows/s")

        yield advance
