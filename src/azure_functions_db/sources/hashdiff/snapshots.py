"""What was delivered so far: blocks of keys and hashes, in a SQL table or in blob storage.

Documents are never changed. Whoever goes on writes new ones under new names, and the checkpoint names the root that is
valid: the commit of the checkpoint is what makes a new snapshot valid, all at once. What a crash leaves behind has a
name that no checkpoint knows.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from azure_functions_db.azure import BlobFolder
from azure_functions_db.core.config import encoded_name
from azure_functions_db.core.errors import FetchError, PositionLostError, SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_part, serialize_part
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.failures import is_schema_change, is_transient, reason_of
from azure_functions_db.sql.own_tables import OwnTable, exact_text, own_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from azure.storage.blob import ContainerClient
    from sqlalchemy import Column, Connection

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import CursorPart
    from azure_functions_db.sql.engine import EngineProvider

Key = tuple["CursorPart", ...]
"""The values of a row's key columns as the driver gives them."""

_HASH_BYTES = 16
_FAST = 1  # the level of compression: hashes do not shrink, keys shrink at any
_MANY = 500  # names in one statement


class Snapshots(Protocol):
    """A place for snapshots: documents by name, written once and removed, never changed."""

    def names(self, snapshot: str) -> list[str]:
        """Return the names of all documents of a snapshot."""

    def read(self, snapshot: str, name: str) -> bytes | None:
        """Return a document; None where it is not there."""

    def write(self, snapshot: str, documents: Mapping[str, bytes]) -> None:
        """Keep documents durably before returning; one that is there already has the same content."""

    def remove(self, snapshot: str, names: Iterable[str]) -> None:
        """Forget documents; one that is not there is no error."""


class Entry(NamedTuple):
    """What was delivered of one row: its hash, and the row itself where the snapshot keeps rows."""

    hash: bytes
    row: str | None = None


GONE = Entry(bytes(_HASH_BYTES))
"""In a later document of a block: the key is no longer there."""


@dataclass(frozen=True, slots=True)
class Block:
    """The rows up to a key, from the end of the block before: how many, and the sum of their hashes."""

    end: Key | None
    """The last key that can be in it, in the database's order; None: no end."""
    rows: int
    digest: int
    names: tuple[str, ...] = ()
    """The documents with its entries, a later one in place of an earlier; none where there are no entries."""


ALL = Block(None, 0, 0)
"""The only block of a snapshot in which nothing is."""


def digest_of(hashes: Iterable[bytes]) -> int:
    """Return the sum of hashes that the database can make as well: the first halves, XORed."""
    total = 0
    for one in hashes:
        total ^= int.from_bytes(one[:8])
    return total


class Documents:
    """One source's documents in a place for snapshots.

    A name begins with the number of the page it was written for, and ends with a hash of its content. Numbers grow from
    checkpoint to checkpoint, so that whoever is late in clearing up never touches what a later page has written.
    """

    def __init__(self, place: Snapshots, snapshot: str, definition: str) -> None:
        self.place = place
        self._snapshot = snapshot
        self._definition = definition

    def block(self, block: Block, fresh: Mapping[str, Mapping[Key, Entry]]) -> dict[Key, Entry]:
        """Return the entries of a block; ``fresh`` are those of documents that are not written yet."""
        known: dict[Key, Entry] = {}
        for name in block.names:
            known |= fresh[name] if name in fresh else _entries(self._read(name))
        return {key: entry for key, entry in known.items() if entry.hash != GONE.hash}

    def root(self, name: str) -> Root:
        """Return a snapshot by the name of its root."""
        return Root.decoded(name, self._read(name))

    def first(self) -> Root:
        """Return an empty snapshot that follows whatever was here before; another definition's is an error."""
        roots = [_RootName.parsed(name) for name in self.place.names(self._snapshot) if "-root-" in name]
        others = [root for root in roots if root.definition != self._definition]
        if others:
            raise SourceConfigurationError(
                f"The snapshot {self._snapshot!r} was made by another definition of a source. Give this source a "
                "name= of its own; or, where the old one is no longer polled, discard_snapshot() first"
            )
        number = max((root.number for root in roots), default=0)
        # A first page that was written may never have been committed: its scan is begun again, with the same ids.
        scan = max((root.scan + root.goes_on for root in roots), default=1)
        return Root(None, number, scan, [ALL], ())

    def save(self, root: Root, scan: int, fresh: Mapping[str, Mapping[Key, Entry]]) -> Root:
        """Write the blocks of a new snapshot that are new, and its root."""
        number = root.number + 1
        bodies = {name: _body(entries) for name, entries in fresh.items()}
        names = {name: f"{number:012}-{_mark(body)}" for name, body in bodies.items()}
        blocks = [
            Block(one.end, one.rows, one.digest, tuple(names.get(name, name) for name in one.names))
            for one in root.blocks
        ]
        unnamed = Root(None, number, scan, blocks, root.key_kinds)
        content = unnamed.encoded()
        name = str(_RootName(number, scan, root.name is not None, self._definition, _mark(content)))
        self.place.write(self._snapshot, {**{names[old]: body for old, body in bodies.items()}, name: content})
        return replace(unnamed, name=name)

    def sweep(self, root: Root) -> None:
        """Remove what neither this snapshot nor one that follows it can need."""
        kept = {root.name, *(name for block in root.blocks for name in block.names)}
        old = [name for name in self.place.names(self._snapshot) if name not in kept and _number(name) <= root.number]
        if old:
            self.place.remove(self._snapshot, old)

    def discard(self) -> None:
        """Remove everything."""
        self.place.remove(self._snapshot, self.place.names(self._snapshot))

    def size(self) -> int:
        """Return how many documents there are."""
        return len(self.place.names(self._snapshot))

    def _read(self, name: str) -> bytes:
        content = self.place.read(self._snapshot, name)
        if content is None:
            raise PositionLostError(
                f"The snapshot {self._snapshot!r} no longer has {name}, which the checkpoint needs: it has moved on, "
                "or was removed. A hash diff cannot go back; reset the poller to the beginning to have every row "
                "delivered anew (and give each poller a source with a name= of its own)"
            )
        return content


