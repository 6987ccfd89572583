"""Every sink keeps rows alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from azure_functions_db import quarantine
from azure_functions_db.core import files
from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.files import locked
from azure_functions_db.core.ports import CountsQuarantined, QuarantineSink, TakesBack
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


def taking_back(new_sink: NewSink) -> Any:
    """Return a new sink, which must be able to take back."""
    sink = new_sink()
    assert isinstance(sink, TakesBack)
    return sink


def test_what_a_batch_has_put_aside_is_taken_back_and_nothing_else(new_sink: NewSink) -> None:
    new_sink().put([row("e1"), row("e2"), row("e3", batch_id="batch_2"), row("e1", "payments")])
    for _ in range(2):
        taking_back(new_sink).take_back("orders", "batch_1")
    assert list(new_sink().entries()) == [row("e3", batch_id="batch_2"), row("e1", "payments")]


def test_what_was_put_aside_anew_is_not_taken_back(new_sink: NewSink) -> None:
    sink = taking_back(new_sink)
    sink.put([row("e1"), row("e2")])
    sink.put([row("e1", batch_id="batch_2")])
    sink.take_back("orders", "batch_1")
    assert list(sink.entries()) == [row("e1", batch_id="batch_2")]


def test_a_batch_is_taken_back_by_its_whole_id(new_sink: NewSink) -> None:
    """No part of it, no wildcard, no other case, and no text in the row that looks like it."""
    lookalike = row(
        "e1", batch_id="batch_22", event={"batch_id": "batch_2", "after": {}}, error='"batch_id": "batch_2"'
    )
    sink = taking_back(new_sink)
    sink.put([lookalike, row("e2", batch_id="batchX2")])
    for batch_id in ("batch_2", "Batch_22", "batch%", "batch_2%", ""):
        sink.take_back("orders", batch_id)
    assert list(sink.entries()) == [lookalike, row("e2", batch_id="batchX2")]


def test_nothing_is_taken_back_where_nothing_was_ever_put(new_sink: NewSink) -> None:
    taking_back(new_sink).take_back("orders", "batch_1")
    assert list(new_sink().entries()) == []


def test_rows_of_pollers_and_events_with_odd_names_are_taken_back(new_sink: NewSink) -> None:
    names = ["../up", "a/b", "Ä ö", ".."]
    sink = taking_back(new_sink)
    sink.put([row(event, poller) for poller in names for event in ("e1", "Ä 1")])
    sink.take_back("Ä ö", "batch_1")
    assert {kept.poller_name for kept in sink.entries()} == set(names) - {"Ä ö"}
    for name in names:
        sink.take_back(name, "batch_1")
    assert list(sink.entries()) == []


def before_each(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]) -> None:
    """Let something happen each time before this is called, and not while it happens itself."""
    called = getattr(owner, name)

    def after_it(*given: Any, **named: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, called)
            act()
        return called(*given, **named)

    monkeypatch.setattr(owner, name, after_it)


def test_what_is_put_aside_anew_between_the_look_and_the_removal_stays(
    new_sink: NewSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, removals = taking_back(new_sink), list[str]()
    anew = row("e1", batch_id="batchX1", event={"batch_id": "batch_1"}, error='\n  "batch_id": "batch_1"')
    sink.put([row("e1")])

    def put_anew() -> None:
        removals.append("e1")
        new_sink().put([anew])

    match sink:
        case BlobQuarantine():
            before_each(monkeypatch, sink._blobs, "remove_tagged", put_anew)
        case SqlQuarantine():
            before_each(monkeypatch, sink, "_delete", put_anew)
        case _:
            return  # nothing can come in between: that of files has its own tests
    sink.take_back("orders", "batch_1")
    assert removals == ["e1"]
    assert list(sink.entries()) == [anew]


def test_what_is_removed_between_the_look_and_the_removal_is_no_error(
    new_sink: NewSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = taking_back(new_sink)
    sink.put([row("e1")])

    def remove() -> None:
        new_sink().remove("orders", "e1")

    match sink:
        case BlobQuarantine():
            before_each(monkeypatch, sink._blobs, "remove_tagged", remove)
        case SqlQuarantine():
            before_each(monkeypatch, sink, "_delete", remove)
        case FileQuarantine():
            before_each(monkeypatch, Path, "unlink", remove)
        case _:
            return
    sink.take_back("orders", "batch_1")
    assert list(sink.entries()) == []


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
    sink.take_back("Жук", "batch_1")
    assert sink.entries() == [rows[0]]


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


def test_a_row_of_an_odd_name_that_an_older_version_has_put_aside_is_taken_back(sqlite_database: str) -> None:
    sink = SqlQuarantine(url=sqlite_database)
    sink.put([row("e1", "Жук"), row("e2", "Жук", batch_id="batch_2"), row("e1")])
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE azfdb_quarantine SET poller_name = 'Жук' WHERE poller_name <> 'orders'")
    engine.dispose()
    sink.take_back("Жук", "batch_1")
    assert {(kept.poller_name, kept.event_id) for kept in sink.entries()} == {("orders", "e1"), ("Жук", "e2")}


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


def test_a_file_is_not_put_aside_anew_while_it_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is paused after it has looked at a file would remove the next one in its place."""
    sink, anew = FileQuarantine(tmp_path), row(batch_id="batch_2")
    sink.put([row()])
    with ThreadPoolExecutor(1) as another:
        puts: list[Future[None]] = []

        def put_anew() -> None:
            puts.append(another.submit(sink.put, [anew]))
            with pytest.raises(FutureTimeout):
                puts[0].result(0.2)

        before_each(monkeypatch, Path, "unlink", put_anew)
        sink.take_back("orders", "batch_1")
        monkeypatch.undo()
        puts[0].result()
    assert sink.entries() == [anew]


