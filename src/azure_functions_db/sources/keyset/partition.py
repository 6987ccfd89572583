"""One of several equal shares of a source's rows, chosen by a stable hash of the key."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.serializers import serialize_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement


@dataclass(frozen=True)
class Partition:
    """Share ``index`` of ``count``; every key belongs to exactly one share, for ever."""

    index: int
    count: int

    @classmethod
    def checked(cls, given: tuple[int, int]) -> Partition:
        """Return the partition, or say what is wrong with it."""
        match given:
            case (int() as index, int() as count) if 0 <= index < count:
                return cls(index, count)
            case _:
                raise SourceConfigurationError("partition= must be (index, count) with 0 <= index < count")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def condition(self, key: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return the share of an integer key as SQL: the second modulo lifts negative remainders, NULL counts as 0."""
        from sqlalchemy import func

        return func.coalesce(((key % self.count) + self.count) % self.count, 0) == self.index

    def takes(self, key: Sequence[Any]) -> bool:
        """Tell whether a key of any type belongs to this share."""
        told = json.dumps([serialize_part(_zoneless(part)) for part in key], separators=(",", ":"))
        digest = hashlib.blake2b(told.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % self.count == self.index


def _zoneless(part: Any) -> Any:
    """Return a moment as it is in UTC: the session's time zone must not move a row to another share."""
    return part.astimezone(dt.UTC) if isinstance(part, dt.datetime) and part.tzinfo else part
