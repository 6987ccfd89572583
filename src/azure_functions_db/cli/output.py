"""The one place that prints what a command returns."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console, RenderableType

    from azure_functions_db.core.types import Horizon

    Result = TypeVar("Result")
    Screen = Callable[[Result, int], RenderableType]
    """Draws a result in a terminal of this width."""

# Files and pipes have no edge to wrap at.
_PIPE_WIDTH = 1000


def show(result: Result, screen: Screen[Result], *, as_json: bool) -> None:
    """Print a command's result: JSON for machines, a screen for people."""
    if as_json:
        print(_json(result, indent=2))
    else:
        shown = console()
        if shown.is_terminal:
            shown.print(screen(result, shown.width))
            return
        with shown.capture() as captured:
            shown.print(screen(result, shown.width))
        # Tables are filled up with blanks, which only a terminal needs.
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def show_live(read: Callable[[], Result], screen: Screen[Result], every: float, *, as_json: bool) -> None:
    """Keep printing what is read until Ctrl-C: in place for people, a JSON object per line for machines."""
    import time

    if as_json or not sys.stdout.isatty():
        while True:
            print(_json(read()), flush=True)
            time.sleep(every)
    from rich.live import Live

    shown = console()
    with Live(console=shown, auto_refresh=False, screen=False) as live:
        while True:
            live.update(screen(read(), shown.width), refresh=True)
            time.sleep(every)


def console(*, error: bool = False) -> Console:
    """Return where screens are drawn: coloured on a terminal, plain and wide in a pipe."""
    from rich.console import Console

    is_terminal = (sys.stderr if error else sys.stdout).isatty()
    width = None if is_terminal or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=error, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def write_text(text: str, file: Path | None) -> None:
    """Write a text to a new file, or to standard output."""
    from azure_functions_db.core.errors import ConfigurationError
    from azure_functions_db.core.files import write_new

    if file is None:
        print(text)
        return
    try:
        write_new(file, f"{text}\n".encode())
    except OSError as failure:
        raise ConfigurationError(f"{file} cannot be written: {failure.strerror}") from None


def complain(message: str, *, as_json: bool, error_type: str | None = None) -> None:
    """Print on standard error why a command could not do its work."""
    import json

    from azure_functions_db.cli.drawing import shown

    plain = shown(" ".join(message.split()))
    print(json.dumps({"error": plain, "error_type": error_type}) if as_json else f"azfdb: {plain}", file=sys.stderr)


class Announcement:
    """Says on standard error, once, whom a command waits for."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._is_made = quiet

    def __call__(self, horizon: Horizon) -> None:
        """Say it, unless it was said."""
        from azure_functions_db.cli.drawing import holders

        if not self._is_made:
            self._is_made = True
            print(f"azfdb: waiting for what may still write before the next rows: {holders(horizon)}", file=sys.stderr)


def _json(result: Any, indent: int | None = None) -> str:
    import json

    from azure_functions_db.operations.reports import jsonable, without_secrets

    # Plain ASCII: JSON's own escapes keep what steers a terminal from reaching one.
    return json.dumps(without_secrets(jsonable(result)), indent=indent)
