"""What tools can learn about a decorated function without calling it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTRIBUTE = "_azure_functions_metadata"
_NAMESPACE = "db"
_VERSION = 1


def get_db_metadata(fn: Any) -> dict[str, Any] | None:
    """Return what the database decorators noted about a function, or None where there are none.

    Takes the function itself or what an app decorator made of it. The result is a copy:
    ``{"version": 1, "bindings": [...], "injections": [...]}``, without any credentials.
    """
    noted = getattr(user_function(fn), _ATTRIBUTE, None)
    return copy.deepcopy(noted.get(_NAMESPACE)) if isinstance(noted, dict) else None


def note_metadata(fn: Callable[..., Any], bindings: list[dict[str, Any]], injections: list[dict[str, Any]]) -> None:
    """Note what the decorators did, beside what other libraries have noted."""
    others = getattr(fn, _ATTRIBUTE, {})
    noted = {"version": _VERSION, "bindings": bindings, "injections": injections}
    setattr(fn, _ATTRIBUTE, {**others, _NAMESPACE: noted})


def user_function(fn: Any) -> Any:
    """Return the function inside what an app decorator made of it (a builder, then a function object)."""
    built = getattr(fn, "_function", fn)
    get_user_function = getattr(built, "get_user_function", None)
    return fn if get_user_function is None else get_user_function()
