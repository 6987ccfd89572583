"""Exceptions in the form in which they may leave the process: into logs, traces, state and terminals."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import DbError
from azure_functions_db.core.secrets import masked, masked_words, shows_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

# Groups and retries can make long chains; nobody reads further.
_MOST = 50


def masked_error(error: BaseException) -> BaseException:
    """Return a copy of an exception and of all that led to it, without secrets and row values.

    Whatever renders the copy, its messages, its notes and the source lines of its traceback may
    be read by anybody. Errors of this library keep their class; others keep its name.
    """
    return _Copies().of(error)


def traceback_text(error: BaseException) -> str:
    """Return what Python prints of an exception and of all that led to it, masked."""
    return masked("".join(traceback.format_exception(masked_error(error))))


class _Copies:
    """The copies of one chain; an exception that occurs twice has one copy."""

    def __init__(self) -> None:
        self._made: dict[int, BaseException] = {}

    def of(self, error: BaseException) -> BaseException:
        if id(error) not in self._made:
            if len(self._made) >= _MOST:
                return Exception("(further errors are left out)")
            copy = self._made[id(error)] = _bare(error)
            self._complete(copy, error)
        return self._made[id(error)]

    def _complete(self, copy: BaseException, error: BaseException) -> None:
        copy.__cause__ = None if error.__cause__ is None else self.of(error.__cause__)
        copy.__context__ = None if error.__context__ is None else self.of(error.__context__)
        copy.__suppress_context__ = error.__suppress_context__
        copy.__traceback__ = _without_secret_lines(error.__traceback__)
        for note in getattr(error, "__notes__", ()):
            copy.add_note(masked_words(note))
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions[:_MOST]:
                for line in "".join(traceback.format_exception(self.of(inner))).splitlines():
                    copy.add_note(f"  | {line}")


def _bare(error: BaseException) -> BaseException:
    text, kind = masked_words(error), type(error)
    if isinstance(error, DbError):
        ours = type(error).__new__(type(error))
        vars(ours).update({name: value for name, value in vars(error).items() if name != "__notes__"})
        ours.args = (text,)
        return ours
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    namesake: type[Exception] = type(kind.__name__, (Exception,), names)
    return namesake(text) if text else namesake()


def _without_secret_lines(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames whose source line has a secret written into it."""
    kept: TracebackType | None = None
    for frame, summary in reversed(list(zip(_each(frames), traceback.extract_tb(frames), strict=False))):
        if not shows_secret("".join(traceback.format_list([summary]))):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _each(frames: TracebackType | None) -> Iterator[TracebackType]:
    while frames is not None:
        yield frames
        frames = frames.tb_next