def test_a_file_is_not_taken_back_while_it_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, anew = FileQuarantine(tmp_path), row(batch_id="batch_2")
    sink.put([row()])
    with ThreadPoolExecutor(1) as another:
        taken: list[Future[None]] = []

        def take_back() -> None:
            taken.append(another.submit(sink.take_back, "orders", "batch_1"))
            with pytest.raises(FutureTimeout):
                taken[0].result(0.2)

        before_each(monkeypatch, quarantine, "replace_whole", take_back)
        sink.put([anew])
        taken[0].result()
    assert sink.entries() == [anew]


def test_a_quarantine_in_files_that_somebody_keeps_locked_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.1)
    sink = FileQuarantine(tmp_path)
    sink.put([row()])
    with locked(tmp_path / "orders" / ".lock"):
        for asked in (partial(sink.put, [row("e2")]), partial(sink.take_back, "orders", "batch_1")):
            with pytest.raises(StateStoreError, match=r"The quarantine in .* its lock has been held .*orders.*\.lock"):
                asked()
        assert (sink.entries("orders"), sink.count("orders")) == ([row()], 1), "looking needs no lock"


def test_nothing_is_made_in_a_folder_to_take_nothing_back(tmp_path: Path) -> None:
    FileQuarantine(tmp_path / "quarantine").take_back("orders", "batch_1")
    assert list(tmp_path.iterdir()) == []


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
        sink.take_back("orders", "batch_1")
        sink.put([row()])
        assert sink.entries() == [row()]
        client.delete_container()


def test_a_container_that_is_gone_between_the_look_and_the_removal_is_no_error(
    azurite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import uuid

    from azure.storage.blob import ContainerClient

    with ContainerClient.from_connection_string(azurite, f"test-{uuid.uuid4().hex[:12]}") as client:
        sink = BlobQuarantine(container_client=client)
        sink.put([row()])
        before_each(monkeypatch, sink._blobs, "remove_tagged", client.delete_container)
        sink.take_back("orders", "batch_1")
        assert sink.entries() == []
