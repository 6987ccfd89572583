"""Changes of a table that has no cursor column and gets none.

A scan is one walk through the blocks of a snapshot: what differs in the table is a change. A block whose rows the
database sums up as the snapshot has them is passed; several at once as long as that goes well. The others are compared
key by key. Deletes come first, then the rest by key, so that a key which the database takes for the same as another
(``a`` and ``A``) is gone before the other comes.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import random
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.config import config_of, encoded_name
from azure_functions_db.core.errors import ConfigurationError, PositionLostError, SourceConfigurationError
from azure_functions_db.core.serializers import (
    datetime_text,
    deserialize_part,
    deserialize_position,
    json_safe,
    retyped,
    serialize_part,
    serialize_position,
    types_of,
)
from azure_functions_db.core.types import AdapterCapability, Backlog, Change, Comparison, FetchResult, SourceDescriptor
from azure_functions_db.sources.hashdiff.relation import Relation, checked_up, hashing
from azure_functions_db.sources.hashdiff.snapshots import GONE, Block, Documents, Entry, Root, SqlSnapshots, digest_of
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.definition import defined
from azure_functions_db.sources.keyset.shape import query_shape, renewed_table_shape
from azure_functions_db.sources.read_errors import may_be_migration, reading
from azure_functions_db.sql.engine import default_provider
from azure_functions_db.sql.reflection import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.errors import SerializationError
    from azure_functions_db.core.types import CheckpointJson, CursorPart, Finding, Operation, RawRecord
    from azure_functions_db.sources.hashdiff.relation import FoundRow
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
        if not pk_columns:
            raise SourceConfigurationError("pk_columns= needs at least one column: rows are told apart by their key")
        self._definition = defined(
            table=table,
            query=query,
            schema=schema,
            cursor_column=pk_columns[0],
            pk_columns=pk_columns,
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
                if random.random() < share:  # noqa: S311 - a sample
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
        if not scan.is_dirty and not self._is_worth_noting(scan, began):  # a change would make it dirty
            return Fetched(FetchResult([], checkpoint, more=False), scan)
        if scan.is_dirty:
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


_DELETES, _UPSERTS = 0, 1
_SPAN_ROWS = 250_000  # summed up by one statement at most
MOST_BLOCKS = 64  # likewise
_MOST_PARTS = 8  # documents of one block, then it is written anew

Mark = tuple[int, Any]
"""The order of changes inside a block: deletes, then the rest; each by key."""


def mark_of(kind: int, key: Key) -> Mark:
    """Return where a change stands among those of its block: texts by their bytes, whatever the collation."""
    return kind, tuple((type(part).__name__, part) for part in key)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a scan has come: the blocks that are done, and the last change handed out of the next one."""

    scan: int
    place: int
    passed: tuple[int, Key] | None = None
    """The kind and key of the last change of the block at ``place``; None where it has not been begun."""

    def is_past(self, kind: int, key: Key) -> bool:
        """Tell whether a change of the block at hand has had its turn in this scan."""
        return self.passed is not None and mark_of(kind, key) <= mark_of(*self.passed)

    def written(self) -> dict[str, Any]:
        """Return the JSON form."""
        passed = self.passed and [self.passed[0], [serialize_part(part) for part in self.passed[1]]]
        return {"place": self.place, "passed": passed}

    @classmethod
    def read(cls, scan: int, written: Mapping[str, Any]) -> Position:
        """Return what `written` wrote."""
        passed = written["passed"]
        return cls(scan, written["place"], passed and (passed[0], tuple(map(deserialize_part, passed[1]))))


@dataclass
class Difference:
    """What a block and the rows in its range have not in common."""

    end: Key | None
    """Where the range ends that was looked at."""
    entries: dict[Key, Entry]
    """What the snapshot has of the block."""
    gone: list[Key]
    other: list[Key]
    behind: Collection[Key] = ()
    """The keys of the block that lie behind the range."""
    rows: dict[Key, FoundRow] | None = None
    """The rows themselves, where they were read at once."""


