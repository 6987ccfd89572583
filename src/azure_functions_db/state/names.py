"""Names of apps and pollers in a form that every store can use as a path or a key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import quote, unquote

from azure_functions_db.core.errors import ConfigurationError

_LONGEST = 200
_DEFAULT_APP = "local"


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
    return DocumentName(encoded_app(app_name), _encoded("poller name", poller_name))


def encoded_app(app_name: str | None) -> str:
    """Return the app's part of the name; unless it is given, the one that Azure gave the app."""
    return _encoded("app_name", app_name or os.environ.get("WEBSITE_SITE_NAME") or _DEFAULT_APP)


def poller_of(encoded: str) -> str:
    """Return the poller that an encoded name stands for."""
    return unquote(encoded)


def _encoded(what: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"The {what} must be a text that is not empty")
    quoted = _without_outer_dots(quote(name, safe=""))
    if len(quoted) > _LONGEST:
        raise ConfigurationError(f"The {what} {name[:20]!r}… is too long: {len(quoted)} of {_LONGEST} characters")
    return quoted


def _without_outer_dots(quoted: str) -> str:
    head = len(quoted) - len(quoted.lstrip("."))
    core = quoted.strip(".")
    tail = len(quoted) - head - len(core)
    return "%2E" * head + core + "%2E" * tail
