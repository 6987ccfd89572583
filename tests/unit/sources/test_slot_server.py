"""Definitions of slots and publications, the statements that make them, and what an operator is told of them."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus
from sqlalchemy import create_engine, event
from sqlalchemy.exc import DBAPIError

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    PositionLostError,
    PostgresLogicalSource,
    SourceConfigurationError,
)
from azure_functions_db.core.errors import DbError, FetchError, SourceInUseError
from azure_functions_db.core.serializers import datetime_text
from azure_functions_db.sources.postgres import source as sources
from azure_functions_db.sources.postgres.replication import (
    Peek,
    Replication,
    SlotRefusedError,
    _failure,
    _history_of,
    _is_about_publication,
    quoted_list,
    replication_connection,
    timeline_history,
)
from azure_functions_db.sources.postgres.server import Server, ServerState, Slot, Table, TableName, _digest, _table
from tests.unit.sources.test_slot_log import NOW, SLOT, STATE, TABLE, URL, AskedServer, changed


def source_of(**options: Any) -> PostgresLogicalSource:
    return PostgresLogicalSource(**({"url": URL, "tables": "s.t", "slot": "slot"} | options))


def server_of(**options: Any) -> AskedServer:
    return AskedServer(source_of(**options)._definition, STATE)


# Definitions.


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"tables": []}, "names at least one table"),
        ({"tables": "s."}, "names at least one table"),
        ({"tables": ["t", "s."]}, "names at least one table"),
        ({"tables": ".t"}, "names at least one table"),
        ({"tables": ["t", "public.t"]}, "names a table twice"),
        ({"slot": "Upper"}, "slot='Upper' is no name for a slot"),
        ({"slot": "a" * 64}, "at most 63"),
        ({"refetch_toast": True, "snapshot": "only"}, "refetch_toast= is about a stream"),
        ({"snapshot": "maybe"}, "snapshot='maybe' is none of 'initial', 'never', 'only'"),
        ({"on_position_lost": "maybe"}, "on_position_lost='maybe' is none of"),
        ({"on_max_retained": "maybe"}, "on_max_retained='maybe' is none of 'warn', 'drop'"),
        ({"transport": "maybe"}, "transport='maybe' is none of"),
        ({"undecodable": "maybe"}, "undecodable='maybe' is none of"),
        ({"max_retained_mb": 0}, "max_retained_mb must be more than 0, not 0"),
        ({"idle_commit_mb": 0}, "idle_commit_mb must be more than 0, not 0"),
        ({"columns": {"u": ["a"]}}, r"columns= names public\.u, which tables= does not"),
        ({"tables": ["t", "u"], "columns": ["a"]}, "columns= for several tables is a mapping"),
        ({"tables": ["t", "u"], "row_filter": "a > 1"}, "row_filter= for several tables is a mapping"),
        ({"url": None}, "url"),
    ],
)
def test_a_definition_that_cannot_work_is_refused_when_it_is_made(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SourceConfigurationError, match=complaint):
        source_of(**wrong)


def test_a_definition_may_be_written_shortly() -> None:
    one = source_of(tables="t", columns=["id", "v"], row_filter="id > 1", slot="a" * 63)._definition
    table = TableName("public", "t")
    assert (one.tables, one.publication) == ((table,), "a" * 63)
    assert (one.columns, one.row_filter) == ({table: ("id", "v")}, {table: "id > 1"})
    two = source_of(tables=["t", "s.u"], columns={"s.u": ["id"]}, publication="pub", refetch_toast=True)._definition
    assert (two.table_names, two.publication, two.columns) == (
        ["public.t", "s.u"],
        "pub",
        {TableName("s", "u"): ("id",)},
    )
    assert (source_of().name, source_of(name="orders").name, repr(source_of())) == (
        "slot", "orders", "PostgresLogicalSource('slot')",
    )  # fmt: skip


def test_a_source_is_another_one_when_its_definition_is() -> None:
    def fingerprint(**options: Any) -> str:
        return source_of(**options).source_descriptor.fingerprint

    others: list[dict[str, Any]] = [
        {}, {"tables": "s.u"}, {"slot": "other"}, {"publication": "pub"}, {"columns": ["id"]}, {"row_filter": "id > 1"},
        {"url": "postgresql+psycopg://nowhere/other"},
    ]  # fmt: skip
    assert len({fingerprint(**each) for each in others}) == len(others)
    assert fingerprint(tables=["a", "b"]) == fingerprint(tables=["b", "a"])
    assert fingerprint(columns=["a", "b"]) == fingerprint(columns=["b", "a"])
    assert fingerprint(url="postgresql+psycopg://other/db") == fingerprint(), "it follows a failover"


def test_another_driver_is_refused() -> None:
    with pytest.raises(SourceConfigurationError, match=r"postgresql\+psycopg://, not postgresql\+psycopg2://"):
        source_of(url="postgresql+psycopg2://nowhere/db").show_stream()


@pytest.mark.parametrize(
    "use",
    [
        lambda source: source.source_descriptor,
        lambda source: source.open(),
        lambda source: source.fetch_changes({}, 1),
        lambda source: source.acknowledge({}),
        lambda source: source.validate(),
        lambda source: source.examine(),
        lambda source: source.backlog({}),
        lambda source: source.report({}),
        lambda source: source.parse("now"),
        lambda source: source.create_stream(),
        lambda source: source.drop_stream(),
        lambda source: source.show_stream(),
    ],
)
def test_a_setting_that_is_missing_is_told_as_a_fault_of_the_source(use: Any) -> None:
    with pytest.raises(SourceConfigurationError, match="NOT_SET_ANYWHERE"):
        use(source_of(url="%NOT_SET_ANYWHERE%"))


def test_a_source_connects_with_the_engines_that_it_was_given() -> None:
    own = EngineProvider()
    server = source_of(engine_provider=own)._server()
    assert server.engine is own.get_engine(DbConfig(connection_url=URL))
    assert source_of()._server().engine is not server.engine
    own.dispose_all()


# What a server shows.


def test_a_slot_is_what_its_row_says() -> None:
    row = {
        "plugin": "pgoutput", "database": "db", "active": True, "active_pid": 5, "wal_status": "extended",
        "invalidation_reason": None, "restart_lsn": "0/10", "confirmed_flush_lsn": "0/20", "safe_wal_size": 9,
        "failover": True,
    }  # fmt: skip
    assert Slot.of(row) == Slot("pgoutput", "db", True, 5, "extended", None, 0x10, 0x20, 9, True)
    old = {name: row[name] for name in ("plugin", "database", "active", "active_pid")}
    unmade = Slot.of({**old, "restart_lsn": None, "confirmed_flush_lsn": None})
    assert unmade == Slot("pgoutput", "db", True, 5, None, None, None, None, None, False)
    assert not SLOT.is_lost
    assert replace(SLOT, wal_status="lost").is_lost
    assert replace(SLOT, invalidation="idle_timeout").is_lost


def test_what_a_slot_holds_back_is_counted_from_where_it_restarts() -> None:
    assert STATE.retained_bytes == 0x9000 - 0x10
    assert replace(STATE, slot=None).retained_bytes == 0
    assert replace(STATE, slot=replace(SLOT, restart_lsn=None)).retained_bytes == 0
    assert replace(STATE, flushed_lsn=0x5).retained_bytes == 0


def row_of(**changes: Any) -> Any:
    row = {
        "schema": "s", "name": "t", "oid": 1, "kind": "r", "identity": "d", "primary_key": [["id", "integer"]],
        "identity_key": None, "published": {"attnames": ["id"], "rowfilter": "id > 1"}, "may_read": True,
        "may_enter": True,
    }  # fmt: skip
    return row | changes


@pytest.mark.parametrize(
    ("row", "key", "is_identified"),
    [
        ({}, ("id",), True),
        ({"primary_key": None}, (), False),
        ({"identity": "f", "primary_key": None}, (), True),
        ({"identity": "f"}, ("id",), True),
        ({"identity": "n"}, ("id",), False),
        ({"identity": "i", "identity_key": [["code", "text"]]}, ("code",), True),
        ({"identity": "i"}, ("id",), False),
        ({"identity_key": [["code", "text"]]}, ("id",), True),
    ],
)
def test_the_rows_of_a_table_are_told_apart_by_what_it_is_published_with(
    row: dict[str, Any], key: tuple[str, ...], is_identified: bool
) -> None:
    table = _table(row_of(**row))
    assert (table.key_columns, table.is_identified) == (key, is_identified)


def test_a_table_tells_what_is_published_of_it_and_who_may_read_it() -> None:
    table = _table(row_of())
    assert (table.columns, table.row_filter, table.may_read) == (("id",), "id > 1", True)
    unpublished = _table(row_of(published=None))
    assert (unpublished.columns, unpublished.row_filter) == (None, None)
    assert not _table(row_of(may_read=False)).may_read
    assert not _table(row_of(may_enter=False)).may_read
    assert _digest("a", {"b": 1}) != _digest("a", {"b": 2})


# Statements.


def test_only_what_is_missing_is_made_and_a_publication_before_its_slot() -> None:
    server = server_of()
    publication = 'CREATE PUBLICATION "slot" FOR TABLE "s"."t" WITH (publish_via_partition_root = true, publish_generated_columns = stored)'  # noqa: E501
    slot = "SELECT pg_create_logical_replication_slot('slot', 'pgoutput', false, false, true)"
    bare = replace(STATE, slot=None, has_publication=False)
    assert server.creation(bare, [TABLE]) == [publication, slot]
    assert server.creation(replace(STATE, slot=None), [TABLE]) == [slot]
    assert server.creation(STATE, [TABLE]) == []
    older = server.creation(replace(bare, version=169999), [TABLE])
    assert older == [
        publication.replace(", publish_generated_columns = stored", ""), slot.replace(", false, false, true", ""),
    ]  # fmt: skip
    assert server.creation(replace(bare, version=170000), [TABLE])[1] == slot
    assert server.creation(replace(bare, version=179999), [TABLE])[0] == older[0]
    with pytest.raises(SourceConfigurationError, match="Slot 'slot' is older than the publication"):
        server.creation(replace(STATE, has_publication=False), [TABLE])


def test_only_what_is_there_is_removed() -> None:
    server = server_of(publication="Pub")
    slot, publication = "SELECT pg_drop_replication_slot('slot')", 'DROP PUBLICATION "Pub"'
    assert server.removal(STATE) == [slot, publication]
    assert server.removal(replace(STATE, slot=None)) == [publication]
    assert server.removal(replace(STATE, has_publication=False)) == [slot]


def test_columns_and_rows_that_were_asked_for_are_published_and_no_others() -> None:
    server = server_of(columns=["id", "v"], row_filter="id > 1")
    bare = replace(STATE, slot=None, has_publication=False)
    assert '"s"."t" ("id", "v") WHERE (id > 1) WITH' in server.creation(bare, [TABLE])[0]
    assert '"s"."t" WHERE (id > 1) WITH' in server_of(row_filter="id > 1").creation(bare, [TABLE])[0]
    old = replace(bare, version=149999)
    for options in ({"columns": ["id"]}, {"row_filter": "id > 1"}):
        with pytest.raises(SourceConfigurationError, match="need PostgreSQL 15 or newer"):
            server_of(**options).creation(old, [TABLE])
        assert server_of(**options).creation(replace(old, version=150000), [TABLE])
    assert server_of().creation(old, [TABLE])
    with pytest.raises(SourceConfigurationError, match=r'ALTER TABLE "s"\."t" REPLICA IDENTITY FULL'):
        server.creation(bare, [replace(TABLE, is_identified=False)])


class Session:
    """A connection that notes what is run on it, and refuses one statement."""

    invalidated = False

    def __init__(self, refused: str = "", error: Exception | None = None) -> None:
        self.ran: list[str] = []
        self._refused = refused
        self._error = error

    def execution_options(self, **_: Any) -> Session:
        return self

    def exec_driver_sql(self, statement: str) -> None:
        self.ran.append(statement)
        if self._error is not None and statement.startswith(self._refused):
            raise self._error

    @contextmanager
    def connect(self) -> Iterator[Session]:
        yield self


def executed(session: Session, *statements: str) -> list[str]:
    server = Server(create_engine(URL), source_of(create_timeout_seconds=2)._definition, "orders")
    dialect = server.engine.dialect
    server.engine = SimpleNamespace(connect=session.connect, dialect=dialect)  # type: ignore[assignment]
    server.execute(statements)
    return session.ran


CREATE = 'CREATE PUBLICATION "slot" FOR TABLE "s"."t" WHERE (v LIKE \'a%\')'


def test_statements_have_a_limit_to_their_patience_and_a_publication_is_tried_before_it_is_kept() -> None:
    assert executed(Session()) == []
    assert executed(Session(), "SELECT 1") == ["SET statement_timeout = 2000", "SELECT 1", "RESET statement_timeout"]
    assert executed(Session(), CREATE)[1:-1] == [
        "BEGIN", CREATE.replace("%", "%%"), 'EXPLAIN DELETE FROM "s"."t"', "COMMIT",
    ]  # fmt: skip


def refused(sqlstate: str, words: str = "refused DETAIL: values HINT: more") -> DBAPIError:
    original = type("Refused", (psycopg.Error,), {"sqlstate": sqlstate})(words)
    return DBAPIError("statement", {}, original)


def test_a_publication_that_would_stop_the_writers_is_taken_back() -> None:
    session = Session("EXPLAIN", refused("42P10"))
    with pytest.raises(SourceConfigurationError, match="Published like this, refused: every UPDATE and DELETE"):
        executed(session, CREATE)
    assert session.ran[-2:] == ["ROLLBACK", "RESET statement_timeout"]
    cut = Session("EXPLAIN", refused("42P10"))
    cut.invalidated = True
    with pytest.raises(SourceConfigurationError):
        executed(cut, CREATE)
    assert cut.ran[-1].startswith("EXPLAIN"), "on a connection that is gone nothing can be taken back"


@pytest.mark.parametrize(
    ("sqlstate", "error", "words"),
    [
        ("55006", SourceInUseError, "Slot 'slot' has a reader"),
        ("57014", FetchError, "one of them takes longer than 2 s"),
        ("42501", SourceConfigurationError, "This login may not do that: SELECT 1"),
        ("55000", SourceConfigurationError, "The server refuses: refused. wal_level must be logical"),
        ("53400", SourceConfigurationError, "refused: raise max_replication_slots"),
        ("XX000", DBAPIError, "refused"),
    ],
)
def test_what_commonly_goes_wrong_with_slots_is_explained(sqlstate: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as told:
        executed(Session("SELECT", refused(sqlstate)), "SELECT 1")
    if isinstance(told.value, DbError):
        assert "values" not in str(told.value)
    if isinstance(told.value, FetchError):
        assert not told.value.transient


# What an operator is told.

SETTINGS: dict[str, Any] = {
    "login": "me", "may_replicate": True, "may_publish": True, "slots": 10, "used": 3, "senders": 10, "keep": "-1",
}  # fmt: skip


def grades(found: Any) -> list[tuple[str, str]]:
    return [(finding.check, finding.grade) for finding in found]


def test_the_version_the_level_of_the_log_and_the_rights_are_looked_at() -> None:
    definition, server = source_of()._definition, server_of()
    assert sources._version(replace(STATE, version=140000)).grade == "ok"
    assert sources._version(replace(STATE, version=139999)).grade == "error"
    assert sources._wal_level(STATE).grade == "ok"
    assert sources._wal_level(replace(STATE, wal_level="replica")).grade == "error"
    assert sources._right(SETTINGS).grade == "ok"
    assert 'ALTER ROLE "me" WITH REPLICATION' in str(sources._right(SETTINGS | {"may_replicate": False}).remedy)
    assert sources._readable(server, TABLE, SETTINGS).grade == "ok"
    closed = sources._readable(server, replace(TABLE, may_read=False), SETTINGS)
    assert (closed.grade, 'GRANT SELECT ON "s"."t" TO "me"' in str(closed.remedy)) == ("error", True)
    assert definition.slot == "slot"


def test_what_tells_rows_apart_is_looked_at() -> None:
    server = server_of()
    assert sources._identity(server, replace(TABLE, is_identified=False)).grade == "error"
    assert sources._identity(server, replace(TABLE, key=())).grade == "warning"
    assert "only changed keys are known" in sources._identity(server, TABLE).text
    assert "rows before come whole" in sources._identity(server, replace(TABLE, identity="f")).text


def publication_of(state: ServerState, table: Table, missing: tuple[str, ...] = (), **options: Any) -> list[Any]:
    server = server_of(**options)
    row = [name not in missing for name in ("insert", "update", "delete", "truncate")]
    answered = SimpleNamespace(execute=lambda *_: SimpleNamespace(one=lambda: row))

    @contextmanager
    def connected() -> Iterator[Any]:
        yield answered

    server.connected = connected  # type: ignore[method-assign]
    return list(sources._publication(server, source_of(**options)._definition, state, [table], SETTINGS))


def test_what_is_published_is_looked_at() -> None:
    assert grades(publication_of(STATE, TABLE)) == [("publication", "ok")]
    [ok, warned] = publication_of(STATE, TABLE, missing=("delete", "truncate"))
    assert (ok.grade, warned.grade) == ("ok", "warning")
    assert "does not publish delete, truncate" in warned.text
    [unpublished] = publication_of(STATE, replace(TABLE, published=None))
    assert unpublished.remedy == 'ALTER PUBLICATION "slot" ADD TABLE "s"."t"'
    [partitioned] = publication_of(STATE, replace(TABLE, published=None, kind="p"))
    assert partitioned.remedy == 'ALTER PUBLICATION "slot" SET (publish_via_partition_root = true)'
    whole = replace(TABLE, published={"attnames": ["id", "v"], "rowfilter": None})
    assert grades(publication_of(STATE, whole, columns=["v", "id"])) == [("publication", "ok")]
    [columns] = publication_of(STATE, whole, columns=["id"])
    assert (columns.grade, "with the columns id, v, not id" in columns.text) == ("error", True)
    [unfiltered] = publication_of(STATE, whole, row_filter="id > 1")
    assert (unfiltered.grade, "without a row filter" in unfiltered.text) == ("error", True)
    filtered = replace(TABLE, published={"attnames": ["id"], "rowfilter": "(id > 1)"})
    assert grades(publication_of(STATE, filtered)) == [("publication", "ok")]
    assert grades(publication_of(STATE, filtered, row_filter="id > 1")) == [("publication", "ok")]
    untold = replace(TABLE, published={})
    assert grades(publication_of(STATE, untold, columns=["id"])) == [("publication", "ok")], "PostgreSQL 14"


def test_a_missing_publication_is_made_by_the_first_tick_where_it_may() -> None:
    bare = replace(STATE, slot=None, has_publication=False)

    def grade(state: ServerState = bare, settings: Any = SETTINGS, **options: Any) -> str:
        return sources._missing_publication(source_of(**options)._definition, state, settings).grade

    assert grade() == "note"
    assert grade(create=False) == "error"
    assert grade(settings=SETTINGS | {"may_publish": False}) == "error"
    assert grade(replace(STATE, has_publication=False)) == "error"
    assert grades(publication_of(bare, TABLE)) == [("publication", "note")]


@pytest.mark.parametrize(
    ("state", "settings", "options", "grade", "words"),
    [
        ({}, {}, {}, "ok", "slot is free"),
        (changed(is_active=True), {}, {}, "ok", "slot is in use"),
        ({"slot": None}, {}, {}, "note", "the first tick makes it"),
        ({"slot": None}, {}, {"create": False}, "error", "does not exist"),
        ({"slot": None}, {"used": 10}, {}, "error", "all 10 slots of the server are taken"),
        ({"slot": None}, {"used": 9}, {}, "note", "the first tick makes it"),
        (changed(plugin="wal2json"), {}, {}, "error", "belongs to wal2json in db"),
        (changed(database="other"), {}, {}, "error", "belongs to pgoutput in other"),
        (changed(wal_status="lost"), {}, {}, "error", r"is invalid \(lost\)"),
        (changed(invalidation="idle"), {}, {}, "error", r"is invalid \(idle\)"),
        (changed(is_failover=False), {}, {}, "note", "does not survive a failover"),
        ({"version": 170000} | changed(is_failover=False), {}, {}, "note", "does not survive a failover"),
        ({"version": 169999} | changed(is_failover=False), {}, {}, "ok", "slot is free"),
    ],
)
def test_a_slot_is_looked_at(
    state: dict[str, Any], settings: dict[str, Any], options: dict[str, Any], grade: str, words: str
) -> None:
    found = sources._slot(source_of(**options)._definition, replace(STATE, **state), SETTINGS | settings)
    assert found.grade == grade
    assert re.search(words, found.text)


def test_what_a_slot_holds_back_is_looked_at() -> None:
    definition = source_of(max_retained_mb=1)._definition
    full = replace(STATE, flushed_lsn=0x11 + (1 << 20))
    warned = sources._retention(definition, full, SETTINGS)
    assert (warned.grade, "the server sets no limit" in warned.text) == ("warning", True)
    calm = sources._retention(definition, replace(full, flushed_lsn=0x10 + (1 << 20)), SETTINGS | {"keep": "2GB"})
    assert (calm.grade, "the server gives up at 2GB" in calm.text) == ("ok", True)


def test_a_finding_that_is_an_error_is_raised_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_settings", lambda _server: SETTINGS)
    monkeypatch.setattr(sources, "_unpublished_operations", lambda *_: [])
    server = server_of()
    sources.check_definition(server, source_of()._definition, "orders")
    server.state = replace(STATE, wal_level="replica")
    with pytest.raises(SourceConfigurationError, match=r"'orders': wal_level is replica.*: ALTER SYSTEM SET wal_level"):
        sources.check_definition(server, source_of()._definition, "orders")
    alone = source_of(snapshot="only")._definition
    assert grades(sources.findings(server, alone)) == [("version", "ok"), ("rights", "ok")]
    server.state = STATE
    assert grades(sources.findings(server, source_of()._definition)) == [
        (check, "ok")
        for check in (
            "version",
            "wal_level",
            "replication",
            "rights",
            "replica identity",
            "publication",
            "slot",
            "retention",
        )
    ]


def test_slot_and_publication_are_shown_as_they_are() -> None:
    server = server_of()
    view = sources.shown(server, source_of()._definition)
    assert view == {
        "publication": "slot", "tables": ["s.t"], "slot": "slot", "plugin": "pgoutput", "reader": None,
        "status": "reserved", "confirmed": "0/20", "end_of_log": "0/9000", "retained_bytes": 0x9000 - 0x10,
        "safe_wal_bytes": None, "failover": True,
    }  # fmt: skip
    server.state = replace(STATE, **changed(is_active=True, active_pid=5, confirmed_lsn=None, invalidation="idle"))
    view = sources.shown(server, source_of()._definition)
    assert (view["reader"], view["confirmed"], view["status"]) == ("process 5", None, "idle")
    server.state, server.listed = replace(STATE, slot=None, has_publication=False), [replace(TABLE, published=None)]
    assert sources.shown(server, source_of()._definition) == {"publication": None, "tables": [], "slot": None}


class AskedSource(PostgresLogicalSource):
    """A source whose server says what it is told to say."""

    asked: AskedServer

    def _server(self) -> Server:
        return self.asked


def asked_source(state: ServerState = STATE, **options: Any) -> AskedSource:
    source = AskedSource(**({"url": URL, "tables": "s.t", "slot": "slot"} | options))
    source.asked = AskedServer(source._definition, state)
    return source


def test_how_far_behind_a_checkpoint_is_is_told_beside_its_reader() -> None:
    source = asked_source()
    at = {"cursor": {"value": "0/50", "at": datetime_text(NOW), "committed": datetime_text(NOW)}}
    behind = source.backlog(at)
    assert (behind.amount, behind.unit, behind.lag_seconds) == (0x9000 - 0x50, "bytes", 0.0)
    [fact] = source.report(at)
    assert fact.log_fields()["last_commit_at"]
    end = {"cursor": {"value": "0/9000"}}
    assert (source.backlog(end).amount, source.backlog(end).lag_seconds) == (0, 0.0)
    assert source.backlog({"cursor": {"value": "0/50"}}).lag_seconds is None
    assert source.backlog({}).amount == 0x9000 - 0x20
    assert asked_source(replace(STATE, slot=None)).backlog({}).amount == 0
    assert asked_source(replace(STATE, **changed(confirmed_lsn=None))).backlog({}).amount == 0
    assert asked_source(replace(STATE, flushed_lsn=0x10)).backlog({}).amount == 0
    with pytest.raises(PositionLostError, match="does not exist any more"):
        asked_source(replace(STATE, slot=None)).backlog(at)
    assert asked_source(replace(STATE, slot=None), snapshot="only").backlog(at).amount > 0


def test_a_position_can_be_shown_and_typed() -> None:
    source = asked_source()
    assert source.describe({}) == "beginning"
    assert source.describe({"cursor": {"value": "0/50"}}) == "0/50"
    reading = {"cursor": {"value": "0/50", "snapshot": {"table": "s.t", "after": ["1"]}}}
    assert source.describe(reading) == "0/50 (reading s.t)"
    assert source.parse("beginning") == {}
    assert source.parse("now")["cursor"]["value"] == "0/9000"
    for text in ("0/50", "0/50 (reading s.t)"):
        assert source.parse(text) == {"cursor": {"kind": "postgres-logical", "value": "0/50"}}
    for wrong in ("", "x", "5"):
        with pytest.raises(SourceConfigurationError, match="is no place in the log"):
            source.parse(wrong)


def test_a_stream_is_made_and_dropped_unless_it_is_only_asked_how() -> None:
    source = asked_source(replace(STATE, slot=None))
    made = source.create_stream(dry_run=True)
    assert (len(made), source.asked.did) == (1, [])
    assert (source.create_stream(), source.asked.did) == (made, made)
    there = asked_source()
    dropped = there.drop_stream(dry_run=True)
    assert (len(dropped), there.asked.did) == (2, [])
    assert (there.drop_stream(), there.asked.did) == (dropped, dropped)


# The two ways to a slot.


def failure(sqlstate: str | None, words: str) -> Any:
    return type("Failure", (psycopg.OperationalError,), {"sqlstate": sqlstate})(words)


POOLER = "unsupported startup\n parameter: replication"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (failure("42501", "denied"), "ALTER ROLE … WITH REPLICATION"),
        (failure(None, "must be superuser or replication role to start"), "ALTER ROLE … WITH REPLICATION"),
        (failure(None, "Only roles with the REPLICATION attribute"), "ALTER ROLE … WITH REPLICATION"),
        (failure(None, POOLER), "pooler in between.*transport='sql'"),
    ],
)
def test_what_cannot_be_streamed_from_is_refused_with_what_to_do(error: Any, words: str) -> None:
    told = _failure("orders", error)
    assert isinstance(told, SourceConfigurationError)
    assert re.search(words, str(told))


def test_another_failure_of_a_stream_is_a_passing_one() -> None:
    told = _failure("orders", failure("57P01", "terminating\n connection"))
    assert isinstance(told, FetchError)
    assert (told.transient, told.source) == (True, "orders")
    assert "terminating connection" in str(told)


def test_names_are_quoted_and_histories_read() -> None:
    assert quoted_list("a\"b'c") == '"a""b\'\'c"'
    content = "1\t0/5000\tno recovery target\n\n# a comment\n2\t0/6000\tbefore\n"
    assert _history_of(content) == {1: 0x5000, 2: 0x6000}
    notice = SimpleNamespace(severity_nonlocalized="WARNING", sqlstate="55000")
    assert _is_about_publication(notice)
    assert not _is_about_publication(SimpleNamespace(severity_nonlocalized="NOTICE", sqlstate="55000"))
    assert not _is_about_publication(SimpleNamespace(severity_nonlocalized="WARNING", sqlstate="01000"))


class Connection:
    """A connection of the driver that is asked for a history."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.is_closed = False

    def execute(self, statement: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(fetchall=lambda: [(f"{statement}.history", self.answer)])

    def close(self) -> None:
        self.is_closed = True


def connecting(answer: Any) -> tuple[Any, list[Any]]:
    """An engine whose logins are somebody's own, and what they were given."""
    engine, given = create_engine(URL), list[Any]()

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, _arguments: Any, parameters: Any) -> Any:
        given.append(dict(parameters))
        if isinstance(answer, psycopg.OperationalError) and answer.args[0] != "later":
            raise answer
        given.append(Connection(answer))
        return given[-1]

    return engine, given


