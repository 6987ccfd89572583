"""Interrupts a handler before a chosen line of its own file."""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Trace = Callable[[FrameType, str, Any], Any]


class CrashError(BaseException):
    """Stands for the end of a process: no ``except Exception`` holds it up."""


class LineCounter:
    """While it is entered, counts the lines that this thread runs in one file; acts before one of them.

    Debuggers and coverage tools use the same hook: they see nothing of what runs inside.
    """

    def __init__(self, file: str | None, *, at: int | None = None, act: Callable[[], None] | None = None) -> None:
        self._file = file
        self._at = at
        self._act = act
        self._before: Any = None
        self.lines = 0
        self.place: str | None = None
        """Where it acted, None as long as it has not."""

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        if self._file is not None:
            sys.settrace(self._called)
        return self

    def __exit__(self, *_failure: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Trace | None:
        return self._ran if frame.f_code.co_filename == self._file else None

    def _ran(self, frame: FrameType, event: str, _argument: Any) -> Trace:
        if event == "line":
            self.lines += 1
            if self.lines == self._at and self._act is not None:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self._act()
        return self._ran


def file_of(handler: Callable[..., Any]) -> str | None:
    """Return the file in which a handler is written, None for one that is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    function = handler if hasattr(handler, "__code__") else getattr(type(handler), "__call__", None)  # noqa: B004
    code = getattr(function, "__code__", None)
    return None if code is None else code.co_filename


def spread(count: int, most: int) -> list[int]:
    """Return at most so many numbers from 1 to ``count``, evenly spread, both ends included."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + round(step * (count - 1) / (most - 1)) for step in range(most)})
