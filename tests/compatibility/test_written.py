"""What an earlier state of the library has written is read by this one: nobody starts over because of an upgrade."""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables import TableClient
from azure.storage.blob import ContainerClient

from azure_functions_db import (
    BlobCheckpointStore,
    FileQuarantine,
    FileStateStore,
    ProcessedLedger,
    RowChange,
    SqlAlchemySource,
    SqlQuarantine,
    SqlStateStore,
    TableStateStore,
)
from azure_functions_db.sql.engine import default_provider
from azure_functions_db.trigger.batch import Checkpoint
from azure_functions_db.trigger.poll import PollTrigger
from tests.compatibility.write import URL, event_ids

FAILED = "The handler failed"
WRITTEN = Path(__file__).parent / "written"


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder as it was left."""
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as shop:
        shop.executescript(Path("shop.sql").read_text())
    shop.close()
    yield
    default_provider().dispose_all()  # the next test has another file under the same URL


@pytest.fixture(params=["in-files", "in-sql"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(name: str) -> Any:
    return FileStateStore("state", app_name="shop") if name == "in-files" else SqlStateStore(url=URL, app_name="shop")


@pytest.fixture
def poller(name: str, store: Any) -> PollTrigger:
    source = SqlAlchemySource(url=URL, table="orders", cursor_column="version", pk_columns=["id"])
    return PollTrigger(name=name, source=source, checkpoint_store=store, batch_size=100)


def delivered(poller: PollTrigger) -> list[RowChange]:
    events: list[RowChange] = []
    poller.run(timer=None, handler=events.extend)
    return events


def test_event_ids_are_what_they_were() -> None:
    assert event_ids() == json.loads(Path("event_ids.json").read_text())


def test_a_poller_goes_on_where_it_was(poller: PollTrigger) -> None:
    assert delivered(poller) == []
    with sqlite3.connect("shop.db") as shop:
        shop.execute("INSERT INTO orders VALUES (8, 80, 'n8')")
    shop.close()
    assert [event.pk for event in delivered(poller)] == [{"id": 8}]


def test_quarantined_rows_are_found(name: str) -> None:
    sink = FileQuarantine("quarantine") if name == "in-files" else SqlQuarantine(url=URL)
    [row] = sink.entries(name)
    assert (row.event["pk"], row.error, row.attempts) == ({"id": 5}, "no good", 1)


def test_the_processed_ledger_knows_its_events(poller: PollTrigger, store: Any) -> None:
    store.reset_to_beginning(poller.name)
    with ProcessedLedger(url=URL, scope="shop").once(delivered(poller)) as new:
        assert [event.pk["id"] for event in new] == [5, 6, 7]


def test_a_failure_and_a_pause_are_found() -> None:
    store = FileStateStore("state", app_name="shop")
    state = store.look("failing")
    failure = Checkpoint.of(state.checkpoint).failure
    assert state.paused is not None
    assert (state.paused.by, state.paused.why) == ("ann@desk", "the target is rebuilt")
    assert failure is not None
    assert (failure.attempts, failure.error_type, failure.error) == (2, "ValueError", f"{FAILED}: ValueError: no stock")
    assert failure.batch is not None
    assert (failure.batch.rows, failure.batch.first) == (3, "50 (id=5)")


class TestInAzureStorage:
    """The same document as a blob and as an entity, where the earlier state of the library put them."""

    @pytest.fixture
    def document(self) -> bytes:
        return Path("state/shop/in-files.json").read_bytes()

    @pytest.fixture
    def expected(self, document: bytes) -> Any:
        return json.loads(document)["checkpoint"]

    def test_a_blob_is_read_and_gone_on_with(self, azurite: str, document: bytes, expected: Any) -> None:
        with ContainerClient.from_connection_string(azurite, f"written{secrets.token_hex(8)}") as container:
            container.create_container()
            container.upload_blob("state/shop/in-files.json", document)
            goes_on_with(BlobCheckpointStore(container_client=container, app_name="shop"), expected)

    def test_an_entity_is_read_and_gone_on_with(self, azurite: str, document: bytes, expected: Any) -> None:
        key = {"PartitionKey": "shop", "RowKey": "in-files"}
        with TableClient.from_connection_string(azurite, f"written{secrets.token_hex(8)}") as table:
            table.create_table()
            table.create_entity({**key, "document0": document.decode()})
            goes_on_with(TableStateStore(table_client=table, app_name="shop"), expected)


def goes_on_with(store: Any, expected: Any) -> None:
    before = store.inspect("in-files")["lease"]["fencing_token"]
    state = store.look("in-files")
    assert (state.checkpoint, state.lease) == (expected, None)
    lease_id = store.take(state, 60).lease_id
    assert lease_id == f"{store.owner_id}:{before + 1}"
    store._lease("in-files", lease_id).commit(expected, release=True)
