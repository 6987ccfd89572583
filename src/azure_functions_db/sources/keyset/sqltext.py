"""Looks at SQL that a user wrote, just far enough to put it inside other SQL safely."""

from __future__ import annotations

import re

from azure_functions_db.core.errors import SourceConfigurationError

_TOKEN = re.compile(
    r"""
      (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<open> \( ) | (?P<close> \) ) | (?P<end> ; )
    | (?P<dangling> ['"`] | /\* )
    """,
    re.VERBOSE | re.DOTALL,
)
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")


def checked_condition(text: str) -> str:
    """Return a condition that stays one unit when it is put in parentheses."""
    _require_unit(text, "where")
    if any(token["end"] for token in _TOKEN.finditer(text)):
        raise SourceConfigurationError("where= must be one condition: it holds a semicolon")
    return text


def checked_query(text: str) -> str:
    """Return a query that can be wrapped as a subquery, without its closing semicolon."""
    _require_unit(text, "query")
    ends = [token.start() for token in _TOKEN.finditer(text) if token["end"]]
    if not ends:
        return text
    if len(ends) > 1 or not _says_something(text[: ends[0]]) or _says_something(text[ends[0] + 1 :]):
        raise SourceConfigurationError("query= must be one statement, with a semicolon at its end at most")
    return text[: ends[0]] + text[ends[0] + 1 :]


def parameter_names(text: str) -> set[str]:
    """Return the names that the text wants bound, written ``:name``."""
    return set(_PARAMETER.findall(text))


def _require_unit(text: str, argument: str) -> None:
    if not _says_something(text):
        raise SourceConfigurationError(f"{argument}= is empty")
    if "\\" in text:
        return  # Whether a backslash escapes a quote depends on the database: leave the verdict to it.
    depth = 0
    for token in _TOKEN.finditer(text):
        if token["dangling"]:
            raise SourceConfigurationError(f"{argument}= has a quote or a comment that never ends")
        depth += bool(token["open"]) - bool(token["close"])
        if depth < 0:
            break
    if depth:
        raise SourceConfigurationError(f"{argument}= has parentheses that do not match")


def _says_something(text: str) -> bool:
    return bool(_TOKEN.sub(lambda token: "" if token["comment"] else token[0], text).strip())
