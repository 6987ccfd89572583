"""Names that a package offers without importing their modules before they are asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, home_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names live in other modules, named relative to it.

    A cold start pays only for what an app uses.
    """

    def found(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{home_of[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return found
