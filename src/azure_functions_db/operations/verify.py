"""Compares what a source holds with what was delivered: by a ledger, or by what the source itself remembers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, HandlerError
from azure_functions_db.core.ports import ComparesItself
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import json_safe
from azure_functions_db.ledger import DeliveredLedger, position_of
from azure_functions_db.operations.backfill import range_batches
from azure_functions_db.operations.pollers import database_at
from azure_functions_db.operations.positions import range_source
from azure_functions_db.operations.run import deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from azure_functions_db.core.types import CheckpointJson, Horizon
    from azure_functions_db.operations.pollers import Poller
    from azure_functions_db.trigger.events import RowChange

    Announce = Callable[[Horizon], object]

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A row of the source that was not delivered as it is."""

    event_id: str | None
    """None where only its key is known."""
    cursor: Any
    key: dict[str, Any]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a comparison found."""

    poller: str
    checked: int
    missing: list[MissingRow]
    quarantined: int
    """How many rows were not delivered and lie in quarantine; they are not missing."""
    replayed: bool
    waiting: int = 0
    """How many changes the next tick will find, where that was seen on the way; they are not missing."""


def ledger_of(poller: Poller, url: str | None) -> DeliveredLedger | None:
    """Return the ledger at a URL, or the one that listens to the poller; None for a source that needs none."""
    source = poller.defined.settings.source
    if isinstance(source, ComparesItself):
        if url is not None:
            raise ConfigurationError(f"A {type(source).__name__} is compared with its own snapshot: leave --ledger out")
        return None
    if url is not None:
        return DeliveredLedger(**database_at(url))
    for observer in poller.defined.settings.observers.all:
        if isinstance(observer, DeliveredLedger):
            return observer
    raise ConfigurationError(
        f"Poller {poller.name!r} keeps no delivered ledger: give its trigger observers=[DeliveredLedger(...)], "
        "or say --ledger URL"
    )


def verify(
    poller: Poller,
    ledger: DeliveredLedger | None,
    *,
    first: str | None = None,
    share: float = 1,
    replay: bool = False,
    announce: Announce = lambda _horizon: None,
) -> VerifyReport:
    """Look up every row up to the checkpoint in ledger and quarantine; deliver what is missing where that is wanted."""
    if ledger is None:
        return _compared(poller, first, share, replay=replay)
    checked, undelivered = 0, list[Any]()
    for page in _due_pages(poller, first, share, announce):
        checked += len(page)
        undelivered += ledger.missing(poller.name, page)
    quarantined = _quarantined(poller)
    missing = [event for event in undelivered if event.event_id not in quarantined]
    if replay and missing:
        _replay(poller, ledger, missing)
    rows = [MissingRow(event.event_id, json_safe(event.cursor), json_safe(event.pk)) for event in missing]
    return VerifyReport(poller.name, checked, rows, len(undelivered) - len(missing), replayed=replay and bool(missing))


def _compared(poller: Poller, first: str | None, share: float, *, replay: bool) -> VerifyReport:
    """Let a source that remembers what was delivered compare it with what is there."""
    source: Any = poller.defined.settings.source
    if first is not None or replay:
        raise ConfigurationError(
            f"A {type(source).__name__} is compared as a whole, or in part with --sample: what is missing comes with "
            "azfdb backfill, or with azfdb reset --to-beginning"
        )
    checkpoint = poller.store.load_checkpoint(poller.name)
    parts = list(source.compared(checkpoint, share)) if checkpoint.get("cursor") is not None else []
    cursor = json_safe(checkpoint.get("cursor", {}).get("value")) if parts else None
    missing = [MissingRow(None, cursor, json_safe(key)) for part in parts for key in part.missing]
    checked, waiting = sum(part.checked for part in parts), sum(part.waiting for part in parts)
    return VerifyReport(poller.name, checked, missing, 0, replayed=False, waiting=waiting)


def _quarantined(poller: Poller) -> set[str]:
    return set() if poller.sink is None else {row.event_id for row in poller.sink.entries(poller.name)}


def _replay(poller: Poller, ledger: DeliveredLedger, events: Sequence[RowChange]) -> None:
    size = poller.defined.settings.batch_size
    for start in range(0, len(events), size):
        batch = events[start : start + size]
        try:
            deliver(poller.defined, batch)
        except Exception as error:
            raise HandlerError(f"The handler failed again: {type(error).__name__}: {masked_words(error)}") from error
        ledger.note(poller.name, batch)


def _due_pages(poller: Poller, first: str | None, share: float, announce: Announce) -> Iterator[list[RowChange]]:
    """Give the events of all rows that lie at or before the checkpoint."""
    checkpoint = poller.store.load_checkpoint(poller.name)
    if checkpoint.get("cursor") is None:
        return
    source = _range_of(poller, first, checkpoint)
    # Rows with the checkpoint's own cursor value and a higher key are still to come.
    ahead = {
        position_of(event) for page in range_batches(poller, source, checkpoint, _PAGE, announce) for event in page
    }
    for page in range_batches(poller, _sampled(source, share), {}, _PAGE, announce):
        yield [event for event in page if position_of(event) not in ahead]


def _range_of(poller: Poller, first: str | None, checkpoint: CheckpointJson) -> Any:
    source = range_source(poller.defined.settings.source)
    return source.ranged(None if first is None else source.cursor_from(first), source.cursor_at(checkpoint))


def _sampled(source: Any, share: float) -> Any:
    count = round(1 / share)
    return source if count == 1 else source.partitioned(secrets.randbelow(count), count)
