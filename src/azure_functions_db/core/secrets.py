"""Keeps passwords out of everything that a person may read."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"

# In doubt too much is hidden: a password may itself hold slashes, spaces and at signs.
# Lengths are bounded and nothing precedes a fixed word, so that a long text takes no long time.
_USER_INFO = re.compile(r"(?P<head>://[^:/?#\s]{0,300}:)[^\r\n]{0,5000}(?=@)")
_NAME = r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credential|api_?key|account_?key|access_?key|signature|sig)"
_QUOTED = r"""\{(?:[^}]|\}\})*\}|"[^"]*"|'[^']*'"""
_ASSIGNMENT = re.compile(
    rf"""(?P<head>{_NAME}(?:\s{{0,9}}=\s{{0,9}}|%3D|["']\s{{0,9}}:\s{{0,9}}))(?:{_QUOTED}|[^;&\r\n]+)""",
    re.IGNORECASE,
)
_JWT = re.compile(r"\beyJ[\w-]{1,3000}\.[\w-]{1,9000}\.[\w-]{0,3000}")
_SECRET_KEY = re.compile(_NAME, re.IGNORECASE)


def masked(text: str) -> str:
    """Return the text with the secrets of URLs and connection strings replaced by ``***``."""
    hidden = _USER_INFO.sub(rf"\g<head>{MASK}", text) if "@" in text else text
    hidden = _ASSIGNMENT.sub(rf"\g<head>{MASK}", hidden)
    return _JWT.sub(MASK, hidden)


def masked_words(error: object) -> str:
    """Return what a foreign error says of itself; one that fails at that must not make matters worse."""
    try:
        return masked(str(error))
    except Exception:  # noqa: BLE001 - the user's own code
        return "(it cannot say why)"


def masked_value(name: str, value: object) -> object:
    """Return a named option's value in a form that may be shown."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET_KEY.search(name):
        return MASK
    match value:
        case str():
            return masked(value)
        case Mapping():
            return {key: masked_value(str(key), inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [masked_value(name, inner) for inner in value]
        case _:
            # Anything may hide in the repr of a foreign object; its type is enough.
            return f"<{type(value).__name__}>"
