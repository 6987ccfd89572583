"""Turns a driver's tuples into records, by a function made once for each shape of a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.core.types import RawRecord


def row_builder(
    names: Sequence[str], converters: Sequence[Callable[[Any], Any] | None], unused: int = 0
) -> Callable[[Sequence[Any]], list[RawRecord]]:
    """Return a function that makes records of tuples; ``unused`` values at a tuple's end are left out.

    A dict display over unpacked values takes less than half the time of ``dict(zip(names, row))``.
    """
    values = [f"v{i}" for i in range(len(names) + unused)]
    items = [
        f"{name!r}: {value if convert is None else f'c{i}({value})'}"
        for i, (name, value, convert) in enumerate(zip(names, values, converters, strict=False))
    ]
    code = f"lambda rows: [{{{', '.join(items)}}} for {', '.join(values)}, in rows]"
    # Column names enter the code as string literals only.
    return eval(code, {f"c{i}": convert for i, convert in enumerate(converters)})  # type: ignore[no-any-return]  # noqa: S307
