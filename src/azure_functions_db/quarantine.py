"""Where rows go that the handler cannot digest: files, a SQL table, blobs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.azure import BlobFolder
from azure_functions_db.core.config import encoded_name
from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.core.files import listed, make_folder, read_whole, replace_whole
from azure_functions_db.core.serializers import datetime_text, is_count, parsed_json, timestamp
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.failures import reason_of
from azure_functions_db.sql.own_tables import OwnTable, exact_text, long_text
from azure_functions_db.sql.transactions import outside_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from azure.storage.blob import ContainerClient
    from sqlalchemy import Column, Connection

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.sql.engine import EngineProvider


__all__ = ["BlobQuarantine", "FileQuarantine", "SqlQuarantine"]


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
        names = self._blobs.names("" if poller_name is None else folder_of(poller_name))
        contents = [(name, self._blobs.read(name)) for name in names]
        return oldest_first(
            [
                decoded(content, f"The blob {name}", is_at(name))
                for name, content in contents
                if content is not None  # removed by somebody else meanwhile
            ]
        )

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read."""
        return len(self._blobs.names(folder_of(poller_name)))

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        self._blobs.remove(path_of(poller_name, event_id))


def _blob_failure(reason: str) -> StateStoreError:
    return StateStoreError(f"The quarantine in blob storage failed: {reason}", unreachable=True)


LOCK_SECONDS = 30.0


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
                self._delete(connection, row.poller_name, row.event_id)
                connection.execute(self._own.table.insert().values(_values(row)))

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        statement = self._own.table.select()
        if poller_name is not None and _is_plain(poller_name):
            statement = statement.where(self._own.table.c.poller_name == poller_name)
        with self._connected() as connection:
            kept = [self._decoded(row) for row in connection.execute(statement)]
        return oldest_first([row for row in kept if poller_name in {None, row.poller_name}])

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
            self._delete(connection, poller_name, event_id)

    def ddl(self) -> str:
        """Return the statement that makes the table, for a database in which the app may not."""
        return self._own.ddl()

    def _delete(self, connection: Connection, poller_name: str, event_id: str) -> None:
        columns = self._own.table.c
        for poller, event in self._keys(connection, poller_name, event_id):
            connection.execute(self._own.table.delete().where(columns.poller_name == poller, columns.event_id == event))

    def _keys(self, connection: Connection, poller_name: str, event_id: str) -> list[tuple[str, str]]:
        """Return the key of a row in the table; one of an odd name may have been kept as it is by older versions."""
        if _is_plain(poller_name) and _is_plain(event_id):
            return [(poller_name, event_id)]
        rows = connection.execute(self._own.table.select()).all()
        keyed = ((self._decoded(row), (row.poller_name, row.event_id)) for row in rows)
        return [key for row, key in keyed if (row.poller_name, row.event_id) == (poller_name, event_id)]

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


def _columns() -> list[Column[Any]]:
    from sqlalchemy import Column, String

    return [
        Column("poller_name", exact_text(200), primary_key=True),
        Column("event_id", exact_text(200), primary_key=True),
        Column("quarantined_at", String(40), nullable=False),
        Column("error_type", String(200), nullable=False),
        Column("entry", long_text(), nullable=False),
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


class FileQuarantine:
    """Keeps rows in a folder, at ``{path}/{poller_name}/{event_id}.json``; made when first needed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = Path(path)

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        with _file_failures(self._root):
            for row in rows:
                path = self._root / path_of(row.poller_name, row.event_id)
                make_folder(path.parent)
                replace_whole(path, encoded(row).encode(), by_way_of=f".{os.getpid()}.part")

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        with _file_failures(self._root):
            folders = self._folders() if poller_name is None else [self._root / folder_of(poller_name)]
            paths = [path for folder in folders for path in listed(folder) if path.suffix == ".json"]
            contents = [(path, read_whole(path)) for path in paths]
        return oldest_first(
            [
                decoded(content, str(path), is_at(f"{path.parent.name}/{path.name}"))
                for path, content in contents
                if content is not None  # forgotten since the folder was listed
            ]
        )

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read."""
        with _file_failures(self._root):
            return sum(path.suffix == ".json" for path in listed(self._root / folder_of(poller_name)))

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        path = self._root / path_of(poller_name, event_id)
        with _file_failures(self._root):
            path.unlink(missing_ok=True)
            # The system does not mind to remove nothing where nothing could be removed.
            if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _folders(self) -> list[Path]:
        return [path for path in listed(self._root) if path.is_dir()]


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
    return json.dumps(written, indent=2, allow_nan=False)


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
    return f"{folder_of(poller_name)}{encoded_name('event id', event_id)}.json"


def folder_of(poller_name: str) -> str:
    """Return where the rows of one poller lie."""
    return f"{encoded_name('poller name', poller_name)}/"


def is_at(path: str) -> Callable[[QuarantinedRow], bool]:
    """Return what tells whether a row belongs at a path below a sink's root."""
    return lambda row: path_of(row.poller_name, row.event_id) == path


def oldest_first(rows: list[QuarantinedRow]) -> list[QuarantinedRow]:
    """Return the rows in the order in which they were put aside."""
    return sorted(rows, key=lambda row: (row.quarantined_at, row.poller_name, row.event_id))
