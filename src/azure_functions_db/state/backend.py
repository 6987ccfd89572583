"""What a place must be able to do to keep documents: compare and swap, nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from azure_functions_db.state.names import DocumentName

Version = str | int | bytes
"""Tells one state of a document from every other; opaque to all but its backend."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as it was read, with the version that a replacement is held against.

    No version means that it was found elsewhere (an older layout): it is to be created here.
    """

    content: bytes
    version: Version | None


class Backend(Protocol):
    """Three conditional operations and a listing; each failure is a `StateStoreError`."""

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