@dataclass
class Scan:
    """A walk from a position on, until there are enough changes, enough rows were looked at, or it is at its end."""

    relation: Relation
    connection: Connection
    documents: Documents
    root: Root
    position: Position
    block_rows: int
    keep_rows: bool
    span: int = MOST_BLOCKS
    """How many blocks to sum up at once: none where the last one had changes, more and more where none had any."""
    changes: list[Change] = field(default_factory=list)
    failures: dict[int, SerializationError] = field(default_factory=dict)
    looked_at: int = 0
    """How many rows were read or summed up."""
    is_dirty: bool = False
    """Whether the snapshot is another one than it was."""
    fresh: dict[str, dict[Key, Entry]] = field(default_factory=dict)
    """The entries of blocks that are not written yet, by their provisional names."""
    rest: Difference | None = None
    """What is known of the block at hand since it was begun: the page before had no room for all of it."""

    def __post_init__(self) -> None:
        self.blocks = list(self.root.blocks)

    @property
    def is_at_end(self) -> bool:
        """Whether every block is done."""
        return self.position.place >= len(self.blocks)

    def run(self, limit: int, most_rows: int) -> None:
        """Walk on; a block that was begun is compared to its end."""
        if self.position.place == 0 and self.position.passed is None:
            self._check_keys()
        while len(self.changes) < limit and self.looked_at < most_rows and not self.is_at_end:
            if not self._passes(most_rows):
                self._visit(limit - len(self.changes))

    def count(self, most: int, most_rows: int) -> int:
        """Return how many changes are ahead, without reading rows or writing anything; counting stops at ``most``."""
        found = 0
        while found < most and self.looked_at < most_rows and not self.is_at_end:
            if not self._passes(most_rows):
                found += self._count_here()
        return found

    def _count_here(self) -> int:
        block = self.blocks[self.position.place]
        if block.rows == 0:
            rows = self.relation.count(self.connection, self._start, block.end)
            self.looked_at += rows
            self._pass(1)
            return rows
        difference = self._difference(block)
        due = self._due(difference)
        self.span = 0 if due else 1
        # A row that is gone is counted once, in however many parts its block is looked at.
        self._replace(difference, dict.fromkeys(difference.gone), cuts=True)
        self._pass(1)
        return len(due)

    def compare(self) -> Comparison:
        """Compare the next block row by row whatever its sum is: what the sum does not show, no scan would find."""
        block = self.blocks[self.position.place]
        most = max(block.rows, 2 * self.block_rows)
        if block.rows == 0 or self.relation.boundary(self.connection, self._start, block.end, most + 1) is not None:
            return Comparison(block.rows, waiting=self._count_here())  # more rows than there were: the sum shows it
        hashes = self.relation.hashes(self.connection, self._start, block.end)
        entries = {key: entry.hash for key, entry in self._entries(block).items()}
        others = _by_key([key for key in hashes | entries if hashes.get(key) != entries.get(key)])
        self._pass(1)
        if (len(hashes), digest_of(hashes.values())) != (block.rows, block.digest):
            return Comparison(len(hashes), waiting=len(others))
        return Comparison(len(hashes), missing=[self.relation.key_values(key) for key in others])

    def skip(self) -> None:
        """Leave the next block aside."""
        self._pass(1)

    def _check_keys(self) -> None:
        if self.relation.may_lack_keys and self.relation.lacks_keys(self.connection):
            names = ", ".join(self.relation.keys)
            raise SourceConfigurationError(
                f"There are rows with NULL in their key ({names}), which nothing tells apart. Leave them out with "
                "where= or in the query, or name other columns in pk_columns="
            )

    @property
    def _start(self) -> Key | None:
        place = self.position.place
        return self.blocks[place - 1].end if place else None

    # Passing: blocks in which nothing has changed.

    def _passes(self, most_rows: int) -> bool:
        """Pass the next blocks if the database sums them up as the snapshot does; else try fewer, at last none."""
        if self.span == 0 or self.position.passed is not None:
            return False
        ahead = self._ahead(most_rows)
        if not any(block.rows for block in ahead):
            return False
        rows, digest = self.relation.digest(self.connection, self._start, ahead[-1].end)
        self.looked_at += rows
        expected = 0
        for block in ahead:
            expected ^= block.digest
        if (rows, digest) == (sum(block.rows for block in ahead), expected):
            self._pass(len(ahead))
            self.span = min(2 * self.span, MOST_BLOCKS)
            return True
        self.span = max(1, len(ahead) // 8)
        return len(ahead) > 1

    def _ahead(self, most_rows: int) -> Sequence[Block]:
        room, place = min(_SPAN_ROWS, most_rows - self.looked_at), self.position.place
        ahead = self.blocks[place : place + 1]
        rows = ahead[0].rows
        for block in self.blocks[place + 1 : place + self.span]:
            rows += block.rows
            if rows > room:
                break
            ahead.append(block)
        return ahead

    def _pass(self, count: int) -> None:
        self.position = Position(self.position.scan, self.position.place + count)

    # Visiting: a block that is compared key by key.

    def _visit(self, room: int) -> None:
        """Take the changes of the next block, as many as there is room for."""
        block = self.blocks[self.position.place]
        rest, self.rest = self.rest, None
        difference = rest or (self._difference(block) if block.rows else self._new_rows(block, room))
        due = self._due(difference)
        # Where one block has changed its neighbour may well have: it is compared at once, without being summed up.
        self.span = 0 if due else 1
        taken = self._taken(difference, due[:room])
        is_done = len(due) <= room
        # Nobody can say on which side of a cut a key lies that is gone: a block is cut when all of its part was told.
        self._replace(difference, taken, cuts=is_done)
        if not is_done:
            self.position = Position(self.position.scan, self.position.place, due[room - 1])
            self.rest = difference
            return
        self._pass(1)
        if taken:
            self._merge()

    def _due(self, difference: Difference) -> list[tuple[int, Key]]:
        due = [(_DELETES, key) for key in difference.gone] + [(_UPSERTS, key) for key in difference.other]
        return [(kind, key) for kind, key in due if not self.position.is_past(kind, key)]

    def _new_rows(self, block: Block, room: int) -> Difference:
        """Read the next rows where the snapshot has none at all: no more than there is room for."""
        end = self.relation.boundary(self.connection, self._start, block.end, room)
        end = block.end if end is None else end
        rows = self.relation.rows_between(self.connection, self._start, end)
        self.looked_at += len(rows)
        # More rows than asked for have come if the database takes keys for the same: those are held back in key order.
        keys = list(rows) if len(rows) <= room else _by_key(rows)
        return Difference(end, {}, [], keys, rows=rows)

    def _difference(self, block: Block) -> Difference:
        """Compare a block with its rows, or with as many as are twice a block where it has grown by more."""
        end = self.relation.boundary(self.connection, self._start, block.end, 2 * self.block_rows)
        end = block.end if end is None else end
        entries = self._entries(block)
        hashes = self.relation.hashes(self.connection, self._start, end)
        self.looked_at += len(hashes)
        other = [key for key, one in hashes.items() if key not in entries or entries[key].hash != one]
        missing = [key for key in entries if key not in hashes]
        inside, behind = self._found_again(missing, end, block.end)
        gone = [key for key in missing if key not in inside and key not in behind]
        return Difference(end, entries, _by_key(gone), _by_key(other), behind)

    def _found_again(self, keys: Sequence[Key], end: Key | None, last: Key | None) -> tuple[set[Key], set[Key]]:
        """Return which keys are in the table all the same: in the range that ends there, and behind it.

        A row is told to be deleted only after it was looked for by its key. It may have come back meanwhile, or be in
        the rest of a block that is looked at in parts; anywhere else, the database has begun to sort keys differently.
        """
        there = self.relation.existing(self.connection, keys, self._start, end)
        outside = [key for key, is_inside in there.items() if not is_inside]
        behind = dict.fromkeys(outside, False)
        if end != last:
            behind = self.relation.existing(self.connection, outside, end, last)
        strayed = next((key for key, is_inside in behind.items() if not is_inside), None)
        if strayed is not None:
            raise PositionLostError(
                f"The database sorts the key {strayed!r} to another place than when the snapshot was made: its "
                "collation is another one, or a new version. Rebuild the key's index if its version has changed, then "
                "reset the poller to the beginning to have every row delivered anew"
            )
        return there.keys() - set(outside), set(behind)

    def _taken(self, difference: Difference, due: Sequence[tuple[int, Key]]) -> dict[Key, Entry | None]:
        """Make the changes; return what the snapshot has of their keys from now on."""
        taken: dict[Key, Entry | None] = {}
        keys = [key for kind, key in due if kind == _UPSERTS]
        rows = self.relation.rows(self.connection, keys) if difference.rows is None else difference.rows
        for kind, key in due:
            entry = difference.entries.get(key)
            if kind == _DELETES:
                self._tell("delete", key, entry, None)
                taken[key] = None
            elif (row := rows.get(key)) is not None and (entry is None or entry.hash != row.hash):
                self._tell("insert" if entry is None else "update", key, entry, row)
                taken[key] = Entry(row.hash, _packed(row.record) if self.keep_rows else None)
        return taken

    def _tell(self, op: Operation, key: Key, entry: Entry | None, row: FoundRow | None) -> None:
        if row is not None and row.failure is not None:
            self.failures[len(self.changes)] = row.failure
        self.changes.append(
            Change(
                op=op,
                position=_position(self.position.scan, key, row),
                key=self.relation.key_values(key),
                after=None if row is None else row.record,
                before=None if entry is None or entry.row is None else _unpacked(entry.row),
                cursor=self.position.scan,
                metadata={"scan": self.position.scan},
            )
        )

    # The snapshot that follows.

    def _entries(self, block: Block) -> dict[Key, Entry]:
        return self.documents.block(block, self.fresh)

    def _replace(self, difference: Difference, taken: Mapping[Key, Entry | None], *, cuts: bool) -> None:
        """Put what is now known of the block at hand in its place; what lies behind the range becomes a block."""
        place, block = self.position.place, self.blocks[self.position.place]
        entries = difference.entries = _entries_after(difference.entries, taken)
        # Nobody can say it of a row either that went when its turn was over: what lies behind waits for the next scan.
        if cuts and difference.end != block.end and entries.keys().isdisjoint(difference.gone):
            here = {key: entry for key, entry in entries.items() if key not in difference.behind}
            rest = {key: entry for key, entry in entries.items() if key in difference.behind}
            self.blocks[place : place + 1] = [self._made(difference.end, here), self._made(block.end, rest)]
        elif taken:
            self.blocks[place] = self._changed(block, entries, taken)
        else:
            return
        self.is_dirty = True

    def _changed(self, block: Block, entries: Mapping[Key, Entry], taken: Mapping[Key, Entry | None]) -> Block:
        """Return the block with other entries: written anew, or a further document where few of them are others."""
        if len(block.names) > _MOST_PARTS or len(taken) * 4 > len(entries):
            return self._made(block.end, entries)
        part = self._made(block.end, {key: entry or GONE for key, entry in taken.items()})
        return Block(block.end, len(entries), _digest(entries), (*block.names, *part.names))

    def _made(self, end: Key | None, entries: Mapping[Key, Entry]) -> Block:
        if not entries:
            return Block(end, 0, 0)
        name = f"fresh-{len(self.fresh)}"
        self.fresh[name] = dict(entries)
        return Block(end, len(entries), _digest(entries), (name,))

    def _merge(self) -> None:
        """Join the block just done with those before it, as long as they are of a size and small together."""
        while self.position.place >= 2:
            place = self.position.place
            one, other = self.blocks[place - 2 : place]
            few, many = sorted((one.rows, other.rows))
            if one.rows + other.rows > self.block_rows or (few and 2 * few < many):
                return
            self.blocks[place - 2 : place] = [self._made(other.end, self._entries(one) | self._entries(other))]
            self.position = Position(self.position.scan, place - 1)

    def following(self) -> Root:
        """Write the snapshot that has these changes, and return it."""
        used = {name for block in self.blocks for name in block.names}
        fresh = {name: entries for name, entries in self.fresh.items() if name in used}
        root = Root(self.root.name, self.root.number, self.root.scan, self.blocks, self.relation.key_kinds)
        return self.documents.save(root, self.position.scan, fresh)


def _entries_after(entries: Mapping[Key, Entry], taken: Mapping[Key, Entry | None]) -> dict[Key, Entry]:
    """Return what the snapshot has of a block after some of its changes."""
    known: dict[Key, Entry | None] = {**entries, **taken}
    return {key: entry for key, entry in known.items() if entry is not None}


def _digest(entries: Mapping[Key, Entry]) -> int:
    return digest_of(entry.hash for entry in entries.values())


def _by_key(keys: Mapping[Key, Any] | Sequence[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: mark_of(0, key))


def row_change(shown: Mapping[str, CursorPart], key: Key, row: FoundRow) -> Change:
    """Return a row as it is, outside any scan."""
    cursor = next(iter(shown.values()))
    return Change(op="upsert", position=_position("row", key, row), key=shown, after=row.record, cursor=cursor)


def _position(scan: int | str, key: Key, row: FoundRow | None) -> str:
    """Return what tells a change from every other: the same row with the same content comes once in a scan."""
    written = json.dumps([serialize_part(part) for part in key], separators=(",", ":"))
    return f"{scan}:{written}:{'gone' if row is None else row.hash.hex()}"


def _packed(row: RawRecord) -> str:
    """Return a row as a snapshot keeps it for before images: a text that gives back the same values."""
    return json.dumps([json_safe(row), types_of(row)], separators=(",", ":"))


def _unpacked(text: str) -> RawRecord:
    row: RawRecord = retyped(*json.loads(text))
    return row
