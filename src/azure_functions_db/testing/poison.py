"""A row that a handler cannot read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

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
