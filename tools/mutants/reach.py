"""Which test reaches which function, recorded once and again where a test's file has changed."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Unit = tuple[str, str]
"""A file, relative to the checkout, and the name of a function in it."""


@dataclass
class Reached:
    """What one test does when nothing is broken."""

    content: str
    """The hash of its file."""
    seconds: float = 0.0
    units: set[Unit] = field(default_factory=set)
    passed: bool = True

    @property
    def cost(self) -> float:
        """Return what is low for a test that is fast and reaches little else."""
        return self.seconds * len(self.units)


class Reach:
    """What is known of all tests, kept in a file."""

    def __init__(self, kept_in: Path) -> None:
        self._file = kept_in
        self.tests: dict[str, Reached] = {}
        if kept_in.exists():
            for name, known in json.loads(kept_in.read_text()).items():
                self.tests[name] = Reached(**(known | {"units": {(path, unit) for path, unit in known["units"]}}))

    def save(self) -> None:
        """Keep what is known for the next run."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        shown = {name: vars(known) | {"units": sorted(known.units)} for name, known in self.tests.items()}
        self._file.write_text(json.dumps(shown))

    def by_unit(self, among: Iterable[str]) -> dict[Unit, list[str]]:
        """Return the tests that reach each function, first those that are fast and reach little else."""
        found = defaultdict(list)
        for name in sorted(among, key=lambda name: self.tests[name].cost):
            if self.tests[name].passed:
                for unit in self.tests[name].units:
                    found[unit].append(name)
        return found


class Recorder:
    """Notes which functions of some files are entered, in whatever thread."""

    def __init__(self, checkout: Path, files: Iterable[Path]) -> None:
        self._names = {str(path): str(path.relative_to(checkout)) for path in files}
        self._codes: dict[int, CodeType] = {}
        self._seen: set[int] = set()

    @contextmanager
    def recording(self, reached: Reached) -> Iterator[None]:
        """Note what is entered inside."""
        self._seen = set()
        began = time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
            reached.seconds = time.perf_counter() - began
            # A thread that outlives its test goes on noting: what it adds is copied in one step.
            reached.units = {unit for code in tuple(self._seen) if (unit := self._unit_of(self._codes[code]))}

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> None:
        # A code object's own hash is slow; its id is good as long as the object is kept.
        code = frame.f_code
        if id(code) not in self._seen:
            self._codes[id(code)] = code
            self._seen.add(id(code))

    def _unit_of(self, code: CodeType) -> Unit | None:
        name = self._names.get(code.co_filename)
        return None if name is None else (name, code.co_qualname.partition(".<locals>")[0])


def content_of(path: Path) -> str:
    """Return what tells one content of a file from another."""
    return sha256(path.read_bytes()).hexdigest()[:16]
