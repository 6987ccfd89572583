"""How to reach a database, app settings in values that say so, names that any place can keep, and former ones."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import quote

from azure_functions_db.core.errors import Code, ConfigurationError
from azure_functions_db.core.secrets import masked_url, masked_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.errors import DbError

    Translations = Mapping[str, Callable[[Any], dict[str, Any]]]

T = TypeVar("T")


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
    while token := _TOKEN.search(value, position):
        pieces.append(value[position : token.start()])
        name = token["name"]
        position = token.end()
        if name is None:
            pieces.append("%")
        elif _is_encoding(value, token, environment):
            # Its closing percent sign opens the next piece: leave that to the next round.
            position -= 1
            pieces.append(value[token.start() : position])
        else:
            pieces.append(_setting(name, environment))
    pieces.append(value[position:])
    return "".join(pieces)


resolve_env_vars = expanded
"""The same, by the name that release 0.8 gave it."""


def _is_encoding(value: str, token: re.Match[str], environment: Mapping[str, str]) -> bool:
    name, end = token["name"], token.end()
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
            code=Code.SETTING_MISSING,
        ) from None


class TokenCredential(Protocol):
    """Anything that hands out Microsoft Entra tokens, such as the classes of azure-identity."""

    def get_token(self, *scopes: str) -> Any:
        """Return an object with a ``token`` text."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DbConfig:
    """A database's URL, its pool and its login.

    ``connection_url`` and the texts in ``connect_args`` may hold ``%NAME%`` settings; they are
    read when the first connection is wanted. ``credential`` is a token credential, or
    ``"default"`` for azure-identity's `DefaultAzureCredential`: each new connection then logs in
    with a fresh token as its password, over TLS and after the server's certificate has been
    verified (``allow_unverified_tls`` does without). A connection that has lain idle for longer than
    ``idle_check_seconds`` is checked before it is used again.
    """

    connection_url: str
    pool_size: int = 5
    max_overflow: int = 10
    pool_timeout: float = 30.0
    pool_recycle: int = 3600
    echo: bool = False
    connect_args: Mapping[str, Any] | None = None
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    credential: TokenCredential | Literal["default"] | None = None
    idle_check_seconds: float = 30.0
    allow_unverified_tls: bool = False
    is_literal: bool = field(init=False, repr=False, compare=False)
    """Whether there is no ``%NAME%`` in it to replace."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_literal", "%" not in str(self.connection_url) and not self.connect_args)
        if not _looks_like_url(self.connection_url):
            raise ConfigurationError(
                "connection_url must be a URL such as postgresql+psycopg://user@host/name", code=Code.URL_UNREADABLE
            )
        if "connect_args" in self.engine_kwargs:
            raise ConfigurationError("Give connect_args to DbConfig itself, not inside engine_kwargs")
        for name in ("pool_size", "max_overflow", "pool_timeout", "pool_recycle", "idle_check_seconds"):
            if not isinstance(getattr(self, name), int | float):
                raise ConfigurationError(f"{name} must be a number")
        if not (self.credential is None or self.credential == "default" or hasattr(self.credential, "get_token")):
            raise ConfigurationError('credential must be a token credential or "default"')
        if not isinstance(self.allow_unverified_tls, bool):
            raise ConfigurationError("allow_unverified_tls must be True or False")

    def resolved(self) -> DbConfig:
        """Return this configuration with every ``%NAME%`` replaced."""
        if self.is_literal:
            return self
        return replace(
            self,
            connection_url=expanded(self.connection_url),
            connect_args=_expanded_texts(self.connect_args),
        )

    def __repr__(self) -> str:
        shown = {f.name: masked_value(f.name, getattr(self, f.name)) for f in fields(self) if f.repr}
        shown["connection_url"] = masked_url(self.connection_url)
        return f"DbConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def config_of(url: str | None, db_config: DbConfig | None) -> DbConfig:
    """Return the configuration that a caller gave by exactly one of its two names."""
    match url, db_config:
        case str(), None:
            return _config_of_url(url)
        case None, DbConfig():
            return db_config
        case _:
            raise ConfigurationError("Give exactly one of url= (a text) and db_config= (a DbConfig)")


@lru_cache(maxsize=128)
def _config_of_url(url: str) -> DbConfig:
    # A reader is made for every invocation.
    return DbConfig(connection_url=url)


def _looks_like_url(text: object) -> bool:
    # With a setting in it, only the first use can tell.
    return isinstance(text, str) and ("://" in text or "%" in text)


def _expanded_texts(value: Any) -> Any:
    match value:
        case str():
            return expanded(value)
        case Mapping():
            return {key: _expanded_texts(inner) for key, inner in value.items()}
        case _:
            return value


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


def _without_outer_dots(quoted: str) -> str:
    head = len(quoted) - len(quoted.lstrip("."))
    core = quoted.strip(".")
    tail = len(quoted) - head - len(core)
    return "%2E" * head + core + "%2E" * tail


def warn_of(former: str, instead: str, *, stacklevel: int) -> None:
    """Warn the caller that many levels up that something is said in another way now."""
    warnings.warn(f"{former} is as release 0.8 had it: {instead}", DeprecationWarning, stacklevel=stacklevel + 1)


def former_arguments(
    refusal: type[DbError], translations: Translations | None = None, **defaults: Any
) -> Callable[[type[T]], type[T]]:
    """Let a class take arguments by former names, and refuse unknown ones with an error that names today's.

    ``defaults`` are the former ones, for a call that uses a former name.
    """
    known_before = translations or {}

    def taught(cls: type[T]) -> type[T]:
        made: Any = cls.__init__
        names = list(signature(made).parameters)[1:]

        @wraps(made)
        def make(self: T, *args: Any, **given: Any) -> None:
            todays = {name: value for name, value in given.items() if name not in known_before}
            for name in [name for name in given if name in known_before]:
                translated = known_before[name](given[name])
                _check_given_once(cls, refusal, name, translated.keys() & given.keys())
                written = ", ".join(f"{each}={value!r}" for each, value in translated.items())
                warn_of(f"{cls.__name__}({name}=…)", f"write {written}", stacklevel=2)
                todays = {**defaults, **todays, **translated}
            if unknown := [name for name in todays if name not in names]:
                raise refusal(f"{cls.__name__} has no argument {unknown[0]!r}; it has: {', '.join(names)}")
            made(self, *args, **todays)

        cls.__init__ = make  # type: ignore[assignment]  # the same, by more names
        return cls

    return taught


def _check_given_once(cls: type, refusal: type[DbError], former: str, twice: set[str]) -> None:
    if twice:
        raise refusal(f"{cls.__name__}: {former}= is the former name of {min(twice)}=; give one of them")