def test_a_replication_connection_is_logged_in_as_the_others_are() -> None:
    engine, given = connecting("")
    config = DbConfig(connection_url=URL, connect_args={"options": "-c x=1", "sslmode": "require"})
    assert replication_connection(engine, config) is given[1]
    parameters = given[0]
    assert (parameters["replication"], parameters["autocommit"], parameters["sslmode"]) == ("database", True, "require")
    assert parameters["options"].startswith("-c x=1 -c datestyle=ISO")
    plain, given = connecting("")
    replication_connection(plain, DbConfig(connection_url=URL))
    assert given[0]["options"].startswith("-c datestyle=ISO")


def test_a_login_that_leaves_connecting_to_the_driver_is_asked_first() -> None:
    nowhere = "postgresql+psycopg://127.0.0.1:1/db"
    engine, asked = create_engine(nowhere), list[Any]()

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, _arguments: Any, parameters: Any) -> None:
        asked.append(parameters["replication"])

    with pytest.raises(psycopg.OperationalError):
        replication_connection(engine, DbConfig(connection_url=nowhere))
    assert asked == ["database"]


def test_a_history_that_nobody_can_tell_is_an_empty_one() -> None:
    config = DbConfig(connection_url=URL)
    for content in ("1\t0/5000\twhy\n", b"1\t0/5000\twhy\n"):
        engine, given = connecting(content)
        assert timeline_history(engine, config, 2) == {1: 0x5000}
        assert given[1].is_closed
    engine, given = connecting(psycopg.errors.UndefinedFile("later"))
    assert timeline_history(engine, config, 2) == {}
    assert given[1].is_closed
    assert timeline_history(connecting(failure(None, POOLER))[0], config, 2) == {}
    with pytest.raises(psycopg.OperationalError, match="down"):
        timeline_history(connecting(failure(None, "down"))[0], config, 2)


