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
    ├── RelayError
    │   └── BrokerUnavailableError
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

import traceback
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from azure_functions_db.core.secrets import masked, masked_message, masked_words, shows_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Code(StrEnum):
    """What went wrong, in a code that never means anything else; each has a page in the error index.

    The first digit says where: 1 use, 2 connection, 3 data, 4 state, 5 polling, 6 relay.
    """

    FAILED = "AZFDB-001"

    MISUSED = "AZFDB-100"
    SETTING_MISSING = "AZFDB-101"
    URL_UNREADABLE = "AZFDB-102"
    PACKAGE_MISSING = "AZFDB-103"
    TABLE_MISSING = "AZFDB-104"
    COLUMN_MISSING = "AZFDB-105"
    KEY_UNFIT = "AZFDB-106"
    DECORATORS_WRONG = "AZFDB-107"
    FACE_WRONG = "AZFDB-108"
    NEVER_AWAITED = "AZFDB-109"
    APP_NOT_LOADED = "AZFDB-110"
    SCHEDULE_UNREADABLE = "AZFDB-111"
    POLLER_UNKNOWN = "AZFDB-112"
    NAME_TAKEN = "AZFDB-113"
    SOURCE_UNFIT = "AZFDB-114"
    NOT_CONFIRMED = "AZFDB-115"

    DATABASE_UNREACHABLE = "AZFDB-200"
    LOGIN_REFUSED = "AZFDB-201"
    LOST_WHILE_READING = "AZFDB-202"
    LOST_WHILE_WRITING = "AZFDB-203"
    RIGHT_MISSING = "AZFDB-204"

    READ_FAILED = "AZFDB-300"
    WRITE_FAILED = "AZFDB-301"
    ROW_MISSING = "AZFDB-302"
    CURSOR_UNWRITABLE = "AZFDB-303"

    STATE_UNUSABLE = "AZFDB-400"
    STATE_UNREACHABLE = "AZFDB-401"
    LEASE_HELD = "AZFDB-402"
    SOURCE_CHANGED = "AZFDB-403"

    POLL_FAILED = "AZFDB-500"
    LEASE_NOT_TAKEN = "AZFDB-501"
    FETCH_FAILED = "AZFDB-502"
    SOURCE_IN_USE = "AZFDB-503"
    HANDLER_FAILED = "AZFDB-504"
    COMMIT_FAILED = "AZFDB-505"
    LEASE_LOST = "AZFDB-506"
    EVENT_UNWRITABLE = "AZFDB-507"
    POSITION_LOST = "AZFDB-508"
    SLOT_REFUSED = "AZFDB-509"
    MESSAGE_MALFORMED = "AZFDB-510"

    RELAY_FAILED = "AZFDB-600"
    BROKER_UNAVAILABLE = "AZFDB-601"


class DbError(Exception):
    """Something this library does went wrong."""

    code: Code = Code.FAILED
    """Which page of the error index explains it."""
    table: str | None = None
    constraint: str | None = None
    setting: str | None = None

    def __init__(self, message: str, **fields: object) -> None:
        # Messages repeat what users, drivers and services say; this is where they all pass.
        super().__init__(masked_message(message))
        for name, value in fields.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)
        # The message stays as it is; a traceback shows the code below it.
        self.add_note(self.code)


class DbConnectionError(DbError, ConnectionError):
    """The database could not be reached, or it refused the login."""

    code = Code.DATABASE_UNREACHABLE


class ConfigurationError(DbError):
    """The library is used in a way that cannot work; the call that is refused has done nothing."""

    code = Code.MISUSED


class QueryError(DbError):
    """Reading failed."""

    code = Code.READ_FAILED


class WriteError(DbError):
    """Writing failed; nothing of the call was kept."""

    code = Code.WRITE_FAILED


class QueryConnectionError(DbConnectionError, QueryError):
    """The database could not be reached, or went away, while something was read."""

    code = Code.LOST_WHILE_READING


class WriteConnectionError(DbConnectionError, WriteError):
    """The database could not be reached, or went away, while something was written.

    If it went away during a commit, nobody knows whether that took effect.
    """

    code = Code.LOST_WHILE_WRITING


