"""Where rows go that the handler cannot digest: files, a SQL table, blobs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.azure import BlobFolder
from azure_functions_db.core.config import encoded_name
from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.core.files import listed, locked, make_folder, read_whole, replace_whole
from azure_functions_db.core.serializers import datetime_text, is_count, parsed_json, timestamp
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.failures import reason_of
from azure_functions_db.sql.own_tables import OwnTable, exact_text, long_text
from azure_functions_db.sql.transactions import outside_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from azure.storage.blob import ContainerClient
    from sqlalchemy import Column, ColumnElement, Connection

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.sql.engine import EngineProvider


__all__ = ["BlobQuarantine", "FileQuarantine", "SqlQuarantine"]

_SUFFIX, _LOCK = ".json", ".lock"


class BlobQuarantine:
    """Keeps rows in a container, at ``quarantine/{app_name}/{poller_name}/{event_id}.json``.

    Give a ``container_client``, or let ``connection`` name the app setting of the storage account
    as for `BlobCheckpointStore`. The container is made when it turns out to be missing.
    """

    def __init__(
        self,
        *,
        container_client: ContainerClient | None = None,
        connection: str = "AzureWebJobsStorage",
        container: str = "db-quarantine",
        app_name: str | None = None,
    ) -> None:
        self._blobs = BlobFolder("quarantine", app_name, container_client or (connection, container), _blob_failure)

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        self._blobs.write({path_of(row.poller_name, row.event_id): encoded(row).encode() for row in rows})

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        return oldest_first([row for row, _ in self._kept(poller_name)])

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read."""
        return len(self._blobs.names(folder_of(poller_name)))

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        self._blobs.remove(path_of(poller_name, event_id))

    def take_back(self, poller_name: str, batch_id: str) -> None:
        """Forget the rows of a poller that this batch has put aside; one that was put aside anew stays."""
        for row, etag in self._kept(poller_name):
            if row.batch_id == batch_id:
                self._blobs.remove_tagged(path_of(row.poller_name, row.event_id), etag)

    def _kept(self, poller_name: str | None) -> Iterator[tuple[QuarantinedRow, str]]:
        """Yield each row with the ETag of its blob."""
        for name in self._blobs.names("" if poller_name is None else folder_of(poller_name)):
            found = self._blobs.read_tagged(name)
            if found is not None:  # removed by somebody else meanwhile
                content, etag = found
                yield decoded(content, f"The blob {name}", is_at(name)), etag


def _blob_failure(reason: str) -> StateStoreError:
    return StateStoreError(f"The quarantine in blob storage failed: {reason}", unreachable=True)


LOCK_SECONDS = 30.0
_ESCAPE = "/"


class SqlQuarantine:
    """Keeps rows in a table, which is made when it is first needed and missing.

    The event and its error are one JSON text; poller, id, time and error type are columns to
    look for. All of it is ASCII, which a database of any encoding can keep. Rows are written in a
    transaction of their own, whatever the handler has open.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str = "azfdb_quarantine",
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        self._own = OwnTable(engine_getter(url, db_config, engine_provider), table, schema, _columns)

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        with self._connected() as connection:
            for row in rows:
                self._forget(connection, row.poller_name, row.event_id)
                connection.execute(self._own.table.insert().values(_values(row)))

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        with self._connected() as connection:
            return oldest_first([row for row, _ in self._kept(connection, poller_name)])

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read, unless its name is an odd one."""
        from sqlalchemy import func, select

        if not _is_plain(poller_name):
            return len(self.entries(poller_name))
        rows = select(func.count()).select_from(self._own.table).where(self._own.table.c.poller_name == poller_name)
        with self._connected() as connection:
            return int(connection.execute(rows).scalar_one())

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        with self._connected() as connection:
            self._forget(connection, poller_name, event_id)

    def take_back(self, poller_name: str, batch_id: str) -> None:
        """Forget the rows of a poller that this batch has put aside; one that was put aside anew stays."""
        # Asked once more by the statement that removes: since it was listed, the row may have come anew.
        is_of_batch = self._own.table.c.entry.like(_holding(_line("batch_id", batch_id)), escape=_ESCAPE)
        with self._connected() as connection:
            for row, kept in self._kept(connection, poller_name):
                if row.batch_id == batch_id:
                    self._delete(connection, kept, is_of_batch)

    def ddl(self) -> str:
        """Return the statement that makes the table, for a database in which the app may not."""
        return self._own.ddl()

    def _forget(self, connection: Connection, poller_name: str, event_id: str) -> None:
        if _is_plain(poller_name) and _is_plain(event_id):
            self._delete(connection, _Key(poller_name, event_id))
            return
        for row, kept in self._kept(connection, poller_name):
            if row.event_id == event_id:
                self._delete(connection, kept)

    def _kept(self, connection: Connection, poller_name: str | None) -> list[tuple[QuarantinedRow, _Key]]:
        """Return each row with its key in the table: older versions have kept odd names as they are."""
        statement = self._own.table.select()
        if poller_name is not None and _is_plain(poller_name):
            statement = statement.where(self._own.table.c.poller_name == poller_name)
        kept = [
            (self._decoded(found), _Key(found.poller_name, found.event_id)) for found in connection.execute(statement)
        ]
        return [(row, key) for row, key in kept if poller_name in {None, row.poller_name}]

    def _delete(self, connection: Connection, key: _Key, *conditions: ColumnElement[bool]) -> None:
        columns = self._own.table.c
        is_it = (columns.poller_name == key.poller_name, columns.event_id == key.event_id)
        connection.execute(self._own.table.delete().where(*is_it, *conditions))

    def _decoded(self, row: Any) -> QuarantinedRow:
        return decoded(row.entry, f"{self._own.name}, event {row.event_id}", _is_of(row))

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        try:
            with outside_transactions():
                self._own.ensure()
                with self._own.engine.begin() as connection:
                    _bound_waits(connection)
                    yield connection
        except DBAPIError as error:
            raise StateStoreError(
                f"The quarantine table {self._own.name} failed: {reason_of(error)}", unreachable=True
            ) from error
        except SQLAlchemyError as error:
            raise StateStoreError(f"The quarantine table {self._own.name} failed: {error}", unreachable=True) from error