class Wire:
    """The driver's connection underneath: what it hands out, and what is put on it."""

    def __init__(self, *received: Any) -> None:
        self.received = list(received)
        self.sent: list[bytes] = []
        self.consumed = self.flushed = 0
        self.failure: Exception | None = None

    def get_copy_data(self, _is_async: int) -> Any:
        answer = self.received.pop(0) if self.received else (0, b"")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put_copy_data(self, data: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append(data)

    def put_copy_end(self) -> None:
        self.sent.append(b"end")

    def flush(self) -> int:
        self.flushed = len(self.sent)
        return 0

    def consume_input(self) -> None:
        self.consumed += 1
        if self.failure is not None:
            raise self.failure

    def is_busy(self) -> bool:
        return bool(self.received) and self.received[0] == "busy" and self.received.pop(0) == "busy"

    def get_result(self) -> Any:
        if self.received and isinstance(self.received[0], tuple):
            return "copying"  # until what was sent has been taken
        return self.received.pop(0) if self.received else None


class Streamed(Replication):
    """A stream on such a wire."""

    def __init__(self, *received: Any, arrivals: int = 0) -> None:
        self._driver_error, self._name, self._acknowledged, self._warning = psycopg.Error, "orders", 0, None
        self.is_ended, self._pgconn, self._arrivals = False, Wire(*received), arrivals
        self._waiting: Any = SimpleNamespace(poll=self._poll)
        self.connection = Connection(None)

    def _poll(self, _milliseconds: float) -> bool:
        self._arrivals -= 1
        return self._arrivals >= 0


class Starting(Connection):
    """A replication connection on which a stream is about to begin."""

    def __init__(self, status: Any, **fields: bytes) -> None:
        super().__init__(None)
        self.ours, self.theirs = socket.socketpair()
        self.commands: list[bytes] = []
        self.handlers: list[Any] = []
        self._result = SimpleNamespace(status=status, error_field=lambda field: fields.get(field.name))
        self.pgconn = SimpleNamespace(backend_pid=5, socket=self.ours.fileno(), exec_=self._exec)

    def _exec(self, command: bytes) -> Any:
        self.commands.append(command)
        if isinstance(self._result.status, Exception):
            raise self._result.status
        return self._result

    def add_notice_handler(self, handler: Any) -> None:
        self.handlers.append(handler)

    def close(self) -> None:
        super().close()
        self.ours.close()
        self.theirs.close()


def started(connection: Any) -> Replication:
    engine = create_engine(URL)

    @event.listens_for(engine, "do_connect")
    def connect(*_: Any) -> Any:
        if isinstance(connection, Exception):
            raise connection
        return connection

    definition = source_of(publication="Pub'lic")._definition
    return Replication(engine, DbConfig(connection_url=URL), definition, "orders")


def test_a_stream_begins_with_the_slot_and_its_publication() -> None:
    connection = Starting(ExecStatus.COPY_BOTH)
    stream = started(connection)
    command = b"START_REPLICATION SLOT slot LOGICAL 0/0 (proto_version '1', publication_names '\"Pub''lic\"')"
    assert (connection.commands, stream.pid, stream.is_ended) == ([command], 5, False)
    connection.theirs.send(b"x")
    assert stream._waiting.poll(0), "what arrives is noticed"
    [handler] = connection.handlers
    handler(SimpleNamespace(severity_nonlocalized="WARNING", sqlstate="55000", message_primary="skipped"))
    assert stream._warning == "skipped"
    connection.close()


def test_a_stream_that_does_not_begin_leaves_no_connection_behind_and_says_why() -> None:
    used = Starting(ExecStatus.FATAL_ERROR, SQLSTATE=b"55006", MESSAGE_PRIMARY=b"slot is active")
    with pytest.raises(SourceInUseError, match="Slot 'slot' has another reader: slot is active"):
        started(used)
    gone = Starting(ExecStatus.FATAL_ERROR, SQLSTATE=b"42704", MESSAGE_PRIMARY=b"slot does not exist")
    with pytest.raises(SlotRefusedError, match="'orders' cannot be streamed: slot does not exist") as refused:
        started(gone)
    assert refused.value.sqlstate == "42704"
    silent = Starting(ExecStatus.FATAL_ERROR)
    with pytest.raises(SlotRefusedError, match="'orders' cannot be streamed"):
        started(silent)
    broken = Starting(failure(None, "reset"))
    with pytest.raises(FetchError, match="the stream failed: reset"):
        started(broken)
    assert [each.is_closed for each in (used, gone, silent, broken)] == [True] * 4
    with pytest.raises(SourceConfigurationError, match="WITH REPLICATION"):
        started(failure("42501", "denied"))


def test_a_server_that_waits_for_us_to_read_is_read_while_we_write() -> None:
    ours, theirs = socket.socketpair()
    stream = Streamed()
    wire: Any = stream._pgconn
    wire.socket, unsent = ours.fileno(), [1, 1, 0]

    def flush() -> int:
        if len(unsent) == 2:
            theirs.send(b"x")
        return unsent.pop(0)

    wire.flush = flush
    stream._flush()
    assert (unsent, wire.consumed) == ([], 1), "only where something has arrived"
    ours.close()
    theirs.close()


def data(message: bytes) -> tuple[int, bytes]:
    return 25 + len(message), b"w" + bytes(24) + message


def keepalive(lsn: int, *, must_reply: bool) -> tuple[int, bytes]:
    return 18, struct.pack(">cQqB", b"k", lsn, 0, must_reply)


def test_what_comes_over_the_wire_is_messages_places_and_silence() -> None:
    stream = Streamed(data(b"one"), keepalive(0x50, must_reply=False), (0, b""), data(b"two"), (0, b""), arrivals=1)
    assert [stream.next(1) for _ in range(4)] == [b"one", 0x50, b"two", None]
    assert (stream._pgconn.consumed, stream._pgconn.sent) == (1, [])


def test_a_server_that_wants_an_answer_gets_what_was_acknowledged() -> None:
    stream = Streamed(keepalive(0x90, must_reply=True))
    stream.acknowledge(0x50)
    stream.acknowledge(0x40)
    assert stream.next(1) == 0x90
    stream.ask()
    assert stream._pgconn.flushed == 4
    reports = [struct.unpack(">cQQQqB", report) for report in stream._pgconn.sent]
    assert [(report[0], *report[1:4], report[5]) for report in reports] == [
        (b"r", 0x50, 0x50, 0x50, 0), (b"r", 0x50, 0x50, 0x50, 0), (b"r", 0x50, 0x50, 0x50, 0),
        (b"r", 0x50, 0x50, 0x50, 1),
    ]  # fmt: skip


def test_a_wire_that_breaks_is_a_stream_that_has_ended() -> None:
    uses: list[Any] = [lambda stream: stream.next(1), lambda stream: stream.ask(), lambda stream: stream.acknowledge(1)]
    for use in uses:
        stream = Streamed(arrivals=1)
        stream._pgconn.failure = failure(None, "reset")
        with pytest.raises(FetchError, match="the stream failed: reset"):
            use(stream)
        assert stream.is_ended


@pytest.mark.parametrize(
    ("received", "arrivals", "consumed", "is_let_go"),
    [
        ([(-1, b"")], 0, 0, True),
        ([data(b"late"), (0, b""), (-1, b""), "busy", "result"], 9, 2, True),
        ([(-1, b""), "busy"], 0, 0, False),
        ([(-1, b""), "result", "busy"], 0, 0, False),
        ([failure(None, "reset")], 9, 0, False),
    ],
)
def test_a_slot_is_let_go_with_a_farewell(received: list[Any], arrivals: int, consumed: int, is_let_go: bool) -> None:
    stream = Streamed(*received, arrivals=arrivals)
    stream.close()
    assert (stream.is_let_go, stream.is_ended, stream.connection.is_closed) == (is_let_go, True, True)
    assert (stream._pgconn.sent, stream._pgconn.flushed) == ([b"end"], 1)
    assert stream._pgconn.consumed == consumed, "what arrives is taken in, and only that"


def test_a_server_that_does_not_answer_a_farewell_is_left_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 0.1, 0.2, 0.31, 9.0])
    monkeypatch.setattr("azure_functions_db.sources.postgres.replication.time.monotonic", lambda: next(times))
    stream = Streamed(data(b"a"), data(b"b"), data(b"c"), data(b"d"), arrivals=9)
    assert not stream._said_farewell()
    assert len(stream._pgconn.received) == 1
    assert stream._pgconn.consumed == 0, "what is at hand is taken without waiting"
    times = iter([0.0, 0.0, 0.1, 0.31])
    silent = Streamed()
    assert not silent._said_farewell()
    assert silent._pgconn.consumed == 0, "nothing has arrived"


