"""What a source is made of, and the server behind it: slot, publication, tables, and how far its log has come."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from azure_functions_db.core.errors import FetchError, SourceConfigurationError, SourceInUseError
from azure_functions_db.sources.postgres.pgoutput import lsn_of
from azure_functions_db.sources.stream import OnPositionLost, SnapshotMode
from azure_functions_db.sql.transactions import leave_transactions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Engine, RowMapping

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


PLUGIN = "pgoutput"
HEARTBEAT = "azfdb"

# Columns that only some versions have are taken out of a row's JSON form.
_LOOK = """
SELECT to_jsonb(s) AS slot, pg_is_in_recovery() AS is_standby, extract(epoch FROM clock_timestamp())::float8 AS now,
       current_setting('server_version_num')::int AS version, current_setting('wal_level') AS wal_level,
       current_database() AS database,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn()::text END AS flushed,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_flush_lsn()) END AS file,
       (SELECT system_identifier::text FROM pg_control_system()) AS system,
       p.oid IS NOT NULL AS has_publication,
       concat_ws(' ', p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot) AS publishes, {members}
FROM (SELECT) one
LEFT JOIN pg_replication_slots s ON s.slot_name = :slot LEFT JOIN pg_publication p ON p.pubname = :publication
"""
# By what each table belongs to the publication. A table that left it for a while has another number; of one that
# belongs to it by its schema or a partitioned table, nothing but that is known.
_MEMBERS = """(
    SELECT jsonb_object_agg(n.nspname || '.' || c.relname, CASE
        WHEN c.relkind = 'p' AND NOT p.pubviaroot THEN NULL
        WHEN p.puballtables AND NOT c.relispartition THEN 'all'
        ELSE coalesce(
            (SELECT r.oid::text FROM pg_publication_rel r
             WHERE r.prpubid = p.oid AND r.prrelid = c.oid AND NOT c.relispartition),
            (SELECT 'listed' FROM pg_publication_tables t
             WHERE (t.pubname, t.schemaname, t.tablename) = (p.pubname, n.nspname, c.relname)))
        END)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.oid IS NOT NULL AND (n.nspname, c.relname) IN :tables
) AS members"""
_TABLES = """
SELECT n.nspname AS schema, c.relname AS name, c.oid::bigint AS oid, c.relkind::text AS kind,
       c.relreplident::text AS identity,
       {primary} AS primary_key, {identity} AS identity_key, to_jsonb(p) AS published,
       has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT') AS may_read,
       has_schema_privilege(n.oid, 'USAGE') AS may_enter
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_publication_tables p ON p.pubname = :publication AND p.schemaname = n.nspname AND p.tablename = c.relname
WHERE (n.nspname, c.relname) IN :tables
"""
_KEY = """(
    SELECT jsonb_agg(jsonb_build_array(a.attname, format_type(a.atttypid, -1)) ORDER BY k.place)
    FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND i.{which} AND k.place <= i.indnkeyatts
)"""
# Transactions that might have written their commit without having become visible yet.
_RUNNING = """
SELECT backend_xid::text FROM pg_stat_activity
WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL SELECT transaction::text FROM pg_prepared_xacts WHERE database = current_database()
"""


@dataclass(frozen=True)
class Slot:
    """A replication slot as the server shows it."""

    plugin: str | None
    database: str | None
    is_active: bool
    active_pid: int | None
    wal_status: str | None
    invalidation: str | None
    restart_lsn: int | None
    confirmed_lsn: int | None
    safe_wal_bytes: int | None
    is_failover: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Slot:
        """Return the slot of a row of ``pg_replication_slots``."""
        restart, confirmed = row["restart_lsn"], row["confirmed_flush_lsn"]
        return cls(
            plugin=row["plugin"],
            database=row["database"],
            is_active=row["active"],
            active_pid=row["active_pid"],
            wal_status=row.get("wal_status"),
            invalidation=row.get("invalidation_reason"),
            restart_lsn=None if restart is None else lsn_of(restart),
            confirmed_lsn=None if confirmed is None else lsn_of(confirmed),
            safe_wal_bytes=row.get("safe_wal_size"),
            is_failover=bool(row.get("failover")),
        )

    @property
    def is_lost(self) -> bool:
        """Whether the server no longer has what follows the slot."""
        return self.wal_status == "lost" or self.invalidation is not None


@dataclass(frozen=True)
class ServerState:
    """The server at one moment."""

    slot: Slot | None
    flushed_lsn: int
    timeline: int
    system: str
    now: dt.datetime
    version: int
    wal_level: str
    database: str
    has_publication: bool
    publication: str
    """What the publication has published since it last changed in a way that could leave changes out."""
    unpublished: tuple[str, ...]
    """The tables that it leaves out."""

    @property
    def retained_bytes(self) -> int:
        """How much of the log is kept because of the slot."""
        if self.slot is None or self.slot.restart_lsn is None:
            return 0
        return max(0, self.flushed_lsn - self.slot.restart_lsn)


@dataclass(frozen=True)
class Table:
    """A table of the source, and how it is published."""

    name: TableName
    oid: int
    kind: str
    identity: str
    key: tuple[tuple[str, str], ...]
    """The columns that tell its rows apart, with their types."""
    is_identified: bool
    """Whether updates and deletes can be published at all."""
    published: Mapping[str, Any] | None
    may_read: bool

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that are published; None where the server does not tell: all of them."""
        names = (self.published or {}).get("attnames")
        return None if names is None else tuple(names)

    @property
    def row_filter(self) -> str | None:
        """The condition on the rows that are published."""
        return (self.published or {}).get("rowfilter")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(name for name, _ in self.key)


