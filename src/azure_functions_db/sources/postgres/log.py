"""One tick's reading of a slot and its tables."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import FetchError, PositionLostError, SourceConfigurationError
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.sources.postgres.changes import (
    ChangeStream,
    Place,
    RowType,
    SeenTransactions,
    Session,
    Shape,
    TableReader,
    TableRows,
    Timelines,
    base_types,
    processors_of,
)
from azure_functions_db.sources.postgres.pgoutput import lsn_of, lsn_text
from azure_functions_db.sources.postgres.replication import Peek, Replication, SlotRefusedError, timeline_history
from azure_functions_db.sources.postgres.server import PLUGIN
from azure_functions_db.sources.stream import LogPage, RowsPage, StreamHealth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Change
    from azure_functions_db.sources.postgres.changes import Processor
    from azure_functions_db.sources.postgres.pgoutput import Relation
    from azure_functions_db.sources.postgres.server import Definition, Server, ServerState, Table
    from azure_functions_db.sources.stream import LogPosition

    Processors = dict[tuple[str, str, Shape], dict[str, Processor]]
    Histories = dict[tuple[str, int], Mapping[int, int]]


class PostgresLog:
    """Holds the slot from `hold` to `close`, and reads what follows a position."""

    def __init__(
        self,
        server: Server,
        config: DbConfig,
        definition: Definition,
        name: str,
        processors: Processors,
        passed: dict[str, int],
        histories: Histories,
    ) -> None:
        self._server = server
        self._config = config
        self._definition = definition
        self._name = name
        self._processors = processors
        self._passed = passed
        """By a position, up to where nothing that concerns the source was found after it."""
        self._histories = histories
        """By a server and its timeline, where that left each earlier one."""
        self._feed: Replication | Peek | None = None
        self._is_fresh = False
        """Whether the feed has been held and nothing has been read from it."""
        self._refusal: SlotRefusedError | None = None
        self._stream: ChangeStream | None = None
        self._at: Place | None = None
        self._state: ServerState | None = None
        self._tables: dict[str, Table] | None = None
        self._table_reader: TableReader | None = None

    def hold(self) -> None:
        """Become the slot's only reader; a slot that cannot be read is left for the first read to explain."""
        if self._definition.snapshot == "only":
            return
        try:
            if self._definition.transport == "stream":
                self._feed = Replication(self._server.engine, self._config, self._definition, self._name)
            else:
                self._feed = Peek(self._server.engine, self._definition, self._name)
            self._is_fresh = True
        except SlotRefusedError as refusal:
            self._refusal = refusal

    def begin(self, *, anew: bool) -> LogPosition:
        """Fix where the stream begins; what is missing is made."""
        definition = self._definition
        if definition.snapshot == "only":
            return self.end()
        state = self._renewed()
        if state.slot is None or state.slot.confirmed_lsn is None:
            raise FetchError(f"Slot {definition.slot!r} is still being made by somebody else", source=self._name)
        position = self._position(state, Place(state.slot.confirmed_lsn))
        if definition.snapshot == "never" and not anew:
            return position
        return {**position, "awaits": self._server.running_xids()}

    def end(self) -> LogPosition:
        """Return where the log ends."""
        state = self._server.look()
        return self._position(state, Place(state.flushed_lsn))

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        """Return rows of a table; not before every transaction that the slot left out can be seen."""
        state = None
        if self._definition.snapshot != "only":
            state = self._checked(position)
            self._check_retained(state)
        if table not in self._known_tables():
            raise SourceConfigurationError(f"The checkpoint is inside {table}, which is no table of this source")
        reader = self._reader()
        if "seen" not in position:
            joined = {**position, **reader.joint}
            seen = SeenTransactions.of(joined)
            if seen is None or not all(map(seen.had_ended, joined.pop("awaits", ()))):
                self._close_reader()
                return None
            position = joined
        elif state is not None:
            position = _showing(position, reader.joint["until"], state)
        chosen = self._known_tables()[table]
        if not chosen.key:
            raise SourceConfigurationError(
                f"{table} has no primary key or identity index: it cannot be read in pages (snapshot='never' streams "
                "it all the same)",
                source=self._name,
            )
        try:
            page = reader.page(chosen, after, limit, position)
        except BaseException:
            self._close_reader()  # its transaction may be over: whoever tries again looks anew
            raise
        return RowsPage(page.changes, position, page.after, self._told(page.undecodable))

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        """Return the changes after a position."""
        self._close_reader()
        is_first = self._state is None
        stream, state = self._resumed(position)
        changes = self._taken(stream, limit)
        self._at = stream.place
        more = not stream.is_caught_up
        if not changes:
            self._passed.clear()
            self._passed[position["value"]] = max(stream.place.lsn, state.flushed_lsn)
        following = self._following(position, stream, state, has_changes=bool(changes))
        failures = stream.failures
        undecodable = {i: failures[each.position] for i, each in enumerate(changes) if each.position in failures}
        facts = [self._health(state, stream)] if is_first or not more else []
        return LogPage(changes, following, more, facts, self._told(undecodable))

    def _taken(self, stream: ChangeStream, limit: int) -> list[Change]:
        try:
            changes = stream.take(limit)
            return [self._refetched(change) for change in changes] if self._definition.refetch_toast else changes
        except BaseException:
            # What it had taken so far is lost with it: whoever tries again begins where the position is.
            self._stream = None
            raise

    def quiet(self, position: LogPosition) -> StreamHealth | None:
        """Return how things stand where nothing has been written since the position, or since it was last looked at."""
        state, lsn = self._server.look(), lsn_of(position["value"])
        known = (position.get("system"), position.get("timeline"), position.get("publication"))
        is_same = known == (state.system, state.timeline, state.publication)
        is_settled = state.slot is not None and not state.slot.is_lost and state.slot.confirmed_lsn == lsn
        is_well = state.has_publication and state.retained_bytes <= self._definition.max_retained_bytes
        has_moved = state.flushed_lsn > lsn
        if not (is_same and is_settled and is_well) or "transaction" in position:
            return None
        if has_moved and (state.flushed_lsn > self._passed.get(position["value"], 0) or self._is_due(position, state)):
            return None
        return health(self._definition, state, 0, 0.0, committed_at(position))

    def acknowledge(self, position: LogPosition) -> None:
        """Let the slot move up to a position, once it is known to be the slot that this position belongs to."""
        if self._stream is None:
            self._checked(position)
        if self._feed is not None:
            self._feed.acknowledge(lsn_of(position["value"]))

    def close(self) -> None:
        """Let go of the slot, and of every connection."""
        self._release()
        self._close_reader()

    # Holding the slot.

    def _release(self) -> None:
        feed, self._feed, self._stream = self._feed, None, None
        if feed is None:
            return
        feed.close()
        if isinstance(feed, Replication) and not feed.is_let_go:
            self._wait_for_release(feed.pid)

    def _wait_for_release(self, pid: int) -> None:
        """Wait until the server has noticed that its reader has gone, so that the next one is let in."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            slot = self._server.look().slot
            if slot is None or slot.active_pid != pid:
                return
            time.sleep(0.02)

    def _renewed(self) -> ServerState:
        """Return the state with a slot that can be read: the one that is there, or a new one."""
        state = self._server.look()
        self._check_slot(state)
        is_lost = state.slot is not None and state.slot.is_lost
        if state.slot is not None and not is_lost and state.has_publication:
            return self._held()
        if not self._definition.create:
            raise SourceConfigurationError(
                f"Slot {self._definition.slot!r} or publication {self._definition.publication!r} is missing, and "
                "create=False: azfdb stream create makes them",
                source=self._name,
            )
        self._release()
        if is_lost:
            self._server.execute(self._server.removal(replace(state, has_publication=False)))
            state = replace(state, slot=None)
        self._server.execute(self._server.creation(state, self._server.tables()))
        return self._held()

    def _held(self) -> ServerState:
        """Hold the slot, then look at it: from now on nobody else moves it."""
        self._state = None  # an older look says nothing of a slot that is held anew, should this one fail
        if self._feed is None or self._feed.is_ended or not self._is_fresh:
            self._release()
            self.hold()
        self._state = self._server.look()
        return self._state

    def _resumed(self, position: LogPosition) -> tuple[ChangeStream, ServerState]:
        """Return the stream at a position: the one at hand if it stands there, else a new one."""
        feed, stream = self._feed, self._stream
        is_there = stream is not None and not stream.is_caught_up and self._at == Place.of(position)
        if is_there and feed is not None and not feed.is_ended and stream is not None and self._state is not None:
            return stream, self._state
        state = self._checked(position)
        self._check_retained(state)
        self._feed_of(state).follow(state.flushed_lsn)
        self._is_fresh = False
        self._stream = ChangeStream(
            self._feed_of(state),
            Place.of(position),
            state.flushed_lsn,
            self._table_rows,
            source=self._name,
            seen=SeenTransactions.of(position),
            timelines=Timelines(state.timeline, self._history(state)),
            patience_seconds=self._definition.patience_seconds,
        )
        return self._stream, state

    def _feed_of(self, state: ServerState) -> Replication | Peek:
        if self._feed is not None:
            return self._feed
        if state.wal_level != "logical":
            raise SourceConfigurationError(
                "wal_level must be logical: ALTER SYSTEM SET wal_level = logical, then restart the server"
            ) from self._refusal
        raise self._refusal or FetchError(f"Slot {self._definition.slot!r} cannot be read", source=self._name)

    def _checked(self, position: LogPosition) -> ServerState:
        """Hold the slot and see that it still has all that follows the position."""
        is_at_hand = self._is_fresh and self._feed is not None and not self._feed.is_ended
        state = self._state if is_at_hand and self._state is not None else self._held()
        self._check_slot(state)
        self._check_published(state)
        self.check(position, state)
        if not state.has_publication:
            raise SourceConfigurationError(
                f"Publication {self._definition.publication!r} is missing: what is written meanwhile cannot be "
                "published any more. Drop the slot and create both anew (azfdb stream drop, azfdb stream create)",
                source=self._name,
            )
        return state

    def _check_slot(self, state: ServerState) -> None:
        slot = state.slot
        if slot is not None and (slot.plugin != PLUGIN or slot.database != state.database):
            raise SourceConfigurationError(
                f"Slot {self._definition.slot!r} belongs to {slot.plugin} in database {slot.database}: choose another "
                "name",
                source=self._name,
            )

    def _check_published(self, state: ServerState) -> None:
        if state.unpublished:
            raise SourceConfigurationError(
                f"Publication {self._definition.publication!r} does not publish {', '.join(state.unpublished)} (any "
                "more, or the table was made anew): what is written meanwhile is lost. doctor has the statement that "
                "cures it; on_position_lost= says what happens then",
                source=self._name,
            )

    def check(self, position: LogPosition, state: ServerState) -> None:
        """Raise `PositionLostError` where the server does not have what follows a position."""
        reason = self._reason_of_loss(position, state)
        if reason is not None:
            raise PositionLostError(self._loss(reason, position, state), source=self._name)

    def _reason_of_loss(self, position: LogPosition, state: ServerState) -> str | None:
        slot, lsn, name = state.slot, lsn_of(position["value"]), self._definition.slot
        if position.get("system", state.system) != state.system:
            return f"this is another server (system {state.system}, not {position['system']})"
        if slot is None:
            return f"slot {name!r} does not exist any more"
        if slot.is_lost:
            return f"slot {name!r} was invalidated ({slot.invalidation or 'its log was removed'})"
        if state.has_publication and position.get("publication", state.publication) != state.publication:
            return f"publication {self._definition.publication!r} was altered, and may have left changes out"
        if slot.confirmed_lsn is not None and slot.confirmed_lsn > lsn:
            return f"slot {name!r} stands at {lsn_text(slot.confirmed_lsn)}, ahead of the checkpoint"
        if position.get("timeline", state.timeline) != state.timeline and not self._is_in_history(position, state):
            return f"the server was promoted or restored before it had got this far (timeline {state.timeline})"
        if state.flushed_lsn < lsn:
            return f"the server's log ends at {lsn_text(state.flushed_lsn)}: it was restored to an older state"
        return None

    def _is_in_history(self, position: LogPosition, state: ServerState) -> bool:
        """Tell whether all that was read of an earlier timeline is a part of the present one."""
        self._histories.clear()  # another promotion may have got the same number
        left = self._history(state).get(position["timeline"])
        return left is not None and _read_until(position) <= left

    def _history(self, state: ServerState) -> Mapping[int, int]:
        """Return where the server's timeline left each earlier one."""
        if state.timeline == 1:
            return {}
        server = (state.system, state.timeline)
        if server not in self._histories:
            self._histories[server] = timeline_history(self._server.engine, self._config, state.timeline)
        return self._histories[server]

    def _loss(self, reason: str, position: LogPosition, state: ServerState) -> str:
        return (
            f"Source {self._name!r} has lost changes: {reason}. What was committed after {position['value']} "
            f"({position.get('at', 'time unknown')}) and until {datetime_text(state.now)} may be missing. "
            "on_position_lost='snapshot' reads the tables anew, 'continue' goes on without; or reset the poller"
        )

    def _check_retained(self, state: ServerState) -> None:
        """Drop a slot that holds too much, where that was asked for: nobody else will before the disk is full."""
        limit = self._definition.max_retained_bytes
        if self._definition.on_max_retained == "warn" or state.retained_bytes <= limit:
            return
        self._release()
        self._server.execute(self._server.removal(replace(state, has_publication=False)))
        raise PositionLostError(
            f"Source {self._name!r}: slot {self._definition.slot!r} was dropped, as on_max_retained='drop' says: it "
            f"held {state.retained_bytes >> 20} MB of log, more than max_retained_mb={limit >> 20}",
            source=self._name,
        )

    # Positions and facts.

    @staticmethod
    def _position(state: ServerState, place: Place) -> LogPosition:
        return {
            **place.written(),
            "timeline": state.timeline,
            "system": state.system,
            "publication": state.publication,
            "at": datetime_text(state.now),
        }

    def _following(
        self, position: LogPosition, stream: ChangeStream, state: ServerState, *, has_changes: bool
    ) -> LogPosition:
        """Return the position after a read; one that has hardly moved stays as it was written."""
        place = stream.place
        if not has_changes and not self._is_worth_a_write(position, place, state):
            return position
        # How the stream is joined to a snapshot is told until all of that lies behind.
        is_joined = place.lsn >= _shown_until(position)
        kept = ("committed",) if is_joined else ("committed", "seen", "until", "shown")
        carried = {name: position[name] for name in kept if name in position}
        return {**self._position(state, place), **carried, **self._moments(stream, state)}

    @staticmethod
    def _moments(stream: ChangeStream, state: ServerState) -> dict[str, str]:
        """Return when the last change was committed, and up to when all that was committed has been read."""
        committed = None if stream.last_commit_at is None else datetime_text(stream.last_commit_at)
        if committed is None:
            return {}
        return {"committed": committed, "at": datetime_text(state.now) if stream.is_caught_up else committed}

    def _is_worth_a_write(self, position: LogPosition, place: Place, state: ServerState) -> bool:
        moved = place.lsn - lsn_of(position["value"])
        if moved <= 0:
            return False
        if "transaction" in position or moved >= self._definition.idle_commit_bytes:
            return True
        if not self._is_due(position, state):
            return False
        self._server.beat()
        return True

    def _is_due(self, position: LogPosition, state: ServerState) -> bool:
        seconds = self._definition.heartbeat_seconds
        if seconds is None:
            return False
        age = age_of(position, state)
        return age is None or age >= seconds

    def _health(self, state: ServerState, stream: ChangeStream) -> StreamHealth:
        lag = max(0, state.flushed_lsn - stream.place.lsn)
        seconds = 0.0 if stream.is_caught_up else None
        if seconds is None and stream.last_commit_at is not None:
            seconds = max(0.0, (state.now - stream.last_commit_at).total_seconds())
        return health(self._definition, state, lag, seconds, stream.last_commit_at)

    def _told(self, failures: Mapping[int, Exception]) -> Mapping[int, Exception]:
        return failures if self._definition.undecodable == "error" else {}

    # Tables and rows.

    def _known_tables(self) -> dict[str, Table]:
        if self._tables is None:
            self._tables = {str(table.name): table for table in self._server.tables()}
        return self._tables

    def _table_rows(self, relation: Relation) -> TableRows | None:
        """Return how to read the rows of a table in this form; None for a table of somebody else's."""
        table = self._table_of(relation)
        if table is None:
            return None
        bases = base_types(self._server.engine, (column.type_oid for column in relation.columns))
        shape = Shape(
            tuple(column.name for column in relation.columns),
            tuple(bases[column.type_oid] for column in relation.columns),
        )
        key = [column.name for column in relation.columns if column.is_key]
        if relation.identity == "f":
            key = [name for name in table.key_columns if name in shape.names] or key
        rows = self._row_type(self._session(), table, shape)
        return TableRows(str(table.name), rows, tuple(key), tuple(map(shape.names.index, key)))

    def _table_of(self, relation: Relation) -> Table | None:
        """Return the source's table that a message is about: the same one under an older name, or its predecessor."""
        tables = self._known_tables()
        same = (table for table in tables.values() if table.oid == relation.oid)
        return next(same, None) or tables.get(f"{relation.schema}.{relation.name}")

    def _session(self) -> Session:
        """Return what is needed to read values of the stream, with the types that the engine has taught its driver."""
        with self._server.connected() as connection:
            taught: Any = connection.connection.driver_connection
        return Session(taught.adapters, None if self._feed is None else self._feed.connection)

    def _row_type(self, session: Session, table: Table, shape: Shape) -> RowType:
        form = (table.name.schema, table.name.name, shape)
        if form not in self._processors:
            self._processors[form] = processors_of(self._server.engine, *form)
        return RowType(shape, session, self._processors[form])

    def _reader(self) -> TableReader:
        if self._table_reader is None:
            self._table_reader = TableReader(self._server, self._name, self._row_type)
        return self._table_reader

    def _close_reader(self) -> None:
        reader, self._table_reader = self._table_reader, None
        if reader is not None:
            reader.close()

    def _refetched(self, change: Change) -> Change:
        """Return an update with the large values that the log does not have, as they are now."""
        unchanged: Sequence[str] = change.metadata.get("unchanged", ())
        if not unchanged or change.after is None:
            return change
        table = self._known_tables()[change.metadata["table"]]
        with self._server.connected() as connection:
            found = current_values(connection, self._server, table, change.key, unchanged)
        if found is None:
            return change
        metadata = {name: value for name, value in change.metadata.items() if name != "unchanged"}
        return replace(change, after={**change.after, **found}, metadata={**metadata, "refetched": list(unchanged)})


