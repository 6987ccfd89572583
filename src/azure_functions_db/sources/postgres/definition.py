"""What a `PostgresLogicalSource` is made of, checked without a database."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.sources.stream import OnPositionLost, SnapshotMode

if TYPE_CHECKING:
    from azure_functions_db.core.config import DbConfig

Transport = Literal["stream", "sql"]
"""How changes are read: by the replication protocol, or by SQL functions where only SQL gets through."""
OnMaxRetained = Literal["warn", "drop"]
"""What happens when the slot holds more log than it may: it is told, or the slot is dropped as well."""
Undecodable = Literal["error", "text"]
"""What becomes of a row with a value that Python cannot hold."""

# What PostgreSQL allows.
_SLOT = re.compile(r"[a-z0-9_]{1,63}")


class TableName(NamedTuple):
    """A table by its schema and name."""

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> TableName:
        """Return the table that somebody wrote as ``name`` or ``schema.name``."""
        schema, dot, name = text.partition(".")
        return cls(schema, name) if dot else cls("public", text)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The parts of a source."""

    tables: tuple[TableName, ...]
    slot: str
    publication: str
    create: bool = True
    snapshot: SnapshotMode = "initial"
    columns: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    row_filter: Mapping[TableName, str] = field(default_factory=dict)
    refetch_toast: bool = False
    transport: Transport = "stream"
    max_retained_bytes: int = 0
    on_max_retained: OnMaxRetained = "warn"
    heartbeat_seconds: float | None = None
    idle_commit_bytes: int = 0
    on_position_lost: OnPositionLost = "stop"
    undecodable: Undecodable = "error"
    patience_seconds: float = 60.0
    create_timeout_seconds: float = 60.0

    @property
    def table_names(self) -> list[str]:
        """The tables as people and checkpoints name them."""
        return [str(table) for table in self.tables]

    def fingerprint(self, config: DbConfig) -> str:
        """Return what tells this definition from any other.

        The server's name is no part of it: a position knows its server better, and follows a failover.
        """
        from azure_functions_db.sql.engine import parsed_url

        parts = {
            "database": parsed_url(config.resolved().connection_url).database,
            "slot": self.slot,
            "publication": self.publication,
            "tables": sorted(self.table_names),
            "columns": {str(table): sorted(names) for table, names in self.columns.items()},
            "row_filter": {str(table): condition for table, condition in self.row_filter.items()},
        }
        return f"sha256:{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}"


def defined(
    *,
    tables: str | Sequence[str],
    slot: str,
    publication: str | None,
    columns: Mapping[str, Sequence[str]] | Sequence[str] | None,
    row_filter: Mapping[str, str] | str | None,
    max_retained_mb: float,
    idle_commit_mb: float,
    **others: Any,
) -> Definition:
    """Return a checked definition."""
    names = [tables] if isinstance(tables, str) else list(tables)
    chosen = tuple(map(TableName.of, names))
    _require(bool(chosen) and all(name.name and name.schema for name in chosen), "tables= names at least one table")
    _require(len(set(chosen)) == len(chosen), "tables= names a table twice")
    _require(
        _SLOT.fullmatch(str(slot)) is not None,
        f"slot={slot!r} is no name for a slot: lower case letters, digits and underscores, at most 63",
    )
    _require(not others["refetch_toast"] or others["snapshot"] != "only", "refetch_toast= is about a stream")
    for option, choices in _CHOICES.items():
        _require(others[option] in choices, f"{option}={others[option]!r} is none of {', '.join(map(repr, choices))}")
    for option, number in (("max_retained_mb", max_retained_mb), ("idle_commit_mb", idle_commit_mb)):
        _require(number > 0, f"{option} must be more than 0, not {number!r}")
    return Definition(
        tables=chosen,
        slot=slot,
        publication=publication or slot,
        columns={table: tuple(some) for table, some in _by_table("columns", columns, chosen).items()},
        row_filter=_by_table("row_filter", row_filter, chosen),
        max_retained_bytes=int(max_retained_mb * 2**20),
        idle_commit_bytes=int(idle_commit_mb * 2**20),
        **others,
    )


_CHOICES: dict[str, tuple[str, ...]] = {
    "snapshot": get_args(SnapshotMode),
    "on_position_lost": get_args(OnPositionLost),
    "on_max_retained": get_args(OnMaxRetained),
    "transport": get_args(Transport),
    "undecodable": get_args(Undecodable),
}


def _by_table(option: str, given: Any, tables: Sequence[TableName]) -> dict[TableName, Any]:
    """Return an option by the table that it is about; for a single table it may be given as it is."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        _require(len(tables) == 1, f"{option}= for several tables is a mapping from a table to its {option}")
        return {tables[0]: given}
    found = {TableName.of(name): value for name, value in given.items()}
    unknown = sorted(str(table) for table in found if table not in tables)
    _require(not unknown, f"{option}= names {', '.join(unknown)}, which tables= does not")
    return found


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SourceConfigurationError(message)