class NotFoundError(DbError):
    """A row that had to be there is not."""

    code = Code.ROW_MISSING


class CursorSerializationError(DbError):
    """A cursor value is of a type that a checkpoint cannot hold."""

    code = Code.CURSOR_UNWRITABLE


class RelayError(DbError):
    """A broker has not taken all of a batch; what it has taken will be sent again, too."""

    code = Code.RELAY_FAILED


class BrokerUnavailableError(RelayError):
    """A broker cannot take messages now; it may be able to after a while."""

    code = Code.BROKER_UNAVAILABLE

    retry_after_seconds: float | None = None
    """How long the broker wants to be left alone, where it says so."""


class StateStoreError(DbError):
    """The state of a poller could not be read or written, or makes no sense."""

    code = Code.STATE_UNUSABLE

    poller_name: str | None = None
    unreachable: bool = False
    """The storage did not do what it was asked, so nothing is known about the state itself."""

    def __init__(self, message: str, **fields: object) -> None:
        unreachable = {"code": Code.STATE_UNREACHABLE} if fields.get("unreachable") else {}
        super().__init__(message, **{**unreachable, **fields})


class LeaseConflictError(StateStoreError):
    """Another instance holds the lease."""

    code = Code.LEASE_HELD

    owner_id: str | None = None


class FingerprintMismatchError(StateStoreError):
    """The stored checkpoint belongs to a differently defined source."""

    code = Code.SOURCE_CHANGED

    stored: str | None = None
    current: str | None = None


class PollerError(DbError):
    """A poll could not be completed; its batch is unconfirmed and comes again."""

    code = Code.POLL_FAILED

    poller_name: str | None = None
    batch_id: str | None = None
    source: str | None = None


class LeaseAcquireError(PollerError):
    """The state store failed while the lease was being taken."""

    code = Code.LEASE_NOT_TAKEN


class SourceConfigurationError(PollerError, ConfigurationError):
    """The change source is defined in a way that cannot work."""

    code = Code.SOURCE_UNFIT

    @classmethod
    def of(cls, error: ConfigurationError, source: str | None = None) -> Self:
        """Return a refusal as one of a source; what it is about stays."""
        text = str(error) if source is None else f"Source {source!r}: {error}"
        code = cls.code if error.code is Code.MISUSED else error.code
        return cls(text, source=source, table=error.table, setting=error.setting, code=code)


class FetchError(PollerError):
    """Changed rows could not be read."""

    code = Code.FETCH_FAILED

    transient: bool = False


class SourceInUseError(FetchError):
    """Another reader has what the source reads from (a replication slot has one); the tick is skipped."""

    code = Code.SOURCE_IN_USE


class HandlerError(PollerError):
    """The handler raised; its exception is the cause."""

    code = Code.HANDLER_FAILED


class CommitError(PollerError):
    """The checkpoint could not be written after the handler had succeeded."""

    code = Code.COMMIT_FAILED


class LostLeaseError(PollerError):
    """The lease passed to somebody else, or its document vanished, while it was in use."""

    code = Code.LEASE_LOST


class SerializationError(PollerError):
    """Rows could not be turned into events, or an event into its JSON form."""

    code = Code.EVENT_UNWRITABLE


class PositionLostError(PollerError):
    """The source no longer holds the changes that follow the checkpoint."""

    code = Code.POSITION_LOST


@contextmanager
def needing(who: str, package: str, extra: str) -> Iterator[None]:
    """Say what to install where an import fails."""
    try:
        yield
    except ModuleNotFoundError:
        raise ConfigurationError(
            f'{who} needs the package {package}: pip install "azure-functions-db[{extra}]"', code=Code.PACKAGE_MISSING
        ) from None


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


