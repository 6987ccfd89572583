"""Compares what a source holds with what a ledger says was delivered."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.values import cursor_from, typed_source
from azure_functions_db.cli.waiting import Announcement, is_held_back
from azure_functions_db.core.errors import ConfigurationError, HandlerError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import deserialize_position, json_safe
from azure_functions_db.ledger.delivered import DeliveredLedger, position_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from azure_functions_db.cli.targets import Target
    from azure_functions_db.core.types import Checkpoint
    from azure_functions_db.trigger.events import RowChange

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A row of the source that the ledger does not know."""

    event_id: str
    cursor: Any
    key: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a comparison found."""

    poller: str
    checked: int
    missing: list[MissingRow]
    quarantined: int
    """How many rows were not delivered and lie in quarantine; they are not missing."""
    replayed: bool


def ledger_of(target: Target, url: str | None) -> DeliveredLedger:
    """Return the ledger at a URL, or the one that listens to the poller."""
    from azure_functions_db.cli.store_urls import database_at

    if url is not None:
        return DeliveredLedger(**database_at(url))
    for observer in target.defined.settings.observers.all:
        if isinstance(observer, DeliveredLedger):
            return observer
    raise ConfigurationError(
        f"Poller {target.name!r} keeps no delivered ledger: give its trigger observers=[DeliveredLedger(...)], "
        "or say --ledger URL"
    )


def verified(target: Target, ledger: DeliveredLedger, *, first: str | None, share: float, replay: bool) -> Verified:
    """Look up every row up to the checkpoint in ledger and quarantine; deliver what is missing where that is wanted."""
    checked, undelivered = 0, list[Any]()
    for page in _due_pages(target, first, share):
        checked += len(page)
        undelivered += ledger.missing(target.name, page)
    aside = _quarantined(target)
    missing = [event for event in undelivered if event.event_id not in aside]
    if replay and missing:
        _replay(target, ledger, missing)
    rows = [MissingRow(event.event_id, json_safe(event.cursor), json_safe(event.pk)) for event in missing]
    return Verified(target.name, checked, rows, len(undelivered) - len(missing), replayed=replay and bool(missing))


def _quarantined(target: Target) -> set[str]:
    return set() if target.sink is None else {row.event_id for row in target.sink.entries(target.name)}


def _replay(target: Target, ledger: DeliveredLedger, events: Sequence[RowChange]) -> None:
    from azure_functions_db.cli.replay import deliver

    size = target.defined.settings.batch_size
    for start in range(0, len(events), size):
        batch = events[start : start + size]
        try:
            deliver(target.defined, batch)
        except Exception as error:
            raise HandlerError(f"The handler failed again: {type(error).__name__}: {masked_words(error)}") from error
        ledger.note(target.name, batch)


def _due_pages(target: Target, first: str | None, share: float) -> Iterator[list[RowChange]]:
    """Give the events of all rows that lie at or before the checkpoint."""
    checkpoint = target.store.load_checkpoint(target.name)
    if checkpoint.get("cursor") is None:
        return
    source = _stretch(target, first, checkpoint)
    # Rows with the checkpoint's own cursor value and a higher key are still to come.
    ahead = {position_of(event) for page in _pages(target, source, checkpoint) for event in page}
    for page in _pages(target, _sampled(source, share), {}):
        yield [event for event in page if position_of(event) not in ahead]


def _stretch(target: Target, first: str | None, checkpoint: Checkpoint) -> Any:
    source: Any = target.defined.settings.source
    if not hasattr(source, "ranged") or typed_source(source) is None:
        raise ConfigurationError(f"A {type(source).__name__} cannot be read in stretches")
    last = deserialize_position(checkpoint["cursor"], source.pk_columns)[0]
    return source.ranged(None if first is None else cursor_from(first, None, None, source), last)


def _sampled(source: Any, share: float) -> Any:
    count = round(1 / share)
    return source if count == 1 else source.partitioned(secrets.randbelow(count), count)


def _pages(target: Target, source: Any, checkpoint: Checkpoint) -> Iterator[list[RowChange]]:
    """Give all rows after a checkpoint; what running transactions hold back is waited for."""
    from azure_functions_db.trigger.normalizers import normalized

    announce = Announcement()
    settings = target.defined.settings
    more = True
    while more:
        result = source.fetch_changes(checkpoint, _PAGE)
        yield normalized(settings.normalizer, result.records, settings.source.source_descriptor, {"verified": True})
        checkpoint, more = result.next_checkpoint, bool(result.more)
        if not more and is_held_back(source, result.horizon, checkpoint):
            announce(result.horizon)
            more = True
