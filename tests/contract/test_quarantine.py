"""Every sink keeps rows alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.ports import CountsQuarantined, QuarantineSink
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.quarantine import BlobQuarantine, FileQuarantine, SqlQuarantine, encoded
from azure_functions_db.testing.memory import MemoryQuarantine
from tests.conftest import temporary_database
from tests.support.sqlserver import Model

NewSink = Callable[[], QuarantineSink]


def row(event_id: str = "e1", poller_name: str = "orders", minute: int = 0, **fields: Any) -> QuarantinedRow:
    defaults: dict[str, Any] = {
        "event": {"pk": {"id": 1}, "after": {"name": "Zoë 🦊"}},
        "error_type": "ValueError",
        "error": "cannot digest",
        "attempts": 3,
        "batch_id": "batch_1",
        "quarantined_at": dt.datetime(2026, 4, 7, 12, minute, 0, 123456, tzinfo=dt.UTC),
    }
    return QuarantinedRow(event_id=event_id, poller_name=poller_name, **(defaults | fields))


@pytest.fixture(params=["file", "sqlite", "postgres", "mariadb", "sql_server", "blob", "memory"])
def new_sink(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewSink:
    match request.param:
        case "file":
            return lambda: FileQuarantine(tmp_path / "quarantine")
        case "memory":
            sink = MemoryQuarantine()
            return lambda: sink
        case "blob":
            container = request.getfixturevalue("blob_container")
            monkeypatch.setenv("MyStorage", request.getfixturevalue("azurite"))
            return lambda: BlobQuarantine(connection="MyStorage", container=container)
        case "sql_server":
            # FreeTDS, which pyodbc has here, sends no text of more than 4,000 characters beside other values.
            server = request.getfixturevalue("sql_server")
            url = server.url("pymssql") if isinstance(server, Model) else server.url()
            return lambda: SqlQuarantine(url=url)
        case kind:
            url = request.getfixturevalue(f"{kind}_database")
            return lambda: SqlQuarantine(url=url)


def test_rows_are_kept_for_the_next_process_oldest_first(new_sink: NewSink) -> None:
    assert list(new_sink().entries()) == []
    new_sink().put([row("e2", minute=2), row("e1", minute=1)])
    new_sink().put([row("e3", "payments", minute=0)])
    assert list(new_sink().entries()) == [row("e3", "payments", minute=0), row("e1", minute=1), row("e2", minute=2)]
    assert list(new_sink().entries("orders")) == [row("e1", minute=1), row("e2", minute=2)]
    assert list(new_sink().entries("order")) == []


def test_rows_are_counted_without_being_read(new_sink: NewSink) -> None:
    counting = new_sink()
    assert isinstance(counting, CountsQuarantined)
    assert counting.count("orders") == 0
    new_sink().put([row("e1"), row("e2"), row("e1", "payments"), row("e1", "Ä ö")])
    assert [counting.count(name) for name in ("orders", "payments", "Ä ö", "order")] == [2, 1, 1, 0]


def test_the_same_row_put_twice_is_kept_once(new_sink: NewSink) -> None:
    sink = new_sink()
    sink.put([row(attempts=3)])
    sink.put([row(attempts=4), row("e2")])
    assert [(kept.event_id, kept.attempts) for kept in sink.entries()] == [("e1", 4), ("e2", 3)]


def test_ids_that_differ_in_case_only_are_two(new_sink: NewSink) -> None:
    sink = new_sink()
    sink.put([row("aB")])
    sink.put([row("Ab"), row("Ab", "Orders")])
    assert {(kept.poller_name, kept.event_id) for kept in sink.entries()} == {
        ("orders", "aB"),
        ("orders", "Ab"),
        ("Orders", "Ab"),
    }


def test_a_row_can_be_forgotten_and_forgotten_again(new_sink: NewSink) -> None:
    sink = new_sink()
    sink.put([row("e1"), row("e1", "payments")])
    for _ in range(2):
        sink.remove("orders", "e1")
    assert [kept.poller_name for kept in sink.entries()] == ["payments"]


def test_odd_names_do_not_meet_or_escape(new_sink: NewSink) -> None:
    names = ["../up", "a/b", "a%2Fb", "Ä ö", "a.b", "..", "a b"]
    sink = new_sink()
    sink.put([row(poller_name=name) for name in names])
    assert {kept.poller_name for kept in sink.entries()} == set(names)
    for name in names:
        assert [kept.poller_name for kept in sink.entries(name)] == [name]


def test_long_events_are_kept_whole(new_sink: NewSink) -> None:
    large = row(event={"after": {"text": "x" * 200_000}}, error="y" * 5_000, error_type="E" * 300)
    sink = new_sink()
    sink.put([large])
    assert list(sink.entries()) == [large]


@pytest.fixture(params=["latin1 in MariaDB", "LATIN1 in PostgreSQL", "SQL_ASCII in PostgreSQL"])
def foreign_encoding(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database whose encoding knows few characters."""
    encoding, _, server = request.param.partition(" in ")
    url: str = request.getfixturevalue("mariadb_url" if server == "MariaDB" else "postgres_url")
    drop = "DROP DATABASE {name}" + ("" if server == "MariaDB" else " WITH (FORCE)")
    options = (
        f"CHARACTER SET {encoding}" if server == "MariaDB" else f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    )
    with temporary_database(url, drop, options) as made:
        # SQLAlchemy cannot use such a server unless it is asked to convert.
        yield f"{made}?client_encoding=utf8" if encoding == "SQL_ASCII" else made


