"""What SQLAlchemy itself does not have: types whose values are left untouched, and statements to be explained."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy.sql.expression import ClauseElement, Executable
from sqlalchemy.types import String, UserDefinedType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Row
    from sqlalchemy.sql.compiler import SQLCompiler


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


@cache
def _explained() -> type[Any]:
    """Return the class of statements that the database is to explain; most processes have no use for it."""
    from sqlalchemy.ext.compiler import compiles

    class Explained(Executable, ClauseElement):
        inherit_cache = False

        def __init__(self, statement: ClauseElement, prefix: str) -> None:
            self.statement = statement
            self.prefix = prefix

    @compiles(Explained)
    def compiled(element: Explained, compiler: SQLCompiler, **options: Any) -> str:
        return f"{element.prefix} {compiler.process(element.statement, **options)}"

    return Explained


def explained(
    connection: Connection, statement: ClauseElement, prefix: str, parameters: Mapping[str, Any] | None = None
) -> Sequence[Row[Any]]:
    """Return what the database says about how it would run a statement."""
    return connection.execute(_explained()(statement, prefix), parameters).all()
