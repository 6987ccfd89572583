"""Cursor and key values as an operator types them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypeGuard

from azure_functions_db.core.errors import ConfigurationError, CursorSerializationError
from azure_functions_db.core.ports import NamesColumns, ReadsRanges, TellsPositions, TypesValues
from azure_functions_db.core.serializers import deserialize_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from azure_functions_db.core.types import CursorPart

KINDS = ("text", "integer", "float", "boolean", "timestamp", "date", "time", "decimal", "uuid", "bytes")


def cursor_from(text: str, kind: str | None, document: Mapping[str, Any] | None, source: Any = None) -> CursorPart:
    """Return the value of a typed text: of its column's type, of the checkpoint's kind, or of what it looks like."""
    if kind is None and source is not None:
        return _typed(source, {source.cursor_column: text})[source.cursor_column]
    match document:
        case {"checkpoint": {"cursor": {"kind": str() as present}}} if kind is None:
            kind = present.removesuffix("+pk")
    return guessed(text) if kind in {None, "null"} else of_kind(text, str(kind))


def key_from(pairs: Sequence[str], document: Mapping[str, Any] | None, source: Any = None) -> dict[str, CursorPart]:
    """Return the key that ``--pk name=value`` options give, of its columns' types or those the checkpoint has."""
    typed = dict(_pair(pair) for pair in pairs)
    present = _tiebreaker(document)
    columns = list(source.pk_columns if isinstance(source, NamesColumns) else present)
    if columns and set(typed) != set(columns):
        given = " ".join(f"--pk {name}=…" for name in columns)
        raise ConfigurationError(f"The key of this poller has the columns {', '.join(columns)}: give {given}")
    if not typed:
        raise ConfigurationError("Give the key of the row as well: --pk NAME=VALUE, once for each key column")
    if source is not None:
        return _typed(source, {name: typed[name] for name in columns})
    return {name: _like(typed[name], present.get(name)) for name in columns or typed}


def typed_source(source: Any) -> Any:
    """Return a source that knows the types of its columns, None in place of any other."""
    return source if isinstance(source, TypesValues) else None


def reads_log(source: Any) -> TypeGuard[TellsPositions]:
    """Tell whether a source stands at places in a log, which people can read and type."""
    return bool(source.capability().native_resume_token) and isinstance(source, TellsPositions)


def range_source(source: Any) -> ReadsRanges:
    """Return a source that can be read from one cursor value to another; refuse any other."""
    if not isinstance(source, ReadsRanges):
        if reads_log(source):
            raise ConfigurationError(
                f"A {type(source).__name__} reads a log, which has no stretches of rows: azfdb reset NAME "
                "--to-beginning delivers its tables anew, azfdb reset NAME --to-cursor PLACE what the log still has"
            )
        raise ConfigurationError(f"A {type(source).__name__} cannot be read in stretches")
    return source


def _typed(source: Any, texts: Mapping[str, str]) -> dict[str, CursorPart]:
    return dict(source.revived(texts, strict=True))


def guessed(text: str) -> CursorPart:
    """Return the number or the point in time that a text looks like, or the text itself."""
    for read in (int, float, _timestamp):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def of_kind(text: str, kind: str) -> CursorPart:
    """Return a text as a value of a kind that checkpoints know."""
    try:
        match kind:
            case "text":
                return text
            case "integer":
                return int(text)
            case "float":
                return float(text)
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case _:
                return deserialize_part({"type": kind, "value": text})
    except (ValueError, KeyError, CursorSerializationError):
        raise ConfigurationError(f"{text!r} is no {kind}") from None


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigurationError(f"--pk takes NAME=VALUE, not {text!r}")
    return name, value


def _tiebreaker(document: Mapping[str, Any] | None) -> dict[str, Any]:
    match document:
        case {"checkpoint": {"cursor": {"tiebreaker": dict() as key}}}:
            return key
        case _:
            return {}


def _like(text: str, sample: Any) -> CursorPart:
    match sample:
        case {"type": str() as kind}:
            return of_kind(text, kind)
        case str():
            return text
        case bool():
            return of_kind(text, "boolean")
        case int():
            return of_kind(text, "integer")
        case float():
            return of_kind(text, "float")
        case _:
            return guessed(text)


def _timestamp(text: str) -> dt.datetime:
    if len(text) < len("2026-01-01T00:00"):
        raise ValueError(text)
    return dt.datetime.fromisoformat(text)