def ended(sqlstate: bytes | None, words: bytes | None) -> Any:
    fields = iter([sqlstate, words])
    return SimpleNamespace(error_field=lambda _: next(fields))


def test_a_stream_that_ends_says_why() -> None:
    unpublished = Streamed((-1, b""), ended(b"42704", b"publication does not exist"))
    with pytest.raises(SourceConfigurationError, match=r"publication does not exist\. The publication was made after"):
        unpublished.next(1)
    other = Streamed((-1, b""), ended(b"57P01", b"terminating"))
    with pytest.raises(FetchError, match="'orders': terminating") as told:
        other.next(1)
    assert (told.value.transient, other.is_ended) == (True, True)
    for silent in (Streamed((-1, b"")), Streamed((-1, b""), ended(None, None))):
        with pytest.raises(FetchError, match="the server ended the stream"):
            silent.next(1)
    broken = Streamed(failure(None, "reset"))
    with pytest.raises(FetchError, match="the stream failed: reset"):
        broken.next(1)
    assert broken.is_ended


def test_a_publication_that_is_skipped_is_an_error_before_the_next_message() -> None:
    stream = Streamed(data(b"one"))
    stream._notice(SimpleNamespace(severity_nonlocalized="NOTICE", sqlstate="55000", message_primary="no"))
    assert stream._warning is None
    stream._notice(
        SimpleNamespace(severity_nonlocalized="WARNING", sqlstate="55000", message_primary="skipped loading")
    )
    with pytest.raises(SourceConfigurationError, match="skipped loading"):
        stream.next(1)


