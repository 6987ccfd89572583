"""Documents and requests of others, through the stores, sinks, commands and pages that read them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from azure_functions_db import FileQuarantine, FileStateStore, MemoryStateStore, SqlQuarantine, quarantine
from azure_functions_db.cli.apps import _local_settings
from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.dashboard.board import Board
from azure_functions_db.dashboard.site import ACT_HEADER, Request, Site
from azure_functions_db.operations.pollers import Pollers
from azure_functions_db.operations.quarantine import Selection, drop, entries_in, restorable
from azure_functions_db.testing.memory import MemoryQuarantine
from tests.fuzz.inputs import SECRET, changed, fuzzed, json_values, mutated, odd_texts, refusing
from tests.unit.test_foreign_state import DOCUMENT, ROW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

ENTRY = json.loads(quarantine.encoded(ROW))
ACTS = ["pause", "resume", "replay", "drop", "break-lease", "reset-to-beginning", "reset-to-end"]
parts = st.sampled_from(["api", "pollers", "orders", "quarantine", "e1", "assets", "..", "%2e", *ACTS]) | odd_texts


def written(seed: object) -> st.SearchStrategy[bytes]:
    """What may stand where a document like this one is expected."""
    return changed(seed).map(lambda value: json.dumps(value).encode()) | mutated(json.dumps(seed).encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all inputs of a test are written into, one after the other."""
    return tmp_path_factory.mktemp("fuzz")


@cache
def state_file(folder: Path) -> Path:
    """Return where a store has put its document."""
    FileStateStore(folder / "state").acquire_lease("orders", 10)
    [file] = (folder / "state").rglob("*.json")
    return file


@cache
def dropped_file(folder: Path) -> Path:
    """Return where the rows that were dropped have been saved."""
    sink = MemoryQuarantine()
    sink.put([ROW])
    return Path(str(drop(entries_in(sink, "orders"), folder / "dropped")))


@pytest.fixture(scope="module")
def kept(folder: Path) -> Iterator[tuple[SqlQuarantine, Engine]]:
    """A quarantine in a table with one row, and a way to change it behind its back."""
    url = f"sqlite:///{folder / 'quarantine.db'}"
    sink, engine = SqlQuarantine(url=url), create_engine(url)
    sink.put([ROW])
    yield sink, engine
    engine.dispose()


@fuzzed
@given(written(DOCUMENT))
def test_a_state_file_is_a_state_or_refused(folder: Path, content: bytes) -> None:
    state_file(folder).write_bytes(content)
    store = FileStateStore(folder / "state")
    with refusing(StateStoreError):
        store.take(store.look("orders"), 10).release()


@fuzzed
@given(written(DOCUMENT) | written(DOCUMENT["checkpoint"]) | json_values.map(lambda value: json.dumps(value).encode()))
def test_a_checkpoint_file_is_a_position_or_refused(folder: Path, content: bytes) -> None:
    file, store = folder / "checkpoint.json", MemoryStateStore()
    file.write_bytes(content)
    with refusing(StateStoreError, ConfigurationError):
        store.reset_to_checkpoint("orders", file)
        meant = json.loads(content)
        assert store.load_checkpoint("orders") == meant.get("checkpoint", meant)


@fuzzed
@given(written(ENTRY))
def test_an_entry_in_a_file_is_a_row_or_refused(folder: Path, content: bytes) -> None:
    file = folder / "quarantine" / quarantine.path_of(ROW.poller_name, ROW.event_id)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    with refusing(StateStoreError):
        assert [row.event_id for row in FileQuarantine(folder / "quarantine").entries("orders")] == ["e1"]


@fuzzed
@given(written(ENTRY))
def test_an_entry_in_a_table_is_a_row_or_refused(kept: tuple[SqlQuarantine, Engine], content: bytes) -> None:
    sink, engine = kept
    with engine.begin() as connection:
        connection.execute(text("UPDATE azfdb_quarantine SET entry = :entry"), {"entry": content.decode("latin-1")})
    with refusing(StateStoreError):
        assert [row.event_id for row in sink.entries("orders")] == ["e1"]


@fuzzed
@given(written([ENTRY]))
def test_a_file_of_dropped_rows_is_read_or_refused(folder: Path, content: bytes) -> None:
    dropped_file(folder).write_bytes(content)
    with refusing(StateStoreError, ConfigurationError):
        restorable(folder / "dropped", Selection())


@fuzzed
@given(written({"IsEncrypted": False, "Values": {"A": "1"}}))
@example(b'{"Values": []}')
@example(b"[" * 100_000)
def test_local_settings_are_texts_or_refused(folder: Path, content: bytes) -> None:
    file = folder / "local.settings.json"
    file.write_bytes(content)
    with refusing(ConfigurationError):
        assert all(isinstance(value, str) for value in _local_settings(file).values())


@fuzzed
@given(
    st.sampled_from(["GET", "POST", "PUT"]),
    st.lists(parts, max_size=4).map("/".join) | st.sampled_from([f"api/pollers/orders/{act}" for act in ACTS]),
    st.dictionaries(st.sampled_from(["origin", "host", "sec-fetch-site", "x-forwarded-host"]), odd_texts),
    written({"why": "", "confirm": "orders", "events": "e1", "all": "yes"}),
)
@example("POST", "api/pollers/orders/pause", {}, b"[" * 9_000)
@example("POST", "api/pollers/orders/pause", {"origin": "http://[", "host": "x"}, b"{}")
def test_the_dashboard_answers_whatever_it_is_asked(
    folder: Path, method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    store, sink = MemoryStateStore(), MemoryQuarantine()
    store.release_lease("orders", store.acquire_lease("orders", 10))
    sink.put([ROW])
    pollers = Pollers({}, store, sink)
    site = Site(Board(lambda: pollers), base="", permission=lambda _: "pia", backups=folder)
    answer = site.answer(Request(method, path, {}, {**headers, ACT_HEADER.lower(): "1"}, body))
    assert answer.status in {200, 400, 403, 404, 405, 409, 503}, answer.body[:300]
    assert SECRET.encode() not in answer.body
