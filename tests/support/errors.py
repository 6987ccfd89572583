"""Every class of error that the package defines, wherever."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import azure_functions_db
from azure_functions_db.core.errors import DbError


def all_errors() -> list[type[DbError]]:
    """Return the tree of errors, flat; every module is imported for it."""
    for module in pkgutil.walk_packages(azure_functions_db.__path__, "azure_functions_db."):
        importlib.import_module(module.name)
    return [kind for kind in dict.fromkeys(_below(DbError)) if kind.__module__.startswith("azure_functions_db")]


def _below(kind: type[DbError]) -> Iterator[type[DbError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _below(each)
