"""What an operator should know about a slot, its publication and its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import clock_finding
from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.types import Finding
from azure_functions_db.sources.postgres.pgoutput import lsn_text
from azure_functions_db.sources.postgres.replication import POOLED, UNPOOLED, is_from_pooler, replication_connection
from azure_functions_db.sources.postgres.server import PLUGIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.sources.postgres.server import Definition, Server, ServerState, Table

_OLDEST = 140000
_IDENTITIES = {"d": "primary key", "i": "index", "f": "the full row", "n": "nothing"}
_SETTINGS = """
SELECT rolname AS login, rolreplication OR rolsuper AS may_replicate,
       has_database_privilege(current_database(), 'CREATE') AS may_publish,
       current_setting('max_replication_slots')::int AS slots, (SELECT count(*) FROM pg_replication_slots) AS used,
       current_setting('max_wal_senders')::int AS senders, current_setting('max_slot_wal_keep_size') AS keep
FROM pg_roles WHERE rolname = current_user
"""


def validate(server: Server, definition: Definition, name: str) -> None:
    """Raise for the first thing that cannot work."""
    for finding in findings(server, definition):
        if finding.grade == "error":
            cure = f": {finding.remedy}" if finding.remedy else ""
            raise SourceConfigurationError(f"Source {name!r}: {finding.text}{cure}", source=name)


def examined(server: Server, definition: Definition, config: DbConfig) -> Iterator[Finding]:
    """Look at everything that the source depends on."""
    yield from findings(server, definition)
    if definition.snapshot != "only":
        yield _transport(server, definition, config)
    yield clock_finding("database clock", server.look().now)


def findings(server: Server, definition: Definition) -> Iterator[Finding]:
    """Look at what can be wrong, with the statement that cures it."""
    state, tables, settings = server.look(), server.tables(), _settings(server)
    yield _version(state)
    if definition.snapshot != "only":
        yield _wal_level(state)
        yield _right(settings)
    yield from (_readable(server, table, settings) for table in tables)
    if definition.snapshot == "only":
        return
    yield from (_identity(server, table) for table in tables)
    yield from _publication(server, definition, state, tables, settings)
    yield _slot(definition, state, settings)
    yield _retention(definition, state, settings)


def shown(server: Server, definition: Definition) -> dict[str, Any]:
    """Return slot and publication as they are."""
    state = server.look()
    published = [table for table in server.tables() if table.published is not None]
    shown: dict[str, Any] = {
        "publication": definition.publication if state.has_publication else None,
        "tables": [str(table.name) for table in published],
        "slot": definition.slot if state.slot else None,
    }
    slot = state.slot
    if slot is None:
        return shown
    return shown | {
        "plugin": slot.plugin,
        "reader": f"process {slot.active_pid}" if slot.is_active else None,
        "status": slot.invalidation or slot.wal_status,
        "confirmed": None if slot.confirmed_lsn is None else lsn_text(slot.confirmed_lsn),
        "end_of_log": lsn_text(state.flushed_lsn),
        "retained_bytes": state.retained_bytes,
        "safe_wal_bytes": slot.safe_wal_bytes,
        "failover": slot.is_failover,
    }


def _settings(server: Server) -> Mapping[str, Any]:
    from sqlalchemy import text

    with server.connected() as connection:
        return dict(connection.execute(text(_SETTINGS)).mappings().one())


def _version(state: ServerState) -> Finding:
    major = f"PostgreSQL {state.version // 10000}"
    if state.version < _OLDEST:
        return Finding("version", "error", f"{major} is too old", "14 is the oldest that is supported")
    return Finding("version", "ok", major)


def _wal_level(state: ServerState) -> Finding:
    if state.wal_level == "logical":
        return Finding("wal_level", "ok", "logical")
    return Finding(
        "wal_level",
        "error",
        f"wal_level is {state.wal_level}: changes cannot be decoded",
        "ALTER SYSTEM SET wal_level = logical, then restart the server (on Azure: the server parameter wal_level)",
    )


def _right(settings: Mapping[str, Any]) -> Finding:
    if settings["may_replicate"]:
        return Finding("replication", "ok", f"{settings['login']} may replicate")
    return Finding(
        "replication",
        "error",
        f"{settings['login']} may not replicate",
        f'ALTER ROLE "{settings["login"]}" WITH REPLICATION',
    )


def _readable(server: Server, table: Table, settings: Mapping[str, Any]) -> Finding:
    if table.may_read:
        return Finding("rights", "ok", f"{table.name} can be read")
    schema, login = server.quoted(table.name.schema), settings["login"]
    return Finding(
        "rights",
        "error",
        f"{table.name} cannot be read by {login}",
        f'GRANT USAGE ON SCHEMA {schema} TO "{login}"; GRANT SELECT ON {server.quoted(*table.name)} TO "{login}"',
    )


def _identity(server: Server, table: Table) -> Finding:
    if not table.is_identified:
        return Finding(
            "replica identity",
            "error",
            f"{table.name} has none: once published, UPDATE and DELETE on it fail in the sessions of its writers",
            f"ALTER TABLE {server.quoted(*table.name)} ADD PRIMARY KEY (…), or … REPLICA IDENTITY FULL",
        )
    if not table.key:
        return Finding(
            "replica identity",
            "warning",
            f"{table.name} has no key: each change names its whole row, and no snapshot can be read",
            f"ALTER TABLE {server.quoted(*table.name)} ADD PRIMARY KEY (…)",
        )
    before = "rows before come whole" if table.identity == "f" else "of rows before, only changed keys are known"
    return Finding("replica identity", "ok", f"{table.name}: {_IDENTITIES[table.identity]}; {before}")


def _publication(
    server: Server, definition: Definition, state: ServerState, tables: Sequence[Table], settings: Mapping[str, Any]
) -> Iterator[Finding]:
    if not state.has_publication:
        yield _missing_publication(definition, state, settings)
        return
    for table in tables:
        if table.published is None:
            yield Finding(
                "publication",
                "error",
                f"{definition.publication} does not publish {table.name}",
                f"ALTER PUBLICATION {server.quoted(definition.publication)} ADD TABLE {server.quoted(*table.name)}",
            )
        elif (difference := _difference(definition, table)) is not None:
            yield Finding(
                "publication",
                "error",
                f"{definition.publication} publishes {table.name} {difference}",
                "ALTER PUBLICATION … SET TABLE …, or leave columns= and row_filter= out",
            )
        else:
            yield Finding("publication", "ok", f"{definition.publication} publishes {table.name}")
    missing = _unpublished_operations(server, definition)
    if missing:
        yield Finding(
            "publication",
            "warning",
            f"{definition.publication} does not publish {', '.join(missing)}",
            f"ALTER PUBLICATION {server.quoted(definition.publication)} "
            "SET (publish = 'insert, update, delete, truncate')",
        )


def _missing_publication(definition: Definition, state: ServerState, settings: Mapping[str, Any]) -> Finding:
    text = f"publication {definition.publication} does not exist"
    if state.slot is not None:
        return Finding(
            "publication",
            "error",
            f"{text}, and the slot is older than any that could be made now",
            "azfdb stream drop, then azfdb stream create",
        )
    if definition.create and settings["may_publish"]:
        return Finding("publication", "note", f"{text} yet: the first tick makes it")
    cure = "azfdb stream create, with a login that owns the tables and has CREATE on the database"
    return Finding("publication", "error", text, cure)


def _difference(definition: Definition, table: Table) -> str | None:
    """Return in what a publication differs from the columns and rows that were asked for."""
    columns, condition = definition.columns.get(table.name), definition.row_filter.get(table.name)
    if columns is not None and table.columns is not None and set(columns) != set(table.columns):
        return f"with the columns {', '.join(table.columns)}, not {', '.join(columns)}"
    if (condition is None) != (table.row_filter is None) and condition is not None:
        return "without a row filter"
    return None


def _unpublished_operations(server: Server, definition: Definition) -> list[str]:
    from sqlalchemy import text

    query = text("SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = :name")
    with server.connected() as connection:
        row = connection.execute(query, {"name": definition.publication}).one()
    return [name for name, is_on in zip(("insert", "update", "delete", "truncate"), row, strict=True) if not is_on]


def _slot(definition: Definition, state: ServerState, settings: Mapping[str, Any]) -> Finding:
    slot = state.slot
    if slot is None:
        if not definition.create:
            return Finding("slot", "error", f"{definition.slot} does not exist", "azfdb stream create")
        if settings["used"] >= settings["slots"]:
            return Finding(
                "slot",
                "error",
                f"all {settings['slots']} slots of the server are taken",
                f"ALTER SYSTEM SET max_replication_slots = {settings['slots'] + 10}, then restart the server; or drop "
                "one that nobody reads",
            )
        return Finding("slot", "note", f"{definition.slot} does not exist yet: the first tick makes it")
    if slot.plugin != PLUGIN or slot.database != state.database:
        return Finding(
            "slot", "error", f"{definition.slot} belongs to {slot.plugin} in {slot.database}", "another slot="
        )
    if slot.is_lost:
        return Finding(
            "slot",
            "error",
            f"{definition.slot} is invalid ({slot.invalidation or slot.wal_status}): changes are lost",
            f"SELECT pg_drop_replication_slot('{definition.slot}'), then a new snapshot (on_position_lost='snapshot')",
        )
    if state.version >= 170000 and not slot.is_failover:
        return Finding(
            "slot",
            "note",
            f"{definition.slot} does not survive a failover",
            "drop it and let it be made anew: a slot of this library is a failover slot",
        )
    return Finding("slot", "ok", f"{definition.slot} is {'in use' if slot.is_active else 'free'}")


def _retention(definition: Definition, state: ServerState, settings: Mapping[str, Any]) -> Finding:
    held, limit = state.retained_bytes >> 20, definition.max_retained_bytes >> 20
    keep = settings["keep"]
    unlimited = keep == "-1"
    server_limit = "the server sets no limit" if unlimited else f"the server gives up at {keep}"
    if state.retained_bytes > definition.max_retained_bytes:
        return Finding(
            "retention",
            "warning",
            f"the slot holds {held} MB of log, more than max_retained_mb={limit}; {server_limit}",
            f"let the poller run, or SELECT pg_drop_replication_slot('{definition.slot}')",
        )
    return Finding("retention", "ok", f"the slot holds {held} MB of log, of at most {limit}; {server_limit}")


def _transport(server: Server, definition: Definition, config: DbConfig) -> Finding:
    from psycopg import OperationalError

    if definition.transport == "stream":
        try:
            replication_connection(server.engine, config).close()
        except OperationalError as error:
            if is_from_pooler(error):
                return Finding("transport", "error", POOLED, UNPOOLED)
            return Finding("transport", "error", f"no replication connection: {' '.join(str(error).split())}")
        return Finding("transport", "ok", "the replication protocol: memory is the same for transactions of any size")
    return Finding(
        "transport",
        "note",
        "SQL functions: the server keeps each transaction whole in temporary files while it is read, and reads it "
        "again for every tick",
    )