def _shown_until(position: LogPosition) -> int:
    """Return up to where in the log the rows of a snapshot show what was committed; later pages show more."""
    return max(lsn_of(position.get(name, "0/0")) for name in ("until", "shown"))


def _read_until(position: LogPosition) -> int:
    """Return up to where in the log something may have been told, as a change or in a row."""
    inside = lsn_of((position.get("transaction") or ["0/0"])[0])
    return max(lsn_of(position["value"]), inside, _shown_until(position))


def _showing(position: LogPosition, until: str, state: ServerState) -> LogPosition:
    """Return the position before a page that shows more than those before it: if that is undone, it was told."""
    if lsn_of(until) <= _read_until(position):
        return position
    return {**position, "shown": until, "timeline": state.timeline}


def current_values(
    connection: Any, server: Server, table: Table, key: Mapping[str, Any], columns: Sequence[str]
) -> dict[str, Any] | None:
    """Return some columns of a row as it is now; None where it is gone."""
    from sqlalchemy import select

    from azure_functions_db.sql.reflection import table_with

    described = table_with(server.engine, table.name.name, table.name.schema, [*key, *columns])
    if not all(name in described.columns for name in [*key, *columns]):
        return None
    query = select(*(described.columns[name] for name in columns))
    for name, value in key.items():
        query = query.where(described.columns[name] == value)
    row = connection.execute(query).mappings().first()
    return None if row is None else dict(row)


