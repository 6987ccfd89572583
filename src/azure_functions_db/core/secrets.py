"""Keeps passwords and row values out of everything that a person may read."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"

# What is kept of an error's text, wherever it is stored or told; and what of it is looked at.
_MESSAGE_BYTES = 2048
_EXAMINED = 65_536

# In doubt too much is hidden: a password may itself hold slashes, spaces and at signs. No pattern
# looks at a piece of text twice (each consumes what it has begun), so time grows with the length only.
_USER = re.compile(r"://[^:/?#\s]*+:")
_NO_PORT = re.compile(r"""(?P<head>://[^:/?#\s@]*+:)(?!\d{0,5}(?:[^\w%]|\Z)|%\w{1,100}%)[^/?#\s"']++""")
_NAME = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret(?:[_-]?key)?|token|(?:api|account|access)[_-]?key|signature|sig|\bsas"
    r"|(?<=[?&])code)"
)
_QUOTED = r"""\{(?:[^}\r\n]|\}\})*+\}?|"(?:[^"\\\r\n]|\\.|"")*+"?|'(?:[^'\\\r\n]|\\.|'')*+'?"""
_ASSIGNMENT = re.compile(
    rf"""(?P<head>{_NAME}(?:\s{{0,9}}=\s{{0,9}}|%3D|\\?["']\s{{0,9}}:\s{{0,9}}\\?))(?:{_QUOTED}|[^;&\r\n]++)""",
    re.IGNORECASE,
)
# Servers say whether a password was used.
_COLON = re.compile(rf"(?P<head>{_NAME}:\s{{1,9}}+)(?!YES\b|NO\b)[^\s;,]++", re.IGNORECASE)
_HEADER = re.compile(r"""(?P<head>\bAuthorization["']?\s{0,9}[:=]\s{0,9}["']?)[^\r\n"']++""", re.IGNORECASE)
_BEARER = re.compile(r"""(?P<head>\bBearer\s{1,9})[^\s"',;]{8,}+""", re.IGNORECASE)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]*+\.[\w-]++(?:\.[\w-]*+)?")
_SECRET_KEY = re.compile(rf"{_NAME}|credential", re.IGNORECASE)
_LITERAL = re.compile(r""""(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'""")
_NAMED_LITERAL = re.compile(rf"""{_NAME}["']?\s{{0,9}}[=:]\s{{0,9}}[rbfu]{{0,2}}["']""", re.IGNORECASE)

# Databases and validators quote the value that they refuse. It ends at the last of the words that
# follow it: the value itself may hold quotes, line breaks and those very words.
_INPUT = re.compile(r"(?P<head>input_value=)(?P<value>[^\r\n]++)")
_AFTER = r"""' for |' at line |' to data type |" is out of range |" violates |\n\[SQL: |\n\(Background"""
_AFTER_VALUE = re.compile(_AFTER)
_QUOTERS = (
    r"[Ii]ncorrect [\w() ]{1,40}value: '",  # MySQL and MariaDB
    r"Duplicate entry '",
    r"syntax to use near '",
    r"value is out of range in '",
    r"partition for value ",
    r"\bDETAIL:\s{1,9}+",  # PostgreSQL
    r"\binvalid input (?:syntax|value) for [^:\"]{1,100}: \"",
    r"\bfield value out of range: \"",
    r"\bmalformed \w{1,20} literal: \"",
    r"\bvalue \"(?=[^\"]{0,200}\" is out of range )",
    r"\bduplicate key value is \(",  # SQL Server
    r"\bconverting the \w{1,20} value '",
    r"\bDuplicate key \"",  # DuckDB
    r"\bconvert string ['\"]",
    r"\[parameters: ",  # SQLAlchemy, of engines that show them
)
_VALUE = re.compile(rf"(?P<head>{'|'.join(_QUOTERS)})(?!\*\*\*(?:\Z|\n|{_AFTER}))(?P<value>.++)", re.DOTALL)