# A traceback says azure_functions_db.FetchError, the name by which users catch it.
for _error in (
    DbError,
    DbConnectionError,
    ConfigurationError,
    QueryError,
    WriteError,
    NotFoundError,
    CursorSerializationError,
    RelayError,
    BrokerUnavailableError,
    StateStoreError,
    LeaseConflictError,
    FingerprintMismatchError,
    PollerError,
    LeaseAcquireError,
    SourceConfigurationError,
    FetchError,
    HandlerError,
    SourceInUseError,
    CommitError,
    LostLeaseError,
    SerializationError,
    PositionLostError,
    RowsFailed,
):
    _error.__module__ = "azure_functions_db"


def with_code(error: DbError) -> str:
    """Return an error's message with its code behind it, as people are told of it."""
    return f"{error} [{error.code}]"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question for the end of a message where one of the known names is nearly the given one."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def code_behind(error: BaseException | None) -> str | None:
    """Return the code of what really happened: of an error's cause where that is ours, else of the error itself."""
    both = (getattr(error, "__cause__", None), error)
    return next((each.code.value for each in both if isinstance(each, DbError)), None)


# Groups and retries can make long chains; nobody reads further.
_MOST = 50
_LIBRARY = str(Path(__file__).parents[1])


def masked_error(error: BaseException) -> BaseException:
    """Return a copy of an exception and of all that led to it, without secrets and row values.

    Whatever renders the copy, its messages, its notes and the source lines of its traceback may
    be read by anybody. Errors of this library keep their class; others keep its name.
    """
    return _Copies().of(error)


def traceback_text(error: BaseException) -> str:
    """Return what Python prints of an exception and of all that led to it, masked."""
    return masked("".join(traceback.format_exception(masked_error(error))))


def app_traceback_text(error: BaseException) -> str:
    """Return the same from where the app's own code begins."""
    copy = masked_error(error)
    return masked("".join(traceback.format_exception(copy.with_traceback(app_frames(copy.__traceback__)))))


def app_frames(frames: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of the library that led to the app's code; None where there are no others."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_LIBRARY):
        frames = frames.tb_next
    return frames


class _Copies:
    """The copies of one chain; an exception that occurs twice has one copy."""

    def __init__(self) -> None:
        self._made: dict[int, BaseException] = {}

    def of(self, error: BaseException) -> BaseException:
        if id(error) not in self._made:
            if len(self._made) >= _MOST:
                return Exception("(further errors are left out)")
            copy = self._made[id(error)] = _bare(error)
            self._complete(copy, error)
        return self._made[id(error)]

    def _complete(self, copy: BaseException, error: BaseException) -> None:
        copy.__cause__ = None if error.__cause__ is None else self.of(error.__cause__)
        copy.__context__ = None if error.__context__ is None else self.of(error.__context__)
        copy.__suppress_context__ = error.__suppress_context__
        copy.__traceback__, hidden = _without_secret_lines(error.__traceback__)
        for frame in hidden:
            copy.add_note(f'  File "{frame.filename}", line {frame.lineno}: a secret is written into this line')
        for note in getattr(error, "__notes__", ()):
            copy.add_note(masked_words(note))
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions[:_MOST]:
                for line in "".join(traceback.format_exception(self.of(inner))).splitlines():
                    copy.add_note(f"  | {line}")


def _bare(error: BaseException) -> BaseException:
    text, kind = masked_words(error), type(error)
    if isinstance(error, DbError):
        ours = type(error).__new__(type(error))
        vars(ours).update({name: value for name, value in vars(error).items() if name != "__notes__"})
        ours.args = (text,)
        return ours
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    namesake: type[Exception] = type(kind.__name__, (Exception,), names)
    return namesake(text) if text else namesake()


def _without_secret_lines(
    frames: TracebackType | None,
) -> tuple[TracebackType | None, list[traceback.FrameSummary]]:
    """Return a traceback without the frames whose source line has a secret written into it, and those."""
    kept: TracebackType | None = None
    hidden: list[traceback.FrameSummary] = []
    for frame, summary in reversed(list(zip(_each(frames), traceback.extract_tb(frames), strict=False))):
        if shows_secret("".join(traceback.format_list([summary]))):
            hidden.insert(0, summary)
        else:
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept, hidden


def _each(frames: TracebackType | None) -> Iterator[TracebackType]:
    while frames is not None:
        yield frames
        frames = frames.tb_next
