"""Arguments by the names that release 0.8 gave them: they are translated, with a warning that says how."""

from __future__ import annotations

import warnings
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from azure_functions_db.core.errors import DbError

    Translations = Mapping[str, Callable[[Any], dict[str, Any]]]

T = TypeVar("T")


def warn_of(former: str, instead: str, *, stacklevel: int) -> None:
    """Warn the caller that many levels up that something is said in another way now."""
    warnings.warn(f"{former} is as release 0.8 had it: {instead}", DeprecationWarning, stacklevel=stacklevel + 1)


def former_arguments(
    refusal: type[DbError], translations: Translations | None = None, **defaults: Any
) -> Callable[[type[T]], type[T]]:
    """Let a class take arguments by former names, and refuse unknown ones with an error that names today's.

    ``defaults`` are the former ones, for a call that uses a former name.
    """
    known_before = translations or {}

    def taught(cls: type[T]) -> type[T]:
        made: Any = cls.__init__
        names = list(signature(made).parameters)[1:]

        @wraps(made)
        def make(self: T, *args: Any, **given: Any) -> None:
            todays = {name: value for name, value in given.items() if name not in known_before}
            for name in [name for name in given if name in known_before]:
                translated = known_before[name](given[name])
                _check_given_once(cls, refusal, name, translated.keys() & given.keys())
                written = ", ".join(f"{each}={value!r}" for each, value in translated.items())
                warn_of(f"{cls.__name__}({name}=…)", f"write {written}", stacklevel=2)
                todays = {**defaults, **todays, **translated}
            if unknown := [name for name in todays if name not in names]:
                raise refusal(f"{cls.__name__} has no argument {unknown[0]!r}; it has: {', '.join(names)}")
            made(self, *args, **todays)

        cls.__init__ = make  # type: ignore[assignment]  # the same, by more names
        return cls

    return taught


def _check_given_once(cls: type, refusal: type[DbError], former: str, twice: set[str]) -> None:
    if twice:
        raise refusal(f"{cls.__name__}: {former}= is the former name of {min(twice)}=; give one of them")
