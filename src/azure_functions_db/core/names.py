"""Names of apps and pollers in a form that every place can use as a path or a key, and names that were mistyped."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import TYPE_CHECKING
from urllib.parse import quote

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Fits wherever names are kept: a column, a file's name with its suffix, a table's key, an app and a poller in a path.
_LONGEST = 200
_DEFAULT_APP = "local"


def encoded_app(app_name: str | None) -> str:
    """Return the app's part of the name; unless it is given, the one that Azure gave the app."""
    return encoded_name("app_name", app_name or os.environ.get("WEBSITE_SITE_NAME") or _DEFAULT_APP)


def encoded_name(what: str, name: object) -> str:
    """Return the name with every character percent-encoded that a path or key could trip over."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"The {what} must be a text that is not empty")
    try:
        quoted = _without_outer_dots(quote(name, safe=""))
    except UnicodeEncodeError:
        raise ConfigurationError(f"The {what} {name[:20]!r} has characters that are no text") from None
    if len(quoted) > _LONGEST:
        raise ConfigurationError(
            f"The {what} {name[:20]!r}… is too long: {len(quoted)} of {_LONGEST} characters, counted percent-encoded "
            "as stores keep it"
        )
    return quoted


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question for the end of a message where one of the known names is nearly the given one."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _without_outer_dots(quoted: str) -> str:
    head = len(quoted) - len(quoted.lstrip("."))
    core = quoted.strip(".")
    tail = len(quoted) - head - len(core)
    return "%2E" * head + core + "%2E" * tail