class _Key(NamedTuple):
    """The names of a row as the table has them."""

    poller_name: str
    event_id: str


def _columns(dialect: str) -> list[Column[Any]]:
    from sqlalchemy import Column, String

    return [
        Column("poller_name", exact_text(200, dialect), primary_key=True),
        Column("event_id", exact_text(200, dialect), primary_key=True),
        Column("quarantined_at", String(40), nullable=False),
        Column("error_type", String(200), nullable=False),
        Column("entry", long_text(dialect), nullable=False),
    ]


def _bound_waits(connection: Connection) -> None:
    """Let a locked table be an error after a while: PostgreSQL alone would wait for ever, and the lease be renewed."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(LOCK_SECONDS * 1000)}")


def _is_of(kept: Any) -> Callable[[QuarantinedRow], bool]:
    """Return what tells whether an entry belongs to its row in the table; older versions kept odd names as they are."""

    def belongs(row: QuarantinedRow) -> bool:
        names = ((row.poller_name, row.event_id), (_plain(row.poller_name), _plain(row.event_id)))
        return (kept.poller_name, kept.event_id) in names

    return belongs


def _values(row: QuarantinedRow) -> dict[str, str]:
    return {
        "poller_name": _plain(row.poller_name),
        "event_id": _plain(row.event_id),
        "quarantined_at": row.quarantined_at.isoformat(),
        "error_type": ascii(row.error_type)[1:-1][:200],
        "entry": encoded(row),
    }


def _is_plain(name: str) -> bool:
    return name.isascii() and "\0" not in name


def _plain(name: str) -> str:
    """Return the name in ASCII and short enough for its column; the digest keeps two of them apart."""
    escaped = ascii(name)
    return name if _is_plain(name) else f"{escaped[1:121]}~{hashlib.sha256(escaped.encode()).hexdigest()[:32]}"


def _holding(text: str) -> str:
    """Return the pattern of what has this text in it.

    Not every database compares whole entries: pyodbc sends what is long as ntext, which SQL Server compares
    with nothing, and Oracle compares no CLOB.
    """
    return "%" + re.sub(r"[%_/]", rf"{_ESCAPE}\g<0>", text) + "%"


class FileQuarantine:
    """Keeps rows in a folder, at ``{path}/{poller_name}/{event_id}.json``; made when first needed.

    Rows of one poller are put aside and taken back under one lock: whoever is paused between looking at a
    file and removing it must not remove what another process has put there meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = Path(path)

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        with _file_failures(self._root):
            for row in rows:
                path = self._root / path_of(row.poller_name, row.event_id)
                make_folder(path.parent)
                with locked(path.parent / _LOCK):
                    replace_whole(path, encoded(row).encode(), by_way_of=f".{os.getpid()}.part")

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        with _file_failures(self._root):
            folders = self._folders() if poller_name is None else [self._folder(poller_name)]
            return oldest_first([row for folder in folders for row, _ in self._kept(folder)])

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read."""
        with _file_failures(self._root):
            return len(_row_files(self._folder(poller_name)))

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        path = self._root / path_of(poller_name, event_id)
        with _file_failures(self._root):
            path.unlink(missing_ok=True)
            # The system does not mind to remove nothing where nothing could be removed.
            if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def take_back(self, poller_name: str, batch_id: str) -> None:
        """Forget the rows of a poller that this batch has put aside; one that was put aside anew stays."""
        folder = self._folder(poller_name)
        with _file_failures(self._root):
            if not _row_files(folder):
                return  # There may be no folder to have a lock in.
            with locked(folder / _LOCK):
                for row, path in self._kept(folder):
                    if row.batch_id == batch_id:
                        path.unlink(missing_ok=True)  # a person may forget a row without the lock

    def _folder(self, poller_name: str) -> Path:
        return self._root / folder_of(poller_name)

    def _folders(self) -> list[Path]:
        return [path for path in listed(self._root) if path.is_dir()]

    def _kept(self, folder: Path) -> Iterator[tuple[QuarantinedRow, Path]]:
        """Yield each row with its file."""
        for path in _row_files(folder):
            content = read_whole(path)
            if content is not None:  # forgotten since the folder was listed
                yield decoded(content, str(path), is_at(f"{folder.name}/{path.name}")), path


def _row_files(folder: Path) -> list[Path]:
    return [path for path in listed(folder) if path.suffix == _SUFFIX]


@contextmanager
def _file_failures(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateStoreError(
            f"The quarantine in {root} failed: {error.strerror or error} ({error.filename})", unreachable=True
        ) from error


# A row may hold a document of its own: as deep as could be written.
_DEEPEST_ROW = 1_000
_LABELS = ("poller_name", "event_id", "error_type", "batch_id")
# Older entries have neither a traceback nor types.
_NAMES = [entry.name for entry in fields(QuarantinedRow) if entry.name not in {"traceback", "types"}]


def row_of(written: Any, where: str) -> QuarantinedRow:
    """Return the row of a JSON object, such as one in a file of dropped rows."""
    return decoded(json.dumps(written), where, lambda _row: True)


def encoded(row: QuarantinedRow) -> str:
    """Return the row as JSON."""
    written = {name: getattr(row, name) for name in _NAMES}
    written |= {"quarantined_at": datetime_text(row.quarantined_at), "traceback": row.traceback, "types": row.types}
    return _json(written)


def _line(name: str, value: str) -> str:
    """Return what `encoded` has for one of its own labels and for nothing else: a line break in a text is escaped."""
    return _json({name: value})[1:-2]


_json = partial(json.dumps, indent=2, allow_nan=False)


def decoded(text: str | bytes, where: str, belongs: Callable[[QuarantinedRow], bool]) -> QuarantinedRow:
    """Return the row that was written; what is none, or does not belong there, is an error that says where it lies."""
    try:
        written: dict[str, Any] = parsed_json(text, _DEEPEST_ROW)
        _check(written)
        row = QuarantinedRow(
            **{**{name: written[name] for name in _NAMES}, "quarantined_at": timestamp(written["quarantined_at"])},
            traceback=written.get("traceback"),
            types=written.get("types"),
        )
        if not belongs(row):
            raise _refusal(where, "is the entry of another poller or event than its place says")
    except (ValueError, KeyError, TypeError, ConfigurationError):
        raise _refusal(where, "is no quarantined row") from None
    return row


def _check(written: dict[str, Any]) -> None:
    texts = (written["error"], *(written[name] for name in _LABELS))
    if not (all(isinstance(text, str) for text in texts) and is_count(written["attempts"])):
        raise TypeError
    if not isinstance(written["event"], dict):
        raise TypeError
    if not (isinstance(written.get("traceback"), str | None) and isinstance(written.get("types"), dict | None)):
        raise TypeError


def _refusal(where: str, what: str) -> StateStoreError:
    return StateStoreError(f"{where} {what}; look at it, then remove it by hand")


def path_of(poller_name: str, event_id: str) -> str:
    """Return where a row lies below a sink's root; any name is safe in it."""
    return f"{folder_of(poller_name)}{encoded_name('event id', event_id)}{_SUFFIX}"


def folder_of(poller_name: str) -> str:
    """Return where the rows of one poller lie."""
    return f"{encoded_name('poller name', poller_name)}/"


def is_at(path: str) -> Callable[[QuarantinedRow], bool]:
    """Return what tells whether a row belongs at a path below a sink's root."""
    return lambda row: path_of(row.poller_name, row.event_id) == path


def oldest_first(rows: list[QuarantinedRow]) -> list[QuarantinedRow]:
    """Return the rows in the order in which they were put aside."""
    return sorted(rows, key=lambda row: (row.quarantined_at, row.poller_name, row.event_id))
