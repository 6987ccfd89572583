"""The one place that prints what a command returns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

# Wide enough for every table; files and pipes have no edge to wrap at.
_PIPE_WIDTH = 200


def show(result: Any, *, as_json: bool) -> None:
    """Print a command's result: JSON for machines, a screen for people."""
    if as_json:
        print(json.dumps(_plain(result), ensure_ascii=False, indent=2))
    else:
        from azure_functions_db.cli.screens import screen

        shown = console()
        if shown.is_terminal:
            shown.print(screen(result, shown.width))
            return
        with shown.capture() as captured:
            shown.print(screen(result, shown.width))
        # Tables are filled up with blanks, which only a terminal needs.
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def show_live(read: Callable[[], Any], every: float, *, as_json: bool) -> None:
    """Keep printing what is read until Ctrl-C: in place for people, a JSON object per line for machines."""
    import time

    if as_json or not sys.stdout.isatty():
        while True:
            print(json.dumps(_plain(read()), ensure_ascii=False), flush=True)
            time.sleep(every)
    from rich.live import Live

    from azure_functions_db.cli.screens import screen

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
    return Console(stderr=error, width=width, highlight=False, soft_wrap=False, emoji=False)


def write_text(text: str, file: Path | None) -> None:
    """Write a text to a new file, or to standard output."""
    from azure_functions_db.core.errors import ConfigurationError

    if file is None:
        print(text)
        return
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text + "\n")
    except OSError as failure:
        raise ConfigurationError(f"{file} cannot be written: {failure.strerror}") from None


def complain(message: str, *, as_json: bool, error_type: str | None = None) -> None:
    """Print on standard error why a command could not do its work."""
    from azure_functions_db.core.secrets import masked

    plain = masked(" ".join(message.split()))
    print(json.dumps({"error": plain, "error_type": error_type}) if as_json else f"azfdb: {plain}", file=sys.stderr)


def _plain(result: Any) -> Any:
    """Return the result as JSON can hold it, without secrets."""
    from azure_functions_db.core.serializers import json_safe

    return _without_secrets(json_safe(_fields(result)))


def _fields(result: Any) -> Any:
    from dataclasses import asdict, is_dataclass

    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    if isinstance(result, Mapping):
        return {name: _fields(value) for name, value in result.items()}
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return [_fields(value) for value in result]
    return result


def _without_secrets(plain: Any) -> Any:
    from azure_functions_db.core.secrets import masked

    match plain:
        case str():
            return masked(plain)
        case dict():
            return {name: _without_secrets(value) for name, value in plain.items()}
        case list():
            return [_without_secrets(value) for value in plain]
        case _:
            return plain
