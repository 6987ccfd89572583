"""A poller's state, the ways it may change and its JSON form: pure functions, the rules of leasing exist here only.

Each transition takes a document and returns the next one, or raises because it is not allowed; what it returns
can be written, and read again. What was written by others and cannot be a document is refused, never repaired.
Who writes a document must hold it against the version that was read (see `store`).
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.clocks import lease_margin
from azure_functions_db.core.errors import (
    ConfigurationError,
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
    StateStoreError,
)
from azure_functions_db.core.serializers import (
    DEEPEST,
    LARGEST,
    datetime_text,
    is_count,
    is_label,
    is_rate,
    parsed_json,
    shown,
    timestamp,
)
from azure_functions_db.core.types import LeaseView, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from azure_functions_db.core.types import CheckpointJson

T = TypeVar("T")

FORMAT_VERSION = 1
_NOBODY = "azfdb"
# Some centuries: an expiry beyond the calendar could not be read again.
_LONGEST_TTL = 10**10
# What is added to a position: a checkpoint of nothing else has lost its position.
_BOOKKEEPING = {"last_successful_batch_id", "updated_at", "metadata", "horizon"}


@dataclass(frozen=True, slots=True)
class Document:
    """The state of one poller: how far it has come and who is at work."""

    poller_name: str
    checkpoint: CheckpointJson = field(default_factory=dict)
    lease: LeaseView | None = None
    source_fingerprint: str | None = None
    paused: Pause | None = None


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
    """Tell whether the lease still counts as the one of this id."""
    try:
        _held_lease(document, lease_id, now)
    except LostLeaseError:
        return False
    return True


def acquired(
    document: Document, owner_id: str, now: dt.datetime, ttl_seconds: float, *, take_over: bool = False
) -> Document:
    """Take the lease with the next token; ``take_over`` is for a lease that is known to be nobody's."""
    if not take_over and not is_free(document, now):
        raise lease_conflict(document)
    token = document.lease.fencing_token + 1 if document.lease else 1
    if token >= LARGEST:
        raise unreadable(document.poller_name, "has a fencing_token that nothing can follow")
    return replace(document, lease=LeaseView(owner_id, token, now, now, now + _span(ttl_seconds)))


def renewed(document: Document, lease_id: str, now: dt.datetime, ttl_seconds: float) -> Document:
    """Push the expiry to a full ttl from now."""
    lease = _held_lease(document, lease_id, now)
    return replace(document, lease=replace(lease, heartbeat_at=now, expires_at=now + _span(ttl_seconds)))


def committed(document: Document, lease_id: str, now: dt.datetime, checkpoint: CheckpointJson) -> Document:
    """Move the checkpoint; the lease stays as it is."""
    _held_lease(document, lease_id, now)
    return replace(document, checkpoint=_storable(checkpoint, document.poller_name))


def committed_alone(document: Document, lease_id: str, now: dt.datetime, checkpoint: CheckpointJson) -> Document:
    """Move the checkpoint and push the expiry where nobody else could have taken the lease, whatever the clock says."""
    lease = document.lease
    if lease is None or lease_id_of(lease) != lease_id or is_released(lease):
        raise lost_lease(document.poller_name)
    kept = replace(lease, heartbeat_at=now, expires_at=now + (lease.expires_at - lease.heartbeat_at))
    return replace(document, checkpoint=_storable(checkpoint, document.poller_name), lease=kept)


def noted(document: Document, now: dt.datetime, checkpoint: CheckpointJson) -> Document:
    """Write something beside the position while nobody is at work; the lease stays free."""
    if not is_free(document, now):
        raise lease_conflict(document)
    return replace(document, checkpoint=_storable(checkpoint, document.poller_name))


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
    name = document.poller_name
    if not isinstance(fingerprint, str):
        raise unreadable(name, "cannot be bound to a source_fingerprint that is no text")
    if stored is None:
        return replace(document, source_fingerprint=fingerprint)
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
    """Return the lease while it is the one of this id: a holder stops a margin before the expiry, a taker waits one."""
    lease = document.lease
    if lease is None or lease_id_of(lease) != lease_id or is_released(lease):
        raise lost_lease(document.poller_name)
    if now >= lease.expires_at - margin_of(lease):
        raise lost_lease(document.poller_name)
    return lease


