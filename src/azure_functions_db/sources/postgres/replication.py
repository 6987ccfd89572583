"""Two ways to the changes of a slot: the replication protocol, and SQL functions where only SQL gets through."""

from __future__ import annotations

import select
import struct
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from azure_functions_db.core.errors import (
    Code,
    ConfigurationError,
    FetchError,
    SourceConfigurationError,
    SourceInUseError,
)
from azure_functions_db.sources.postgres.changes import WRITTEN_FORMS, set_forms
from azure_functions_db.sources.postgres.pgoutput import lsn_of, lsn_text
from azure_functions_db.sql.engine import parsed_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.sources.postgres.server import Definition

Received = bytes | int | None
"""A message of pgoutput, the place up to which everything has been sent, or silence."""

_STATUS: Final = struct.Struct(">cQQQqB")
_KEEPALIVE: Final = struct.Struct(">cQqB")
_DATA, _HEADER = ord("w"), 25
_EPOCH_SECONDS: Final = 946_684_800
_IN_USE: Final = "55006"
# How long a server that is busy sending may take to let go of its slot before its connection is cut.
_FAREWELL_SECONDS: Final = 0.3
_SESSION: Final = " ".join(f"-c {name}={value}" for name, value in WRITTEN_FORMS.items())
POOLED = "there is a pooler in between that does not carry the replication protocol (PgBouncer before 1.23)"
UNPOOLED = "give the address of the server itself, or transport='sql'"
_PEEKED_AT_ONCE = 1000
_FIRST_PEEK = 50_000


class SlotRefusedError(FetchError):
    """The server did not start to send; its code says why."""

    code = Code.SLOT_REFUSED

    sqlstate: str | None = None


class Feed(Protocol):
    """Holds a slot and hands out what follows it."""

    is_ended: bool
    """Whether nothing more will come until another feed is made."""

    @property
    def connection(self) -> Any:
        """The driver's connection, which knows in what forms values are written on it."""

    def follow(self, target: int) -> None:
        """Read at least up to a place in the log."""

    def next(self, wait: float) -> Received:
        """Return what comes next; None where nothing has come for so many seconds."""

    def ask(self) -> None:
        """Have the server tell how far it has come."""

    def acknowledge(self, lsn: int) -> None:
        """Let the slot move up to a place."""

    def close(self) -> None:
        """Let go of the slot."""


class Replication:
    """A replication connection that streams from a slot."""

    def __init__(self, engine: Engine, config: DbConfig, definition: Definition, name: str) -> None:
        from psycopg import Error

        self._driver_error = Error
        self._name = name
        self._acknowledged = 0
        self._warning: str | None = None
        self.is_ended = False
        with self._translated():
            self.connection = replication_connection(engine, config)
        self.connection.add_notice_handler(self._notice)
        self._pgconn = self.connection.pgconn
        self.pid: int = self._pgconn.backend_pid
        self._waiting = select.poll()
        self._waiting.register(self._pgconn.socket, select.POLLIN)
        try:
            self._start(definition)
        except BaseException:
            self.connection.close()
            raise

    def follow(self, target: int) -> None:
        """Do nothing: the server sends what there is."""

    def next(self, wait: float) -> Received:
        """Return what comes next; called for every message, so what is at hand is taken without ceremony."""
        try:
            count, data = self._pgconn.get_copy_data(1)
        except self._driver_error as error:
            raise self._broken(error) from error
        if self._warning is not None:
            raise _unpublished(self._name, self._warning)
        if count > 0:
            return bytes(data[_HEADER:]) if data[0] == _DATA else self._kept_alive(data)
        if count < 0:
            self._raise_end()
        return self.next(wait) if self._has_more(wait) else None

    def ask(self) -> None:
        """Have the server tell how far it has come."""
        self._report(asks=True)

    def acknowledge(self, lsn: int) -> None:
        """Let the slot move up to a place; the server takes note of it, and answers nothing."""
        self._acknowledged = max(self._acknowledged, lsn)
        self._report(asks=False)

    def close(self) -> None:
        """Let go of the slot, and wait for it where that is a matter of a moment."""
        self.is_ended = True
        with suppress(Exception):  # whatever is wrong with it, it is being closed
            self.is_let_go = self._said_farewell()
        self.connection.close()

    is_let_go = False
    """Whether the server has said that the slot is free."""

    def _start(self, definition: Definition) -> None:
        from psycopg.pq import DiagnosticField, ExecStatus

        options = f"proto_version '1', publication_names '{quoted_list(definition.publication)}'"
        command = f"START_REPLICATION SLOT {definition.slot} LOGICAL 0/0 ({options})"
        with self._translated():
            result = self._pgconn.exec_(command.encode())
        if result.status == ExecStatus.COPY_BOTH:
            return
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        message = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
        if state == _IN_USE:
            raise SourceInUseError(f"Slot {definition.slot!r} has another reader: {message}", source=self._name)
        raise SlotRefusedError(f"Source {self._name!r} cannot be streamed: {message}", sqlstate=state)

    def _has_more(self, wait: float) -> bool:
        """Read what has arrived, after waiting for it."""
        if not self._waiting.poll(wait * 1000):
            return False
        with self._translated():
            self._pgconn.consume_input()
        return True

    def _kept_alive(self, data: Any) -> int:
        _, lsn, _, must_reply = _KEEPALIVE.unpack(data)
        if must_reply:
            self._report(asks=False)
        return int(lsn)

    def _report(self, *, asks: bool) -> None:
        now = int((time.time() - _EPOCH_SECONDS) * 1_000_000)
        lsn = self._acknowledged
        with self._translated():
            self._pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, now, asks))
            self._flush()

    def _flush(self) -> None:
        while self._pgconn.flush():
            ready = select.select([self._pgconn.socket], [self._pgconn.socket], [], _FAREWELL_SECONDS)
            if ready[0]:
                self._pgconn.consume_input()  # a server that waits for us to read does not read

    def _said_farewell(self) -> bool:
        self._pgconn.put_copy_end()
        self._flush()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < deadline:
            count, _ = self._pgconn.get_copy_data(1)
            if count < 0:
                return self._is_done(deadline)
            if count == 0 and self._waiting.poll(_FAREWELL_SECONDS * 1000):
                self._pgconn.consume_input()
        return False

    def _is_done(self, deadline: float) -> bool:
        """Wait for the end of the command: by then the slot is free."""
        while time.monotonic() < deadline:
            while self._pgconn.is_busy():
                if not self._waiting.poll(_FAREWELL_SECONDS * 1000):
                    return False
                self._pgconn.consume_input()
            if self._pgconn.get_result() is None:
                return True
        return False

    def _raise_end(self) -> None:
        from psycopg.pq import DiagnosticField

        self.is_ended = True
        result = self._pgconn.get_result()
        state = result and result.error_field(DiagnosticField.SQLSTATE)
        message = result and result.error_field(DiagnosticField.MESSAGE_PRIMARY)
        words = (message or b"the server ended the stream").decode()
        if state == b"42704":
            raise _unpublished(self._name, words)
        raise FetchError(f"Source {self._name!r}: {words}", source=self._name, transient=True)

    def _notice(self, notice: Any) -> None:
        if _is_about_publication(notice):
            self._warning = notice.message_primary

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._driver_error as error:
            raise self._broken(error) from error

    def _broken(self, error: Any) -> Exception:
        self.is_ended = True
        return _failure(self._name, error)


