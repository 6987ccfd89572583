"""What only the command line can find wrong."""

from __future__ import annotations

from azure_functions_db.core.errors import ConfigurationError, DbError


class UnknownPollerError(ConfigurationError):
    """There is no poller of that name here."""


class NotConfirmedError(DbError):
    """The operator did not confirm; nothing was changed."""
