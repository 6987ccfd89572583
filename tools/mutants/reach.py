"""Which test reaches which lines, recorded once and again where a test's file has changed."""

from __future__ import annotations

import ast
import json
import sys
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

from tools.mutants.edits import units_of

Unit = tuple[str, str]
"""A file, relative to the checkout, and the name of a function in it."""

ALL_LINES = -1
"""Every line of a function, where lines are the bits of a number."""


@dataclass
class Reached:
    """What one test does when nothing is broken."""

    content: str
    """The hash of its file."""
    seconds: float = 0.0
    passed: bool = True
    lines: dict[Unit, int] = field(default_factory=dict)
    """The lines that were run of each function, counted from its first."""

    @property
    def cost(self) -> float:
        """Return what is low for a test that is fast and reaches little else."""
        return self.seconds * len(self.lines)


class Reach:
    """What is known of all tests, kept in a file."""

    def __init__(self, kept_in: Path, checkout: Path) -> None:
        self._file = kept_in
        self._checkout = checkout
        self.tests: dict[str, Reached] = {}
        if kept_in.exists():
            for name, known in json.loads(kept_in.read_text()).items():
                lines = {(path, unit): self._still(path, unit, *kept) for path, unit, *kept in known.pop("lines")}
                self.tests[name] = Reached(**known, lines=lines)

    def save(self) -> None:
        """Keep what is known for the next run."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        shown = {
            name: vars(known) | {"lines": [[*unit, lines, self._text(*unit)] for unit, lines in known.lines.items()]}
            for name, known in self.tests.items()
        }
        self._file.write_text(json.dumps(shown))

    def by_unit(self, among: Iterable[str]) -> dict[Unit, dict[str, int]]:
        """Return the tests that reach each function with the lines that they run, the cheapest tests first."""
        found: defaultdict[Unit, dict[str, int]] = defaultdict(dict)
        for name in sorted(among, key=lambda name: self.tests[name].cost):
            if self.tests[name].passed:
                for unit, lines in self.tests[name].lines.items():
                    found[unit][name] = lines
        return found

    def _still(self, path: str, unit: str, lines: int, text: str) -> int:
        """Return the lines that were run; of a function that has changed since, it may be any."""
        return lines if text == self._text(path, unit) else ALL_LINES

    def _text(self, path: str, unit: str) -> str:
        definition = definitions_of(self._checkout / path).get(unit)
        return "" if definition is None else definition.text


class Recorder:
    """Notes which lines of some files are run, in whatever thread."""

    def __init__(self, checkout: Path, files: Iterable[Path]) -> None:
        self._checkout = checkout
        self._files = list(files)
        self._tracers: dict[str, Callable[[FrameType, str, Any], Any]] = {}

    @contextmanager
    def recording(self, reached: Reached) -> Iterator[None]:
        """Note what is run inside."""
        seen = {path: set[int]() for path in self._files}
        self._tracers = {str(path): _tracer(lines) for path, lines in seen.items()}
        began = time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
            reached.seconds = time.perf_counter() - began
            for path, lines in seen.items():
                # A thread that outlives its test goes on noting: what it adds is copied in one step.
                self._note(reached, path, tuple(lines))

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        tracer = self._tracers.get(frame.f_code.co_filename)
        return None if tracer is None else tracer(frame, event, argument)

    def _note(self, reached: Reached, path: Path, lines: tuple[int, ...]) -> None:
        name = str(path.relative_to(self._checkout))
        definitions = sorted(definitions_of(path).items(), key=lambda each: each[1].first) if lines else []
        starts = [definition.first for _, definition in definitions]
        for line in lines:
            for unit, definition in definitions[: bisect_right(starts, line)][-1:]:
                if line <= definition.last:
                    reached.lines[name, unit] = reached.lines.get((name, unit), 0) | 1 << line - definition.first


def _tracer(lines: set[int]) -> Callable[[FrameType, str, Any], Any]:
    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        lines.add(frame.f_lineno)
        return trace

    return trace


@dataclass(frozen=True)
class Definition:
    """Where a function stands, and the hash of what it says."""

    first: int
    last: int
    text: str


@cache
def definitions_of(path: Path) -> dict[str, Definition]:
    """Return the functions and constants of a file; what has one name twice, such as a property's setter, is one."""
    found: dict[str, Definition] = {}
    if path.exists():
        for name, node in units_of(ast.parse(path.read_text())):
            first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
            known = found.get(name, Definition(first, 0, ""))
            text = sha256((known.text + ast.dump(node)).encode()).hexdigest()[:8]
            found[name] = Definition(known.first, node.end_lineno or first, text)
    return found


def content_of(path: Path) -> str:
    """Return what tells one content of a file from another."""
    return sha256(path.read_bytes()).hexdigest()[:16]
