"""What a source remembers of its horizon from one process to the next, in a part of its checkpoint.

It says which bound has waited for longest, for whom, and since when by the database's clock. Transactions are
known by texts that are unique on one server between two of its starts; what another one has written does not
count. Whatever cannot be read is forgotten: that means to wait once more, and never to lose a row.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import CursorSerializationError
from azure_functions_db.core.serializers import deserialize_part, serialize_part
from azure_functions_db.sources.keyset import values

if TYPE_CHECKING:
    from collections.abc import Mapping

HORIZON = "horizon"
"""The name of this part in a checkpoint."""

# It is written with every batch: a crowd that needs more is not worth remembering.
_MOST_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Recollection:
    """A bound with the transactions that it waits for, and those that are no longer waited for."""

    server: str
    bound: Any = None
    ties: int | None = None
    waits: Mapping[str, float] = field(default_factory=dict)
    passed: Mapping[str, float] = field(default_factory=dict)


def written(recollection: Recollection) -> dict[str, Any] | None:
    """Return a recollection in its JSON form; None where there is nothing to remember, or too much."""
    if not recollection.waits and not recollection.passed:
        return None
    told = {
        "server": recollection.server,
        "bound": serialize_part(values.storable(recollection.bound)),
        "ties": recollection.ties,
        "waits": dict(recollection.waits),
        "passed": dict(recollection.passed),
    }
    return told if len(json.dumps(told)) <= _MOST_BYTES else None


def recollected(part: Any) -> Recollection | None:
    """Return what `written` wrote, None for anything else."""
    match part:
        case {"server": str() as server, "bound": bound, "waits": dict() as waits, "passed": dict() as passed}:
            ties = part.get("ties")
        case _:
            return None
    if not _are_times(waits) or not _are_times(passed) or not isinstance(ties, int | None):
        return None
    try:
        return Recollection(server=server, bound=deserialize_part(bound), ties=ties, waits=waits, passed=passed)
    except CursorSerializationError:
        return None


def _are_times(told: Mapping[str, Any]) -> bool:
    return all(isinstance(moment, int | float) and math.isfinite(moment) for moment in told.values())
