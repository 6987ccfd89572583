"""Eight processes race on every store that processes can share: one holder at a time, no lost update."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db import (
    BlobCheckpointStore,
    FileStateStore,
    SqlStateStore,
    TableStateStore,
)
from azure_functions_db.sql.engine import default_provider
from tests.support.cosmos import TestServerStore

if TYPE_CHECKING:
    from azure_functions_db.state.store import DocumentStateStore

RACING = Path(__file__).with_name("racing.py")
CHECKOUT = RACING.parents[2]
EXPECTED = 8 * 5


@pytest.fixture
def app() -> str:
    return f"app-{secrets.token_hex(8)}"


def run_race(store: type[DocumentStateStore], options: dict[str, Any], directory: Path, azurite: str = "") -> None:
    arguments = [f"{store.__module__}:{store.__name__}", json.dumps(options), str(directory)]
    environment = os.environ | {"AzureWebJobsStorage": azurite, "PYTHONPATH": str(CHECKOUT)}
    result = subprocess.run(
        [sys.executable, RACING, *arguments], check=False, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert store(**options).load_checkpoint("counter") == {"cursor": [EXPECTED]}


def test_on_files(tmp_path: Path) -> None:
    run_race(FileStateStore, {"path": str(tmp_path / "state")}, tmp_path)


def test_on_blobs(azurite: str, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AzureWebJobsStorage", azurite)
    run_race(BlobCheckpointStore, {"container": app, "app_name": app}, tmp_path, azurite)


def test_on_azure_tables(azurite: str, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AzureWebJobsStorage", azurite)
    run_race(TableStateStore, {"table": app.replace("-", ""), "app_name": app}, tmp_path, azurite)


def test_on_cosmos_db(cosmos_server: str, app: str, tmp_path: Path) -> None:
    run_race(TestServerStore, {"container_name": "races", "app_name": app}, tmp_path)


def test_on_a_sql_table_that_is_not_there_yet(database_url: str, app: str, tmp_path: Path) -> None:
    try:
        run_race(SqlStateStore, {"url": database_url, "app_name": app}, tmp_path)
    finally:
        default_provider().dispose_all()
