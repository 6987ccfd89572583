"""The one place that prints what a command returns."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def show(result: Any, *, as_json: bool) -> None:
    """Print a command's result: JSON for machines, lines for people."""
    from azure_functions_db.core.secrets import masked
    from azure_functions_db.core.serializers import json_safe

    plain = json_safe(_plain(result))
    text = json.dumps(plain, ensure_ascii=False, indent=2) if as_json else "\n".join(_lines(plain))
    print(masked(text))


def complain(message: str, *, as_json: bool, error_type: str | None = None) -> None:
    """Print on standard error why a command could not do its work."""
    from azure_functions_db.core.secrets import masked

    text = json.dumps({"error": message, "error_type": error_type}) if as_json else f"azfdb: {message}"
    print(masked(text), file=sys.stderr)


def _plain(result: Any) -> Any:
    from dataclasses import asdict, is_dataclass

    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    if isinstance(result, Mapping):
        return {name: _plain(value) for name, value in result.items()}
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return [_plain(value) for value in result]
    return result


def _lines(plain: Any, indent: str = "") -> list[str]:
    match plain:
        case dict():
            return [line for name, value in plain.items() for line in _entry(name, value, indent)]
        case list():
            return [
                line for value in plain for line in (*_lines(value, indent), *([""] if isinstance(value, dict) else []))
            ]
        case _:
            return [f"{indent}{plain}"]


def _entry(name: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [f"{indent}{name}:", *_lines(value, indent + "  ")]
    return [f"{indent}{name}: {'-' if value in (None, {}, []) else value}"]
