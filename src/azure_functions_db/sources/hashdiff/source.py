"""Changes of a table that has no cursor column and gets none."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.config import config_of, encoded_name
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.serializers import datetime_text, deserialize_position, serialize_part, serialize_position
from azure_functions_db.core.types import AdapterCapability, Backlog, FetchResult, SourceDescriptor
from azure_functions_db.sources.hashdiff.relation import Relation, checked_up, hashing
from azure_functions_db.sources.hashdiff.scan import MOST_BLOCKS, Position, Scan, row_change
from azure_functions_db.sources.hashdiff.snapshots import Documents, Root, SqlSnapshots
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.definition import defined
from azure_functions_db.sources.keyset.shape import query_shape, renewed_table_shape
from azure_functions_db.sources.read_errors import may_be_migration, reading
from azure_functions_db.sql.engine import default_provider
from azure_functions_db.sql.reflection import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import CheckpointJson, Comparison, CursorPart, Finding
    from azure_functions_db.sources.hashdiff.snapshots import Key, Snapshots
    from azure_functions_db.sql.engine import EngineProvider

_MOST_COUNTED = 100_000
_KIND = "scan"


class HashDiffSource:
    """Finds inserts, updates and deletes by comparing each row's hash with that of the last scan.

    For a table that nobody may alter: it needs a key and the right to read, nothing else. Every scan reads the whole
    table inside the database; rows that did not change stay there.

    - ``url``, ``db_config``:
      Exactly one of them; ``%NAME%`` stands for an environment variable.
    - ``table``, ``query``:
      Exactly one of them.
    - ``pk_columns``:
      Tell rows apart: never NULL, unique together, best those of an index.
    - ``columns``:
      The columns to compare and to deliver, all of them by default; the key always comes along. A change of any other
      column is none.
    - ``where``, ``parameters``:
      A condition on the rows, with ``:name`` parameters. A row that no longer fulfils it is a delete.
    - ``snapshots``:
      Where to keep keys and hashes: `SqlSnapshots`, `BlobSnapshots`. By default the table ``azfdb_snapshots`` in the
      database that is polled.
    - ``keep_rows``:
      Keep the rows themselves in the snapshot, so that updates and deletes have a before image.
    - ``name``:
      The source's name, and the snapshot's: each poller needs a source with a name of its own.
    - ``scan_interval_seconds``:
      How long to wait after a scan before the next one is begun; None: the next tick begins it.
    - ``rows_per_tick``:
      How many rows a tick looks at before it leaves the rest of the scan to the next one.
    - ``block_rows``:
      How many rows have a hash in common; a block is compared row by row if one of them has changed.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | None = None,
        query: str | None = None,
        schema: str | None = None,
        pk_columns: Sequence[str],
        columns: Sequence[str] | None = None,
        where: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        snapshots: Snapshots | None = None,
        keep_rows: bool = False,
        name: str | None = None,
        scan_interval_seconds: float | None = None,
        rows_per_tick: int = 1_000_000,
        block_rows: int = 5_000,
        engine_provider: EngineProvider | None = None,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        try:
            self._config = config_of(url, db_config)
        except ConfigurationError as error:
            raise SourceConfigurationError.of(error) from None
        _check_amounts(scan_interval_seconds, rows_per_tick, block_rows)
        key = tuple(pk_columns) if not isinstance(pk_columns, str) else pk_columns
        if not key:
            raise SourceConfigurationError("pk_columns= needs at least one column: rows are told apart by their key")
        self._definition = defined(
            table=table,
            query=query,
            schema=schema,
            cursor_column=key[0],
            pk_columns=key,
            where=where,
            parameters=parameters,
            columns=columns,
            created_column=None,
            deleted_column=None,
            partition=None,
            partition_by=None,
            start_at="beginning",
            in_flight="ignore",
            settle_seconds=None,
            strategy="cursor",
            operation_mode="upsert_only",
            undecodable="error",
        )
        self.name = name or self._definition.label
        _named(self.name)
        self._provider = engine_provider
        self._snapshots: Snapshots = snapshots or SqlSnapshots(
            url=url, db_config=db_config, engine_provider=engine_provider
        )
        self._keep_rows = keep_rows
        self._interval = scan_interval_seconds
        self.rows_per_tick = rows_per_tick
        self._block_rows = block_rows
        self._now = now

    @property
    def pk_columns(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
        return self._definition.pk_columns

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        with reading(self.name):
            return SourceDescriptor(self.name, "hash-diff", self._definition.fingerprint(self._config))

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""
        return AdapterCapability(
            detects_deletes=True,
            before_images=self._keep_rows,
            distinguishes_insert=True,
            needs_lease=True,
            acknowledges=True,
            scans=True,
        )

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the database disagree."""
        with reading(self.name), self.connected() as (relation, connection):
            relation.boundary(connection, None, None, 1)

    def open(self) -> HashDiffReader:
        """Begin a tick's reading."""
        return HashDiffReader(self)

    def close(self) -> None:
        """Nothing to give back: connections come from the pool, one page at a time."""

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return the next changes, as a reader for this once."""
        with closing(self.open()) as reader:
            return reader.fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Remove what only snapshots before this checkpoint need."""
        with reading(self.name):
            if (written := checkpoint.get("cursor")) is not None:
                self.documents.sweep(self.documents.root(_cursor(written)["snapshot"]))

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many changes the rest of the scan would find, or the next one where none is under way."""
        with reading(self.name), self.connected() as (relation, connection):
            scan = self._scan(relation, connection, *self._start(checkpoint))
            found = scan.count(_MOST_COUNTED, self.rows_per_tick)
            return Backlog(found, "changes", is_more=not scan.is_at_end)

    def examine(self) -> list[Finding]:
        """Return what an operator should know: key, index, and what a scan costs."""
        with reading(self.name), self.connected() as (relation, connection):
            return list(checked_up(relation, connection, self.documents, self._block_rows, self.rows_per_tick))

    checkup = examine

    def describe(self, checkpoint: CheckpointJson) -> str:
        """Return a checkpoint's position as people read it."""
        written = checkpoint.get("cursor")
        if written is None:
            return "beginning"
        match _cursor(written):
            case {"value": scan, "finished_at": str() as at}:
                return f"scan {scan}, finished {at}"
            case {"value": scan, "tiebreaker": key} if key:
                shown = " ".join(f"{name}={part}" for name, part in key.items())
                return f"scan {scan}, up to {shown}"
            case {"value": scan}:
                return f"scan {scan}"
        return str(written)

    def parse(self, text: str) -> CheckpointJson:
        """Return the checkpoint of what somebody has typed: "beginning", as a snapshot cannot go back."""
        if text.strip() == "beginning":
            return {}
        raise SourceConfigurationError(
            f"{text!r} is no position of a hash diff: it goes on from its snapshot, or from the beginning. To have a "
            "range of keys delivered again there is azfdb backfill"
        )

    def ranged(self, start_at: CursorPart, end_at: CursorPart) -> TableRows:
        """Return the rows as they are now, from one value of the first key column to another, both included."""
        return TableRows(self, start_at, end_at)

    def cursor_from(self, text: str) -> CursorPart:
        """Return a typed text as a value of the first key column."""
        name = self.pk_columns[0]
        with reading(self.name), self.connected() as (relation, _):
            value: CursorPart = values.revived_row({name: text}, relation.shape.types, strict=True)[name]
            return value

    def cursor_at(self, checkpoint: CheckpointJson) -> None:
        """Return no cursor: whatever the checkpoint says, all rows that are there can be read."""

    def compared(self, checkpoint: CheckpointJson, share: float = 1) -> Iterator[Comparison]:
        """Compare the table with the snapshot block by block and row by row, whatever the sums say."""
        with reading(self.name), self.connected() as (relation, connection):
            root, _ = self._start(checkpoint)
            scan = self._scan(relation, connection, root, Position(root.scan, 0))
            while not scan.is_at_end:
                if share >= 1 or random.random() < share:  # noqa: S311 - a sample
                    yield scan.compare()
                else:
                    scan.skip()

    def discard_snapshot(self) -> None:
        """Remove the snapshot; without a reset of its poller, the next tick says that its position is lost."""
        with reading(self.name):
            self.documents.discard()

    def __repr__(self) -> str:
        return f"HashDiffSource({self.name!r})"

    @cached_property
    def documents(self) -> Documents:
        """The source's own part of the place for snapshots."""
        definition = hashlib.sha256(self.source_descriptor.fingerprint.encode()).hexdigest()[:12]
        return Documents(self._snapshots, self.name, definition)

    def fetched(self, checkpoint: CheckpointJson, limit: int, most_rows: int, last: Scan | None) -> Fetched:
        """Return the next changes after looking at so many rows at most; ``last`` is the walk that led here, if any."""
        if limit < 1:
            raise SourceConfigurationError(f"A page has at least one row, not {limit}")
        from sqlalchemy.exc import DBAPIError

        try:
            return self._fetched(checkpoint, limit, most_rows, last)
        except DBAPIError as failure:
            if not may_be_migration(failure):
                raise
        return self._fetched(checkpoint, limit, most_rows, None)  # with the columns that are there now

    def _fetched(self, checkpoint: CheckpointJson, limit: int, most_rows: int, last: Scan | None) -> Fetched:
        if not self._is_due(checkpoint):
            return Fetched(FetchResult([], checkpoint, more=False), None)
        root, began = self._start(checkpoint, last)
        with self.connected(None if last is None else last.relation) as (relation, connection):
            scan = self._scan(relation, connection, root, began)
            scan.span = _span(checkpoint)
            if last is not None and (root, began) == (last.root, last.position):
                scan.rest = last.rest
            scan.run(limit, most_rows)
        if not scan.changes and not scan.is_dirty and not self._is_worth_noting(scan, began):
            return Fetched(FetchResult([], checkpoint, more=False), scan)
        if scan.is_dirty or root.name is None:
            scan.root = scan.following()
        following = self._checkpoint(scan)
        return Fetched(FetchResult(scan.changes, following, not scan.is_at_end, undecodable=scan.failures), scan)

    def _is_worth_noting(self, scan: Scan, began: Position) -> bool:
        """Tell whether a walk without changes has to be remembered: where it was begun before, or is not at its end."""
        if scan.root.name is None:
            return False
        return not scan.is_at_end or began.place > 0 or began.passed is not None or self._interval is not None

    def _is_due(self, checkpoint: CheckpointJson) -> bool:
        match checkpoint.get("cursor"):
            case {"finished_at": str() as at} if self._interval is not None:
                return (self._now() - dt.datetime.fromisoformat(at)).total_seconds() >= self._interval
            case _:
                return True

    def _scan(self, relation: Relation, connection: Connection, root: Root, position: Position) -> Scan:
        if root.name is not None and tuple(root.key_kinds) != relation.key_kinds:
            raise SourceConfigurationError(
                f"The snapshot {self.name!r} has the key ({', '.join(root.key_kinds)}), the source now has "
                f"({', '.join(relation.key_kinds)}): nothing tells which row is which. Reset the poller to the "
                "beginning to have every row delivered anew"
            )
        return Scan(
            relation=relation,
            connection=connection,
            documents=self.documents,
            root=root,
            position=position,
            block_rows=self._block_rows,
            keep_rows=self._keep_rows,
        )

    def _start(self, checkpoint: CheckpointJson, last: Scan | None = None) -> tuple[Root, Position]:
        """Return the snapshot of a checkpoint, and where in it to go on."""
        written = checkpoint.get("cursor")
        if written is None:
            root = self.documents.first()
            return root, Position(root.scan, 0)
        cursor = _cursor(written)
        is_known = last is not None and last.root.name == cursor["snapshot"]
        root = last.root if last is not None and is_known else self.documents.root(cursor["snapshot"])
        if cursor.get("finished_at") is not None:
            return root, Position(cursor["value"] + 1, 0)
        return root, Position.read(cursor["value"], cursor)

    def _checkpoint(self, scan: Scan) -> CheckpointJson:
        root, position = scan.root, scan.position
        end = root.blocks[position.place - 1].end if position.place else None
        reached = zip(self.pk_columns, (serialize_part(part) for part in end or ()), strict=False)
        cursor = {
            "kind": _KIND,
            "value": position.scan,
            "tiebreaker": dict(reached),
            "snapshot": root.name,
            **position.written(),
            "span": scan.span,
            "finished_at": datetime_text(self._now()) if scan.is_at_end else None,
        }
        return {"cursor": cursor}

    @contextmanager
    def connected(self, known: Relation | None = None) -> Iterator[tuple[Relation, Connection]]:
        """Lend a connection whose session writes values in one form, with what to ask over it."""
        engine = self._engine()
        with engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                # What is set for the transaction must last for the transaction, whatever mode the engine is in.
                connection.execution_options(isolation_level="READ COMMITTED")
            relation = known or self._relation(engine, connection)
            with hashing(connection):
                yield relation, connection

    def _relation(self, engine: Engine, connection: Connection) -> Relation:
        """Describe what is read as it is now: instances that remember other columns would undo each other's hashes."""
        definition = self._definition
        if definition.table is None:
            return Relation(definition, query_shape(connection, definition), engine.dialect)
        table = table_of(engine, definition.table, definition.schema)
        return Relation(definition, renewed_table_shape(engine, table), engine.dialect)

    def _engine(self) -> Engine:
        return (self._provider or default_provider()).get_engine(self._config)


class Fetched(NamedTuple):
    """A page, and the walk that found it."""

    result: FetchResult
    scan: Scan | None


class HashDiffReader:
    """One tick's reading: it looks at so many rows, then leaves the rest to the next tick."""

    def __init__(self, source: HashDiffSource) -> None:
        self._source = source
        self._left = source.rows_per_tick
        self._last: Scan | None = None

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return at most ``limit`` changes after the checkpoint; after enough rows, none, and the place."""
        with reading(self._source.name):
            fetched = self._source.fetched(checkpoint, limit, max(1, self._left), self._last)
            self._last = fetched.scan
            self._left -= fetched.scan.looked_at if fetched.scan else 0
            return fetched.result

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Remove what only snapshots before this checkpoint need."""
        self._source.acknowledge(checkpoint)

    def close(self) -> None:
        """Nothing to give back."""


class TableRows:
    """The rows of a table as they are now, in the order of their key: for delivering them once more.

    An event has the same id for the same content of a row, however often it is delivered so. It is an upsert:
    what the poller has delivered before is not looked at.
    """

    def __init__(self, source: HashDiffSource, first: CursorPart, last: CursorPart) -> None:
        self._source = source
        self._range = (first, last)
        self.source_descriptor = source.source_descriptor

    def validate(self) -> None:
        """Raise where the definition and the database disagree."""
        self._source.validate()

    def capability(self) -> AdapterCapability:
        """Say that this is the newest state of rows, and no more."""
        return AdapterCapability()

    def open(self) -> None:
        """Hold nothing: it is its own reader."""

    def close(self) -> None:
        """Hold nothing."""

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Keep everything: the rows stay where they are."""

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return the next rows; a few more where the database takes several keys for the same."""
        start = self._place(checkpoint)
        with self._rows() as (rows, connection):
            end = rows.boundary(connection, start, None, limit)
            found = rows.rows_between(connection, start, end)
            changes = [row_change(rows.key_values(key), key, row) for key, row in found.items()]
        if not found:
            return FetchResult([], checkpoint, more=False)
        failures = {place: row.failure for place, row in enumerate(found.values()) if row.failure is not None}
        following = {"cursor": self._written(end or list(found)[-1])}
        return FetchResult(changes, following, more=end is not None, undecodable=failures)

    def count_changes(self, checkpoint: CheckpointJson, most: int | None = None) -> int:
        """Return how many rows are left; counting stops at ``most``."""
        with self._rows() as (rows, connection):
            count = rows.count(connection, self._place(checkpoint), None)
        return count if most is None else min(count, most)

    @contextmanager
    def _rows(self) -> Iterator[tuple[Relation, Connection]]:
        with reading(self._source.name), self._source.connected() as (relation, connection):
            yield relation.ranged(connection, *self._range), connection

    def _written(self, key: Key) -> dict[str, Any]:
        return serialize_position(key[0], dict(zip(self._source.pk_columns, key, strict=True)))

    def _place(self, checkpoint: CheckpointJson) -> Key | None:
        written = checkpoint.get("cursor")
        return None if written is None else deserialize_position(written, self._source.pk_columns)[1:]


def _cursor(written: Any) -> dict[str, Any]:
    match written:
        case {"kind": "scan", "value": int(), "snapshot": str(), "place": int()}:
            return dict(written)
        case _:
            raise SourceConfigurationError(
                "The checkpoint is none of a hash diff, which goes on from its snapshot or from the beginning: reset "
                "the poller to the beginning"
            )


def _span(checkpoint: CheckpointJson) -> int:
    """Return how many blocks to sum up at once: inside a scan, as many as would have been next."""
    match checkpoint.get("cursor"):
        case {"finished_at": None, "span": int() as span}:
            return span
        case _:
            return MOST_BLOCKS


def _named(name: str) -> None:
    try:
        encoded_name("name", name)
    except ConfigurationError as error:
        raise SourceConfigurationError.of(error) from None


def _check_amounts(interval: object, rows_per_tick: object, block_rows: object) -> None:
    if interval is not None and not (isinstance(interval, int | float) and interval >= 0):
        raise SourceConfigurationError("scan_interval_seconds= must be a number, 0 or more, or None")
    for name, amount in (("rows_per_tick", rows_per_tick), ("block_rows", block_rows)):
        if not isinstance(amount, int) or isinstance(amount, bool) or amount < 1:
            raise SourceConfigurationError(f"{name}= must be a whole number above 0")
