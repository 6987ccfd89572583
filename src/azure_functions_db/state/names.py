"""Names of apps and pollers in a form that every store can use as a path or a key."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.names import encoded_app, encoded_name


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
