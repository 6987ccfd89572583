"""Asking Azure services: their failures told without secrets, and their own time."""

from __future__ import annotations

import json
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.azure.storage import failure_told
from azure_functions_db.core.errors import StateStoreError, masked_error

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from azure.core.exceptions import AzureError

T = TypeVar("T")


def asked(poller_name: str | None, work: Callable[[], T], service: str = "Azure Storage") -> T:
    """Ask the service that keeps state; what it raises becomes a `StateStoreError` without secrets."""
    from azure.core.exceptions import AzureError

    try:
        return work()
    except AzureError as failure:
        translated, cause = _translated(service, poller_name, failure), failure
    # Raised out here, so that an error that could show a signed URL is not even its context.
    raise translated from masked_error(cause)


def error_code(failure: AzureError) -> str:
    """Return the service's own code of the error, such as ``ContainerNotFound``."""
    code = getattr(failure, "error_code", None)
    return str(getattr(code, "value", code) or _code_in_body(failure) or type(failure).__name__)


def service_time(ask: Callable[[Callable[[Any], None]], object]) -> dt.datetime | None:
    """Return the date of a service's answer; ``ask`` makes a request with the hook that it is given."""
    from azure.core.exceptions import HttpResponseError

    dates: list[str] = []
    # Any answer has a date: a signature that lets read blobs may not let look at their container.
    with suppress(HttpResponseError):
        ask(lambda response: dates.append(response.http_response.headers.get("Date", "")))
    return parsedate_to_datetime(dates[-1]) if dates and dates[-1] else None


def _code_in_body(failure: AzureError) -> str | None:
    # The table client leaves the code of a refused insert where the service put it.
    response: Any = getattr(failure, "response", None)
    try:
        return str(json.loads(response.text())["odata.error"]["code"])
    except (AttributeError, ValueError, TypeError, KeyError):
        return None


def _translated(service: str, poller_name: str | None, failure: AzureError) -> StateStoreError:
    answer = failure_told(failure, error_code(failure))
    of_poller = f" of poller {poller_name!r}" if poller_name else ""
    return StateStoreError(
        f"{service} failed on the state{of_poller}: {answer}", poller_name=poller_name, unreachable=True
    )