@dataclass(frozen=True, slots=True)
class Root:
    """A whole snapshot: its blocks in the database's order of keys."""

    name: str | None
    """The document it was read from; None for one that was never written."""
    number: int
    scan: int
    blocks: Sequence[Block]
    key_kinds: Sequence[str]

    def encoded(self) -> bytes:
        """Return the document."""
        blocks = [
            [None if one.end is None else [serialize_part(part) for part in one.end], one.rows, one.digest, one.names]
            for one in self.blocks
        ]
        written = {"version": 1, "scan": self.scan, "keys": list(self.key_kinds), "blocks": blocks}
        return zlib.compress(json.dumps(written, separators=(",", ":")).encode(), _FAST)

    @classmethod
    def decoded(cls, name: str, content: bytes) -> Root:
        """Return the snapshot of a document."""
        written = json.loads(zlib.decompress(content))
        blocks = [
            Block(None if end is None else tuple(map(deserialize_part, end)), rows, digest, tuple(names))
            for end, rows, digest, names in written["blocks"]
        ]
        return cls(name, _number(name), written["scan"], blocks, tuple(written["keys"]))


@dataclass(frozen=True, slots=True)
class _RootName:
    """What is told by a root's name alone."""

    number: int
    scan: int
    goes_on: bool
    """Whether it follows another root; the first after a reset does not."""
    definition: str
    mark: str

    def __str__(self) -> str:
        kind = "next" if self.goes_on else "first"
        return f"{self.number:012}-root-{self.scan}-{kind}-{self.definition}-{self.mark}"

    @classmethod
    def parsed(cls, name: str) -> _RootName:
        """Return what a name tells."""
        number, _, scan, kind, definition, mark = name.split("-")
        return cls(int(number), int(scan), kind == "next", definition, mark)


def _mark(content: bytes) -> str:
    """Return what tells a document from every other: a page that is tried again and again leaves one document."""
    return hashlib.sha256(content).hexdigest()[:24]


def _number(name: str) -> int:
    return int(name.partition("-")[0])


def _body(entries: Mapping[Key, Entry]) -> bytes:
    """Return the document of a block: the length of the compressed keys and rows, these, and the hashes as they are."""
    keys = [[serialize_part(part) for part in key] for key in entries]
    rows = [entry.row for entry in entries.values()]
    written = [keys, rows if any(rows) else None]
    packed = zlib.compress(json.dumps(written, separators=(",", ":")).encode(), _FAST)
    return len(packed).to_bytes(4) + packed + b"".join(entry.hash for entry in entries.values())


def _entries(body: bytes) -> dict[Key, Entry]:
    end = 4 + int.from_bytes(body[:4])
    keys, rows = json.loads(zlib.decompress(body[4:end]))
    hashes = (body[place : place + _HASH_BYTES] for place in range(end, len(body), _HASH_BYTES))
    made = map(Entry, hashes, rows) if rows else map(Entry, hashes)
    return dict(zip((tuple(map(deserialize_part, key)) for key in keys), made, strict=True))


