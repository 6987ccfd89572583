"""Types of values that pass between driver and database untouched."""

from __future__ import annotations

from sqlalchemy.types import String, UserDefinedType


class Raw(UserDefinedType[object]):
    """Left as the driver has it; unlike an unknown type, it does not take on the type it is compared with."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """Never asked for: no column is made of it."""
        raise NotImplementedError


class ENUM(String):
    """A text of a query that MySQL sorts by its place in a list; its values are left as they are."""


class SET(String):
    """Texts of a query that MySQL sorts by their places in a list; their values are left as they are."""
