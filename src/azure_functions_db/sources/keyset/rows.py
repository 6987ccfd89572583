"""Turns a driver's tuples into records, by a function made once for each shape of a result."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.core.types import RawRecord

    Converter = Callable[[Any], Any]


def row_builder(
    names: Sequence[str], converters: Sequence[Converter | None], unused: int = 0
) -> Callable[[Sequence[Any]], list[RawRecord]]:
    """Return a function that makes records of tuples; ``unused`` values at a tuple's end are left out.

    A dict display over unpacked values takes less than half the time of ``dict(zip(names, row))``.
    """
    values = [f"v{i}" for i in range(len(names) + unused)]
    known: dict[str, Converter] = {}
    items = [
        f"{name!r}: {_converted(value, convert, f'c{i}', known)}"
        for i, (name, value, convert) in enumerate(zip(names, values, converters, strict=False))
    ]
    code = f"lambda rows: [{{{', '.join(items)}}} for {', '.join(values)}, in rows]"
    # Column names enter the code as string literals only.
    return eval(code, known)  # type: ignore[no-any-return]  # noqa: S307


def _converted(value: str, convert: Converter | None, name: str, known: dict[str, Converter]) -> str:
    """Return the code that converts a value; what it calls is made known by a name."""
    if convert is None:
        return value
    builtin = _behind().get(convert)
    known[name] = builtin or convert
    return f"{name}({value})" if builtin is None else f"None if {value} is None else {name}({value})"


def _behind() -> dict[Converter, Converter]:
    """Return the functions behind those of SQLAlchemy's that only let None pass: a call of two is saved."""
    from sqlalchemy.engine import processors

    return {
        processors.int_to_boolean: bool,
        processors.str_to_datetime: dt.datetime.fromisoformat,
        processors.str_to_date: dt.date.fromisoformat,
        processors.str_to_time: dt.time.fromisoformat,
    }