class MemorySnapshots:
    """Keeps snapshots in this process: for tests."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], bytes] = {}

    def names(self, snapshot: str) -> list[str]:
        """Return the names of all documents of a snapshot."""
        return [name for other, name in list(self._kept) if other == snapshot]

    def read(self, snapshot: str, name: str) -> bytes | None:
        """Return a document; None where it is not there."""
        return self._kept.get((snapshot, name))

    def write(self, snapshot: str, documents: Mapping[str, bytes]) -> None:
        """Keep new documents."""
        self._kept |= {(snapshot, name): content for name, content in documents.items()}

    def remove(self, snapshot: str, names: Iterable[str]) -> None:
        """Forget documents; one that is not there is no error."""
        for name in names:
            self._kept.pop((snapshot, name), None)


class SqlSnapshots:
    """Keeps snapshots in a table of any database, which is made when it is first needed and missing.

    It need not be the database that is polled.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str = "azfdb_snapshots",
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        self._own = OwnTable(engine_getter(url, db_config, engine_provider), table, schema, _columns)

    def names(self, snapshot: str) -> list[str]:
        """Return the names of all documents of a snapshot."""
        from sqlalchemy import select

        columns = self._own.table.c
        wanted = select(columns.name).where(columns.snapshot == encoded_name("snapshot", snapshot))
        with self._connected() as connection:
            return list(connection.execute(wanted).scalars())

    def read(self, snapshot: str, name: str) -> bytes | None:
        """Return a document; None where it is not there."""
        from sqlalchemy import select

        columns = self._own.table.c
        is_it = (columns.snapshot == encoded_name("snapshot", snapshot)) & (columns.name == name)
        with self._connected() as connection:
            content = connection.execute(select(columns.content).where(is_it)).scalar_one_or_none()
        return None if content is None else bytes(content)

    def write(self, snapshot: str, documents: Mapping[str, bytes]) -> None:
        """Keep documents in one transaction; one that is there already has the same content."""
        encoded, columns = encoded_name("snapshot", snapshot), self._own.table.c
        with self._connected() as connection:
            connection.execute(
                self._own.table.delete().where(columns.snapshot == encoded, columns.name.in_(list(documents)))
            )
            for name, content in documents.items():  # one by one: together they might be too long for one packet
                row = {"snapshot": encoded, "name": name, "content": content}
                connection.execute(self._own.table.insert().values(row))

    def remove(self, snapshot: str, names: Iterable[str]) -> None:
        """Forget documents; one that is not there is no error."""
        columns, all_names = self._own.table.c, list(names)
        is_ours = columns.snapshot == encoded_name("snapshot", snapshot)
        with self._connected() as connection:
            for start in range(0, len(all_names), _MANY):
                some = all_names[start : start + _MANY]
                connection.execute(self._own.table.delete().where(is_ours, columns.name.in_(some)))

    def ddl(self) -> str:
        """Return the statement that makes the table, for a database in which the app may not."""
        return self._own.ddl()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._own.ensure()
            with self._own.engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            if is_schema_change(error):
                raise SourceConfigurationError(
                    f"{self._own.name} is no table of snapshots: give SqlSnapshots another table="
                ) from error
            raise FetchError(
                f"The table of snapshots {self._own.name} failed: {reason_of(error)}", transient=is_transient(error)
            ) from error


def _columns(dialect: str) -> list[Column[Any]]:
    from sqlalchemy import Column, LargeBinary

    content = own_types(dialect).LONGBLOB() if dialect in {"mysql", "mariadb"} else LargeBinary()
    return [
        Column("snapshot", exact_text(200, dialect, charset="ascii"), primary_key=True),
        Column("name", exact_text(100, dialect, charset="ascii"), primary_key=True),
        Column("content", content, nullable=False),
    ]


class BlobSnapshots:
    """Keeps snapshots in a container, at ``snapshots/{app_name}/{snapshot}/{name}``.

    Give a ``container_client``, or let ``connection`` name the app setting of the storage account
    as for `BlobCheckpointStore`. The container is made when it turns out to be missing.
    """

    def __init__(
        self,
        *,
        container_client: ContainerClient | None = None,
        connection: str = "AzureWebJobsStorage",
        container: str = "db-snapshots",
        app_name: str | None = None,
    ) -> None:
        self._blobs = BlobFolder("snapshots", app_name, container_client or (connection, container), _failed)

    def names(self, snapshot: str) -> list[str]:
        """Return the names of all documents of a snapshot."""
        folder = _folder(snapshot)
        return [name.removeprefix(folder) for name in self._blobs.names(folder)]

    def read(self, snapshot: str, name: str) -> bytes | None:
        """Return a document; None where it is not there."""
        return self._blobs.read(_folder(snapshot) + name)

    def write(self, snapshot: str, documents: Mapping[str, bytes]) -> None:
        """Keep documents, each before the next; one that is there already has the same content."""
        self._blobs.write({_folder(snapshot) + name: content for name, content in documents.items()})

    def remove(self, snapshot: str, names: Iterable[str]) -> None:
        """Forget documents; one that is not there is no error."""
        for name in names:
            self._blobs.remove(_folder(snapshot) + name)


def _folder(snapshot: str) -> str:
    return f"{encoded_name('snapshot', snapshot)}/"


def _failed(reason: str) -> FetchError:
    return FetchError(f"The snapshots in blob storage failed: {reason}")
