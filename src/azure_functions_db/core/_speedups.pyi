import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

def byte_forms(
    values: list[Any], lead: bytes, form: Callable[[Any], bytes], is_utc: Callable[[dt.tzinfo], bool], /
) -> list[bytes]: ...
def digests(starts: list[bytes], heads: list[bytes], tails: list[bytes], /) -> list[str]: ...
def records(
    empty: dict[str, None],
    names: tuple[str, ...],
    converters: tuple[Callable[[Any], Any] | tuple[Callable[[Any], Any]] | None, ...],
    width: int,
    rows: Sequence[Any],
    /,
) -> list[dict[str, Any]]: ...
def instances(kind: type[_T], columns: dict[str, list[Any]], /) -> list[_T]: ...
