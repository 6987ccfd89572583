"""Readers and writers that functions use to reach a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db._lazy import lazy_names

if TYPE_CHECKING:
    from azure_functions_db.binding.reader import DbReader
    from azure_functions_db.binding.writer import DbWriter

__all__ = ["DbReader", "DbWriter"]

if not TYPE_CHECKING:  # so that a checker notices a name that does not exist
    __getattr__ = lazy_names(
        __name__,
        {
            "DbReader": "reader",
            "DbWriter": "writer",
        },
    )


def __dir__() -> list[str]:
    return __all__
