"""What a place must be able to do to keep documents: compare and swap, nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import unquote

from azure_functions_db.core.config import encoded_app, encoded_name
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class DocumentName:
    """Where one poller's document belongs: the app and the poller, both safe in paths and keys.

    Letters, digits and ``_ - . ~`` stand for themselves; every other character, and a dot at
    either end, is percent-encoded as UTF-8.
    """

    app: str
    poller: str


def document_name(app_name: str | None, poller_name: str) -> DocumentName:
    """Return the name of a poller's document."""
    return DocumentName(encoded_app(app_name), encoded_name("poller name", poller_name))


def is_encoded(name: str) -> bool:
    """Tell whether a name is one that a poller's document can have; other things may lie beside documents."""
    try:
        return encoded_name("poller name", poller_of(name)) == name
    except ConfigurationError:
        return False


def poller_of(encoded: str) -> str:
    """Return the poller that an encoded name stands for."""
    return unquote(encoded)


Version = str | int | bytes
"""Tells one state of a document from every other; opaque to all but its backend."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as it was read, with the version that a replacement is held against.

    No version means that it was found elsewhere, in an older layout: it is to be created here.
    """

    content: bytes
    version: Version | None
    origin: Version | None = None
    """The version that it has elsewhere: who carries it over claims it by that."""
    told_by_fingerprint: bool = False
    """Whether only the fingerprint in it tells whose it is."""


class Backend(Protocol):
    """A place for documents: reading, two conditional writes and a listing; each failure is a `StateStoreError`.

    One with a clock of its own may also be a `TimedBackend`.
    """

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""


@runtime_checkable
class CarryingBackend(Protocol):
    """A place that also finds documents of an older layout, of which each is carried over by one app only."""

    def claim(self, name: DocumentName, origin: Version) -> bool:
        """Mark the older document as this app's; False where it has changed or somebody else was faster."""


@runtime_checkable
class PlacedBackend(Protocol):
    """A place that is made on first use, and can tell whether it has been."""

    def missing_place(self) -> str | None:
        """Return what is not there, such as "container orders"; None where it is."""


@runtime_checkable
class ForgettingBackend(Protocol):
    """A place from which a document can be removed."""

    def delete(self, name: DocumentName, version: Version) -> bool:
        """Remove the version that was read; False when it is no longer the current one."""


@runtime_checkable
class TimedBackend(Protocol):
    """A place that can tell the time, so that an operator sees how far clocks differ."""

    def now(self) -> dt.datetime | None:
        """Return the place's own time; None where it cannot be asked."""
