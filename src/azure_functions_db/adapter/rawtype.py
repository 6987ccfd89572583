"""A type of value that passes between driver and database untouched."""

from __future__ import annotations

from sqlalchemy.types import UserDefinedType


class Raw(UserDefinedType[object]):
    """Left as the driver has it; unlike an unknown type, it does not take on the type it is compared with."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """Never asked for: no column is made of it."""
        raise NotImplementedError
