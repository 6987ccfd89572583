"""How long blob storage is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from azure_functions_db.azure import blob_container, hurried

ACCOUNT = "AccountName=a;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:9/a"


@pytest.fixture
def retries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a container's client does when it is not answered."""
    monkeypatch.setenv("SOME_STORAGE", ACCOUNT)
    return blob_container("SOME_STORAGE", "any")._config.retry_policy


def options_and_retries(retries: Any) -> tuple[dict[str, Any], int]:
    request = SimpleNamespace(http_request=SimpleNamespace(body=None), context=SimpleNamespace(options={}))
    settings = retries.configure_retries(request)
    return request.context.options, settings["total"]


def test_a_trigger_outlasts_a_passing_fault(retries: Any) -> None:
    assert options_and_retries(retries) == ({}, 3)


def test_a_person_is_answered_soon(retries: Any) -> None:
    with hurried():
        assert options_and_retries(retries) == ({"connection_timeout": 2, "read_timeout": 10}, 1)
        assert retries.get_backoff_time({"count": 1}) < 1
        with hurried(hurry=False):
            assert options_and_retries(retries) == ({}, 3)
    assert options_and_retries(retries) == ({}, 3)