def committed_at(position: LogPosition) -> dt.datetime | None:
    """Return when the last change before a position was committed, where that is known."""
    written = position.get("committed")
    return None if written is None else dt.datetime.fromisoformat(written)


def age_of(position: LogPosition, state: ServerState) -> float | None:
    """Return how long ago all that had been committed was read; what waits behind the position is younger."""
    if "at" not in position:
        return None  # somebody has typed it
    return max(0.0, (state.now - dt.datetime.fromisoformat(position["at"])).total_seconds())


def health(
    definition: Definition,
    state: ServerState,
    lag_bytes: int | None,
    lag_seconds: float | None,
    last_commit_at: dt.datetime | None,
) -> StreamHealth:
    """Return how far behind a poller is, and what its slot holds."""
    limit, held, slot = definition.max_retained_bytes, state.retained_bytes, state.slot
    safe = None if slot is None else slot.safe_wal_bytes
    warning = None
    if held > limit:
        warning = (
            f"slot {definition.slot!r} holds {held >> 20} MB of log on the server's disk, more than "
            f"max_retained_mb={limit >> 20}: let the poller catch up, or drop the slot (azfdb stream drop)"
        )
    details = {} if slot is None else {"wal_status": slot.wal_status, "safe_wal_bytes": safe}
    return StreamHealth(
        lag_bytes=lag_bytes,
        lag_seconds=lag_seconds,
        retained_bytes=held,
        retained_limit_bytes=limit,
        retention_left_bytes=max(0, min(limit - held, limit if safe is None else safe)),
        last_commit_at=last_commit_at,
        details={name: value for name, value in details.items() if value is not None},
        warning=warning,
    )