def masked(text: str) -> str:
    """Return the text with ``***`` in place of secrets, and of row values that a database quotes."""
    hidden = "\n".join(map(_without_user_info, text.split("\n"))) if "@" in text else text
    for secret in (_NO_PORT, _ASSIGNMENT, _COLON, _HEADER, _BEARER):
        hidden = secret.sub(rf"\g<head>{MASK}", hidden)
    hidden = _JWT.sub(MASK, hidden)
    return _VALUE.sub(_without_value, _INPUT.sub(_without_input, hidden))


def masked_url(url: str) -> str:
    """Return a database URL without its password, however badly it is written."""
    scheme, separator, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if at and separator:
        name, colon, _ = user.partition(":")
        # A password in the wrong place, such as user/password@host, makes a name that is none.
        name = MASK if re.search(r"[/?#\s]", name) else name
        return f"{scheme}://{name}{colon and ':' + MASK}@{masked(place)}"
    if separator and not re.match(r"(?:[^:]*|\[[\w:.]*\])(?::(?:\d*|%\w+%))?(?:[/?#]|\Z)", rest):
        return f"{scheme}://{MASK}"
    return masked(url)


def shows_secret(source: str) -> bool:
    """Tell whether a line of code has a secret written into it; names of variables are none."""
    literals = _LITERAL.findall(source)
    return bool(_NAMED_LITERAL.search(source)) or any(masked(literal) != literal for literal in literals)


def masked_words(error: object) -> str:
    """Return what an error says of itself, without secrets and at no more than two kilobytes."""
    try:
        return masked_message(str(error))
    except Exception:  # noqa: BLE001 - the user's own code, which must not make matters worse
        return "(it cannot say why)"


def masked_message(text: str) -> str:
    """Return a text as it may be stored and told: masked, and shortened where it is long."""
    # A secret that the cut has opened is closed again: a line's user info ends with its last at sign.
    examined = text if len(text) <= _EXAMINED else f"{text[:_EXAMINED]}@"
    return shortened(masked(examined))


def shortened(text: str, size: int = _MESSAGE_BYTES) -> str:
    """Return as much of a text as its size in bytes allows; an ellipsis tells that there was more."""
    if len(text) * 4 <= size:
        return text
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= size else encoded[: size - 3].decode("utf-8", "ignore") + "…"


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


def _without_user_info(line: str) -> str:
    end = line.rfind("@")
    match = _USER.search(line, 0, end) if end >= 0 else None
    return line if match is None else f"{line[: match.end()]}{MASK}{line[end:]}"


def _without_input(match: re.Match[str]) -> str:
    _, ending, after = match["value"].rpartition(", input_type=")
    return f"{match['head']}{MASK}{ending}{after}"


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    ends = [match.start() for match in _AFTER_VALUE.finditer(value)]
    return f"{match['head']}{MASK}{value[_last_end(value, ends) :]}"


def _last_end(value: str, ends: list[int]) -> int:
    """Return where a value ends: at the last of the words of its own message, before the statement."""
    statement = next((end for end in reversed(ends) if value.startswith("\n[SQL: ", end)), len(value))
    return max((end for end in ends if end < statement), default=statement)


_SHOWABLE = re.compile(r"%\w+%|[\w+.-]+://.*", re.DOTALL)
# Greedy, because a password that somebody forgot to encode may hold any character.
_USER_INFO = re.compile(r"(?<=://).*@", re.DOTALL)
_PARAMETERS = re.compile(r"(?<=[?#;]).*", re.DOTALL)


def shown_url(url: str) -> str:
    """Return a URL as it is written, its user, password and parameters masked; ``%NAME%`` settings stay."""
    if not _SHOWABLE.fullmatch(url):
        return MASK
    return _PARAMETERS.sub(MASK, _USER_INFO.sub(f"{MASK}@", url), count=1)
