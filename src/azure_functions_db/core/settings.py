"""``%NAME%`` in a value stands for the environment variable of that name."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN = re.compile(r"%%|%(?P<name>[A-Za-z_][A-Za-z0-9_]*)%")
_HEX_PAIR = re.compile(r"[0-9A-Fa-f]{2}")


def expanded(value: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value with each ``%NAME%`` replaced once and ``%%`` as ``%``.

    Percent-encoding stays as it is. Where a piece could be read both ways (``%C3%A9``,
    ``%AF_x%40``) it counts as encoding, unless a variable of that longer name is set.
    """
    pieces: list[str] = []
    position = 0
    while found := _TOKEN.search(value, position):
        pieces.append(value[position : found.start()])
        name = found["name"]
        if name is None:
            pieces.append("%")
        elif _is_encoding(value, found, environment):
            # The closing percent sign opens the next escape: leave it to the next round.
            pieces.append(value[found.start() : found.end() - 1])
            position = found.end() - 1
            continue
        else:
            pieces.append(_setting(name, environment))
        position = found.end()
    pieces.append(value[position:])
    return "".join(pieces)


def _is_encoding(value: str, found: re.Match[str], environment: Mapping[str, str]) -> bool:
    name = found["name"]
    reads_as_escapes = _HEX_PAIR.match(name) and _HEX_PAIR.match(value, found.end())
    return bool(reads_as_escapes) and (len(name) == 2 or name not in environment)


def _setting(name: str, environment: Mapping[str, str]) -> str:
    try:
        return environment[name]
    except KeyError:
        raise ConfigurationError(
            f"The setting {name} is not set: %{name}% names an environment variable "
            "(an app setting in Azure, local.settings.json or the shell locally).",
            setting=name,
        ) from None
