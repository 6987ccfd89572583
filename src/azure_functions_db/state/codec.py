"""A state document as JSON; what cannot be a document is refused, never repaired."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.foreign import is_count, is_label, is_rate, parsed_json, shown, timestamp
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.core.types import LeaseView
from azure_functions_db.state.document import Document

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from azure_functions_db.core.types import Checkpoint

T = TypeVar("T")

FORMAT_VERSION = 1
_NOBODY = "azfdb"

_TIMES = ("acquired_at", "heartbeat_at", "expires_at")
# What is added to a position: a checkpoint of nothing else has lost its position.
_BOOKKEEPING = {"last_successful_batch_id", "updated_at", "metadata", "horizon"}


def encoded(document: Document) -> bytes:
    """Return the document as it is stored; plain ASCII, so that no store can garble it."""
    try:
        return json.dumps(as_dict(document), indent=2, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as refused:
        raise StateStoreError(
            f"The checkpoint of poller {document.poller_name!r} cannot be written as JSON: {refused}",
            poller_name=document.poller_name,
        ) from None


def as_dict(document: Document) -> dict[str, Any]:
    """Return the document in the form that its JSON has."""
    return {
        "version": FORMAT_VERSION,
        "poller_name": document.poller_name,
        "source_fingerprint": document.source_fingerprint,
        "checkpoint": document.checkpoint,
        "lease": None if document.lease is None else _lease_dict(document.lease),
    }


def decoded(content: bytes, poller_name: str) -> Document:
    """Return the document of this poller; `StateStoreError` says what is wrong with another thing."""
    written = _parsed(content, poller_name)
    _check_identity(written, poller_name)
    return Document(
        poller_name=poller_name,
        checkpoint=_checkpoint(written, poller_name),
        lease=_lease(written, poller_name),
        source_fingerprint=_fingerprint(written, poller_name),
    )


def salvaged(content: bytes, poller_name: str, now: dt.datetime) -> Document:
    """Return what can still be used of a document that makes no sense, under a lease that nobody holds.

    Its position is kept where it can be read and is this poller's own. The token is higher than
    any that was counted up to.
    """
    unheld = LeaseView(_NOBODY, int(now.timestamp()), now, now, now)
    try:
        written = _parsed(content, poller_name)
        _check_identity(written, poller_name)
    except StateStoreError:
        return Document(poller_name, lease=unheld)
    return Document(
        poller_name,
        checkpoint=_if_readable(_checkpoint, written, poller_name)
        or _if_readable(_position, written, poller_name)
        or {},
        lease=_if_readable(_lease, written, poller_name) or unheld,
        source_fingerprint=_if_readable(_fingerprint, written, poller_name),
    )


def _if_readable(read: Callable[[dict[str, Any], str], T], written: dict[str, Any], poller_name: str) -> T | None:
    try:
        return read(written, poller_name)
    except StateStoreError:
        return None


def _position(written: dict[str, Any], poller_name: str) -> Checkpoint:
    """Return the checkpoint without what the library has noted beside it."""
    checkpoint = written.get("checkpoint")
    parts = checkpoint.items() if isinstance(checkpoint, dict) else ()
    return _checkpoint({"checkpoint": {name: part for name, part in parts if name not in _BOOKKEEPING}}, poller_name)


def unreadable(poller_name: str, what: str) -> StateStoreError:
    """Return the error for a document that makes no sense."""
    return StateStoreError(
        f"The state document of poller {poller_name!r} {what}. Nothing was overwritten; look at it with "
        f"`azfdb inspect {poller_name}`, then restore it or reset it with `azfdb reset {poller_name} --force`.",
        poller_name=poller_name,
    )


def _lease_dict(lease: LeaseView) -> dict[str, Any]:
    times = {name: datetime_text(getattr(lease, name)) for name in _TIMES}
    return {"owner_id": lease.owner_id, "fencing_token": lease.fencing_token, **times}


def _parsed(content: bytes, poller_name: str) -> dict[str, Any]:
    if not content.strip():
        raise unreadable(poller_name, "is empty")
    try:
        written = parsed_json(content)
    except json.JSONDecodeError:
        raise unreadable(poller_name, f"is not JSON, perhaps cut short ({len(content)} bytes)") from None
    except ValueError as refused:
        raise unreadable(poller_name, f"is not JSON of a state document: {str(refused)[:100]}") from None
    if not isinstance(written, dict):
        raise unreadable(poller_name, f"is a JSON {type(written).__name__} instead of an object")
    return written


def _check_identity(written: dict[str, Any], poller_name: str) -> None:
    version, name = written.get("version"), written.get("poller_name")
    if version is None:
        raise unreadable(poller_name, "has no version, so it is not a state document")
    if type(version) is not int or version != FORMAT_VERSION:
        raise unreadable(poller_name, f"is of version {shown(version)}; this library reads version {FORMAT_VERSION}")
    if name != poller_name:
        raise unreadable(poller_name, f"belongs to the poller {shown(name)}")


def _checkpoint(written: dict[str, Any], poller_name: str) -> Checkpoint:
    if "checkpoint" not in written:
        raise unreadable(poller_name, "has no checkpoint")
    checkpoint = written["checkpoint"]
    if not isinstance(checkpoint, dict):
        raise unreadable(poller_name, "has a checkpoint that is no object")
    if checkpoint.get("last_successful_batch_id") is not None and set(checkpoint) <= _BOOKKEEPING:
        raise unreadable(poller_name, "has a checkpoint that names its last batch but no position")
    _check_bookkeeping(checkpoint, poller_name)
    return checkpoint


def _check_bookkeeping(checkpoint: Checkpoint, poller_name: str) -> None:
    """Refuse what the library itself would not have written beside a position, and would stumble over."""
    metadata = checkpoint.get("metadata")
    if not isinstance(metadata, dict | None):
        raise unreadable(poller_name, "has a checkpoint whose metadata is no object")
    if checkpoint.get("updated_at") is not None:
        _time(checkpoint, "updated_at", poller_name, of="checkpoint")
    for name, is_right in (("failed_attempts", is_count), ("rows_per_second", is_rate)):
        if metadata and name in metadata and not is_right(metadata[name]):
            raise unreadable(poller_name, f"has a checkpoint whose {name} is no number that could be")


def _fingerprint(written: dict[str, Any], poller_name: str) -> str | None:
    fingerprint = written.get("source_fingerprint")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise unreadable(poller_name, "has a source_fingerprint that is no text")
    return fingerprint or None


def _lease(written: dict[str, Any], poller_name: str) -> LeaseView | None:
    match written:
        case {"lease": None}:
            return None
        case {"lease": {"owner_id": owner, "fencing_token": token, **rest}} if (
            is_label(owner) and is_count(token) and token > 0
        ):
            times = [_time(rest, name, poller_name, of="lease") for name in _TIMES]
            return LeaseView(owner, token, *times)
        case {"lease": _}:
            raise unreadable(poller_name, "has a lease without owner_id or fencing_token")
        case _:
            raise unreadable(poller_name, "has no lease entry")


def _time(holder: Mapping[Any, Any], name: str, poller_name: str, *, of: str) -> dt.datetime:
    try:
        return timestamp(holder.get(name))
    except ValueError as wrong:
        raise unreadable(poller_name, f"has a {of} whose {name} {wrong}") from None
