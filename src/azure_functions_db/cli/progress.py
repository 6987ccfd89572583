"""A progress bar on the terminal; nothing in a pipe."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from azure_functions_db.cli import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress(name: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how many of so many rows are done, how fast, and how long it will take; yields what moves it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _rows: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from azure_functions_db.cli.output import console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    began, done = time.monotonic(), 0
    with Progress(*columns, console=console(error=True), expand=True) as bar:
        task = bar.add_task(words.shown(name), total=total, pace="")

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            bar.update(task, advance=rows, pace=pace(done, total, time.monotonic() - began))

        yield advance


def pace(done: int, total: int, seconds: float) -> str:
    """Return how fast it went so far, and how long the rest takes at that rate."""
    rate = done / max(seconds, 0.001)
    left = words.duration((total - done) / rate) if done < total else words.NONE
    return words.rate(rate) + ("" if left == words.NONE else f", {left} left")