class Cursor:
    """A cursor of the server's, over messages that it hands out in parts."""

    def __init__(self, messages: list[bytes], asked: list[Any]) -> None:
        self._rows = [(message,) for message in messages]
        self._asked = asked
        self.is_closed = False

    def execute(self, _statement: str, parameters: Any) -> None:
        self._asked.append(parameters)
        self._rows = self._rows[: parameters[2]]

    def fetchmany(self, _size: int) -> list[Any]:
        taken, self._rows = self._rows[:2], self._rows[2:]
        return taken

    def close(self) -> None:
        self.is_closed = True


class Pooled:
    """A connection of the engine's, on which a slot is peeked into."""

    def __init__(self, messages: list[bytes], *, is_free: bool = True) -> None:
        self._messages = messages
        self._is_free = is_free
        self.asked: list[Any] = []
        self.cursors: list[Cursor] = []
        self.handlers: list[Any] = []
        self.did: list[str] = []
        self.connection = SimpleNamespace(driver_connection=self)

    def cursor(self, **_: Any) -> Cursor:
        self.cursors.append(Cursor(self._messages, self.asked))
        return self.cursors[-1]

    def execute(self, *_: Any) -> Any:
        return SimpleNamespace(scalar_one=lambda: self._is_free)

    def add_notice_handler(self, handler: Any) -> None:
        self.handlers.append(handler)

    def remove_notice_handler(self, handler: Any) -> None:
        self.handlers.remove(handler)

    def rollback(self) -> None:
        self.did.append("rollback")

    def close(self) -> None:
        self.did.append("close")