class Peek:
    """Reads a slot by SQL functions, through any pool; whole transactions are kept on the server meanwhile."""

    def __init__(self, engine: Engine, definition: Definition, name: str) -> None:
        self._engine = engine
        self._definition = definition
        self._name = name
        self.is_ended = False
        self._count = _FIRST_PEEK
        self._target = 0
        self._cursor: Any = None
        self._rows: Iterator[tuple[bytes]] = iter(())
        self._given = 0
        self._warning: str | None = None
        self._connection = engine.connect()
        try:
            self._hold()
        except BaseException:
            self._connection.close()
            raise

    @property
    def connection(self) -> Any:
        """The driver's connection."""
        return self._connection.connection.driver_connection

    def follow(self, target: int) -> None:
        """Read at least up to a place in the log."""
        self._target = target
        self._peek()

    def next(self, wait: float) -> Received:  # noqa: ARG002 - a statement has its answer or has not
        """Return what comes next; at the end, the place that was to be reached."""
        row = next(self._rows, None)
        if row is None:
            row = self._further()
        if self._warning is not None:
            raise _unpublished(self._name, self._warning)
        if row is not None:
            self._given += 1
            return row[0]
        # Where as much has come as was asked for, there is more.
        return None if self._given >= self._count else self._target

    def ask(self) -> None:
        """Look for more than before."""
        self._count *= 4
        self._peek()

    def acknowledge(self, lsn: int) -> None:
        """Let the slot move up to a place."""
        from sqlalchemy import text

        advance = text(
            "SELECT pg_replication_slot_advance(slot_name, CAST(:lsn AS pg_lsn)) FROM pg_replication_slots "
            "WHERE slot_name = :slot AND confirmed_flush_lsn < CAST(:lsn AS pg_lsn)"
        )
        with self._engine.connect() as connection:
            connection.execute(advance, {"slot": self._definition.slot, "lsn": lsn_text(lsn)})
            connection.commit()

    def close(self) -> None:
        """End the transaction that keeps other readers out."""
        self.is_ended = True
        with suppress(Exception):  # whatever is wrong with it, it is being closed
            if self._cursor is not None:
                self._cursor.close()
            self.connection.remove_notice_handler(self._notice)
            self._connection.rollback()
        self._connection.close()

    is_let_go = True

    def _hold(self) -> None:
        from sqlalchemy import text

        lock = text(f"SELECT pg_try_advisory_xact_lock(hashtext('azfdb'), hashtext(:slot)), {set_forms()}")
        if not self._connection.execute(lock, {"slot": self._definition.slot}).scalar_one():
            raise SourceInUseError(f"Slot {self._definition.slot!r} has another reader", source=self._name)
        self.connection.add_notice_handler(self._notice)

    def _notice(self, notice: Any) -> None:
        if _is_about_publication(notice):
            self._warning = notice.message_primary

    def _peek(self) -> None:
        from psycopg import Error

        if self._cursor is not None:
            self._cursor.close()
        self._cursor = self.connection.cursor(name="azfdb_peek", binary=True)
        options = "'proto_version', '1', 'publication_names', %s"
        try:
            self._cursor.execute(
                f"SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, {options})",
                (
                    self._definition.slot,
                    lsn_text(self._target),
                    self._count,
                    quoted_list(self._definition.publication),
                ),
            )
            self._given = 0
            self._rows = iter(self._cursor.fetchmany(_PEEKED_AT_ONCE))
        except Error as error:
            self._raise_refusal(error)

    def _further(self) -> tuple[bytes] | None:
        if self._cursor is None:
            return None
        self._rows = iter(self._cursor.fetchmany(_PEEKED_AT_ONCE))
        return next(self._rows, None)

    def _raise_refusal(self, error: Any) -> None:
        self.is_ended = True
        words = " ".join(str(error).split())
        match error.sqlstate:
            case "55006":
                raise SourceInUseError(f"Slot {self._definition.slot!r} has another reader", source=self._name)
            case "42704" if "publication" in words:
                raise _unpublished(self._name, words)
            case "42704" | "55000":
                raise SlotRefusedError(f"Source {self._name!r} cannot be read: {words}", sqlstate=error.sqlstate)
        raise _failure(self._name, error) from error


