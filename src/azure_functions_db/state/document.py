"""A poller's state and the ways it may change: pure functions, the rules of leasing exist here only.

Each transition takes a document and returns the next one, or raises because it is not allowed.
Who writes a document must hold it against the version that was read (see `store`).
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import (
    ConfigurationError,
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
)
from azure_functions_db.core.types import LeaseView, lease_margin

if TYPE_CHECKING:
    from azure_functions_db.core.types import Checkpoint


@dataclass(frozen=True, slots=True)
class Document:
    """The state of one poller: how far it has come and who is at work."""

    poller_name: str
    checkpoint: Checkpoint = field(default_factory=dict)
    lease: LeaseView | None = None
    source_fingerprint: str | None = None


def lease_id_of(lease: LeaseView) -> str:
    """Return the name of one holding of the lease: no two holdings share it."""
    return f"{lease.owner_id}:{lease.fencing_token}"


def margin_of(lease: LeaseView) -> dt.timedelta:
    """Return how far two clocks may differ before a lease could have two holders."""
    ttl = lease.expires_at - lease.heartbeat_at
    return dt.timedelta(seconds=lease_margin(ttl.total_seconds()))


def is_released(lease: LeaseView) -> bool:
    """Tell whether the holder gave the lease back: it then expired at its own last heartbeat."""
    return lease.expires_at <= lease.heartbeat_at


def is_free(document: Document, now: dt.datetime) -> bool:
    """Tell whether anybody may take the lease: never taken, given back, or long expired."""
    lease = document.lease
    return lease is None or is_released(lease) or now >= lease.expires_at + margin_of(lease)


def is_abandoned(document: Document) -> bool:
    """Tell whether a free lease was left to expire by a holder who never gave it back."""
    return document.lease is not None and not is_released(document.lease)


def is_held(document: Document, lease_id: str, now: dt.datetime) -> bool:
    """Tell whether the lease still counts as the one of this id.

    A holder stops a margin before the expiry and a taker waits a margin after it.
    """
    lease = document.lease
    if lease is None or lease_id_of(lease) != lease_id or is_released(lease):
        return False
    return now < lease.expires_at - margin_of(lease)


def acquired(
    document: Document, owner_id: str, now: dt.datetime, ttl_seconds: float, *, take_over: bool = False
) -> Document:
    """Take the lease with the next token; ``take_over`` is for a lease that is known to be nobody's."""
    if not take_over and not is_free(document, now):
        raise lease_conflict(document)
    token = document.lease.fencing_token + 1 if document.lease else 1
    return replace(document, lease=LeaseView(owner_id, token, now, now, now + _span(ttl_seconds)))


def renewed(document: Document, lease_id: str, now: dt.datetime, ttl_seconds: float) -> Document:
    """Push the expiry to a full ttl from now."""
    lease = _held_lease(document, lease_id, now)
    return replace(document, lease=replace(lease, heartbeat_at=now, expires_at=now + _span(ttl_seconds)))


def committed(document: Document, lease_id: str, now: dt.datetime, checkpoint: Checkpoint) -> Document:
    """Move the checkpoint; the lease stays as it is."""
    _held_lease(document, lease_id, now)
    return replace(document, checkpoint=checkpoint)


def committed_alone(document: Document, lease_id: str, now: dt.datetime, checkpoint: Checkpoint) -> Document:
    """Move the checkpoint and push the expiry where nobody else could have taken the lease, whatever the clock says."""
    lease = document.lease
    if lease is None or lease_id_of(lease) != lease_id or is_released(lease):
        raise lost_lease(document.poller_name)
    kept = replace(lease, heartbeat_at=now, expires_at=now + (lease.expires_at - lease.heartbeat_at))
    return replace(document, checkpoint=checkpoint, lease=kept)


def released(document: Document, lease_id: str, now: dt.datetime) -> Document:
    """Give the lease back; its token stays, so that the next one is higher."""
    lease = document.lease
    if lease is None or lease_id_of(lease) != lease_id:
        raise lost_lease(document.poller_name)
    return replace(document, lease=replace(lease, heartbeat_at=now, expires_at=now))


def broken(document: Document, now: dt.datetime) -> Document:
    """Take the lease from whoever has it: the higher token shuts a holder out for good."""
    lease = document.lease
    if lease is None:
        return document
    token = lease.fencing_token + 1
    return replace(document, lease=replace(lease, fencing_token=token, heartbeat_at=now, expires_at=now))


def identified(document: Document, fingerprint: str | None) -> Document:
    """Bind the document to a source's definition; refused when it is bound to another one."""
    stored = document.source_fingerprint
    if fingerprint is None or stored == fingerprint:
        return document
    if stored is None:
        return replace(document, source_fingerprint=fingerprint)
    name = document.poller_name
    raise FingerprintMismatchError(
        f"The state of poller {name!r} was written for another definition of its source "
        f"({stored}, now {fingerprint}): the URL, schema, table or query, cursor column, key columns, "
        "filters or strategy have changed. If the stored position still holds for the new definition, run "
        f"`azfdb reset {name} --adopt-fingerprint`; if not, run `azfdb reset {name} --to-beginning`; "
        "or give the changed poller a new name.",
        poller_name=name,
        stored=stored,
        current=fingerprint,
    )


def lease_conflict(document: Document) -> LeaseConflictError:
    """Return the error that says who holds the lease."""
    owner = document.lease.owner_id if document.lease else None
    return LeaseConflictError(
        f"The lease of poller {document.poller_name!r} is held by {owner or 'another instance'}",
        poller_name=document.poller_name,
        owner_id=owner,
    )


def lost_race(poller_name: str) -> LeaseConflictError:
    """Return the error that says that the state changed between the look and the write."""
    return LeaseConflictError(
        f"The state of poller {poller_name!r} was changed by another instance at the same moment",
        poller_name=poller_name,
    )


def lost_lease(poller_name: str, why: str = "it expired or passed to somebody else") -> LostLeaseError:
    """Return the error that tells a holder that it is none any more."""
    return LostLeaseError(f"The lease of poller {poller_name!r} is lost: {why}", poller_name=poller_name)


def _held_lease(document: Document, lease_id: str, now: dt.datetime) -> LeaseView:
    if document.lease is None or not is_held(document, lease_id, now):
        raise lost_lease(document.poller_name)
    return document.lease


def _span(ttl_seconds: float) -> dt.timedelta:
    if not (math.isfinite(ttl_seconds) and ttl_seconds > 0):
        raise ConfigurationError(f"A lease needs a ttl of more than 0 seconds, not {ttl_seconds!r}")
    return dt.timedelta(seconds=ttl_seconds)
