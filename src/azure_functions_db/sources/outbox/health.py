"""What can be wrong with an outbox: a position of another server, a transaction that holds everything back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import PositionLostError
from azure_functions_db.core.serializers import deserialize_position
from azure_functions_db.core.types import Finding, Horizon, HorizonHolder
from azure_functions_db.sources.outbox.layout import OLDEST_RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.sources.keyset.source import SqlAlchemySource
    from azure_functions_db.sources.outbox.table import Outbox

_NEXT_ID = "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
_HOLDERS = """
SELECT pid::text, usename, extract(epoch FROM clock_timestamp() - xact_start)
FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL SELECT 'prepared ' || transaction::text, owner, extract(epoch FROM clock_timestamp() - prepared)
FROM pg_prepared_xacts ORDER BY 3 DESC NULLS LAST LIMIT 10
"""


def require_position(rows: SqlAlchemySource, checkpoint: CheckpointJson, newest: int | None) -> None:
    """Raise `PositionLostError` where a checkpoint is ahead of everything that this database has handed out."""
    place = _place(rows, checkpoint)
    if place is not None and newest is not None and isinstance(place[0], int) and place[0] > newest:
        raise PositionLostError(
            f"Source {rows.name!r} stands at {rows.describe(checkpoint)}, but the database has only come to {newest}: "
            "it was restored, truncated or replaced. Rows written since then are not delivered: reset the poller "
            "(azfdb reset NAME --to-beginning)"
        )


def horizon_of(
    connection: Connection, outbox: Outbox, rows: SqlAlchemySource, checkpoint: CheckpointJson
) -> Horizon | None:
    """Tell who keeps PostgreSQL's horizon below rows that are there, None where nothing is held back."""
    from sqlalchemy import select, text, tuple_

    table = outbox.reflected(connection.engine)
    position, sequence = table.columns[str(outbox.columns.position)], table.columns[outbox.columns.sequence]
    place = _place(rows, checkpoint)
    after = [] if place is None else [tuple_(position, sequence) > tuple_(*place)]
    waiting = select(position).where(*after).order_by(position.desc(), sequence.desc()).limit(1)
    statement = select(waiting.scalar_subquery(), text(OLDEST_RUNNING), text(_NEXT_ID))
    newest, oldest, following = connection.execute(statement).one()
    require_position(rows, checkpoint, following - 1)
    if newest is None:
        return None
    if newest >= following:
        raise PositionLostError(
            f"The outbox {outbox.label!r} has rows of transaction {newest}, and this server has only come to "
            f"{following - 1}: they were written on another server. Give them a place on this one: set "
            f"{outbox.columns.position} = DEFAULT in every row"
        )
    holders = tuple(
        HorizonHolder(session, user, None if age is None else float(age))
        for session, user, age in connection.execute(text(_HOLDERS))
    )
    return Horizon(oldest, max((holder.age_seconds or 0.0 for holder in holders), default=0.0), holders)


def checked_up(outbox: Outbox, engine: Engine, found: Iterable[Finding], *, by_position: bool) -> Iterator[Finding]:
    """Return what was found about the rows, and about the table as an outbox."""
    for finding in found:
        if not by_position or finding.check not in {"late commits", "cursor values"}:
            yield finding
    if by_position:
        yield from _positions(outbox, engine)


def _positions(outbox: Outbox, engine: Engine) -> Iterator[Finding]:
    column = outbox.reflected(engine).columns[str(outbox.columns.position)]
    default = str(getattr(column.server_default, "arg", ""))
    made_by_ids = "pg_current_xact_id" in default and "pg_snapshot_xmax" in default
    if made_by_ids and not column.nullable:
        yield Finding("late commits", "ok", "exact: rows are read below the oldest running transaction")
    else:
        yield Finding(
            "late commits",
            "error",
            f"{column.name} is not made of transaction ids by its default: rows can be missed, and removed unread",
            f"make it as Outbox.ddl('postgresql') does, and declare it NOT NULL: {outbox.ddl('postgresql')}",
        )


def _place(rows: SqlAlchemySource, checkpoint: CheckpointJson) -> tuple[Any, ...] | None:
    written = checkpoint.get("cursor")
    if written is None:
        return None
    place = deserialize_position(written, rows.pk_columns)
    return None if place[0] is None else place


def newest_number(connection: Connection, outbox: Outbox) -> int | None:
    """Return the highest number that this database has given to a row, None where it does not tell."""
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    dialect, named = connection.dialect, {"name": outbox.table, "place": outbox.schema}
    if getattr(dialect, "is_mariadb", False):  # MySQL tells what it remembers of this, which may be long ago
        counted = text(
            "SELECT auto_increment - 1 FROM information_schema.tables "
            "WHERE table_schema = coalesce(:place, database()) AND table_name = :name"
        )
        newest = connection.execute(counted, named).scalar()
    elif dialect.name == "sqlite" and outbox.schema is None:
        try:
            newest = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = :name"), named).scalar()
        except DBAPIError:
            return None  # nothing here was ever numbered
    else:
        return None
    return None if newest is None else int(newest)