def peeking(connection: Pooled) -> Any:
    engine: Any = SimpleNamespace(connect=lambda: connection)
    return Peek(engine, source_of(transport="sql")._definition, "orders")


def test_a_slot_that_is_peeked_into_hands_out_all_that_is_there_and_then_its_end() -> None:
    messages = [b"one", b"two", b"three"]
    connection = Pooled(messages)
    peek = peeking(connection)
    assert peek.next(0) == 0, "nothing was asked for so far"
    peek.follow(0x50)
    assert [peek.next(0) for _ in range(5)] == [*messages, 0x50, 0x50]
    peek.close()
    assert (peek.is_ended, connection.did, connection.handlers) == (True, ["rollback", "close"], [])
    assert [cursor.is_closed for cursor in connection.cursors] == [True]


def test_where_as_much_has_come_as_was_asked_for_more_is_asked_for() -> None:
    messages = [str(number).encode() for number in range(7)]
    connection = Pooled(messages)
    peek = peeking(connection)
    peek._count = 2
    peek.follow(0x50)
    assert [peek.next(0) for _ in range(3)] == [b"0", b"1", None], "there is more"
    peek.ask()
    assert [peek.next(0) for _ in range(8)] == [*messages, 0x50]
    assert [(asked[1], asked[2]) for asked in connection.asked] == [("0/50", 2), ("0/50", 8)]
    assert [cursor.is_closed for cursor in connection.cursors] == [True, False]


