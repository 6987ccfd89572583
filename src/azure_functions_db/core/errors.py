"""Every error this library raises, as one tree.

    DbError
    ├── DbConnectionError            (also a built-in ConnectionError)
    │   ├── QueryConnectionError     (also a QueryError)
    │   └── WriteConnectionError     (also a WriteError)
    ├── ConfigurationError
    ├── QueryError
    ├── WriteError
    ├── NotFoundError
    ├── CursorSerializationError
    ├── StateStoreError
    │   ├── LeaseConflictError
    │   └── FingerprintMismatchError
    └── PollerError
        ├── LeaseAcquireError
        ├── SourceConfigurationError (also a ConfigurationError)
        ├── FetchError
        │   └── SourceInUseError
        ├── HandlerError
        ├── CommitError
        ├── LostLeaseError
        ├── SerializationError
        └── PositionLostError

`RowsFailed` stands outside the tree: a handler raises it, the library catches it.

Errors carry what they are about as attributes (``error.table``, ``error.poller_name`` ...);
an attribute that does not apply is ``None``. No message holds a password or a token, or is longer
than two kilobytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db.core.secrets import told

if TYPE_CHECKING:
    from collections.abc import Mapping


class DbError(Exception):
    """Something this library does went wrong."""

    table: str | None = None
    constraint: str | None = None
    setting: str | None = None

    def __init__(self, message: str, **fields: object) -> None:
        # Messages repeat what users, drivers and services say; this is where they all pass.
        super().__init__(told(message))
        for name, value in fields.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)


class DbConnectionError(DbError, ConnectionError):
    """The database could not be reached, or it refused the login."""


class ConfigurationError(DbError):
    """The library is used in a way that cannot work; the call that is refused has done nothing."""


class QueryError(DbError):
    """Reading failed."""


class WriteError(DbError):
    """Writing failed; nothing of the call was kept."""


class QueryConnectionError(DbConnectionError, QueryError):
    """The database could not be reached, or went away, while something was read."""


class WriteConnectionError(DbConnectionError, WriteError):
    """The database could not be reached, or went away, while something was written.

    If it went away during a commit, nobody knows whether that took effect.
    """


class NotFoundError(DbError):
    """A row that had to be there is not."""


class CursorSerializationError(DbError):
    """A cursor value is of a type that a checkpoint cannot hold."""


class StateStoreError(DbError):
    """The state of a poller could not be read or written, or makes no sense."""

    poller_name: str | None = None
    unreachable: bool = False
    """The storage did not do what it was asked, so nothing is known about the state itself."""


class LeaseConflictError(StateStoreError):
    """Another instance holds the lease."""

    owner_id: str | None = None


class FingerprintMismatchError(StateStoreError):
    """The stored checkpoint belongs to a differently defined source."""

    stored: str | None = None
    current: str | None = None


class PollerError(DbError):
    """A poll could not be completed; its batch is unconfirmed and comes again."""

    poller_name: str | None = None
    batch_id: str | None = None
    source: str | None = None


class LeaseAcquireError(PollerError):
    """The state store failed while the lease was being taken."""


class SourceConfigurationError(PollerError, ConfigurationError):
    """The change source is defined in a way that cannot work."""


class FetchError(PollerError):
    """Changed rows could not be read."""

    transient: bool = False


class SourceInUseError(FetchError):
    """Another reader has what the source reads from (a replication slot has one); the tick is skipped."""


class HandlerError(PollerError):
    """The handler raised; its exception is the cause."""


class CommitError(PollerError):
    """The checkpoint could not be written after the handler had succeeded."""


class LostLeaseError(PollerError):
    """The lease passed to somebody else, or its document vanished, while it was in use."""


class SerializationError(PollerError):
    """Rows could not be turned into events, or an event into its JSON form."""


class PositionLostError(PollerError):
    """The source no longer holds the changes that follow the checkpoint."""


class RowsFailed(Exception):  # noqa: N818 - reads as the sentence a handler says
    """Raised by a handler to name the events that failed, the others having succeeded.

    Maps each failed event's ``event_id`` to its reason: an exception or a text.
    """

    def __init__(self, failures: Mapping[str, BaseException | str]) -> None:
        if not failures:
            raise ValueError("RowsFailed needs at least one failed event")
        super().__init__(failures)
        self.failures: dict[str, BaseException | str] = dict(failures)

    def __str__(self) -> str:
        return f"{len(self.failures)} event(s) failed"
