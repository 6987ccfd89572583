"""What people see: numbers, moments and texts in words, and the tables and blocks that screens are made of."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.errors import ConfigurationError, DbError, with_code
from azure_functions_db.core.secrets import masked
from azure_functions_db.core.serializers import json_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from azure_functions_db.core.types import Horizon

    Result = TypeVar("Result")
    Screen = Callable[[Result, int], RenderableType]
    """Draws a result in a terminal of this width."""

NONE = "-"
_ENDLESS = 10_000
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def shown(text: str, *, lines: bool = False) -> str:
    r"""Return a text of others as people may be shown it: without secrets, and with its control characters escaped.

    What steers a terminal, hides, turns the direction of reading or (unless ``lines`` are wanted)
    begins a new line is written out, such as ``\x1b``.
    """
    plain = masked(text)
    if plain.isprintable():
        return plain
    return "".join(each if _is_harmless(each) or (lines and each == "\n") else _escaped(each) for each in plain)


def _is_harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def duration(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    if seconds is None:
        return NONE
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    left = round(abs(seconds))
    parts: list[str] = []
    for unit, size in _UNITS:
        amount, left = divmod(left, size)
        if amount or parts:
            parts.append(f"{amount} {unit}" if amount else "")
        if len(parts) == 2:
            break
    return ("-" if seconds < 0 else "") + " ".join(part for part in parts if part)


def ago(seconds: float | None) -> str:
    """Return how long something is past."""
    return NONE if seconds is None else f"{duration(seconds)} ago"


def number(value: float | None) -> str:
    """Return a whole number with separators."""
    return NONE if value is None else f"{value:,.0f}"


def rate(per_second: float | None) -> str:
    """Return a rate in the unit in which it is a number that can be grasped."""
    if per_second is None:
        return NONE
    return f"{per_second:,.1f}/s" if per_second >= 1 or per_second == 0 else f"{per_second * 60:,.1f}/min"


def position(cursor: Any, key: Mapping[str, Any]) -> str:
    """Return a cursor and the key of its row in one line."""
    if cursor is None:
        return NONE
    return " ".join([value(cursor), *(f"{shown(name)}={value(part)}" for name, part in key.items())])


def holders(horizon: Horizon | None) -> str:
    """Return who keeps the late-commit horizon where it is."""
    if horizon is None:
        return NONE
    sessions = [
        f"session {value(holder.session)} ({value(holder.user or 'unknown user')}, {duration(holder.age_seconds)})"
        for holder in horizon.holders
    ]
    return ", ".join(sessions) or f"running transactions, {duration(horizon.age_seconds)}"


def value(plain: Any) -> str:
    """Return any value in one line."""
    match plain:
        case None:
            return NONE
        case str():
            return shown(plain)
        case dt.datetime():
            return plain.isoformat(sep=" ", timespec="seconds")
        case dict() | list():
            return shown(json.dumps(plain, ensure_ascii=False))
        case _:
            return shown(str(plain))


def text(content: str, style: str = "", *, lines: bool = False) -> Text:
    """Return a text as it is: no markup and no control character in it counts, no secret in it shows."""
    from rich.text import Text

    return Text(shown(content, lines=lines), style=style)


def problem(poller: str, message: str) -> Text:
    """Return what is wrong with a poller."""
    return text(f"{poller}: {message}", "red")


def stacked(*parts: RenderableType) -> RenderableType:
    """Return parts one below the other."""
    from rich.console import Group

    return Group(*parts)


def indented(part: RenderableType, *, below: int = 0) -> RenderableType:
    """Return a part set in, with empty lines below."""
    from rich.padding import Padding

    return Padding(part, (0, 0, below, 2))


def fits(part: RenderableType, width: int) -> bool:
    """Tell whether a part can be drawn without folding."""
    from rich.console import Console

    return Console(width=_ENDLESS, markup=False).measure(part).maximum <= width


def grid(*headings: str, title: Text | None = None) -> Table:
    """Return an empty table in the one style there is."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="dim", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def pairs(facts: Iterable[tuple[str, Text]]) -> Table:
    """Return names and values, one pair a line."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, content in facts:
        table.add_row(text(name), content)
    return table


def tree(document: Mapping[str, Any]) -> Table:
    """Return a document's values by their paths."""
    return pairs((name, text(content)) for name, content in flat(document).items())


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a document's values in words by their paths."""
    values: dict[str, str] = {}
    for name, inner in document.items():
        path = f"{prefix}{name}"
        if isinstance(inner, dict) and inner:
            values |= flat(inner, f"{path}.")
        else:
            values[path] = value(json_safe(inner)) if inner != {} else NONE
    return values


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
    from azure_functions_db.core.files import write_new

    if file is None:
        print(text)
        return
    try:
        write_new(file, f"{text}\n".encode())
    except OSError as failure:
        raise ConfigurationError(f"{file} cannot be written: {failure.strerror}") from None


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a command could not do its work."""

    error: str
    error_type: str | None
    error_code: str | None


def complain(about: DbError | str, *, as_json: bool) -> None:
    """Print on standard error why a command could not do its work."""
    if as_json:
        error_type, code = (type(about).__name__, about.code.value) if isinstance(about, DbError) else (None, None)
        print(_json(Complaint(_on_one_line(str(about)), error_type, code)), file=sys.stderr)
    else:
        message = with_code(about) if isinstance(about, DbError) else about
        print(f"azfdb: {_on_one_line(message)}", file=sys.stderr)


def _on_one_line(message: str) -> str:
    return shown(" ".join(message.split()))


class Announcement:
    """Says on standard error, once, whom a command waits for."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._is_made = quiet

    def __call__(self, horizon: Horizon) -> None:
        """Say it, unless it was said."""
        if not self._is_made:
            self._is_made = True
            print(f"azfdb: waiting for what may still write before the next rows: {holders(horizon)}", file=sys.stderr)


def _json(result: Any, indent: int | None = None) -> str:
    import json

    from azure_functions_db.operations.reports import jsonable, without_secrets

    # Plain ASCII: JSON's own escapes keep what steers a terminal from reaching one.
    return json.dumps(without_secrets(jsonable(result)), indent=indent)
