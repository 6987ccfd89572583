"""The exit codes of `azfdb`, for scripts."""

from __future__ import annotations

from enum import IntEnum

from azure_functions_db.cli.changes import NotConfirmedError
from azure_functions_db.core.errors import (
    ConfigurationError,
    DbConnectionError,
    FetchError,
    LeaseAcquireError,
    LeaseConflictError,
    StateStoreError,
)
from azure_functions_db.sql.failures import is_forbidden


class Exit(IntEnum):
    """What an exit code says."""

    OK = 0
    """Done, and nothing is wrong."""
    FAILED = 1
    """It was tried and did not succeed, or a check found something wrong."""
    USAGE = 2
    """The command line cannot be understood, or a change was not confirmed."""
    MISCONFIGURED = 3
    """The app, a setting or a definition cannot work as it is, or there is no such poller."""
    UNREACHABLE = 4
    """The database, the state store or the quarantine did not answer or refused access."""
    LEASE_HELD = 5
    """Another instance is at work; try again, or wait for its lease to expire."""
    INTERRUPTED = 130
    """Ended by Ctrl-C before it was done."""


def exit_of(error: BaseException) -> Exit:
    """Return the exit code that tells of an error."""
    match error:
        case NotConfirmedError():
            return Exit.USAGE
        case ConfigurationError() if error.__cause__ is None or not is_forbidden(error.__cause__):
            return Exit.MISCONFIGURED
        case LeaseConflictError():
            return Exit.LEASE_HELD
        case ConfigurationError() | DbConnectionError() | FetchError() | LeaseAcquireError():
            return Exit.UNREACHABLE
        case StateStoreError(unreachable=True):
            return Exit.UNREACHABLE
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case _:
            return Exit.FAILED
