"""Records what a terminal shows as moving SVG pictures for README and site: the demo, and `status --watch`.

`make pictures` runs it. A picture needs nothing from elsewhere, stands still for readers who ask for less motion,
and has its own dark ground, so that it is readable on light and dark pages alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

CHECKOUT = Path(__file__).resolve().parents[1]
ASSETS = CHECKOUT / "docs" / "assets"
AZFDB = Path(sys.executable).parent / "azfdb"
FONTS = 'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14"'
CELL = (8.4, 16.5)
MARGIN = 16
TITLE = 34
STEP = 0.4
"""Changes that follow each other more quickly are one frame: what they came to."""
HOLD = 4.0
"""How many seconds the last frame stays."""

WORDS = re.compile(r"\S+(?: \S+)*")
GROUND, INK, DIM = "#16181d", "#d7dae0", "#8b919c"
COLOURS = {
    "default": INK,
    "black": DIM,
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#f2cc60",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "white": "#ffffff",
}

SHOP = """
import sqlite3
import time

shop = sqlite3.connect("shop.db", isolation_level=None)
shop.execute("PRAGMA journal_mode = WAL")
for table in ("orders", "invoices", "returns"):
    shop.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, version INTEGER)")
    shop.execute(f"CREATE INDEX {table}_by_version ON {table} (version, id)")
print("open", flush=True)
for version in range(10_000):
    shop.execute("INSERT INTO orders (version) SELECT ? FROM generate_series(1, 9)".replace(
        "generate_series(1, 9)", "(VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9))"), (version,))
    if version % 5 == 0:
        shop.execute("INSERT INTO invoices (version) VALUES (?)", (version,))
    if version % 20 == 0:
        shop.execute("INSERT INTO returns (version) VALUES (?)", (version,))
    time.sleep(0.05)
"""
APP = """
import azure.functions as func

from azure_functions_db import DbBindings, FileQuarantine, FileStateStore, SqlAlchemySource

app = func.FunctionApp()
db = DbBindings()
state = FileStateStore("state")


def source(table):
    return SqlAlchemySource(url="sqlite:///shop.db", table=table, cursor_column="version", pk_columns=["id"])


def every_second(table, **options):
    options = dict(source=source(table), checkpoint_store=state, max_batches_per_tick=20, **options)
    timer = app.timer_trigger(schedule="* * * * * *", arg_name="timer")
    return lambda function: timer(db.trigger(arg_name="events", **options)(function))


@every_second("orders")
def ship_orders(timer, events): ...


@every_second("invoices", quarantine=FileQuarantine("aside"), max_attempts=1)
def send_invoices(timer, events):
    if any(event.pk["id"] % 9 == 0 for event in events):
        raise ValueError("no address")


@every_second("returns")
def book_returns(timer, events):
    raise ConnectionError("the warehouse does not answer")