def test_a_slot_is_let_go_whatever_is_wrong_with_its_connection() -> None:
    unread = Pooled([])
    peeking(unread).close()
    assert (unread.did, unread.handlers) == (["rollback", "close"], [])

    class Broken(Pooled):
        def rollback(self) -> None:
            raise OSError

    broken = Broken([])
    peeking(broken).close()
    assert broken.did == ["close"]


def test_a_slot_that_is_refused_is_told_by_the_first_look_into_it() -> None:
    class Refused(Cursor):
        def fetchmany(self, _size: int) -> list[Any]:
            raise failure("55006", "in use")  # a cursor runs its statement when it is first read from

    class Used(Pooled):
        def cursor(self, **_: Any) -> Cursor:
            return Refused([], self.asked)

    with pytest.raises(SourceInUseError):
        peeking(Used([])).follow(0x50)


def test_a_slot_that_is_peeked_into_moves_when_it_is_told_to() -> None:
    did = list[Any]()

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(
            execute=lambda _statement, values: did.append(values), commit=lambda: did.append("committed")
        )

    peek = peeking(Pooled([]))
    peek._engine = SimpleNamespace(connect=connect)
    peek.acknowledge(0x50)
    assert did == [{"slot": "slot", "lsn": "0/50"}, "committed"]


