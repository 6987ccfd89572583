"""Every part of the library that speaks to SQL Server, through real drivers, and each statement that it says.

The statements are those of `sqlserver_statements.sql`, and Microsoft's own parser finds no fault with them. Where they
are to be others, `AZFDB_RENEW_STATEMENTS=1` writes the file anew.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from azure_functions_db import (
    DbReader,
    DbSession,
    DbWriter,
    DeliveredLedger,
    EngineProvider,
    LeaseConflictError,
    MemoryStateStore,
    Outbox,
    OutboxSource,
    PollTrigger,
    ProcessedLedger,
    QueryError,
    SqlAlchemySource,
    SqlQuarantine,
    SqlServerChangeTrackingSource,
    SqlStateStore,
    WriteError,
)
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.trigger.events import RowChange
from tests.support.sqlserver import DRIVERS, Model
from tests.support.tsql import complaints

GOLDEN = Path(__file__).with_name("sqlserver_statements.sql")
NOW = dt.datetime(2026, 4, 7, 1, 23, 45, 123456, tzinfo=dt.UTC)
ORDERS = (
    "CREATE TABLE [dbo].[orders] ([id] INT NOT NULL PRIMARY KEY, [name] NVARCHAR(50) NULL, "
    "[total] DECIMAL(10, 2) NULL, [at] DATETIME2(6) NULL, [version] ROWVERSION NOT NULL)"
)
# What SQLAlchemy and the drivers say for themselves.
FOREIGN = re.compile(
    r"^(SET |USE |BEGIN TRAN|COMMIT|ROLLBACK|IF @@|SP_|SELECT schema_name|select @@)"
    r"|^SELECT CAST\((SERVERPROPERTY|'test)"
    r"|sys\.(schemas|system_views|dm_exec_sessions)|INFORMATION_SCHEMA|fn_listextendedproperty",
    re.IGNORECASE,
)


def event(number: int) -> RowChange:
    return RowChange(
        event_id=f"e{number}",
        op="upsert",
        source={"name": "orders"},
        cursor=number,
        pk={"id": number},
        before=None,
        after={"id": number},
        metadata={},
    )


def use_bindings(server: Any, url: str, provider: EngineProvider) -> None:
    server.run(ORDERS)
    exercise_bindings(url, provider, "dbo")


def exercise_bindings(url: str, provider: EngineProvider, schema: str | None) -> None:
    """Do what bindings can do on an empty table ``orders``; of Oracle too, by `tools/sqlserver-check`."""
    orders = f"{schema}.orders" if schema else "orders"
    writer = DbWriter(url=url, table="orders", schema=schema, engine_provider=provider)
    writer.insert(data={"id": 1, "name": "é😀'x", "total": 1.5, "at": NOW.replace(tzinfo=None)})
    writer.insert_many(rows=[{"id": 2, "name": None}, {"id": 3, "name": "c"}])
    writer.upsert(data={"id": 1, "name": "again"}, conflict_columns=["id"])
    writer.upsert_many(rows=[{"id": 3, "name": "d"}, {"id": 4, "name": "e"}], conflict_columns=["id"])
    writer.update(data={"name": "f"}, pk={"id": 2})
    writer.delete(pk={"id": 4})
    with pytest.raises(WriteError):
        writer.insert(data={"id": 1})
    with pytest.raises(ZeroDivisionError), writer.transaction():
        writer.insert(data={"id": 9})
        raise ZeroDivisionError
    with writer.transaction():
        writer.insert(data={"id": 5, "name": "g"})
    reader = DbReader(url=url, table="orders", schema=schema, engine_provider=provider)
    row: Any = reader.get(pk={"id": 1})
    assert (row["name"], float(row["total"])) == ("again", 1.5)
    assert reader.get(pk={"id": 9}) is None
    names = reader.query(f"SELECT id, name FROM {orders} WHERE id > :id ORDER BY id", params={"id": 0})
    assert [each["name"] for each in names] == ["again", "f", "d", "g"]
    assert reader.scalar(f"SELECT COUNT(*) FROM {orders} WHERE id > :id", params={"id": 0}) == 4
    assert len(list(reader.stream(f"SELECT id FROM {orders} WHERE id > :id", params={"id": 0}))) == 4
    with pytest.raises(QueryError):
        reader.query("SELECT nothing FROM nowhere WHERE id = :id", params={"id": 1})
    with DbSession(url=url, engine_provider=provider) as session:
        session.writer("orders", schema=schema).update(data={"name": "h"}, pk={"id": 5})
        seen: Any = session.reader("orders", schema=schema).get(pk={"id": 5})
        assert seen["name"] == "h"


def use_keyset(server: Any, url: str, provider: EngineProvider) -> None:
    server.run(ORDERS)
    make = partial(SqlAlchemySource, url=url, table="orders", schema="dbo", pk_columns=["id"], engine_provider=provider)
    by_version = make(cursor_column="version")
    by_key = make(cursor_column="id", in_flight="ignore", where="name IS NOT NULL")
    by_time = make(cursor_column="at", settle_seconds=1)
    server.run(
        *(f"INSERT INTO dbo.orders (id, name, at) VALUES ({key}, N'x', '2020-01-01 00:00:0{key}')" for key in (1, 2, 3))
    )
    for source in (by_version, by_key, by_time):
        first = source.fetch_changes({}, 2)
        assert [row["id"] for row in first.records] == [1, 2]
        assert [row["id"] for row in source.fetch_changes(first.next_checkpoint, 2).records] == [3]
        assert source.count_changes(first.next_checkpoint) == 1
        assert source.backlog(first.next_checkpoint).amount == 1


def use_change_tracking(server: Any, url: str, provider: EngineProvider) -> None:
    server.run(ORDERS)
    source = SqlServerChangeTrackingSource(url=url, table="orders", engine_provider=provider)
    source.create_stream()
    source.show_stream()
    source.validate()
    server.run("INSERT INTO dbo.orders (id) VALUES (1), (2)")
    store: Any = MemoryStateStore()
    seen: list[Any] = []
    poller = PollTrigger(name="orders", source=source, checkpoint_store=store, batch_size=1, max_batches_per_tick=9)
    poller.run(timer=None, handler=seen.extend)
    server.run("UPDATE dbo.orders SET name = N'x'")
    source.backlog(store.load_checkpoint("orders"))
    poller.run(timer=None, handler=seen.extend)
    assert [(each.op, each.pk["id"]) for each in seen] == [("upsert", 1), ("upsert", 2), ("update", 1), ("update", 2)]
    source.drop_stream()


def use_outbox(server: Any, url: str, provider: EngineProvider) -> None:
    source = OutboxSource(url=url, outbox=Outbox(schema="dbo"), engine_provider=provider)
    source.outbox.create(source.engine())
    writer = DbWriter(url=url, table="outbox", schema="dbo", engine_provider=provider)
    with writer.transaction():
        source.outbox.add(writer, topic="orders", key="1", payload={"total": 1})
        source.outbox.add_many(writer, [{"topic": "orders", "key": "2", "payload": {"total": 2}}])
    store: Any = MemoryStateStore()
    seen: list[Any] = []
    PollTrigger(name="outbox", source=source, checkpoint_store=store).run(timer=None, handler=seen.extend)
    assert [each.after["payload"] for each in seen] == [{"total": 1}, {"total": 2}]
    source.backlog(store.load_checkpoint("outbox"))
    assert source.count_rows({}) == 0
    assert not [finding for finding in source.examine() if finding.grade == "error"]


def use_state(server: Any, url: str, provider: EngineProvider) -> None:
    store = SqlStateStore(url=url, app_name="shop", engine_provider=provider)
    lease = store.acquire_lease("orders", 60)
    with pytest.raises(LeaseConflictError):
        SqlStateStore(url=url, app_name="shop", engine_provider=provider).acquire_lease("orders", 60)
    store.renew_lease("orders", lease, 60)
    store.commit_checkpoint("orders", {"cursor": {"kind": "integer", "value": 7, "tiebreaker": {}}}, lease)
    store.release_lease("orders", lease)
    assert store.load_checkpoint("orders")["cursor"]["value"] == 7
    assert list(store.poller_names()) == ["orders"]


def use_quarantine(server: Any, url: str, provider: EngineProvider) -> None:
    sink = SqlQuarantine(url=url, engine_provider=provider)
    row = QuarantinedRow("orders", "e1", {"event_id": "e1"}, "ValueError", "no", 3, "batch", NOW)
    sink.put([row, row])
    assert [each.event_id for each in sink.entries("orders")] == ["e1"]
    assert sink.count("orders") == 1
    sink.take_back("orders", "batch")
    assert sink.count("orders") == 0
    sink.put([row])
    sink.remove("orders", "e1")
    assert sink.entries() == []


def use_ledgers(server: Any, url: str, provider: EngineProvider) -> None:
    processed = ProcessedLedger(url=url, engine_provider=provider)
    for fresh in (2, 0):
        with processed.once([event(1), event(2)]) as events:
            assert len(events) == fresh
    assert processed.prune(dt.timedelta(days=1)) == 0
    delivered = DeliveredLedger(url=url, engine_provider=provider)
    delivered.note("orders", [event(1)])
    assert [each.event_id for each in delivered.missing("orders", [event(1), event(2)])] == ["e2"]
    assert delivered.prune(dt.timedelta(days=1)) == 0


PARTS: dict[str, Callable[[Any, str, EngineProvider], None]] = {
    "bindings": use_bindings,
    "cursor polling": use_keyset,
    "change tracking": use_change_tracking,
    "outbox": use_outbox,
    "state": use_state,
    "quarantine": use_quarantine,
    "ledgers": use_ledgers,
}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("part", PARTS)
def test_each_part_works_with_each_driver(sql_server: Any, provider: EngineProvider, part: str, driver: str) -> None:
    PARTS[part](sql_server, sql_server.url(driver), provider)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_says_what_is_written_down(sql_server: Any, provider: EngineProvider, part: str) -> None:
    if not isinstance(sql_server, Model):
        pytest.skip("a real server does not tell what it was asked")
    PARTS[part](sql_server, sql_server.url("pyodbc"), provider)
    said = list(dict.fromkeys(statement for statement in sql_server.heard if not FOREIGN.search(statement)))
    written = read_golden()
    if os.environ.get("AZFDB_RENEW_STATEMENTS"):
        write_golden({**written, part: said})
        return
    assert said == written[part]


def test_microsofts_parser_finds_no_fault_with_any_of_them(tmp_path: Path) -> None:
    statements = [
        each if not each.startswith("MERGE") else f"{each};" for part in read_golden().values() for each in part
    ]

    assert complaints(statements, tmp_path / "parser.log") == {}


def test_microsofts_parser_finds_faults_where_they_are(tmp_path: Path) -> None:
    merge = "MERGE INTO t AS a USING (SELECT 1 AS n) AS b ON a.n = b.n WHEN MATCHED THEN UPDATE SET a.n = 2"
    statements = [
        "SELECT 1",
        "SELECT id\nFROM t\nORDER BY id LIMIT 10",
        "INSERT INTO t (a) VALUES (1) RETURNING a",
        merge,
        f"{merge};",
        "SELECT * FROM CHANGETABLE(CHANGES t) AS c",
        "SELECT 2",
    ]

    assert sorted(complaints(statements, tmp_path / "parser.log")) == [1, 2, 3, 5]


def read_golden() -> dict[str, list[str]]:
    """Return the statements of each part; they stand in the file as a script that a tool of SQL Server can read."""
    if not GOLDEN.exists():
        return {}
    parts = re.split(r"^-- === (.+)\n", GOLDEN.read_text(), flags=re.MULTILINE)[1:]
    return {
        name: [statement.strip() for statement in body.split("\nGO\n") if statement.strip()]
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def write_golden(parts: dict[str, list[str]]) -> None:
    texts = ("".join(f"{statement}\nGO\n" for statement in parts[name]) for name in PARTS if name in parts)
    named = (f"-- === {name}\n{text}" for name, text in zip([n for n in PARTS if n in parts], texts, strict=True))
    GOLDEN.write_text("".join(named))


TOOL = Path(__file__).parents[2] / "tools" / "sqlserver-check"


@pytest.mark.timeout(300)
def test_the_tool_for_real_servers_runs_all_its_suites_and_reports(sql_server: Any) -> None:
    if not isinstance(sql_server, Model):
        pytest.skip("it runs already")
    some = "split or updated or kept or (works and pymssql)"  # of each suite; they all run beside this one, too

    done = subprocess.run([TOOL, sql_server.url("pymssql"), "-k", some], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    greeting, *_, report = done.stdout.partition("\n")
    assert greeting == "mssql 16.0.1000.6, reached by pymssql"
    counts = dict(re.findall(r"^  (test_\w+): .*?(\d+) passed$", report, re.MULTILINE))
    assert counts.keys() == {
        "test_sqlalchemy_source",
        "test_sqlserver_change_tracking",
        "test_stores",
        "test_quarantine",
        "test_sqlserver",
        "test_sqlserver_statements",
    }


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("oracle+oracledb://me:secret@127.0.0.1:1/x", "The driver is missing: .* -m pip install oracledb"),
        ("mssql+pymssql://me:secret@127.0.0.1:1/x", r"No answer from mssql\+pymssql://me:\*\*\*@127.0.0.1:1/x: "),
        ("sqlite://", "the URL begins with mssql"),
    ],
)
def test_the_tool_says_what_it_needs(url: str, answer: str) -> None:
    done = subprocess.run([TOOL, url], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert re.search(answer, done.stderr)
    assert "secret" not in done.stdout + done.stderr