class Server:
    """Asks and changes the server of a source."""

    def __init__(self, engine: Engine, definition: Definition, name: str) -> None:
        self.engine = engine
        self._definition = definition
        self._name = name

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Lend a connection on which each statement is a transaction of its own."""
        with self.engine.connect() as connection:
            leave_transactions(connection)
            yield connection

    def look(self) -> ServerState:
        """Return how things stand, in one round trip."""
        from sqlalchemy import bindparam, text

        query = text(_LOOK.format(members=_MEMBERS)).bindparams(bindparam("tables", expanding=True))
        names = {"slot": self._definition.slot, "publication": self._definition.publication}
        with self.connected() as connection:
            row = connection.execute(query, {**names, "tables": self._table_values}).mappings().one()
        if row["is_standby"]:
            raise SourceConfigurationError(
                f"Source {self._name!r} is a standby, where no slot can be advanced: give the primary's address",
                source=self._name,
            )
        members = row["members"] or {}
        return ServerState(
            slot=None if row["slot"] is None else Slot.of(row["slot"]),
            flushed_lsn=lsn_of(row["flushed"]),
            timeline=int(row["file"][:8], 16),
            system=row["system"],
            now=dt.datetime.fromtimestamp(row["now"], dt.UTC),
            version=row["version"],
            wal_level=row["wal_level"],
            database=row["database"],
            has_publication=row["has_publication"],
            publication=_digest(row["publishes"], members),
            unpublished=tuple(sorted(name for name, number in members.items() if number is None)),
        )

    @property
    def _table_values(self) -> list[tuple[str, ...]]:
        return [tuple(name) for name in self._definition.tables]

    def tables(self) -> list[Table]:
        """Return the source's tables in their order; one that is not there is refused."""
        from sqlalchemy import bindparam, text

        keys = {"primary": _KEY.format(which="indisprimary"), "identity": _KEY.format(which="indisreplident")}
        query = text(_TABLES.format(**keys)).bindparams(bindparam("tables", expanding=True))
        names = self._definition.tables
        values = {"publication": self._definition.publication, "tables": self._table_values}
        with self.connected() as connection:
            rows = connection.execute(query, values).mappings().all()
        found = {table.name: table for table in map(_table, rows)}
        missing = [str(name) for name in names if name not in found]
        if missing:
            raise SourceConfigurationError(
                f"There is no table {', '.join(missing)} in the database, or this login may not see it",
                source=self._name,
            )
        return [found[name] for name in names]

    def running_xids(self) -> list[int]:
        """Return the transactions of this database that have an id and have not ended."""
        from sqlalchemy import text

        with self.connected() as connection:
            return [int(xid) for xid in connection.execute(text(_RUNNING)).scalars()]

    def beat(self) -> None:
        """Write a message into the log and have it flushed, so that even an idle database's slot can move on."""
        from sqlalchemy import text

        with self.connected() as connection:
            connection.execute(text("SELECT pg_logical_emit_message(true, :prefix, '')"), {"prefix": HEARTBEAT})

    def creation(self, state: ServerState, tables: Sequence[Table]) -> list[str]:
        """Return the statements that make what is missing; a publication comes before its slot."""
        statements = []
        if not state.has_publication:
            if state.slot is not None:
                raise SourceConfigurationError(
                    f"Slot {self._definition.slot!r} is older than the publication it needs: changes made before a "
                    "publication cannot be published. Drop the slot (azfdb stream drop), then create both",
                    source=self._name,
                )
            statements.append(self._create_publication(state, tables))
        if state.slot is None:
            # Since 17 a slot can be kept in step on standbys, and so survive a failover.
            more = ", false, false, true" if state.version >= 170000 else ""
            statements.append(f"SELECT pg_create_logical_replication_slot('{self._definition.slot}', '{PLUGIN}'{more})")
        return statements

    def removal(self, state: ServerState) -> list[str]:
        """Return the statements that remove what is there."""
        statements = []
        if state.slot is not None:
            statements.append(f"SELECT pg_drop_replication_slot('{self._definition.slot}')")
        if state.has_publication:
            statements.append(f"DROP PUBLICATION {self.quoted(self._definition.publication)}")
        return statements

    def execute(self, statements: Sequence[str]) -> None:
        """Run statements one by one, each with a limit to its patience: a new slot waits for open transactions."""
        if not statements:
            return
        limit = int(self._definition.create_timeout_seconds * 1000)
        with self.engine.connect() as connection:
            raw = connection.execution_options(isolation_level="AUTOCOMMIT")
            raw.exec_driver_sql(f"SET statement_timeout = {limit}")
            try:
                for statement in statements:
                    with self._explained(statement):
                        self._execute(raw, statement)
            finally:
                if not raw.invalidated:
                    raw.exec_driver_sql("RESET statement_timeout")

    def _execute(self, connection: Connection, statement: str) -> None:
        """Run a statement; a publication is kept only where writers can live with it."""
        if not statement.startswith("CREATE PUBLICATION"):
            connection.exec_driver_sql(statement)
            return
        connection.exec_driver_sql("BEGIN")
        try:
            connection.exec_driver_sql(statement.replace("%", "%%"))
            for table in self._definition.tables:
                # What would be refused to a writer is refused here: nothing is deleted, and no trigger fires.
                connection.exec_driver_sql(f"EXPLAIN DELETE FROM {self.quoted(*table)}")
        except BaseException:
            if not connection.invalidated:
                connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")

    def quoted(self, *names: str) -> str:
        """Return a name as SQL takes it."""
        quote = self.engine.dialect.identifier_preparer.quote_identifier
        return ".".join(map(quote, names))

    def _create_publication(self, state: ServerState, tables: Sequence[Table]) -> str:
        definition = self._definition
        if state.version < 150000 and (definition.columns or definition.row_filter):
            raise SourceConfigurationError("columns= and row_filter= need PostgreSQL 15 or newer", source=self._name)
        for table in tables:
            if not table.is_identified:
                raise SourceConfigurationError(
                    f"{table.name} has neither a primary key nor a replica identity: once it is published, every "
                    f"UPDATE and DELETE on it would fail. Give it a key, or first run "
                    f"ALTER TABLE {self.quoted(*table.name)} REPLICA IDENTITY FULL",
                    source=self._name,
                )
        published = ", ".join(self._published(table.name) for table in tables)
        # A partitioned table is one table to its users, so it is to its changes.
        options = "publish_via_partition_root = true"
        if state.version >= 180000:  # else what is computed is not in the log
            options += ", publish_generated_columns = stored"
        return f"CREATE PUBLICATION {self.quoted(definition.publication)} FOR TABLE {published} WITH ({options})"

    def _published(self, name: TableName) -> str:
        columns, condition = self._definition.columns.get(name), self._definition.row_filter.get(name)
        part = self.quoted(*name)
        if columns is not None:
            part += f" ({', '.join(map(self.quoted, columns))})"
        return part if condition is None else f"{part} WHERE ({condition})"

    @contextmanager
    def _explained(self, statement: str) -> Iterator[None]:
        """Say what to do about what commonly goes wrong with slots and publications."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            raise self._explanation(error, statement) or error from error

    def _explanation(self, error: Any, statement: str) -> Exception | None:
        match getattr(error.orig, "sqlstate", None):
            case "55006":
                return SourceInUseError(f"Slot {self._definition.slot!r} has a reader", source=self._name)
            case "57014":
                return FetchError(
                    "A new slot waits for all transactions that are open, and one of them takes longer than "
                    f"{self._definition.create_timeout_seconds:g} s; pg_stat_activity shows them (backend_xid IS NOT "
                    "NULL, by xact_start)",
                    source=self._name,
                    transient=False,
                )
            case "42P10":
                return SourceConfigurationError(
                    f"Published like this, {_words(error)}: every UPDATE and DELETE of its writers would fail. Let "
                    "row_filter= use columns of the key only and columns= include it, or set REPLICA IDENTITY FULL "
                    "(which goes with a filter, not with columns=)",
                    source=self._name,
                )
            case "42501":
                return SourceConfigurationError(
                    f"This login may not do that: {statement}. Run it as the owner of the tables, with CREATE on the "
                    "database (publication) or REPLICATION (slot); then create=False needs neither",
                    source=self._name,
                )
            case "55000":
                return SourceConfigurationError(
                    f"The server refuses: {_words(error)}. wal_level must be logical: "
                    "ALTER SYSTEM SET wal_level = logical, then restart the server",
                    source=self._name,
                )
            case "53400":
                return SourceConfigurationError(
                    f"{_words(error)}: raise max_replication_slots, or drop a slot that nobody reads",
                    source=self._name,
                )
        return None


def _words(error: Any) -> str:
    # What follows the first sentence may show values, and is masked.
    return " ".join(str(error.orig).split()).partition(" DETAIL")[0].partition(" HINT")[0]


def _table(row: RowMapping) -> Table:
    by_index = row["identity_key"] if row["identity"] == "i" else None
    key = by_index or row["primary_key"] or []
    is_identified = row["identity"] == "f" or bool(by_index if row["identity"] == "i" else row["primary_key"])
    return Table(
        name=TableName(row["schema"], row["name"]),
        oid=row["oid"],
        kind=row["kind"],
        identity=row["identity"],
        key=tuple((name, kind) for name, kind in key),
        is_identified=is_identified and row["identity"] != "n",
        published=row["published"],
        may_read=bool(row["may_read"] and row["may_enter"]),
    )


def _digest(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
