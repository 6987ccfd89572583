"""``%NAME%`` in a value stands for the environment variable of that name."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN = re.compile(r"%%|%(?P<name>[A-Za-z_][A-Za-z0-9_]*)%")
_PAIR = re.compile(r"[0-9A-Fa-f]{2}")
# Encoders write capitals: %DB_DIR%data is a variable and a word, %DB_x%40 is encoded text.
_CAPITAL_PAIR = re.compile(r"[0-9A-F]{2}")
_NEXT_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)%")


def expanded(value: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value with each ``%NAME%`` replaced once and ``%%`` as ``%``.

    Percent-encoding stays as it is. A piece that could be read both ways (``%C3%A9``,
    ``%AF_x%40``) counts as encoding, unless a variable of that longer name is set.
    """
    pieces: list[str] = []
    position = 0
    while found := _TOKEN.search(value, position):
        pieces.append(value[position : found.start()])
        name = found["name"]
        position = found.end()
        if name is None:
            pieces.append("%")
        elif _is_encoding(value, found, environment):
            # Its closing percent sign opens the next piece: leave that to the next round.
            position -= 1
            pieces.append(value[found.start() : position])
        else:
            pieces.append(_setting(name, environment))
    pieces.append(value[position:])
    return "".join(pieces)


def _is_encoding(value: str, found: re.Match[str], environment: Mapping[str, str]) -> bool:
    name, end = found["name"], found.end()
    pair = _PAIR if len(name) == 2 else _CAPITAL_PAIR
    if not pair.match(name):
        return False
    if pair.match(value, end):
        return len(name) == 2 or name not in environment
    following = _NEXT_NAME.match(value, end)
    return following is not None and following[1] in environment and name not in environment


def _setting(name: str, environment: Mapping[str, str]) -> str:
    try:
        return environment[name]
    except KeyError:
        raise ConfigurationError(
            f"The setting {name} is not set: %{name}% names an environment variable "
            "(an app setting in Azure, local.settings.json or the shell locally).",
            setting=name,
        ) from None