def test_a_slot_that_somebody_else_peeks_into_is_in_use() -> None:
    connection = Pooled([], is_free=False)
    with pytest.raises(SourceInUseError, match="Slot 'slot' has another reader"):
        peeking(connection)
    assert connection.did == ["close"]


def test_a_peek_is_over_though_its_cursor_cannot_be_closed() -> None:
    connection = Pooled([b"one"])
    peek = peeking(connection)
    peek.follow(0x50)

    def fail() -> None:
        raise OSError("gone")

    peek._cursor = SimpleNamespace(close=fail)
    peek.close()
    assert peek.is_ended
    assert connection.did[-1] == "close"


def test_a_publication_that_is_skipped_is_an_error_before_the_first_message() -> None:
    connection = Pooled([b"one"])
    peek = peeking(connection)
    peek.follow(0x50)
    [handler] = connection.handlers
    handler(SimpleNamespace(severity_nonlocalized="NOTICE", sqlstate="55000", message_primary="no"))
    assert peek.next(0) == b"one"
    handler(SimpleNamespace(severity_nonlocalized="WARNING", sqlstate="55000", message_primary="skipped loading"))
    with pytest.raises(SourceConfigurationError, match="skipped loading"):
        peek.next(0)


@pytest.mark.parametrize(
    ("sqlstate", "words", "error"),
    [
        ("55006", "in use", SourceInUseError),
        ("42704", 'publication "p" does not exist', SourceConfigurationError),
        ("42704", 'replication slot "s" does not exist', SlotRefusedError),
        ("55000", "cannot be read", SlotRefusedError),
        ("57014", "cancelled", FetchError),
        ("42501", "denied", SourceConfigurationError),
    ],
)
def test_a_slot_that_cannot_be_read_by_sql_says_why(sqlstate: str, words: str, error: type[Exception]) -> None:
    peek = Peek.__new__(Peek)
    peek._definition, peek._name = source_of()._definition, "orders"
    with pytest.raises(error) as told:
        peek._raise_refusal(failure(sqlstate, words))
    assert type(told.value) is error
    assert peek.is_ended


# Looks at a server, by the rows that it has answered.


def looked_at(rows: list[dict[str, Any]], **options: Any) -> Server:
    """A server that answers every question with these rows."""
    server = Server(create_engine(URL), source_of(**options)._definition, "orders")
    mappings = SimpleNamespace(one=lambda: rows[0], all=lambda: rows)
    answer = SimpleNamespace(mappings=lambda: mappings, scalars=lambda: [row["xid"] for row in rows])

    @contextmanager
    def connected() -> Iterator[Any]:
        yield SimpleNamespace(execute=lambda *_: answer)

    server.connected = connected  # type: ignore[method-assign]
    return server


LOOK: dict[str, Any] = {
    "slot": None, "is_standby": False, "now": NOW.timestamp(), "version": 180000, "wal_level": "logical",
    "database": "db", "flushed": "0/9000", "file": "000000020000000000000001", "system": "7", "has_publication": True,
    "publishes": "t t t t t", "members": {"s.t": "5", "s.u": None, "s.a": None},
}  # fmt: skip


def test_a_look_at_a_server_tells_its_slot_its_timeline_and_what_is_left_out() -> None:
    state = looked_at([LOOK]).look()
    assert (state.slot, state.timeline, state.flushed_lsn, state.now) == (None, 2, 0x9000, NOW)
    assert state.unpublished == ("s.a", "s.u")
    slot = {
        "plugin": "pgoutput", "database": "db", "active": False, "active_pid": None, "restart_lsn": "0/10",
        "confirmed_flush_lsn": "0/20",
    }  # fmt: skip
    held = looked_at([LOOK | {"slot": slot, "members": None}]).look()
    assert (held.slot and held.slot.confirmed_lsn, held.unpublished) == (0x20, ())
    others: list[dict[str, Any]] = [{}, {"members": {"s.t": "6"}}, {"publishes": "t t f t t"}]
    assert len({looked_at([LOOK | other]).look().publication for other in others}) == 3
    with pytest.raises(SourceConfigurationError, match=r"is a standby.*give the primary's address"):
        looked_at([LOOK | {"is_standby": True}]).look()


def test_tables_come_in_the_order_of_their_definition_and_one_that_is_missing_is_told() -> None:
    rows = [row_of(name="u"), row_of()]
    assert [str(table.name) for table in looked_at(rows, tables=["s.t", "s.u"]).tables()] == ["s.t", "s.u"]
    with pytest.raises(SourceConfigurationError, match=r"There is no table s\.x, s\.y in the database"):
        looked_at(rows, tables=["s.t", "s.x", "s.y"]).tables()


def test_transactions_that_are_running_are_told_by_their_ids() -> None:
    assert looked_at([{"xid": "101"}, {"xid": "99"}]).running_xids() == [101, 99]


def test_how_the_log_is_reached_is_looked_at() -> None:
    def found(answer: Any, **options: Any) -> tuple[str, str, list[Any]]:
        engine, given = connecting(answer)
        server = Server(engine, source_of(**options)._definition, "orders")
        finding = sources._transport(server, source_of(**options)._definition, DbConfig(connection_url=URL))
        return finding.grade, finding.text, given

    grade, _, given = found("")
    assert (grade, given[1].is_closed) == ("ok", True)
    assert found(failure(None, POOLER))[:2][0] == "error"
    assert "pooler" in found(failure(None, POOLER))[1]
    grade, text, _ = found(failure(None, "the server\n is down"))
    assert (grade, text) == ("error", "no replication connection: the server is down")
    grade, _, given = found("", transport="sql")
    assert (grade, given) == ("note", [])


def test_a_snapshot_alone_needs_no_way_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "findings", lambda *_: iter(()))
    engine, _ = connecting("")
    for options, checks in (({}, ["transport", "database clock"]), ({"snapshot": "only"}, ["database clock"])):
        server = server_of(**options)
        server.engine = engine
        found = sources.examined(server, source_of(**options)._definition, DbConfig(connection_url=URL))
        assert [finding.check for finding in found] == checks


def test_whoever_opens_a_source_holds_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    held = list[Any]()

    class Held:
        is_ended = is_let_go = False

        def __init__(self, *arguments: Any) -> None:
            held.append(self)

        def close(self) -> None:
            held.remove(self)

    monkeypatch.setattr("azure_functions_db.sources.postgres.log.Peek", Held)
    reader = asked_source(transport="sql").open()
    assert len(held) == 1
    reader.close()
    assert held == []
