"""The names under which the keyset source was first known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db._lazy import lazy_names

if TYPE_CHECKING:
    from azure_functions_db.adapter.sqlalchemy import SqlAlchemySource

__all__ = ["SqlAlchemySource"]

if not TYPE_CHECKING:  # so that a checker notices a name that does not exist
    __getattr__ = lazy_names(
        __name__,
        {
            "SqlAlchemySource": "sqlalchemy",
        },
    )


def __dir__() -> list[str]:
    return __all__
