"""What a source reads, checked once so that everything behind it can rely on it."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.clocks import utc_moment
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.serializers import serialize_part
from azure_functions_db.sql.engine import parsed_url
from azure_functions_db.sql.reflection import checked_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Table

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import CursorValue

InFlight = Literal["wait", "ignore"]
Undecodable = Literal["error", "text"]

# The few options of a URL that say which database is meant; all others are the driver's business.
_PLACE_OPTIONS = {"host", "port", "service", "unix_socket", "dbname", "database"}
_ODBC_PLACE = re.compile(r"(server|address|database|uid)\s*=\s*([^;]*)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A table or a query, its cursor, its key and its filters."""

    table: str | None
    query: str | None
    schema: str | None
    cursor_column: str
    pk_columns: tuple[str, ...]
    where: str | None
    parameters: Mapping[str, Any] = field(repr=False)
    columns: tuple[str, ...] | None
    created_column: str | None
    deleted_column: str | None
    partition: Partition | None
    start_at: CursorValue
    in_flight: InFlight
    settle_seconds: float | None
    strategy: str
    undecodable: Undecodable = "error"
    partition_by: tuple[str, ...] | None = None
    """The columns that tell which share a row belongs to; None: its key."""
    end_at: CursorValue = None
    """The last cursor value to read; None: no end."""
    described: Table | None = field(default=None, compare=False)
    """The table as the user describes it, which is then not looked at; None: its name is all that was given."""

    @property
    def label(self) -> str:
        """The source's name where the user gave none."""
        if self.table is None:
            return "query"
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @cached_property
    def order_columns(self) -> tuple[str, ...]:
        """The cursor, then the key without it."""
        return (self.cursor_column, *(name for name in self.pk_columns if name != self.cursor_column))

    @cached_property
    def needed_columns(self) -> tuple[str, ...]:
        """Every column that is named, once."""
        marks = (name for name in (self.created_column, self.deleted_column) if name)
        return tuple(dict.fromkeys((*(self.columns or ()), *self.order_columns, *marks, *(self.partition_by or ()))))

    @property
    def share_columns(self) -> tuple[str, ...]:
        """The columns whose values decide to which share a row belongs."""
        return self.partition_by or self.pk_columns

    @property
    def _share(self) -> str | None:
        if self.partition is None:
            return None
        return " ".join([str(self.partition), *(f"by {name}" for name in self.partition_by or ())])

    def fingerprint(self, config: DbConfig) -> str:
        """Return what tells this definition from any other; passwords and driver options do not count."""
        parts = {
            "place": _place(config.resolved().connection_url),
            "schema": self.schema,
            "table": self.table,
            "query": self.query,
            "cursor_column": self.cursor_column,
            "pk_columns": self.pk_columns,
            "where": self.where,
            "parameters": {name: [type(value).__name__, str(value)] for name, value in self.parameters.items()},
            "partition": self._share,
            "strategy": self.strategy,
        }
        return f"sha256:{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}"

    def former_fingerprint(self, config: DbConfig, **as_given: Any) -> str:
        """Return the fingerprint that release 0.8 computed; what it did not change it is ``as_given``."""
        parts = {
            "url": parsed_url(config.resolved().connection_url).render_as_string(hide_password=True),
            "schema": self.schema,
            "table": self.table,
            "cursor_column": self.cursor_column,
            "pk_columns": self.pk_columns,
            "where": self.where,
            "parameters": self.parameters,
            "strategy": self.strategy,
            "operation_mode": "upsert_only",
            **as_given,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def defined(
    *,
    table: str | Table | None,
    query: str | None,
    schema: str | None,
    cursor_column: str,
    pk_columns: Sequence[str],
    where: str | None,
    parameters: Mapping[str, Any] | None,
    columns: Sequence[str] | None,
    partition: tuple[int, int] | None,
    partition_by: str | Sequence[str] | None,
    in_flight: InFlight,
    settle_seconds: float | None,
    strategy: str,
    operation_mode: str,
    **others: Any,
) -> Definition:
    """Return the definition of these arguments; `SourceConfigurationError` says what cannot be."""
    _require((table is None) != (query is None), "Give exactly one of table= and query=")
    _require(schema is None or table is not None, "schema= goes with table=, a query names its own")
    _require(strategy == "cursor", f"strategy={strategy!r} is unknown: this source knows 'cursor'")
    _require(operation_mode == "upsert_only", f"operation_mode={operation_mode!r} is unknown: use 'upsert_only'")
    _require(in_flight in {"wait", "ignore"}, f"in_flight={in_flight!r} must be 'wait' or 'ignore'")
    undecodable = others["undecodable"]
    _require(undecodable in {"error", "text"}, f"undecodable={undecodable!r} must be 'error' or 'text'")
    _require(settle_seconds is None or _is_amount(settle_seconds), "settle_seconds= must be a number, 0 or more")
    _require(not isinstance(pk_columns, str), "pk_columns= is a list of names, not a text")
    where = None if where is None else checked_condition(_text("where", where))
    query = None if query is None else checked_query(_text("query", query))
    for name in (schema, others["created_column"], others["deleted_column"]):
        _require(name is None or _is_name(name), f"{name!r} is no name of a table or column")
    described = _described(table, schema)
    if described is not None and columns is None:
        columns = [column.name for column in described.columns]
    return Definition(
        table=table if table is None or isinstance(table, str) else table.name,
        query=query,
        schema=schema if described is None else described.schema,
        described=described,
        cursor_column=_names("cursor_column", [cursor_column])[0],
        pk_columns=_names("pk_columns", pk_columns),
        where=where,
        parameters=_parameters(where, query, parameters or {}),
        columns=None if columns is None else _names("columns", columns),
        partition=None if partition is None else Partition.checked(partition),
        partition_by=share_columns_of(partition_by),
        in_flight=in_flight,
        settle_seconds=settle_seconds,
        strategy=strategy,
        **others,
    )


def _described(table: object, schema: str | None) -> Table | None:
    """Return the table that a user describes; None for a name, or a query."""
    if table is None:
        return None
    try:
        checked = checked_table(table, schema)
    except ConfigurationError as refusal:
        raise SourceConfigurationError(str(refusal)) from None
    return None if isinstance(checked, str) else checked


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SourceConfigurationError(message)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise SourceConfigurationError(f"{argument}= must be a text, not {type(value).__name__}")
    return value


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    checked = tuple(names)
    _require(bool(checked), f"{argument}= needs at least one column name")
    _require(all(map(_is_name, checked)), f"{argument}= must hold column names")
    _require(len(set(checked)) == len(checked), f"{argument}= names a column twice")
    return checked


def share_columns_of(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns of ``partition_by``."""
    return None if given is None else _names("partition_by", [given] if isinstance(given, str) else given)


def _parameters(where: str | None, query: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    used = parameter_names(where or "") | parameter_names(query or "")
    missing, unknown = sorted(used - set(given)), sorted(set(given) - used)
    _require(not missing, f"parameters= lacks {', '.join(missing)}")
    _require(not unknown, f"parameters= has {', '.join(unknown)}, which neither where= nor query= uses")
    return dict(given)


def _place(connection_url: str) -> dict[str, Any]:
    url = parsed_url(connection_url)
    options: dict[str, Any] = {name: value for name, value in url.query.items() if name in _PLACE_OPTIONS}
    if odbc := url.query.get("odbc_connect"):
        options["odbc"] = sorted((name.lower(), value) for name, value in _ODBC_PLACE.findall(str(odbc)))
    place = [url.get_backend_name(), url.username, url.host, url.port, url.database]
    return {"url": place, "options": options}


# A user's SQL is looked at just far enough to put it inside other SQL safely.
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
    if not _says_something(text[: ends[0]]) or _says_something(text[ends[0] + 1 :]):
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


@dataclass(frozen=True)
class Partition:
    """Share ``index`` of ``count``; every key belongs to exactly one share, for ever."""

    index: int
    count: int

    @classmethod
    def checked(cls, given: tuple[int, int]) -> Partition:
        """Return the partition, or say what is wrong with it."""
        match given:
            case (int() as index, int() as count) if 0 <= index < count:
                return cls(index, count)
            case _:
                raise SourceConfigurationError("partition= must be (index, count) with 0 <= index < count")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def condition(self, key: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return the share of an integer key as SQL: the second modulo lifts negative remainders, NULL counts as 0."""
        from sqlalchemy import func

        return func.coalesce(((key % self.count) + self.count) % self.count, 0) == self.index

    def takes(self, key: Sequence[Any]) -> bool:
        """Tell whether a key of any type belongs to this share."""
        written = json.dumps([serialize_part(_zoneless(part)) for part in key], separators=(",", ":"))
        digest = hashlib.blake2b(written.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % self.count == self.index


def _zoneless(part: Any) -> Any:
    """Return a moment as it is in UTC: the session's time zone must not move a row to another share."""
    return utc_moment(part) if isinstance(part, dt.datetime) and part.tzinfo else part
