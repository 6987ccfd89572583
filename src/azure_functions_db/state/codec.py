"""A state document as JSON; what cannot be a document is refused, never repaired."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.core.types import LeaseView
from azure_functions_db.state.document import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure_functions_db.core.types import Checkpoint

FORMAT_VERSION = 1

_TIMES = ("acquired_at", "heartbeat_at", "expires_at")
# What the library itself adds to a position: a checkpoint of nothing else has lost its position.
_BOOKKEEPING = {"last_successful_batch_id", "updated_at", "metadata"}


def encoded(document: Document) -> bytes:
    """Return the document as it is stored; plain ASCII, so that no store can garble it."""
    try:
        return json.dumps(as_dict(document), indent=2, allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as refused:
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
        written = json.loads(content)
    except (ValueError, RecursionError):
        raise unreadable(poller_name, f"is not JSON, perhaps cut short ({len(content)} bytes)") from None
    if not isinstance(written, dict):
        raise unreadable(poller_name, f"is a JSON {type(written).__name__} instead of an object")
    return written


def _check_identity(written: dict[str, Any], poller_name: str) -> None:
    version, name = written.get("version"), written.get("poller_name")
    if version is None:
        raise unreadable(poller_name, "has no version, so it is not a state document")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise unreadable(poller_name, f"is of version {version!r}; this library reads version {FORMAT_VERSION}")
    if name != poller_name:
        raise unreadable(poller_name, f"belongs to the poller {name!r}")


def _checkpoint(written: dict[str, Any], poller_name: str) -> Checkpoint:
    if "checkpoint" not in written:
        raise unreadable(poller_name, "has no checkpoint")
    checkpoint = written["checkpoint"]
    if not isinstance(checkpoint, dict):
        raise unreadable(poller_name, "has a checkpoint that is no object")
    if checkpoint.get("last_successful_batch_id") is not None and set(checkpoint) <= _BOOKKEEPING:
        raise unreadable(poller_name, "has a checkpoint that names its last batch but no position")
    return checkpoint


def _fingerprint(written: dict[str, Any], poller_name: str) -> str | None:
    fingerprint = written.get("source_fingerprint")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise unreadable(poller_name, "has a source_fingerprint that is no text")
    return fingerprint or None


def _lease(written: dict[str, Any], poller_name: str) -> LeaseView | None:
    match written:
        case {"lease": None}:
            return None
        case {"lease": {"owner_id": str() as owner, "fencing_token": int() as token, **rest}} if token > 0:
            return LeaseView(owner, token, *_times(rest, poller_name))
        case {"lease": _}:
            raise unreadable(poller_name, "has a lease without owner_id or fencing_token")
        case _:
            raise unreadable(poller_name, "has no lease entry")


def _times(lease: Mapping[Any, Any], poller_name: str) -> list[dt.datetime]:
    times = []
    for name in _TIMES:
        try:
            moment = dt.datetime.fromisoformat(lease[name])
        except (KeyError, TypeError, ValueError):
            raise unreadable(poller_name, f"has a lease whose {name} is no timestamp") from None
        if moment.tzinfo is None:
            raise unreadable(poller_name, f"has a lease whose {name} has no time zone")
        times.append(moment)
    return times