def replication_connection(engine: Engine, config: DbConfig) -> Any:
    """Return a connection of the driver that speaks the replication protocol, logged in as the engine's are."""
    dialect = engine.dialect
    arguments, parameters = dialect.create_connect_args(parsed_url(config.resolved().connection_url))
    parameters = {**parameters, **(config.resolved().connect_args or {})}
    options = " ".join(filter(None, [parameters.get("options"), _SESSION]))
    parameters |= {"replication": "database", "autocommit": True, "options": options}
    for connect in dialect.dispatch.do_connect:  # where the engine's own logins hook in
        connection = connect(dialect, None, list(arguments), parameters)
        if connection is not None:
            return connection
    return dialect.connect(*arguments, **parameters)


def timeline_history(engine: Engine, config: DbConfig, timeline: int) -> dict[int, int]:
    """Return where the history of a timeline left each earlier one, oldest first; nothing where nobody can tell."""
    from psycopg import OperationalError
    from psycopg.errors import UndefinedFile

    try:
        connection = replication_connection(engine, config)
    except OperationalError as error:
        if is_from_pooler(error):
            return {}
        raise
    try:
        [row] = connection.execute(f"TIMELINE_HISTORY {timeline}").fetchall()
    except UndefinedFile:
        return {}
    finally:
        connection.close()
    return _history_of(row[1] if isinstance(row[1], str) else bytes(row[1]).decode())


def _history_of(content: str) -> dict[int, int]:
    """Read a history file: each line has a timeline, where it was left, and why; the rest are comments."""
    lines = (line.strip().split("\t") for line in content.splitlines())
    return {int(line[0]): lsn_of(line[1]) for line in lines if line[0].isdecimal()}


def quoted_list(name: str) -> str:
    """Return a name as one element of the list of publications, inside of a literal."""
    return '"' + name.replace('"', '""').replace("'", "''") + '"'


def _is_about_publication(notice: Any) -> bool:
    """Tell whether the server warns that it skips a publication, which it takes for no error since version 18."""
    return bool(notice.severity_nonlocalized == "WARNING" and notice.sqlstate == "55000")


def _unpublished(name: str, words: str) -> SourceConfigurationError:
    return SourceConfigurationError(
        f"Source {name!r}: {words}. The publication was made after the slot, or was dropped for a while: the slot "
        "stands where there is none, and what was written there cannot be published. Drop both and create them anew "
        "(azfdb stream drop, azfdb stream create), with on_position_lost='snapshot' or a reset",
        source=name,
    )


def _failure(name: str, error: Any) -> FetchError | ConfigurationError:
    words = " ".join(str(error).split())
    if (
        error.sqlstate == "42501"
        or "must be superuser or replication role" in words
        or "REPLICATION attribute" in words
    ):
        return SourceConfigurationError(
            f"Source {name!r}: this login may not replicate: ALTER ROLE … WITH REPLICATION", source=name
        )
    if is_from_pooler(error):
        return SourceConfigurationError(f"Source {name!r}: {POOLED}: {UNPOOLED}", source=name)
    return FetchError(f"Source {name!r}: the stream failed: {words}", source=name, transient=True)


def is_from_pooler(error: Exception) -> bool:
    """Tell whether a pooler is in the way, which knows nothing of the replication protocol."""
    return "unsupported startup parameter: replication" in " ".join(str(error).split())
