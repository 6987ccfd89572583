"""Keeps passwords out of everything that a person may read."""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"(?P<head>[a-z][\w+.-]*://[^:/?#@]*:)(?P<secret>[^/?#]*)(?=@)", re.IGNORECASE)
_SECRET_NAME = r"(?:password|passwd|pwd|pass|secret|token|accountkey|sharedaccesskey|sharedaccesssignature|sig)"
_ASSIGNMENT = re.compile(
    rf"(?P<head>\b[\w-]*{_SECRET_NAME}\s*(?:=|%3D)\s*)(?P<secret>\{{[^}}]*\}}|[^;&\s'\"]+)",
    re.IGNORECASE,
)
_SECRET_KEY = re.compile(_SECRET_NAME, re.IGNORECASE)

MASK = "***"


def masked(text: str) -> str:
    """Return the text with the secrets of URLs and connection strings replaced by ``***``."""
    hidden = _USER_INFO.sub(rf"\g<head>{MASK}", text)
    return _ASSIGNMENT.sub(rf"\g<head>{MASK}", hidden)


def masked_value(name: str, value: object) -> object:
    """Return a named option's value in a form that may be shown."""
    if _SECRET_KEY.search(name):
        return MASK
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {key: masked_value(str(key), inner) for key, inner in value.items()}
    return value