def _span(ttl_seconds: float) -> dt.timedelta:
    if not 0 < ttl_seconds <= _LONGEST_TTL:
        raise ConfigurationError(f"A lease needs a ttl of more than 0 seconds, and not of centuries: {ttl_seconds!r}")
    return dt.timedelta(seconds=ttl_seconds)


def encoded(document: Document) -> bytes:
    """Return the document as it is stored; plain ASCII, so that no store can garble it."""
    try:
        return json.dumps(as_dict(document), indent=2, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as refused:
        raise _unwritable(document.poller_name, refused) from None


def as_dict(document: Document) -> dict[str, Any]:
    """Return the document in the form that its JSON has."""
    lease, paused = document.lease, document.paused
    written = {
        "version": FORMAT_VERSION,
        "poller_name": document.poller_name,
        "source_fingerprint": document.source_fingerprint,
        "checkpoint": document.checkpoint,
        "lease": lease
        and {
            "owner_id": lease.owner_id,
            "fencing_token": lease.fencing_token,
            "acquired_at": datetime_text(lease.acquired_at),
            "heartbeat_at": datetime_text(lease.heartbeat_at),
            "expires_at": datetime_text(lease.expires_at),
        },
    }
    if paused is not None:
        written["paused"] = {"by": paused.by, "at": datetime_text(paused.at), "why": paused.why}
    return written


def decoded(content: bytes, poller_name: str) -> Document:
    """Return the document of this poller; `StateStoreError` says what is wrong with another thing."""
    try:
        written = _parsed(content, poller_name)
        return Document(poller_name, _checkpoint(written), _lease(written), _fingerprint(written), _paused(written))
    except ValueError as wrong:
        raise unreadable(poller_name, str(wrong)) from None


def salvaged(content: bytes, poller_name: str, now: dt.datetime) -> Document:
    """Return what can still be used of a document that makes no sense, under a lease that nobody holds.

    Its position is kept where it can be read and is this poller's own. The token is higher than
    any that was counted up to.
    """
    unheld = LeaseView(_NOBODY, int(now.timestamp()), now, now, now)
    try:
        written = _parsed(content, poller_name)
    except ValueError:
        return Document(poller_name, lease=unheld)
    return Document(
        poller_name,
        checkpoint=_if_readable(_checkpoint, written) or _if_readable(_position, written) or {},
        lease=_if_readable(_lease, written) or unheld,
        source_fingerprint=_if_readable(_fingerprint, written),
        paused=_if_readable(_paused, written),
    )


def unreadable(poller_name: str, what: str) -> StateStoreError:
    """Return the error for a document that makes no sense."""
    return StateStoreError(
        f"The state document of poller {poller_name!r} {what}. Nothing was overwritten; look at it with "
        f"`azfdb inspect {poller_name}`, then restore a backup with `azfdb reset {poller_name} --to-checkpoint FILE "
        "--force`, or begin anew with `--to-beginning --force`.",
        poller_name=poller_name,
    )


def _unwritable(poller_name: str, refused: Exception) -> StateStoreError:
    return StateStoreError(
        f"The checkpoint of poller {poller_name!r} cannot be written as JSON: {refused}", poller_name=poller_name
    )


def _storable(checkpoint: CheckpointJson, poller_name: str) -> CheckpointJson:
    """Return a copy of the checkpoint as it will be read; refused where reading would refuse it."""
    try:
        text = json.dumps(checkpoint, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as refused:
        raise _unwritable(poller_name, refused) from None
    try:
        return _checkpoint({"checkpoint": parsed_json(text, DEEPEST - 1)})  # it lies one level down in its document
    except ValueError as wrong:
        raise unreadable(poller_name, str(wrong)) from None


def _if_readable(read: Callable[[dict[str, Any]], T], written: dict[str, Any]) -> T | None:
    try:
        return read(written)
    except ValueError:
        return None


def _position(written: dict[str, Any]) -> CheckpointJson:
    """Return the checkpoint without what the library has noted beside it."""
    checkpoint = written.get("checkpoint")
    parts = checkpoint.items() if isinstance(checkpoint, dict) else ()
    return _checkpoint({"checkpoint": {name: part for name, part in parts if name not in _BOOKKEEPING}})


# What reads a part of a document raises a `ValueError` that goes on after "The state document …".


def _parsed(content: bytes, poller_name: str) -> dict[str, Any]:
    if not content.strip():
        raise ValueError("is empty")
    try:
        written = parsed_json(content)
    except json.JSONDecodeError:
        raise ValueError(f"is not JSON, perhaps cut short ({len(content)} bytes)") from None
    except ValueError as refused:
        raise ValueError(f"is not JSON of a state document: {str(refused)[:100]}") from None
    if not isinstance(written, dict):
        raise ValueError(f"is a JSON {type(written).__name__} instead of an object")  # noqa: TRY004 - see above
    _check_identity(written, poller_name)
    return written


def _check_identity(written: dict[str, Any], poller_name: str) -> None:
    version, name = written.get("version"), written.get("poller_name")
    if version is None:
        raise ValueError("has no version, so it is not a state document")
    if type(version) is not int or version != FORMAT_VERSION:
        raise ValueError(f"is of version {shown(version)}; this library reads version {FORMAT_VERSION}")
    if name != poller_name:
        raise ValueError(f"belongs to the poller {shown(name)}")


def _checkpoint(written: dict[str, Any]) -> CheckpointJson:
    if "checkpoint" not in written:
        raise ValueError("has no checkpoint")
    checkpoint = written["checkpoint"]
    if not isinstance(checkpoint, dict):
        raise ValueError("has a checkpoint that is no object")  # noqa: TRY004 - see above
    if checkpoint.get("last_successful_batch_id") is not None and set(checkpoint) <= _BOOKKEEPING:
        raise ValueError("has a checkpoint that names its last batch but no position")
    # What the library itself would not have written beside a position, and would stumble over:
    metadata = checkpoint.get("metadata")
    if not isinstance(metadata, dict | None):
        raise ValueError("has a checkpoint whose metadata is no object")  # noqa: TRY004 - see above
    if checkpoint.get("updated_at") is not None:
        _times(checkpoint, "checkpoint", "updated_at")
    for name, is_right in (("failed_attempts", is_count), ("rows_per_second", is_rate)):
        if metadata and name in metadata and not is_right(metadata[name]):
            raise ValueError(f"has a checkpoint whose {name} is no number that could be")
    return checkpoint


def _fingerprint(written: dict[str, Any]) -> str | None:
    fingerprint = written.get("source_fingerprint")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise ValueError("has a source_fingerprint that is no text")
    return fingerprint or None


def _lease(written: dict[str, Any]) -> LeaseView | None:
    match written:
        case {"lease": None}:
            return None
        case {"lease": {"owner_id": owner, "fencing_token": token, **rest}} if (
            is_label(owner) and is_count(token) and token > 0
        ):
            return LeaseView(owner, token, *_times(rest, "lease", "acquired_at", "heartbeat_at", "expires_at"))
        case {"lease": _}:
            raise ValueError("has a lease without owner_id or fencing_token")
        case _:
            raise ValueError("has no lease entry")


def _paused(written: dict[str, Any]) -> Pause | None:
    match written.get("paused"):
        case None:
            return None
        case {"by": str() as by, "why": str() | None as why, **rest}:
            return Pause(by, _times(rest, "pause", "at")[0], why)
        case _:
            raise ValueError("has a pause that does not say by whom and why")


def _times(holder: Mapping[Any, Any], of: str, *names: str) -> list[dt.datetime]:
    times = []
    for name in names:
        try:
            times.append(timestamp(holder.get(name)))
        except ValueError as wrong:
            raise ValueError(f"has a {of} whose {name} {wrong}") from None
    return times
