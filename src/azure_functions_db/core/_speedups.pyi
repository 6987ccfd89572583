import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

def column(name: str, records: list[Any], /) -> list[Any]: ...
def ids(
    starts: list[bytes],
    columns: tuple[list[Any], ...],
    form: Callable[[Any], bytes] | None,
    is_utc: Callable[[dt.tzinfo], bool] | None,
    /,
) -> list[str]: ...
def instances(kind: type[_T], columns: dict[str, list[Any]], /) -> list[_T]: ...
def lazy_item(
    holder: Any, index: Any, items: Any, otherwise: Callable[[Any], Any] | None, /
) -> Callable[[Any], Any]: ...
def records(
    empty: dict[str, None],
    names: tuple[str, ...],
    converters: tuple[Callable[[Any], Any] | tuple[Callable[[Any], Any]] | None, ...],
    width: int,
    rows: Sequence[Any],
    /,
) -> list[dict[str, Any]]: ...
def singles(name: str, values: list[Any], /) -> list[dict[str, Any]]: ...
def track_held(objects: list[Any], /) -> None: ...
def untrack_all(objects: list[Any], /) -> None: ...
def values(readers: tuple[Callable[[bytes], Any] | None, ...], packet: bytes, /) -> tuple[Any, ...]: ...