def test_odd_texts_are_kept_whatever_the_encoding_of_the_database(foreign_encoding: str) -> None:
    sink = SqlQuarantine(url=foreign_encoding)
    odd = "Zoë 🦊 \0 \ud800"
    rows = [
        row("e1", event={"after": {"text": odd}}, error=odd, error_type="Ошибка" * 100),
        row("e2" + odd, "Жук", minute=1),
        row("e2" + odd * 50, "Жук", minute=2),
    ]
    for _ in range(2):
        sink.put(rows)
    assert sink.entries() == rows
    assert sink.entries("Жук") == rows[1:]
    sink.remove("Жук", "e2" + odd)
    assert sink.entries() == [rows[0], rows[2]]


def test_a_row_of_an_odd_name_that_an_older_version_has_put_aside_is_still_one(sqlite_database: str) -> None:
    sink = SqlQuarantine(url=sqlite_database)
    sink.put([row("e1", "Жук")])
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE azfdb_quarantine SET poller_name = 'Жук'")
    engine.dispose()
    sink.put([row("e1", "Жук", attempts=9)])
    assert sink.entries("Жук") == [row("e1", "Жук", attempts=9)]
    sink.remove("Жук", "e1")
    assert sink.entries() == []


def test_a_locked_table_is_an_error_after_a_while(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azure_functions_db.quarantine.LOCK_SECONDS", 0.1)
    sink = SqlQuarantine(url=postgres_database)
    sink.put([row("e1")])
    engine = create_engine(postgres_database)
    with engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE azfdb_quarantine")
        with pytest.raises(StateStoreError, match="azfdb_quarantine failed"):
            sink.put([row("e2")])
    engine.dispose()
    assert sink.entries() == [row("e1")]


def test_a_folder_that_may_only_be_read_cannot_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileQuarantine(tmp_path)
    sink.put([row()])
    monkeypatch.setattr("os.access", lambda *_: False)  # whoever may do everything is never refused
    with pytest.raises(StateStoreError, match="Permission denied"):
        sink.remove("orders", "nobody")
    assert sink.entries() == [row()]


def test_a_file_that_is_no_row_is_named(tmp_path: Path) -> None:
    sink = FileQuarantine(tmp_path)
    sink.put([row()])
    path = next(tmp_path.rglob("*.json"))
    path.write_text("{")
    with pytest.raises(StateStoreError, match=r"e1\.json"):
        sink.entries()


def test_an_entry_of_another_poller_than_its_place_says_is_refused(new_sink: NewSink) -> None:
    sink = new_sink()
    match sink:
        case FileQuarantine():
            sink.put([row()])
            (path,) = sink._root.rglob("*.json")
            path.rename(path.with_name("e2.json"))
        case SqlQuarantine():
            sink.put([row()])
            with sink._own.engine.begin() as connection:
                connection.execute(sink._own.table.update().values(poller_name="payments"))
        case BlobQuarantine():
            content = encoded(row(poller_name="payments"))
            sink.put([row()])
            sink._blobs.write({"orders/e1.json": content.encode()})
        case _:
            return  # in memory a row lies where it says
    with pytest.raises(StateStoreError, match="another poller or event"):
        sink.entries()


def test_a_failing_place_is_a_clear_error_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateStoreError, match="quarantine"):
        FileQuarantine(tmp_path / "file").put([row()])
    with pytest.raises(StateStoreError) as caught:
        SqlQuarantine(url="postgresql+psycopg://u:s3cret@127.0.0.1:1/x").put([row()])
    assert "s3cret" not in str(caught.value)


def test_the_table_can_be_made_by_hand(sqlite_database: str) -> None:
    ddl = SqlQuarantine(url=sqlite_database, table="bad rows").ddl()
    assert ddl.startswith('CREATE TABLE "bad rows"')


def test_a_missing_container_is_made(azurite: str) -> None:
    import uuid

    from azure.storage.blob import ContainerClient

    with ContainerClient.from_connection_string(azurite, f"test-{uuid.uuid4().hex[:12]}") as client:
        sink = BlobQuarantine(container_client=client)
        assert sink.entries() == []
        sink.remove("orders", "e1")
        sink.put([row()])
        assert sink.entries() == [row()]
        client.delete_container()