"""


class Frame(NamedTuple):
    """What the terminal showed from a moment on: rows of pieces of text, each with its colour and weight."""

    at: float
    rows: tuple[tuple[Piece, ...], ...]


class Piece(NamedTuple):
    """Neighbouring characters that look alike."""

    column: int
    text: str
    colour: str
    bold: bool


class Recording:
    """Runs a command in a terminal of a given size and keeps what it shows whenever that changes."""

    def __init__(self, columns: int, lines: int) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.size = columns, lines
        self.frames: list[Frame] = []

    def run(self, command: Sequence[str | Path], folder: Path, seconds: float = 60) -> Recording:
        """Record until the command ends, or end it after so many seconds."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": ""}
            os.execv(command[0], [str(part) for part in command])
        columns, lines = self.size
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._watch(terminal, seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        os.close(terminal)
        os.waitpid(pid, 0)
        return self

    def _watch(self, terminal: int, seconds: float) -> None:
        started = time.monotonic()
        while (now := time.monotonic() - started) < seconds:
            if not select.select([terminal], [], [], 0.1)[0]:
                self._keep(now)
                continue
            try:
                self._stream.feed(os.read(terminal, 65536))
            except OSError:  # the command has ended
                break
            if not self.frames or now - self.frames[-1].at >= STEP:
                self._keep(now)  # what never rests is looked at, too
        self._keep(time.monotonic() - started)

    def _keep(self, now: float) -> None:
        rows = tuple(tuple(self._pieces(number)) for number in range(self._screen.lines))
        if not any(rows) or (self.frames and self.frames[-1].rows == rows):
            return
        if self.frames and now - self.frames[-1].at < STEP:
            self.frames[-1] = self.frames[-1]._replace(rows=rows)
        else:
            self.frames.append(Frame(now, rows))

    def _pieces(self, number: int) -> Iterator[Piece]:
        cells = [self._screen.buffer[number][column] for column in range(self._screen.columns)]
        column = 0
        for look, alike in groupby(cells, lambda cell: (_colour(cell.fg), cell.bold)):
            text = "".join(cell.data for cell in alike)
            # Single words and phrases, so that no picture depends on how a reader's browser treats many spaces.
            yield from (Piece(column + word.start(), word[0], *look) for word in WORDS.finditer(text))
            column += len(text)


def _colour(name: str) -> str:
    return COLOURS.get(name.removeprefix("bright"), f"#{name}" if len(name) == 6 else INK)


def drawn(recording: Recording, title: str, description: str) -> str:
    """Return the recording as a picture whose frames follow each other."""
    columns, _ = recording.size
    frames = recording.frames
    used = max(number for frame in frames for number, row in enumerate(frame.rows, 1) if row)
    width, height = columns * CELL[0] + 2 * MARGIN, used * CELL[1] + 2 * MARGIN + TITLE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" {FONTS}>',
        f"<title>{escape(description)}</title>",
        f"<style>{_motion(frames)}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="{GROUND}"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 8}" fill="{DIM}">$ {escape(title)}</text>',
        *(_group(number, frame) for number, frame in enumerate(frames)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _motion(frames: list[Frame]) -> str:
    """Return the rules by which each frame is seen from its moment until the next; without motion, the last one is."""
    first, whole = frames[0].at, frames[-1].at - frames[0].at + HOLD
    ends = [*(frame.at for frame in frames[1:]), first + whole]
    rules = [".f{visibility:hidden}", f".f{len(frames) - 1}{{visibility:visible}}"]
    moving = []
    for number, (frame, end) in enumerate(zip(frames, ends, strict=True)):
        begin, until = 100 * (frame.at - first) / whole, 100 * (end - first) / whole
        before = "0%{visibility:hidden}" if number else ""
        after = f"{until:.2f}%,100%{{visibility:hidden}}" if until < 99.99 else ""
        moving.append(f"@keyframes k{number}{{{before}{begin:.2f}%{{visibility:visible}}{after}}}")
        moving.append(f".f{number}{{animation:k{number} {whole:.1f}s step-end infinite}}")
    return "".join(rules) + f"@media (prefers-reduced-motion: no-preference){{{''.join(moving)}}}"


def _group(number: int, frame: Frame) -> str:
    texts = [_text(line, piece) for line, row in enumerate(frame.rows) for piece in row]
    return f'<g class="f f{number}">{"".join(texts)}</g>'


def _text(line: int, piece: Piece) -> str:
    x, y = MARGIN + piece.column * CELL[0], MARGIN + TITLE + line * CELL[1] + 8
    weight = ' font-weight="700"' if piece.bold else ""
    # textLength keeps columns in line whatever font the reader has.
    length = f'textLength="{len(piece.text) * CELL[0]:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x:.1f}" y="{y}" fill="{piece.colour}" {length}{weight}>{escape(piece.text)}</text>'


def record_demo(folder: Path) -> None:
    """Record `azfdb demo` from its first line to its last."""
    recording = Recording(84, 40).run([AZFDB, "demo"], folder)
    picture = drawn(
        recording, "azfdb demo", "The change trigger at work: a crash, a resume and a poison row; nothing is lost"
    )
    (ASSETS / "demo.svg").write_text(picture)


def record_status(folder: Path) -> None:
    """Record `azfdb status --watch` on an app of which one poller is fine, one puts rows aside and one fails."""
    (folder / "function_app.py").write_text(APP)
    with _running([sys.executable, "-c", SHOP], folder) as shop:
        assert shop.stdout is not None
        shop.stdout.readline()
        with _running([AZFDB, "run"], folder):
            _wait_for_trouble(folder)
            watch = [str(AZFDB), "status", "--app", ".", "--watch", "--every", "1"]
            recording = Recording(100, 40).run(watch, folder, seconds=12)
    picture = drawn(recording, "azfdb status --watch", "Three pollers: one is fine, one has put rows aside, one fails")
    (ASSETS / "status.svg").write_text(picture)


def _wait_for_trouble(folder: Path) -> None:
    """Wait until there is something to see: the poller that fails has failed."""
    told = ""
    while "failing" not in told:
        told = subprocess.run(
            [AZFDB, "status", "--json"], cwd=folder, capture_output=True, text=True, check=False
        ).stdout


@contextlib.contextmanager
def _running(command: Sequence[str | Path], folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def main() -> None:
    for record in (record_demo, record_status):
        with tempfile.TemporaryDirectory() as folder:
            record(Path(folder))


if __name__ == "__main__":
    main()
