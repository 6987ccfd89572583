"""What a handler may know about the batch it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.trigger.events import RowChange


class LeaseLost(Protocol):
    """Tells whether the lease was lost; then nothing that the handler does is confirmed."""

    def is_set(self) -> bool:
        """Tell whether the lease is lost by now."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost or the time is up; tell which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollContext:
    """The circumstances of one call of the handler."""

    poller_name: str
    invocation_id: str
    batch_id: str
    lease_owner: str
    checkpoint_before: CheckpointJson
    checkpoint_after_candidate: CheckpointJson
    """What will be committed when the handler has succeeded with the whole batch."""
    tick_started_at: dt.datetime
    source_name: str
    attempt: int
    """1 for the first delivery that this library knows of."""
    events: Sequence[RowChange] = field(repr=False)
    """The events themselves, also where the handler is given models: `RowsFailed` wants their ids."""
    lease_lost: LeaseLost = field(repr=False, compare=False)
    """Worth a look in a long handler: once it is set, stop."""
    deadline: dt.datetime | None = None
    """When the time budget of the tick is used up; None where it has none."""
