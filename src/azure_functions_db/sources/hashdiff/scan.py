"""One walk through the blocks of a snapshot: what differs in the table is a change.

A block whose rows the database sums up as the snapshot has them is passed; several at once as long as that goes well.
The others are compared key by key. Deletes come first, then the rest by key, so that a key which the database takes for
the same as another (``a`` and ``A``) is gone before the other comes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import PositionLostError, SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_part, json_safe, retyped, serialize_part, types_of
from azure_functions_db.core.types import Change, Comparison
from azure_functions_db.sources.hashdiff.snapshots import GONE, Block, Entry, Root, digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from azure_functions_db.core.errors import SerializationError
    from azure_functions_db.core.types import CursorPart, Operation, RawRecord
    from azure_functions_db.sources.hashdiff.relation import FoundRow, Relation
    from azure_functions_db.sources.hashdiff.snapshots import Documents, Key

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
    hashes: dict[Key, bytes]
    """What the table has in the range."""
    gone: list[Key]
    other: list[Key]
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
        self._replace(difference, {})
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
        self._replace(difference, taken)
        if len(due) > room:
            self.position = Position(self.position.scan, self.position.place, due[room - 1])
            self.rest = difference
        else:
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
        hashes = {key: row.hash for key, row in rows.items()}
        self.looked_at += len(hashes)
        # More rows than asked for have come if the database takes keys for the same: those are held back in key order.
        keys = list(rows) if len(rows) <= room and self.position.passed is None else _by_key(rows)
        return Difference(end, {}, hashes, [], keys, rows)

    def _difference(self, block: Block) -> Difference:
        """Compare a block with its rows, or with as many as are twice a block where it has grown by more."""
        end = self.relation.boundary(self.connection, self._start, block.end, 2 * self.block_rows)
        end = block.end if end is None else end
        entries = self._entries(block)
        hashes = self.relation.hashes(self.connection, self._start, end)
        self.looked_at += len(hashes)
        other = [key for key, one in hashes.items() if key not in entries or entries[key].hash != one]
        return Difference(end, entries, hashes, self._gone(block, entries, hashes), _by_key(other))

    def _gone(self, block: Block, entries: Mapping[Key, Entry], hashes: Mapping[Key, bytes]) -> list[Key]:
        """Return the keys that are nowhere in the table any more.

        A row is told to be deleted only after it was looked for by its key. It may have come back meanwhile, or be in
        the rest of a block that is looked at in parts; anywhere else, the database has begun to sort keys differently.
        """
        missing = [key for key in entries if key not in hashes]
        there = self.relation.existing(self.connection, missing, self._start, block.end) if missing else {}
        strayed = next((key for key, is_inside in there.items() if not is_inside), None)
        if strayed is not None:
            raise PositionLostError(
                f"The database sorts the key {strayed!r} to another place than when the snapshot was made: its "
                "collation is another one, or a new version. Rebuild the key's index if its version has changed, then "
                "reset the poller to the beginning to have every row delivered anew"
            )
        return _by_key([key for key in missing if key not in there])

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

    def _replace(self, difference: Difference, taken: Mapping[Key, Entry | None]) -> None:
        """Put what is now known of the block at hand in its place; what lies behind the range becomes a block."""
        place, block = self.position.place, self.blocks[self.position.place]
        entries = difference.entries = _entries_after(difference.entries, taken)
        if difference.end != block.end:
            here = {key: entry for key, entry in entries.items() if key in difference.hashes}
            rest = {key: entry for key, entry in entries.items() if key not in difference.hashes}
            self.blocks[place : place + 1] = [self._made(difference.end, here), self._made(block.end, rest)]
            difference.entries = here
        elif taken:
            self.blocks[place] = self._changed(block, entries, taken)
        else:
            return
        self.is_dirty = True

    def _changed(self, block: Block, entries: Mapping[Key, Entry], taken: Mapping[Key, Entry | None]) -> Block:
        """Return the block with other entries: written anew, or a further document where few of them are others."""
        if not block.names or len(block.names) > _MOST_PARTS or len(taken) * 4 > len(entries):
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
