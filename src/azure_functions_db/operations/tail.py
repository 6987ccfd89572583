"""What the next tick of a poller would deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.ports import CountsBacklog
from azure_functions_db.operations.status import has_one_reader
from azure_functions_db.trigger.adapters import reading
from azure_functions_db.trigger.normalizers import normalized

if TYPE_CHECKING:
    from azure_functions_db.core.types import Backlog, Horizon
    from azure_functions_db.operations.pollers import Poller


@dataclass(frozen=True, slots=True)
class Tail:
    """The events that wait, oldest first."""

    poller: str
    events: list[dict[str, Any]]
    more: bool
    """Whether further ones wait behind them."""
    horizon: Horizon | None = None
    backlog: Backlog | None = None
    """What waits in a source with one reader, whose events nobody else may look at."""
    has_one_reader: bool = False


def tail(poller: Poller, limit: int | None = None) -> Tail:
    """Look at what follows the present checkpoint, a batch where no limit is given, and leave everything as it is."""
    settings = poller.defined.settings
    source = settings.source
    checkpoint = poller.store.load_checkpoint(poller.name)
    if has_one_reader(source):
        backlog = source.backlog(checkpoint) if isinstance(source, CountsBacklog) else None
        return Tail(poller.name, [], backlog is None or backlog.amount > 0, backlog=backlog, has_one_reader=True)
    with reading(source) as reader:
        result = reader.fetch_changes(checkpoint, limit or settings.batch_size)
    events = normalized(
        settings.normalizer, result.records, source.source_descriptor, {"dry_run": True}, result.revisions
    )
    return Tail(poller.name, [event.to_json() for event in events], bool(result.more), result.horizon)
