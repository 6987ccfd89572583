"""What a drill does to a handler: it ends before a line of its file, or gets a row that cannot be read."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
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


_armed: ContextVar[bool] = ContextVar("azfdb_poison_armed", default=False)


class PoisonError(ValueError):
    """The row of a drill was read."""


class PoisonedRow(dict[str, Any]):
    """Reads like any other row, except inside a handler: there, whatever touches it fails."""

    was_read = False

    def _touch(self) -> None:
        if _armed.get():
            self.was_read = True
            raise PoisonError("this row cannot be digested (failure drill)")

    def __getitem__(self, name: str) -> Any:
        self._touch()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._touch()
        return super().get(name, default)

    def __iter__(self) -> Any:
        self._touch()
        return super().__iter__()

    def keys(self) -> Any:
        self._touch()
        return super().keys()

    def values(self) -> Any:
        self._touch()
        return super().values()

    def items(self) -> Any:
        self._touch()
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._touch()
        return super().copy()


def poisoned(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the handler such that poisoned rows are poison while it runs."""

    def armed(events: Any, context: Any) -> Any:
        events = [_with_own_key(event) for event in events]
        token = _armed.set(True)
        try:
            outcome = call(events, context)
            return _awaited(outcome) if inspect.isawaitable(outcome) else outcome
        finally:
            _armed.reset(token)

    return armed


def _with_own_key(event: Any) -> Any:
    """Return an event that does not look into its row for its key and id: only the row is poison."""
    return event.with_metadata(event.metadata) if isinstance(getattr(event, "after", None), PoisonedRow) else event


async def _awaited(outcome: Any) -> Any:
    token = _armed.set(True)
    try:
        return await outcome
    finally:
        _armed.reset(token)
