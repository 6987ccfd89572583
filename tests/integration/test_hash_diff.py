"""What a hash diff finds, what it survives, and what it refuses."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from sqlalchemy import Column, MetaData, create_engine, make_url, text
from sqlalchemy import Table as SqlTable
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import SQLAlchemyError

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    FetchError,
    FileQuarantine,
    HashDiffSource,
    MemoryStateStore,
    PollTrigger,
    PositionLostError,
    RowChange,
    RowsFailed,
    SourceConfigurationError,
    SqlSnapshots,
)
from azure_functions_db.operations.quarantine import Entry, event_of
from azure_functions_db.sources.hashdiff.relation import Relation, _bytes
from azure_functions_db.sources.hashdiff.snapshots import MemorySnapshots, _body
from azure_functions_db.sources.keyset.shape import Shape
from azure_functions_db.testing.memory import MemoryQuarantine
from tests.integration.hash_diffs import Poller, Table, Target

PLAIN = "CREATE TABLE items (id integer PRIMARY KEY, a varchar(50), b varchar(50))"
FEW = hypothesis.settings(
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


@pytest.fixture
def table(database_url: str, provider: EngineProvider) -> Table:
    return Table(database_url, provider, PLAIN, ["id"], block_rows=3)


@pytest.fixture
def lite(sqlite_database: str, provider: EngineProvider) -> Table:
    return Table(sqlite_database, provider, PLAIN, ["id"], block_rows=3)


def put(table: Table, key: int, a: str | None = "a", b: str | None = "b") -> None:
    table.run("DELETE FROM items WHERE id = :id", id=key)
    table.run("INSERT INTO items VALUES (:id, :a, :b)", id=key, a=a, b=b)


# Histories.

TEXTS = st.one_of(
    st.none(), st.sampled_from(["", "a", "A", "ß", "n", "1:a", ",", "\\", '"', "a ", "é", "e\u0301", "😀"])
)
KEYS = st.sampled_from(["a", "A", "b", "B", "ä", "Ä", "z", "_", "a_", "aa", "0", "10", "9", "ss", "ß", "É"])
TYPED = {
    "sqlite": "i bigint, f double, d numeric(12, 3), t timestamp, y date, x blob, o boolean, j json",
    "postgresql": "i bigint, f double precision, d numeric(12, 3), t timestamptz, y date, x bytea, o boolean, j jsonb",
    "mysql": "i bigint, f double, d decimal(12, 3), t timestamp(6) NULL, y date, x blob, o boolean, j json",
}
COLLATED = {
    "sqlite": "k text COLLATE NOCASE",
    "postgresql": 'k varchar(50) COLLATE "any_case"',
    "mysql": "k varchar(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
}
VALUES = {
    "i": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300),
    "d": st.decimals(-10_000, 10_000, places=3).map(str),
    "t": st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2030, 1, 1)),  # noqa: DTZ001 - the session says the zone
    "y": st.dates(dt.date(1990, 1, 1), dt.date(2030, 1, 1)),
    "x": st.binary(max_size=5),
    "o": st.booleans(),
    "j": st.sampled_from(["{}", "[1]", '{"a": null}', '"x"']),
}
CHANGED = st.dictionaries(st.sampled_from(sorted(VALUES)), st.just(None)).flatmap(
    lambda chosen: st.fixed_dictionaries({name: st.none() | VALUES[name] for name in chosen})
)
WRITES = st.lists(st.tuples(KEYS, st.integers(0, 2), st.sampled_from(["put", "put", "delete"]), CHANGED), max_size=6)


@pytest.fixture
def typed(database_url: str, provider: EngineProvider) -> Table:
    engine = create_engine(database_url)
    dialect = engine.dialect.name
    with engine.begin() as connection:
        if dialect == "postgresql":
            rule = "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            connection.execute(text(rule))
        if dialect == "sqlite":
            connection.execute(text("PRAGMA journal_mode = WAL"))
    engine.dispose()
    ddl = f"CREATE TABLE items ({COLLATED[dialect]}, n integer, {TYPED[dialect]}, PRIMARY KEY (k, n))"
    return Table(database_url, provider, ddl, ["k", "n"])


class History:
    """Writes to the typed table, some of them while a scan is under way."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._engine = create_engine(table.url)

    def write(self, writes: Iterable[tuple[str, int, str, Mapping[str, Any]]]) -> None:
        for key, number, what, changed in writes:
            where = {"k": key, "n": number}
            row = {**dict.fromkeys(VALUES), **changed}
            if self._engine.dialect.name == "sqlite":
                row |= {name: str(row[name]) for name in ("t", "y") if row[name] is not None}
            with self._engine.begin() as connection:
                connection.execute(text("DELETE FROM items WHERE k = :k AND n = :n"), where)
                if what == "put":
                    names = ", ".join(["k", "n", *row])
                    given = ", ".join(f":{name}" for name in ["k", "n", *row])
                    connection.execute(text(f"INSERT INTO items ({names}) VALUES ({given})"), {**where, **row})

    def end(self) -> None:
        self._engine.dispose()


@FEW
@hypothesis.given(data=st.data())
def test_whatever_is_written_the_target_equals_the_table_after_a_quiet_scan(typed: Table, data: st.DataObject) -> None:
    typed.run("DELETE FROM items")
    typed.snapshots = MemorySnapshots()
    typed.options["block_rows"] = data.draw(st.integers(1, 5), "rows in a block")
    poller, history = Poller(typed.source), History(typed)
    try:
        for writes in data.draw(st.lists(WRITES, min_size=1, max_size=4), "writes before each scan"):
            history.write(writes)
            meanwhile = data.draw(st.lists(WRITES, max_size=3), "writes while it runs")
            place = data.draw(st.integers(0, 12), "after so many statements")
            counted = iter(range(1_000))

            def notice(
                _statement: str, counted: Any = counted, place: int = place, meanwhile: list[Any] = meanwhile
            ) -> None:
                if next(counted) >= place and meanwhile:
                    history.write(meanwhile.pop())

            with typed.watched(notice):
                poller.scan(limit=data.draw(st.integers(1, 7), "limit"))
        poller.scan()
        assert poller.target.rows == typed.rows()
        assert poller.scan() == []
    finally:
        history.end()


@FEW
@hypothesis.given(data=st.data())
def test_texts_and_nulls_are_never_taken_for_one_another(table: Table, data: st.DataObject) -> None:
    table.run("DELETE FROM items")
    table.snapshots = MemorySnapshots()
    before = data.draw(st.tuples(TEXTS, TEXTS))
    after = data.draw(st.tuples(TEXTS, TEXTS))
    put(table, 1, *before)
    poller = Poller(table.source)
    poller.scan()
    put(table, 1, *after)
    assert [change.op for change in poller.scan()] == ([] if before == after else ["update"])
    assert poller.target.rows == table.rows()


@pytest.mark.parametrize(
    ("before", "after"), [((None, "n"), ("n", None)), (("", None), (None, "")), (("1:a", "b"), ("1", "1:ab"))]
)
def test_values_that_look_alike_when_joined_are_told_apart(
    table: Table, before: tuple[str | None, str | None], after: tuple[str | None, str | None]
) -> None:
    put(table, 1, *before)
    poller = Poller(table.source)
    poller.scan()
    put(table, 1, *after)
    assert [change.op for change in poller.scan()] == ["update"]


# Kills.


class Killed(BaseException):
    """The process is no more."""


class Steps:
    """Counts what is done, and ends it all at one step."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.last:
            raise Killed(name)

    def queries(self, name: str) -> None:
        """Count a statement about the table; those about its description are many and alike."""
        if "items" in name and "PRAGMA" not in name and "SHOW" not in name:
            self(name)


class FragileSnapshots(MemorySnapshots):
    """A place for snapshots in which every call is two steps; several documents are several."""

    def __init__(self, step: Callable[[str], None]) -> None:
        super().__init__()
        self._step = step

    def names(self, snapshot: str) -> list[str]:
        self._step("before the names")
        return super().names(snapshot)

    def read(self, snapshot: str, name: str) -> bytes | None:
        self._step("before a read")
        return super().read(snapshot, name)

    def write(self, snapshot: str, documents: Mapping[str, bytes]) -> None:
        for name, content in documents.items():
            self._step("before a write")
            super().write(snapshot, {name: content})
        self._step("after the writes")

    def remove(self, snapshot: str, names: Iterable[str]) -> None:
        for name in names:
            self._step("before a removal")
            super().remove(snapshot, [name])
        self._step("after the removals")


def killed_and_resumed(table: Table, last: int | None, count: int = 8) -> tuple[list[str], Target]:
    """Scan a table, change it and scan it again, with a kill at one step; return the steps and the target."""
    steps = Steps()
    table.snapshots = FragileSnapshots(steps)
    table.run("DELETE FROM items")
    rows = ", ".join(f"({key}, 'old')" for key in range(count))
    table.run(f"INSERT INTO items (id, a) VALUES {rows}")
    poller = Poller(table.source, steps)
    steps.last = last
    with table.watched(steps.queries):
        surviving(poller)
    steps.last, done = None, len(steps.names)
    table.run("UPDATE items SET a = 'new' WHERE id IN (0, 3, 4)")
    table.run("DELETE FROM items WHERE id IN (1, 6, 7)")
    table.run("INSERT INTO items (id, a) VALUES (9, 'late')")
    steps.last = None if last is None or last <= done else last
    del steps.names[done:]
    with table.watched(steps.queries):
        surviving(poller)
    surviving(poller)
    with table.engine.connect() as connection:
        rows_now = connection.execute(text("SELECT id, a, b FROM items")).mappings()
        assert poller.target.rows == {(row["id"],): dict(row) for row in rows_now}
    return steps.names, poller.target


STEPS = {
    "before the names",
    "before a read",
    "before a write",
    "after the writes",
    "before a removal",
    "after the removals",
    "before the handler",
    "before the commit",
    "after the commit",
}


def surviving(poller: Poller) -> None:
    try:
        poller.scan(limit=2)
    except Killed:
        poller.scan(limit=2)


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_kill_at_any_step_of_a_scan_loses_nothing_and_changes_no_id(
    database_url: str, provider: EngineProvider, part: int
) -> None:
    table = Table(database_url, provider, PLAIN, ["id"], block_rows=3)
    count = 8 if database_url.startswith("sqlite") else 4  # the same steps, fewer times
    steps, calm = killed_and_resumed(table, None, count)
    assert {step for step in steps if "SELECT" not in step} == STEPS
    expected = {(change.op, repr(change.key), repr(change.after)) for change in calm.told}
    for last in range(part, len(steps) + 1, 3):
        _, target = killed_and_resumed(table, last, count)
        assert {(change.op, repr(change.key), repr(change.after)) for change in target.told} == expected
        assert len(target.ids) == len(expected), f"a change has two ids after a kill at step {last}"


# Ids, progress, order.


def test_a_row_that_goes_back_and_forth_has_a_new_id_each_time(lite: Table) -> None:
    poller = Poller(lite.source)
    for value in ("A", "B", "A", "B"):
        put(lite, 1, value)
        poller.scan()
    assert len({change.position for change in poller.target.told}) == 4


def test_a_reset_delivers_everything_anew_and_reuses_no_id_for_another_change(lite: Table) -> None:
    poller = Poller(lite.source)
    for value in ("A", "B", "A"):
        put(lite, 1, value)
        poller.scan()
    for value in ("B", "A", "B"):
        poller.checkpoint = {}
        assert [change.op for change in poller.scan()] == ["insert"]
        put(lite, 1, value)
        assert [change.op for change in poller.scan()] == ["update"]
    updates = [change.position for change in poller.target.told if change.op == "update"]
    assert len(updates) == len(set(updates))


def test_a_row_that_changes_all_the_time_does_not_keep_a_scan_from_its_end(lite: Table) -> None:
    for key in range(6):
        put(lite, key, "old")
    poller, times = Poller(lite.source), iter(range(1_000))
    poller.scan()
    lite.run("UPDATE items SET a = 'new'")
    told = poller.scan(limit=1, between=lambda: put(lite, 0, f"hot {next(times)}"))
    assert [change.key["id"] for change in told] == [0, 1, 2, 3, 4, 5]


def test_a_key_in_another_case_is_deleted_before_it_is_inserted(
    mariadb_database: str, provider: EngineProvider
) -> None:
    ddl = "CREATE TABLE items (k varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY)"
    table = Table(mariadb_database, provider, ddl, ["k"])
    table.run("INSERT INTO items VALUES ('b')")
    poller = Poller(table.source)
    poller.scan()
    table.run("UPDATE items SET k = 'B'")
    assert [(change.op, change.key["k"]) for change in poller.scan()] == [("delete", "b"), ("insert", "B")]


def test_rows_that_another_collation_puts_elsewhere_are_an_error_and_not_told_to_be_deleted(
    postgres_database: str, provider: EngineProvider
) -> None:
    ddl = 'CREATE TABLE items (k text COLLATE "C" PRIMARY KEY, v integer)'
    table = Table(postgres_database, provider, ddl, ["k"], block_rows=2)
    for key in "aBcDeFgHiJ":
        table.run("INSERT INTO items VALUES (:k, 1)", k=key)
    poller = Poller(table.source)
    poller.scan(limit=2)
    table.run('ALTER TABLE items ALTER COLUMN k TYPE text COLLATE "en-x-icu"')
    table.run("UPDATE items SET v = 2")
    with pytest.raises(PositionLostError, match="collation"):
        poller.scan(limit=1)
    assert [change for change in poller.target.told if change.op == "delete"] == []
    poller.checkpoint = {}
    poller.scan()
    assert poller.target.rows == table.rows()
    assert poller.scan() == []


def test_keys_that_the_database_takes_for_the_same_are_all_found(
    postgres_database: str, provider: EngineProvider
) -> None:
    rule = "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    table = Table(postgres_database, provider, rule, ["k"], block_rows=2)
    table.run('CREATE TABLE items (k text COLLATE "any_case", v integer)')
    for number, key in enumerate(["same", "Same", "SAME", "sAme", "other", "saME"]):
        table.run("INSERT INTO items VALUES (:k, :v)", k=key, v=number)
    poller = Poller(table.source)
    poller.scan(limit=2)
    table.run("UPDATE items SET v = v + 10")
    poller.scan(limit=1)
    poller.scan(limit=1)
    assert poller.target.rows == table.rows()


COLLATIONS = {
    "sqlite": ["NOCASE", "RTRIM", "BINARY"],
    "postgresql": ['"C"', '"en-x-icu"', '"any_case"', '"any_accent"', '"by_number"'],
    "mysql": [
        "utf8mb4_general_ci",
        "utf8mb4_unicode_ci",
        "utf8mb4_unicode_520_ci",
        "utf8mb4_bin",
        "utf8mb4_swedish_ci",
    ],
    "mariadb": ["utf8mb4_unicode_nopad_ci", "utf8mb4_nopad_bin"],
    "mysql proper": ["utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_ja_0900_as_cs_ks"],
}
ICU = {"any_case": "und-u-ks-level2", "any_accent": "und-u-ks-level1", "by_number": "und-u-kn-true-ka-shifted"}
SAME_BYTES = {
    "sqlite": "k COLLATE BINARY = :k",
    "postgresql": 'k COLLATE "C" = :k',
    "mysql": "CAST(k AS BINARY) = CAST(:k AS BINARY)",
}


def test_keys_that_sqlite_takes_for_the_same_come_page_by_page(sqlite_database: str, provider: EngineProvider) -> None:
    ddl = "CREATE TABLE items (k text COLLATE NOCASE, v integer)"
    table = Table(sqlite_database, provider, ddl, ["k"], block_rows=2)
    for key in ("b", "ab", "Ab", "aB", "AB", "a"):
        table.run("INSERT INTO items VALUES (:k, 1)", k=key)
    poller = Poller(table.source)
    poller.scan(limit=1)
    assert poller.target.rows == table.rows()
    assert len(poller.target.told) == 6


def test_a_row_behind_many_new_ones_of_its_block_is_not_told_to_be_deleted(lite: Table) -> None:
    for key in (10, 20, 30, 40):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan()
    for key in range(11, 20):
        put(lite, key)
    assert {change.op for change in poller.scan()} == {"insert"}
    assert poller.target.rows == lite.rows()


# Each family is one key to some collation.
FAMILIES = [
    ["a", "A", "a ", "A  ", "\u00e1", "A\u0301"],
    ["ss", "SS", "\u00df", "s\u017f"],
    ["i", "I", "\u0131", "\u0130"],
    ["ae", "\u00e4", "\u00e6", "\u00c4"],
    ["2", "02", "10", "002"],
    ["ab", "a-b", "a b", "AB"],
    ["\u30a2", "\u3042", "\uff71"],
    ["", " ", "\U0001f600"],
]
FAMILY = st.lists(st.sampled_from(FAMILIES), min_size=1, max_size=2, unique_by=tuple).map(
    lambda chosen: [key for family in chosen for key in family]
)
TURNS = FAMILY.flatmap(
    lambda keys: st.lists(
        st.lists(st.tuples(st.sampled_from(keys), st.integers(0, 2)), max_size=10), min_size=1, max_size=4
    )
)


@pytest.fixture
def collations(database_url: str) -> list[str]:
    """The collations that this database has to offer for the worse."""
    engine = create_engine(database_url)
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            for name, locale in ICU.items():
                rule = f"(provider = icu, locale = '{locale}', deterministic = false)"
                connection.execute(text(f"CREATE COLLATION {name} {rule}"))
    engine.dispose()
    return COLLATIONS[own_kind(database_url)]


def own_kind(url: str) -> str:
    """Return which database this is; MariaDB is not MySQL."""
    engine = create_engine(url)
    with engine.connect():
        is_mariadb = getattr(engine.dialect, "is_mariadb", False)
    engine.dispose()
    return "mariadb" if is_mariadb else engine.dialect.name


@FEW
@hypothesis.given(data=st.data())
def test_no_collation_of_the_key_hides_a_row_or_takes_it_for_another(
    database_url: str, provider: EngineProvider, collations: list[str], data: st.DataObject
) -> None:
    dialect = create_engine(database_url).dialect.name
    collation = data.draw(st.sampled_from(collations), "collation")
    key = f"k varchar(20) {'CHARACTER SET utf8mb4' if dialect == 'mysql' else ''} COLLATE {collation}"
    table = Table(database_url, provider, "DROP TABLE IF EXISTS items", ["k"], block_rows=2)
    table.run(f"CREATE TABLE items ({key}, v integer)")
    table.run("CREATE INDEX items_by_key ON items (k)")
    poller = Poller(table.source)
    for turn in data.draw(TURNS, "keys of each turn, 0: deleted"):
        for name, value in turn:
            table.run(f"DELETE FROM items WHERE {SAME_BYTES[dialect]}", k=name)
            if value:
                table.run("INSERT INTO items VALUES (:k, :v)", k=name, v=value)
        told = poller.scan(limit=data.draw(st.integers(1, 4), "limit"))
        rows = table.rows()
        assert poller.target.rows == rows
        assert [change for change in told if change.op == "delete" and tuple(change.key.values()) in rows] == []
    assert poller.scan() == []


# Sessions.


def test_no_setting_of_a_postgres_session_makes_a_row_look_changed_or_hides_a_change(
    postgres_database: str, provider: EngineProvider
) -> None:
    ddl = "CREATE TABLE items (id int PRIMARY KEY, t timestamptz, d date, f float8, g float4, v interval, x bytea)"
    table = Table(postgres_database, provider, ddl, ["id"])
    row = "1, '2026-03-29 01:30+00', '2026-03-04', 0.1, 0.1, '1 year 2 days 3 hours', '\\x00ff'"
    table.run(f"INSERT INTO items VALUES ({row})".replace(":30", "\\:30"))
    poller = Poller(table.source)
    poller.scan()
    name = postgres_database.rsplit("/", 1)[1]
    for setting in (
        "TimeZone = 'America/New_York'",
        "DateStyle = 'German'",
        "extra_float_digits = -15",
        "IntervalStyle = 'iso_8601'",
        "bytea_output = 'escape'",
    ):
        table.run(f"ALTER DATABASE {name} SET {setting}")
    provider.dispose_all()
    assert poller.scan() == []
    for change in ("f = 0.1 + 2e-17::float8", "g = 0.1 + 1e-8::float4"):
        table.run(f"UPDATE items SET {change}".replace("::", "\\:\\:"))
        told = len(poller.scan())
        with table.engine.connect() as connection:
            changed = connection.execute(text("SELECT f <> 0.1 OR g <> 0.1 FROM items")).scalar_one()
        assert told == (1 if changed else 0)


def test_the_last_digit_of_a_float_and_the_zone_of_a_session_are_told_apart_on_mariadb(
    mariadb_database: str, provider: EngineProvider
) -> None:
    ddl = "CREATE TABLE items (id int PRIMARY KEY, f float, d double, t timestamp(6) NULL)"
    table = Table(mariadb_database, provider, ddl, ["id"])
    table.run("INSERT INTO items VALUES (1, 16777216, 0.1, '2026-03-29 01:30:00')".replace(":", "\\:"))
    poller = Poller(table.source)
    poller.scan()
    with table.engine.connect() as connection:
        connection.execute(text("SET GLOBAL time_zone = '-05\\:00'"))
    provider.dispose_all()
    try:
        assert poller.scan() == []
    finally:
        table.run("SET GLOBAL time_zone = 'SYSTEM'")
        provider.dispose_all()
    for change in ("f = 16777214", "f = 16777215", "d = 0.1 + 2e-17", "d = 0.10000000000000002"):
        with table.engine.begin() as connection:
            before = connection.execute(text("SELECT f + 0e0, d FROM items")).one()
            connection.execute(text(f"UPDATE items SET {change}"))
            after = connection.execute(text("SELECT f + 0e0, d FROM items")).one()
        assert len(poller.scan()) == (before != after)


def test_every_bit_of_a_double_counts_on_mariadb(mariadb_database: str, provider: EngineProvider) -> None:
    table = Table(mariadb_database, provider, "CREATE TABLE items (id int PRIMARY KEY, d double)", ["id"])
    values = [value for base in (0.1, 1 / 3, 1e22, 5e-324, 123456789.123456789) for value in (base, next_after(base))]
    for number, value in enumerate(values):
        table.run("INSERT INTO items VALUES (:id, :d)", id=number, d=value)
    poller = Poller(table.source)
    poller.scan()
    for number, value in enumerate(values):
        table.run("UPDATE items SET d = :d WHERE id = :id", id=number, d=next_after(value))
    assert len(poller.scan()) == len(values)


def next_after(value: float) -> float:
    import math

    return math.nextafter(value, math.inf)


# Pages, ticks, snapshots.


def test_an_idle_tick_writes_nothing(lite: Table) -> None:
    put(lite, 1)
    snapshots = FragileSnapshots(steps := Steps())
    lite.snapshots = snapshots
    poller = Poller(lite.source)
    poller.scan()
    before = poller.checkpoint
    del steps.names[:]
    assert poller.scan() == []
    assert poller.checkpoint == before
    assert not any("write" in name or "removal" in name for name in steps.names)


def test_a_tick_looks_at_no_more_rows_than_it_should_and_the_next_one_goes_on(lite: Table) -> None:
    for key in range(12):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan(limit=3)
    put(lite, 11, "new")
    checkpoint, told, ticks = poller.checkpoint, list[Any](), 0
    while not told:
        reader = lite.source(rows_per_tick=4).open()
        page = reader.fetch_changes(checkpoint, 100)
        assert page.next_checkpoint != checkpoint
        checkpoint, told, ticks = page.next_checkpoint, list(page.records), ticks + 1
    assert [change.key for change in told] == [{"id": 11}]
    assert ticks > 1


def test_the_next_scan_is_begun_when_its_time_has_come(lite: Table) -> None:
    now = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]
    poller = Poller(lambda: lite.source(scan_interval_seconds=3600, now=lambda: now[0]))
    put(lite, 1)
    assert len(poller.scan()) == 1
    put(lite, 2)
    now[0] += dt.timedelta(minutes=59)
    assert poller.scan() == []
    now[0] += dt.timedelta(minutes=1)
    assert len(poller.scan()) == 1


def test_a_holder_who_clears_up_late_removes_nothing_that_is_needed(lite: Table) -> None:
    for key in range(9):
        put(lite, key)
    late = lite.source().open()
    first = late.fetch_changes({}, 100).next_checkpoint
    other = lite.source().open()
    lite.run("UPDATE items SET a = 'new'")
    second = other.fetch_changes(first, 100).next_checkpoint
    late.acknowledge(first)
    other.acknowledge(second)
    assert other.fetch_changes(second, 100).records == []


def test_what_crashes_leave_behind_is_cleared_up(lite: Table) -> None:
    for key in range(9):
        put(lite, key)
    source = lite.source()
    checkpoint = source.fetch_changes({}, 100).next_checkpoint
    source.acknowledge(checkpoint)
    following = checkpoint
    for value in ("x", "y", "z"):
        put(lite, 1, value)
        following = source.fetch_changes(checkpoint, 100).next_checkpoint
    before = source.documents.size()
    source.acknowledge(following)
    assert source.documents.size() < before


def test_a_page_that_is_tried_again_and_again_leaves_no_more_than_once(table: Table) -> None:
    put(table, 1)
    source = table.source(snapshots=SqlSnapshots(url=table.url, engine_provider=table.provider))
    checkpoint = source.fetch_changes({}, 100).next_checkpoint
    put(table, 2)
    source.fetch_changes(checkpoint, 100)
    size = source.documents.size()
    source.fetch_changes(checkpoint, 100)
    assert source.documents.size() == size


def test_a_window_that_moves_over_the_keys_leaves_no_trail_of_empty_blocks(lite: Table) -> None:
    poller = Poller(lite.source)
    for start in range(0, 300, 10):
        lite.run("DELETE FROM items")
        lite.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in range(start, start + 10)))
        poller.scan()
    root = lite.source().documents.root(poller.checkpoint["cursor"]["snapshot"])
    assert len(root.blocks) < 20
    assert poller.target.rows == lite.rows()


def test_two_pollers_on_one_snapshot_are_told_so(lite: Table) -> None:
    put(lite, 1)
    one, other = Poller(lite.source), Poller(lite.source)
    one.scan()
    other.scan()
    put(lite, 2)
    other.scan()
    with pytest.raises(PositionLostError, match="name= of its own"):
        one.scan()


def test_a_reset_begins_behind_all_that_is_there_though_nobody_has_cleared_up(lite: Table) -> None:
    source, checkpoint, told = lite.source(), dict[str, Any](), list[str]()
    for value in ("A", "B", "A"):
        put(lite, 1, value)
        page = source.fetch_changes(checkpoint, 10)
        told += [change.position for change in page.records]
        checkpoint = page.next_checkpoint
    anew = source.fetch_changes({}, 10)
    assert [change.position in told for change in anew.records] == [False]
    source.acknowledge(checkpoint)  # by whoever was stopped in the middle of it
    assert source.fetch_changes(anew.next_checkpoint, 10).records == []
    source.acknowledge(anew.next_checkpoint)
    assert source.documents.size() == 2, "a block and its root"


def test_an_older_checkpoint_is_told_to_be_lost(lite: Table) -> None:
    put(lite, 1)
    poller = Poller(lite.source)
    poller.scan()
    old = poller.checkpoint
    put(lite, 2)
    poller.scan()
    poller.checkpoint = old
    with pytest.raises(PositionLostError, match="reset the poller to the beginning"):
        poller.scan()


def test_a_column_that_is_added_is_an_update_of_every_row_unless_columns_are_named(lite: Table) -> None:
    put(lite, 1)
    every, named = Poller(lite.source), Poller(lambda: lite.source(columns=["a"], name="named"))
    every.scan()
    named.scan()
    lite.run("ALTER TABLE items ADD COLUMN c integer")
    assert [change.after for change in every.scan()] == [{"id": 1, "a": "a", "b": "b", "c": None}]
    assert named.scan() == []
    lite.run("UPDATE items SET b = 'other'")
    assert named.scan() == []


def test_a_row_that_python_cannot_hold_goes_into_quarantine(postgres_database: str, provider: EngineProvider) -> None:
    ddl = "CREATE TABLE items (id int PRIMARY KEY, d date, n numeric(5, 2) DEFAULT 1.5)"
    table = Table(postgres_database, provider, ddl, ["id"])
    table.run("INSERT INTO items VALUES (1, '2026-01-01'), (2, '0044-03-15 BC'), (3, NULL)")
    sink, seen = MemoryQuarantine(), list[Any]()
    trigger = PollTrigger(name="t", source=table.source(), checkpoint_store=MemoryStateStore(), quarantine=sink)
    trigger.run(timer=None, handler=lambda events: seen.extend((event.pk["id"], event.after["n"]) for event in events))
    assert seen == [(1, Decimal("1.5")), (3, Decimal("1.5"))]
    assert [row.event["after"] for row in sink.entries()] == [{"id": 2, "d": "0044-03-15 BC", "n": "1.50"}]


@pytest.mark.parametrize("kind", ["text", "timestamp", "json", "integer"])
@pytest.mark.parametrize("keep_rows", [False, True])
def test_a_text_that_is_not_utf8_goes_into_quarantine(
    sqlite_database: str, provider: EngineProvider, kind: str, keep_rows: bool
) -> None:
    ddl = f"CREATE TABLE items (id integer PRIMARY KEY, d {kind}, n numeric(5, 2) DEFAULT 1.5)"
    table = Table(sqlite_database, provider, ddl, ["id"], block_rows=3)
    table.run("INSERT INTO items (id, d) VALUES (1, NULL), (2, CAST(x'ff61' AS text)), (3, x'ff61'), (4, 7)")
    sink, seen, states = MemoryQuarantine(), list[Any](), MemoryStateStore()

    def tick() -> None:
        source = table.source(keep_rows=keep_rows)
        trigger = PollTrigger(name="t", source=source, checkpoint_store=states, quarantine=sink)
        trigger.run(timer=None, handler=lambda events: seen.extend((event.op, event.pk["id"]) for event in events))

    tick()
    assert seen == [("insert", 1), ("insert", 3), ("insert", 4)]
    assert [row.event["after"] for row in sink.entries()] == [{"id": 2, "d": "\\xffa", "n": "1.5"}]
    tick()
    assert len(seen) == 3, "and is told once"
    table.run("UPDATE items SET d = NULL WHERE id = 2")
    table.run("UPDATE items SET d = CAST(d AS text) WHERE id = 3")
    tick()
    assert seen[3:] == [("update", 2)]
    assert {row.event["pk"]["id"] for row in sink.entries()} == {2, 3}, "bytes and the same as a text are told apart"
    table.run("UPDATE items SET d = CAST(x'ff62' AS text) WHERE id = 3")
    table.run("DELETE FROM items WHERE id = 2")
    tick()
    assert seen[4:] == [("delete", 2)]
    assert table.source().examine()


def test_a_key_that_is_not_utf8_is_one_clear_error(sqlite_database: str, provider: EngineProvider) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (k text PRIMARY KEY, d text)", ["k"])
    table.run("INSERT INTO items VALUES ('a', 'a'), (CAST(x'ff61' AS text), 'b')")
    with pytest.raises(FetchError, match=r"a key \(k\) that Python cannot hold.*where="):
        table.source().fetch_changes({}, 10)
    with pytest.raises(FetchError, match=r"a key \(k\) that Python cannot hold"):
        table.source(block_rows=2).fetch_changes({}, 2)


def test_a_row_that_cannot_be_read_keeps_its_key(sqlite_database: str, provider: EngineProvider) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (k blob PRIMARY KEY, d text)", ["k"])
    table.run("INSERT INTO items VALUES (x'00ff', CAST(x'ff61' AS text))")
    page = table.source().fetch_changes({}, 10)
    [change] = page.records
    assert list(page.undecodable) == [0]
    assert (change.key, change.after) == ({"k": b"\0\xff"}, {"k": b"\0\xff", "d": "\\xffa"})


def test_a_row_comes_out_of_the_quarantine_as_it_was_delivered(typed: Table, tmp_path: Path) -> None:
    at = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)  # noqa: DTZ001 - the session says the zone
    row = {"i": -(2**60), "f": 0.1, "d": "1.500", "t": at, "y": dt.date(2026, 3, 29), "x": b"\0\xff", "o": True}
    history, sink, seen = History(typed), FileQuarantine(tmp_path), dict[str, RowChange]()
    trigger = PollTrigger(
        name="t",
        source=typed.source(keep_rows=True),
        checkpoint_store=MemoryStateStore(),
        quarantine=sink,
        max_attempts=1,
    )

    def refuse(events: list[RowChange]) -> None:
        seen.update({event.event_id: event for event in events})
        raise RowsFailed({event.event_id: "no" for event in events})

    try:
        changes = [("a", 1, "put", row | {"i": 1, "j": '{"n": 1.5}'}), ("b", 1, "delete", {})]
        for writes in ([("a", 1, "put", row), ("b", 1, "put", {})], changes):
            history.write(writes)
            trigger.run(timer=None, handler=refuse)
            trigger.run(timer=None, handler=refuse)  # where all fail, it is looked at twice
    finally:
        history.end()
    definition: Any = SimpleNamespace(settings=trigger.settings)
    again = {entry.event_id: event_of(Entry(entry, sink, definition)) for entry in sink.entries()}
    assert len(again) == 4
    for event in seen.values():
        twin = again[event.event_id]
        assert (repr(twin.pk), repr(twin.before), repr(twin.after)) == (
            repr(event.pk),
            repr(event.before),
            repr(event.after),
        )
        assert (repr(twin.cursor), twin.metadata["fetched_at"]) == (repr(event.cursor), event.metadata["fetched_at"])


def test_the_backlog_counts_changes_and_consumes_nothing(table: Table) -> None:
    for key in range(7):
        put(table, key)
    assert table.source().backlog({}).amount == 7
    poller = Poller(table.source)
    poller.scan(limit=3)
    assert table.source().backlog(poller.checkpoint).amount == 0
    put(table, 0, "new")
    put(table, 9)
    table.run("DELETE FROM items WHERE id IN (2, 3, 4)")
    assert table.source().backlog(poller.checkpoint).amount == 5
    assert len(poller.scan()) == 5


def test_more_columns_than_sqlite_takes_for_a_function_are_hashed(
    sqlite_database: str, provider: EngineProvider
) -> None:
    columns = ", ".join(f"c{number} integer" for number in range(230))
    table = Table(sqlite_database, provider, f"CREATE TABLE items (id integer PRIMARY KEY, {columns})", ["id"])
    table.run("INSERT INTO items (id) VALUES (1)")
    poller = Poller(table.source)
    poller.scan()
    for name in ("c0", "c95", "c229"):
        table.run(f"UPDATE items SET {name} = 1")
        assert len(poller.scan()) == 1


KINDS = {
    "sqlite": {
        "text": "'{}'",
        "integer": "{}",
        "numeric": "{}.5",
        "blob": "x'0{}'",
        "timestamp": "'2026-01-0{} 10\\:00'",
    },
    "postgresql": {
        "uuid": "'0000000{}-0000-0000-0000-000000000000'",
        "numeric": "{}.50",
        "timestamptz": "'2026-01-0{} 10\\:00+02'",
        "timestamp": "'2026-01-0{} 10\\:00'",
        "date": "'2026-01-0{}'",
        "time": "'0{}\\:00'",
        "bytea": "'\\x0{}'",
        "char(10)": "'{}'",
        "bigint": "-{}",
    },
    "mysql": {
        "bigint unsigned": "1844674407370955161{}",
        "decimal(10, 2)": "{}.5",
        "timestamp(6)": "'2026-01-0{} 10\\:00\\:00'",
        "datetime(6)": "'2026-01-0{} 10\\:00\\:00'",
        "date": "'2026-01-0{}'",
        "time(6)": "'-10{}\\:00\\:00.5'",
        "varbinary(20)": "x'0{}'",
        "char(10)": "'{}'",
    },
}
KINDS["mariadb"] = {**KINDS["mysql"], "uuid": "'0000000{}-0000-0000-0000-000000000000'"}


def test_a_table_that_is_gone_is_told_as_such(lite: Table) -> None:
    reader = lite.source().open()
    checkpoint = reader.fetch_changes({}, 10).next_checkpoint
    lite.run("DROP TABLE items")
    with pytest.raises(SourceConfigurationError, match="items"):
        reader.fetch_changes(checkpoint, 10)


def test_keys_of_any_type_are_followed(database_url: str, provider: EngineProvider) -> None:
    for kind, literal in KINDS[own_kind(database_url)].items():
        ddl = f"CREATE TABLE items (k {kind}, n integer, v integer, PRIMARY KEY (k, n))"
        table = Table(database_url, provider, ddl, ["k", "n"], name=kind, block_rows=2)
        for number in range(1, 5):
            table.run(f"INSERT INTO items VALUES ({literal.format(number)}, 1, 1), ({literal.format(number)}, 2, 1)")
        poller = Poller(table.source)
        assert len(poller.scan(limit=3)) == 8, kind
        assert poller.scan() == [], kind
        table.run(f"DELETE FROM items WHERE k = {literal.format(2)} AND n = 1")
        table.run(f"UPDATE items SET v = 2 WHERE k = {literal.format(3)}")
        assert sorted(change.op for change in poller.scan(limit=2)) == ["delete", "update", "update"], kind
        assert {type(change.key["k"]) for change in poller.target.told} == {type(poller.target.told[0].key["k"])}, kind
        assert all(change.key.items() <= change.after.items() for change in poller.target.told if change.after), kind
        assert poller.target.rows == table.rows(), kind
        table.run("DROP TABLE items")
        provider.dispose_all()


# What is refused.


def test_a_query_whose_key_comes_twice_is_refused(table: Table) -> None:
    put(table, 1)
    source = table.source(table=None, query="SELECT id, a FROM items UNION ALL SELECT id, a FROM items")
    with pytest.raises(SourceConfigurationError, match="does not tell rows apart"):
        source.fetch_changes({}, 10)


def test_a_null_in_the_key_is_refused(table: Table) -> None:
    put(table, 1, None)
    source = HashDiffSource(url=table.url, table="items", pk_columns=["a"], engine_provider=table.provider)
    with pytest.raises(SourceConfigurationError, match="NULL in their key"):
        source.fetch_changes({}, 10)


def test_a_key_that_has_got_another_type_is_refused(postgres_database: str, provider: EngineProvider) -> None:
    table = Table(postgres_database, provider, PLAIN, ["id"])
    put(table, 1)
    poller = Poller(table.source)
    poller.scan()
    table.run("ALTER TABLE items ALTER COLUMN id TYPE text")
    with pytest.raises(SourceConfigurationError, match=r"id: integer.*id: text.*Reset"):
        poller.scan()


@pytest.mark.parametrize("kind", ["text", "timestamp"])
def test_a_key_of_another_type_in_a_new_table_is_refused(lite: Table, kind: str) -> None:
    put(lite, 1)
    poller = Poller(lite.source)
    poller.scan()
    lite.run("DROP TABLE items")
    lite.run(f"CREATE TABLE items (id {kind} PRIMARY KEY, a varchar(50), b varchar(50))")
    with pytest.raises(SourceConfigurationError, match=rf"id: integer.*id: {kind}.*Reset"):
        poller.scan()


def test_a_key_with_room_for_more_goes_on(postgres_database: str, provider: EngineProvider) -> None:
    table = Table(postgres_database, provider, PLAIN, ["id"])
    put(table, 1)
    poller = Poller(table.source)
    poller.scan()
    table.run("ALTER TABLE items ALTER COLUMN id TYPE bigint")
    assert poller.scan() == []


def test_a_snapshot_of_another_definition_is_refused(lite: Table) -> None:
    put(lite, 1)
    Poller(lite.source).scan()
    with pytest.raises(SourceConfigurationError, match="another definition"):
        lite.source(where="id > 0").fetch_changes({}, 10)
    lite.source().discard_snapshot()
    assert len(lite.source(where="id > 0").fetch_changes({}, 10).records) == 1


def test_a_table_that_holds_something_else_is_no_place_for_snapshots(table: Table) -> None:
    put(table, 1)
    source = table.source(snapshots=SqlSnapshots(url=table.url, table="items", engine_provider=table.provider))
    with pytest.raises(SourceConfigurationError, match="no table of snapshots"):
        source.fetch_changes({}, 10)


def test_a_checkpoint_of_another_kind_of_source_is_refused(lite: Table) -> None:
    with pytest.raises(SourceConfigurationError, match="none of a hash diff"):
        lite.source().fetch_changes({"cursor": {"kind": "integer+pk", "value": 3, "tiebreaker": {"id": 1}}}, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pk_columns": []}, "at least one column"),
        ({"pk_columns": "id"}, "list of names"),
        ({"table": None}, "exactly one of table= and query="),
        ({"url": None}, "url"),
        ({"block_rows": 0}, "block_rows="),
        ({"rows_per_tick": -1}, "rows_per_tick="),
        ({"scan_interval_seconds": -1}, "scan_interval_seconds="),
        ({"scan_interval_seconds": "soon"}, "scan_interval_seconds="),
        ({"block_rows": True}, "block_rows="),
        ({"block_rows": "3"}, "block_rows="),
        ({"name": "x" * 300}, "too long"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceConfigurationError, match=message):
        HashDiffSource(**{"url": "sqlite://", "table": "items", "pk_columns": ["id"], **options})


def test_no_time_between_scans_is_a_time() -> None:
    assert HashDiffSource(url="sqlite://", table="items", pk_columns=["id"], scan_interval_seconds=0).name == "items"


@pytest.mark.parametrize(("key", "message"), [(["missing"], "There is no column"), (["f"], "cannot be a key")])
def test_keys_that_cannot_be_are_refused(
    sqlite_database: str, provider: EngineProvider, key: list[str], message: str
) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (id integer PRIMARY KEY, f double)", key)
    with pytest.raises(SourceConfigurationError, match=message):
        table.source().validate()


def test_doctor_tells_the_cost_beforehand_and_a_missing_index(table: Table) -> None:
    for key in range(5):
        put(table, key)
    findings = {finding.check: finding for finding in table.source().examine()}
    assert {"key", "unique key", "index", "cost", "snapshot"} <= set(findings)
    assert "5 row(s)" in findings["cost"].text
    assert findings["index"].grade == "ok"
    table.keys = ["a"]
    table.run("UPDATE items SET a = id")
    findings = {finding.check: finding for finding in table.source(name="other").examine()}
    assert findings["index"].grade == "warning"
    assert "CREATE INDEX" in str(findings["index"].remedy)
    table.run(str(findings["index"].remedy))


def test_positions_are_told_in_words(lite: Table) -> None:
    source = lite.source(rows_per_tick=3)
    assert source.describe({}) == "beginning"
    for key in range(9):
        put(lite, key)
    begun = source.fetch_changes({}, 3).next_checkpoint
    assert source.describe(begun) == "scan 1, up to id=2"
    poller = Poller(lite.source)
    poller.scan()
    assert source.describe(poller.checkpoint).startswith("scan 1, finished 20")
    assert source.parse("beginning") == {}
    with pytest.raises(SourceConfigurationError, match="from the beginning"):
        source.parse("id=3")


# Rows once more.


def test_a_range_of_keys_comes_page_by_page_whatever_was_delivered(table: Table) -> None:
    for key in range(8):
        put(table, key)
    source = table.source()
    rows = source.ranged(source.cursor_from("2"), source.cursor_from("5"))
    rows.validate()
    first = rows.fetch_changes({}, 3)
    assert [(change.op, change.key) for change in first.records] == [("upsert", {"id": key}) for key in (2, 3, 4)]
    assert (first.more, first.undecodable) == (True, {})
    assert [rows.count_changes({}), rows.count_changes({}, 3), rows.count_changes(first.next_checkpoint)] == [4, 3, 1]
    second = rows.fetch_changes(first.next_checkpoint, 3)
    assert ([change.key["id"] for change in second.records], second.more) == ([5], False)
    last = rows.fetch_changes(second.next_checkpoint, 3)
    assert (last.records, last.next_checkpoint, last.more) == ([], second.next_checkpoint, False)
    assert [change.position for change in rows.fetch_changes({}, 3).records] == [one.position for one in first.records]
    for given, expected in (((6, None), [6, 7]), ((None, 1), [0, 1]), ((None, None), list(range(8)))):
        assert [change.key["id"] for change in source.ranged(*given).fetch_changes({}, 9).records] == expected


def test_the_ends_of_a_range_are_local_times_of_the_session(mariadb_database: str, provider: EngineProvider) -> None:
    zoned = make_url(mariadb_database).update_query_dict({"init_command": "SET time_zone = '+02:00'"})
    ddl = "CREATE TABLE items (k timestamp PRIMARY KEY, n integer)"
    table = Table(zoned.render_as_string(hide_password=False), provider, ddl, ["k"])
    for hour in (3, 4, 5, 6, 7):
        table.run(f"INSERT INTO items VALUES ('2026-06-01 0{hour}\\:00\\:00', {hour})")
    first, last = (dt.datetime(2026, 6, 1, hour) for hour in (4, 5))  # noqa: DTZ001 - the session says the zone
    found = table.source().ranged(first, last).fetch_changes({}, 9).records
    assert [change.after["n"] for change in found] == [4, 5]


def test_a_range_of_a_table_that_is_not_there_is_refused(lite: Table) -> None:
    rows = lite.source(table="nothing").ranged(1, 2)
    for ask in (rows.validate, lambda: rows.fetch_changes({}, 1), lambda: rows.count_changes({})):
        with pytest.raises(SourceConfigurationError, match="nothing"):
            ask()


def test_keys_of_any_type_bound_a_range(database_url: str, provider: EngineProvider) -> None:
    for kind, literal in KINDS[own_kind(database_url)].items():
        table = Table(database_url, provider, f"CREATE TABLE items (k {kind}, n integer)", ["k", "n"], name=kind)
        empty = table.source().ranged(None, None).fetch_changes({}, 1)
        assert empty.records == []
        for number in range(1, 5):
            value = literal.format(number).replace("10\\:00'", "10\\:00\\:00'")  # as people write to SQLite
            table.run(f"INSERT INTO items VALUES ({value}, 1)")
        source = table.source()
        keys = [change.key["k"] for change in source.ranged(None, None).fetch_changes({}, 9).records]
        some = source.ranged(keys[1], keys[2]).fetch_changes({}, 9).records
        assert [change.key["k"] for change in some] == keys[1:3], kind
        table.run("DROP TABLE items")
        provider.dispose_all()


@pytest.mark.parametrize("kind", ["timestamp", "datetime"])
def test_a_time_bounds_a_range_whatever_the_zone_of_a_session(
    mariadb_database: str, provider: EngineProvider, kind: str
) -> None:
    table = Table(mariadb_database, provider, f"CREATE TABLE items (t {kind} PRIMARY KEY)", ["t"])
    with table.engine.begin() as connection:
        connection.exec_driver_sql("SET time_zone = '+00:00'")
        for hour in range(4):
            connection.exec_driver_sql(f"INSERT INTO items VALUES ('2026-04-07 0{hour}:00:00')")
    provider.dispose_all()
    zoned = DbConfig(connection_url=mariadb_database, connect_args={"init_command": "SET time_zone = '+09:00'"})
    source = HashDiffSource(
        db_config=zoned, table="items", pk_columns=["t"], snapshots=MemorySnapshots(), engine_provider=provider
    )
    zone = dt.UTC if kind == "timestamp" else None
    times = [dt.datetime(2026, 4, 7, hour, tzinfo=zone) for hour in range(4)]
    elsewhere = [dt.datetime(2026, 4, 7, hour + 5, tzinfo=dt.timezone(dt.timedelta(hours=5))) for hour in (1, 2)]
    for bounds in (times[1:3], elsewhere):
        records = source.ranged(*bounds).fetch_changes({}, 9).records
        assert [change.key["t"] for change in records] == times[1:3]
    assert source.fetch_changes({}, 9).records[0].key == {"t": times[0]}


def test_a_row_of_a_range_that_python_cannot_hold_is_told(postgres_database: str, provider: EngineProvider) -> None:
    table = Table(postgres_database, provider, "CREATE TABLE items (id int PRIMARY KEY, d date)", ["id"])
    table.run("INSERT INTO items VALUES (1, '2026-01-01'), (2, '0044-03-15 BC'), (3, NULL)")
    page = table.source().ranged(None, None).fetch_changes({}, 9)
    assert list(page.undecodable) == [1]
    assert [change.after["d"] for change in page.records] == [dt.date(2026, 1, 1), "0044-03-15 BC", None]


# Comparing.


def compared(table: Table, poller: Poller, share: float = 1) -> tuple[int, int, list[Any]]:
    """Return how many rows were compared, how many changes wait, and the keys that no scan would find."""
    found = list(table.source().compared(poller.checkpoint, share))
    return (
        sum(one.checked for one in found),
        sum(one.waiting for one in found),
        [key["id"] for one in found for key in one.missing],
    )


def test_a_comparison_tells_what_waits_and_what_no_scan_would_find(lite: Table) -> None:
    poller = Poller(lite.source)
    assert compared(lite, poller) == (0, 0, [])
    for key in range(7):
        put(lite, key)
    assert compared(lite, poller)[1] == 7, "nothing was delivered yet"
    poller.scan()
    assert compared(lite, poller) == (7, 0, [])
    exchange_hashes(lite, poller)
    assert poller.scan() == [], "the sum is the same"
    rows, waiting, missing = compared(lite, poller)
    assert (rows, waiting, len(missing)) == (7, 0, 2)
    assert compared(lite, poller, share=0) == (0, 0, [])


def exchange_hashes(table: Table, poller: Poller) -> None:
    """Let the snapshot take two rows for each other."""
    documents = table.source().documents
    root = documents.root(poller.checkpoint["cursor"]["snapshot"])
    block = next(block for block in root.blocks if block.rows > 1)
    entries = documents.block(block, {})
    (one, first), (other, second), *rest = entries.items()
    table.snapshots.write("items", {block.names[0]: _body({one: second, other: first, **dict(rest)})})


def test_a_comparison_counts_what_has_changed_or_grown(lite: Table) -> None:
    for key in range(0, 90, 10):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan()
    put(lite, 0, "new")
    lite.run("DELETE FROM items WHERE id = 80")
    assert compared(lite, poller)[1:] == (2, [])
    for key in range(41, 60):
        put(lite, key)
    assert compared(lite, poller)[1:] == (2 + 18, []), "50 is what it was"
    assert lite.source().backlog(poller.checkpoint).amount == 20
    assert len(poller.scan()) == 20


def test_a_sample_leaves_blocks_aside(lite: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(9):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan(limit=3)
    rolls = iter([0.1, 0.9, 0.1, 0.9, 0.9, 0.9])
    monkeypatch.setattr("azure_functions_db.sources.hashdiff.source.random.random", lambda: next(rolls))
    assert 0 < compared(lite, poller, share=0.5)[0] < 9


# What a doctor says.


def findings_of(source: HashDiffSource) -> dict[str, str]:
    return {finding.check: finding.grade for finding in source.examine()}


@pytest.mark.parametrize(
    ("keys", "index", "expected"),
    [
        (["a"], "", {"key": "ok", "unique key": "note", "index": "warning"}),
        (["a"], "CREATE INDEX i ON items (a, b)", {"unique key": "note", "index": "ok"}),
        (["a"], "CREATE INDEX i ON items (a)", {"unique key": "note", "index": "ok"}),
        (["a"], "CREATE INDEX i ON items (b, a)", {"unique key": "note", "index": "warning"}),
        (["a"], "CREATE UNIQUE INDEX i ON items (a)", {"unique key": "ok", "index": "ok"}),
        (["a"], "CREATE UNIQUE INDEX i ON items (a, b)", {"unique key": "note", "index": "ok"}),
        (["a", "b"], "CREATE UNIQUE INDEX i ON items (a)", {"unique key": "ok", "index": "warning"}),
        (["id"], "", {"unique key": "ok", "index": "ok"}),
    ],
)
def test_the_findings_are_about_the_indexes_that_are_there(
    lite: Table, keys: list[str], index: str, expected: dict[str, str]
) -> None:
    put(lite, 1)
    if index:
        lite.run(index)
    lite.keys = keys
    found = findings_of(lite.source())
    assert {check: found[check] for check in expected} == expected


@pytest.mark.parametrize("column", ["a integer", "a integer REFERENCES items (a)", "a integer CHECK (a > 0)"])
def test_a_key_that_nothing_keeps_apart_is_told(sqlite_database: str, provider: EngineProvider, column: str) -> None:
    table = Table(sqlite_database, provider, f"CREATE TABLE items ({column}, b integer)", ["a"])
    found = findings_of(table.source())
    assert (found["unique key"], found["index"]) == ("note", "warning")


def test_a_null_in_a_key_and_the_index_of_a_query_are_told(lite: Table) -> None:
    lite.keys = ["a"]
    put(lite, 1)
    assert findings_of(lite.source())["key"] == "ok"
    put(lite, 2, None)
    assert findings_of(lite.source())["key"] == "error"
    asked = findings_of(lite.source(table=None, query="SELECT a FROM items WHERE a IS NOT NULL"))
    assert (asked["key"], asked["unique key"], asked["index"]) == ("ok", "note", "note")


def test_the_cost_is_that_of_all_rows(lite: Table) -> None:
    def cost(**options: Any) -> str:
        return next(one.text for one in lite.source(**options).examine() if one.check == "cost")

    assert "0 row(s)" in cost()
    assert "in 1 tick(s)" in cost()
    for key in range(5):
        put(lite, key)
    assert "in 3 tick(s)" in cost(rows_per_tick=2)
    assert "about 500 bytes where nothing" in cost()


@pytest.mark.parametrize(
    ("amount", "said"),
    [(999, "999 bytes"), (1000, "1 kB"), (999_400, "999 kB"), (2_000_000, "2 MB"), (5 * 10**9, "5 GB")],
)
def test_amounts_are_told_in_units_that_people_read(amount: int, said: str) -> None:
    assert _bytes(amount) == said


# Snapshots.


@pytest.mark.parametrize("place", ["memory", "table"])
def test_sources_share_a_place_for_snapshots_and_leave_each_other_alone(lite: Table, place: str) -> None:
    snapshots = MemorySnapshots() if place == "memory" else SqlSnapshots(url=lite.url, engine_provider=lite.provider)
    one = Poller(lambda: lite.source(name="one", snapshots=snapshots))
    other = Poller(lambda: lite.source(name="other", snapshots=snapshots, where="id > 0"))
    for value in ("a", "b", "c"):
        put(lite, 1, value)
        assert [len(poller.scan()) for poller in (one, other)] == [1, 1]
    one.source().discard_snapshot()
    assert other.scan() == []
    with pytest.raises(PositionLostError, match="no longer has"):
        one.scan()


def test_a_row_that_was_kept_before_is_there_though_others_were_not_kept(lite: Table) -> None:
    put(lite, 1, "first")
    put(lite, 2)
    poller = Poller(lambda: lite.source(keep_rows=True))
    plain = Poller(lite.source)
    plain.scan()
    poller.checkpoint = plain.checkpoint
    before = []
    for value in ("second", "third"):
        put(lite, 1, value)
        [change] = poller.scan()
        before.append(change.before)
    assert before == [None, {"id": 1, "a": "second", "b": "b"}]
    put(lite, 1, "fourth")
    [change] = plain_from(lite, poller.checkpoint)
    assert change.before == {"id": 1, "a": "third", "b": "b"}


def plain_from(table: Table, checkpoint: Any) -> list[Any]:
    return list(table.source().fetch_changes(checkpoint, 10).records)


def test_a_place_that_cannot_be_reached_is_an_error_that_a_poller_knows(lite: Table, tmp_path: Path) -> None:
    put(lite, 1)
    lost = SqlSnapshots(url=f"sqlite:///{tmp_path / 'missing' / 'x.db'}", engine_provider=lite.provider)
    with pytest.raises(FetchError, match="The table of snapshots azfdb_snapshots failed") as failed:
        lite.source(snapshots=lost).fetch_changes({}, 10)
    assert not isinstance(failed.value, SourceConfigurationError)
    source = lite.source()
    checkpoint = source.fetch_changes({}, 10).next_checkpoint
    other = lite.source(snapshots=lost)
    for ask in (
        lambda: other.acknowledge(checkpoint),
        lambda: other.backlog(checkpoint),
        other.discard_snapshot,
    ):
        with pytest.raises(FetchError, match="The table of snapshots azfdb_snapshots failed"):
            ask()


def test_a_database_that_is_not_there_is_an_error_that_a_poller_knows(tmp_path: Path) -> None:
    source = HashDiffSource(
        url=f"sqlite:///{tmp_path / 'missing' / 'x.db'}", table="items", pk_columns=["id"], snapshots=MemorySnapshots()
    )
    for ask in (
        source.validate,
        source.examine,
        lambda: source.fetch_changes({}, 1),
        lambda: source.backlog({}),
        lambda: source.cursor_from("1"),
        lambda: list(source.compared({})),
        lambda: source.ranged(1, 2).fetch_changes({}, 1),
    ):
        with pytest.raises(FetchError):
            ask()


def test_many_documents_are_removed(lite: Table) -> None:
    snapshots = SqlSnapshots(url=lite.url, engine_provider=lite.provider)
    names = [f"{number:012}-x" for number in range(1203)]
    snapshots.write("some", dict.fromkeys(names, b"x"))
    snapshots.remove("some", names[:-1])
    assert snapshots.names("some") == names[-1:]


# What a scan asks.


def statements_of(table: Table, poller: Poller) -> tuple[int, int]:
    """Return how many sums, and how many lists of hashes, a scan asks for."""
    asked: list[str] = []
    with table.watched(asked.append):
        poller.scan()
    sums = [statement for statement in asked if "azfdb_digest" in statement or "bit_xor" in statement]
    hashed = [statement for statement in asked if "azfdb_hash" in statement or "md5" in statement]
    return len(sums), sum(statement not in sums for statement in hashed)


def test_a_quiet_scan_asks_for_one_sum(table: Table) -> None:
    table.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in range(60)))
    poller = Poller(table.source)
    poller.scan(limit=3)
    assert len(table.source().documents.root(poller.checkpoint["cursor"]["snapshot"]).blocks) > 10
    assert statements_of(table, poller) == (1, 0)


def test_a_change_is_found_by_the_sums_of_fewer_and_fewer_blocks(lite: Table) -> None:
    lite.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in range(60)))
    poller = Poller(lite.source)
    poller.scan(limit=3)
    put(lite, 31, "new")
    sums, lists = statements_of(lite, poller)
    assert lists <= 4, "the block, its row, and its neighbour"
    assert 3 <= sums <= 16
    assert [change.key for change in poller.target.told[60:]] == [{"id": 31}]


def test_a_block_that_is_handed_out_in_parts_is_read_once(lite: Table) -> None:
    for key in range(3):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan()
    lite.run("UPDATE items SET a = 'new'")
    asked: list[str] = []
    with lite.watched(asked.append):
        assert len(poller.scan(limit=1)) == 3
    assert sum("azfdb_hash" in statement and "IN (" not in statement for statement in asked) == 1


def test_a_source_reads_over_the_engines_that_it_is_given(provider: EngineProvider) -> None:
    """A database in memory is there for one engine only."""
    table = Table("sqlite://", provider, PLAIN, ["id"])
    put(table, 1)
    source = HashDiffSource(url=table.url, table="items", pk_columns=["id"], engine_provider=provider)
    assert [change.key for change in source.fetch_changes({}, 10).records] == [{"id": 1}]


def test_a_page_has_at_least_one_row(lite: Table) -> None:
    with pytest.raises(SourceConfigurationError, match="at least one row, not 0"):
        lite.source().fetch_changes({}, 0)


def test_a_tick_that_has_looked_at_its_rows_goes_on_with_the_next_one(lite: Table) -> None:
    for key in range(12):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan(limit=3)
    put(lite, 11, "new")
    reader = lite.source(rows_per_tick=6).open()
    page = reader.fetch_changes(poller.checkpoint, 100)
    assert (page.records, page.more) == ([], True)
    names = [each["cursor"]["snapshot"] for each in (poller.checkpoint, page.next_checkpoint)]
    assert names[0] == names[1], "nothing has changed: the snapshot is good as it is"
    following = reader.fetch_changes(page.next_checkpoint, 100)
    passed = [one.next_checkpoint["cursor"]["place"] for one in (page, following)]
    assert passed[1] - passed[0] <= 1, "its rows are used up: one block at most"


# Forms of values, and what cannot be hashed.


def test_values_of_other_types_are_other_values(sqlite_database: str, provider: EngineProvider) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (id integer PRIMARY KEY, v)", ["id"])
    table.run("INSERT INTO items VALUES (1, NULL)")
    poller = Poller(table.source)
    poller.scan()
    for literal in ("1", "1.0", "1.5", "'1'", "x'31'", "''", "x''", "NULL", "0", "'n'"):
        table.run(f"UPDATE items SET v = {literal}")
        assert [change.op for change in poller.scan()] == ["update"], literal
        assert poller.target.rows == table.rows(), literal


def test_a_row_that_the_database_cannot_read_is_an_error_that_a_poller_knows(lite: Table) -> None:
    put(lite, 1, "[1]")
    put(lite, 2, "[2]")
    source = lite.source(table=None, query="SELECT id, json_extract(a, '$[0]') AS a FROM items")
    poller = Poller(lambda: source)
    poller.scan()
    put(lite, 2, "no json")
    with pytest.raises(FetchError, match=r"malformed JSON|OperationalError"):
        poller.scan()


def test_a_key_of_which_a_part_is_null_is_refused(table: Table) -> None:
    put(table, 1)
    put(table, 2, None)
    table.keys = ["id", "a"]
    with pytest.raises(SourceConfigurationError, match=r"NULL in their key \(id, a\)"):
        table.source().fetch_changes({}, 10)


def test_a_key_that_cannot_be_sorted_is_refused(sqlite_database: str, provider: EngineProvider) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (j json)", ["j"])
    with pytest.raises(SourceConfigurationError, match="'j'"):
        table.source().validate()


def test_an_invisible_column_comes_only_as_a_key(mariadb_database: str, provider: EngineProvider) -> None:
    ddl = "CREATE TABLE items (id int INVISIBLE PRIMARY KEY DEFAULT 7, a int, secret int INVISIBLE)"
    table = Table(mariadb_database, provider, ddl, ["id"])
    table.run("INSERT INTO items VALUES (1)")
    assert [change.after for change in table.source().fetch_changes({}, 10).records] == [{"id": 7, "a": 1}]


def relation_of(dialect: Any) -> Relation:
    columns: dict[str, Any] = {
        "id": mysql.INTEGER(),
        "a": mysql.VARCHAR(50),
        "f": mysql.FLOAT(),
        "b": mysql.BIT(3),
        "t": mysql.LONGTEXT(),
        "x": mysql.MEDIUMBLOB(),
        "j": mysql.JSON(),
    }
    table = SqlTable("items", MetaData(), *(Column(name, kind) for name, kind in columns.items()))
    source = HashDiffSource(url="sqlite://", table="items", pk_columns=["id"])
    return Relation(source._definition, Shape(table, columns, table), dialect)


HASHED = (
    "md5(concat(coalesce(concat(length(CAST(items.id AS BINARY)), ':', CAST(items.id AS BINARY)), 'n'), "
    "coalesce(concat(length(CAST(items.a AS BINARY)), ':', CAST(items.a AS BINARY)), 'n'), "
    "coalesce(concat(length(CAST(items.f + 0e0 AS BINARY)), ':', CAST(items.f + 0e0 AS BINARY)), 'n'), "
    "coalesce(concat(length(hex(items.b)), ':', hex(items.b)), 'n'), "
    "coalesce(md5(items.t), 'n'), coalesce(md5(items.x), 'n'), coalesce(md5(items.j), 'n')))"
)


def test_hashes_are_made_as_they_were() -> None:
    """A snapshot of an earlier version is good: no row comes because its hash is made in another way."""
    proper, mariadb = mysql.dialect(), mysql.dialect()
    mariadb.is_mariadb = True
    written = [
        " ".join(str(relation_of(each)._hash.compile(dialect=each, compile_kwargs={"literal_binds": True})).split())
        for each in (mariadb, proper)
    ]
    assert written[0] == HASHED
    assert (
        written[1]
        == re.sub(r"md5\((items\.\w)\)", r"left(sha2(\1, 256), 32)", HASHED)
        .replace("md5(concat(", "left(sha2(concat(")
        .removesuffix(")")
        + ", 256), 32)"
    )


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        (SimpleNamespace(name="mssql"), "not mssql"),
        (SimpleNamespace(name="postgresql", server_version_info=(13, 9)), "PostgreSQL 14 or newer"),
    ],
)
def test_a_server_that_cannot_be_is_refused(dialect: Any, said: str) -> None:
    with pytest.raises(SourceConfigurationError, match=said):
        relation_of(dialect)


@pytest.mark.parametrize("version", [(14,), (14, 1), None])
def test_a_server_that_is_new_enough_is_not_refused(version: Any) -> None:
    dialect: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
    dialect.server_version_info = version
    assert relation_of(dialect).key_kinds == ("id: integer",)


def test_a_range_of_an_empty_table_is_empty(lite: Table) -> None:
    page = lite.source().ranged(1, 2).fetch_changes({}, 1)
    assert (page.records, page.more) == ([], False)


def test_few_changes_of_a_large_block_are_written_beside_it_and_told_once(lite: Table) -> None:
    lite.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in range(40)))
    poller = Poller(lambda: lite.source(block_rows=100))
    poller.scan()
    lite.run("DELETE FROM items WHERE id = 3")
    assert [change.op for change in poller.scan()] == ["delete"]
    parts = []
    for key in range(10, 22):
        put(lite, key, "new")
        assert [(change.op, change.key["id"]) for change in poller.scan()] == [("update", key)]
        [block] = lite.source().documents.root(poller.checkpoint["cursor"]["snapshot"]).blocks
        parts.append(len(block.names))
    assert (parts[0], max(parts), parts[-1] < 9) == (3, 9, True), "at last it is written anew"
    put(lite, 3)
    assert [change.op for change in poller.scan()] == ["insert"]
    assert poller.target.rows == lite.rows()
    lite.run("UPDATE items SET a = 'all'")
    assert len(poller.scan()) == 40
    [block] = lite.source().documents.root(poller.checkpoint["cursor"]["snapshot"]).blocks
    assert len(block.names) == 1


def test_a_reset_goes_on_behind_all_that_was_written(lite: Table) -> None:
    source, checkpoint = lite.source(), dict[str, Any]()
    for value in ("a", "b", "c"):
        put(lite, 1, value)
        checkpoint = source.fetch_changes(checkpoint, 10).next_checkpoint
    first = source.documents.first()
    assert (first.number, first.scan) == (3, checkpoint["cursor"]["value"] + 1)


def test_after_clearing_up_nothing_is_there_that_is_not_needed(lite: Table) -> None:
    for key in range(9):
        put(lite, key)
    source = lite.source()
    checkpoint = source.fetch_changes({}, 100).next_checkpoint
    following = checkpoint
    for value in ("x", "y"):  # tried twice from one checkpoint: both are of one number
        put(lite, 1, value)
        following = source.fetch_changes(checkpoint, 100).next_checkpoint
    source.acknowledge(following)
    root = source.documents.root(following["cursor"]["snapshot"])
    needed = {root.name, *(name for block in root.blocks for name in block.names)}
    assert set(lite.snapshots.names("items")) == needed


def test_a_setting_that_is_missing_is_an_error_of_the_source() -> None:
    source = HashDiffSource(
        url="%NOT_SET_ANYWHERE%", table="items", pk_columns=["id"], snapshots=MemorySnapshots(), name="items"
    )
    for ask in (lambda: source.source_descriptor, source.validate, lambda: source.fetch_changes({}, 1)):
        with pytest.raises(SourceConfigurationError, match="NOT_SET_ANYWHERE"):
            ask()


class Broken(MemorySnapshots):
    """A place of a user's own that uses SQLAlchemy, and fails."""

    def names(self, snapshot: str) -> list[str]:
        raise SQLAlchemyError(snapshot)


def test_a_place_of_ones_own_that_fails_is_an_error_that_a_poller_knows(lite: Table) -> None:
    put(lite, 1)
    broken = Broken()
    checkpoint = lite.source().fetch_changes({}, 10).next_checkpoint
    broken._kept = lite.snapshots._kept  # type: ignore[attr-defined]
    source = lite.source(snapshots=broken)
    for ask in (lambda: source.acknowledge(checkpoint), source.discard_snapshot, lambda: source.fetch_changes({}, 1)):
        with pytest.raises(FetchError, match="items"):
            ask()


def test_a_condition_that_cannot_be_is_told_before_a_scan(lite: Table) -> None:
    with pytest.raises(SourceConfigurationError, match="nothing"):
        lite.source(where="nothing > 1").validate()


def test_a_backlog_that_was_not_counted_to_its_end_is_more(lite: Table) -> None:
    for key in range(9):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan(limit=3)
    lite.run("UPDATE items SET a = 'new'")
    whole = lite.source().backlog(poller.checkpoint)
    assert (whole.amount, whole.is_more) == (9, False)
    part = lite.source(rows_per_tick=3).backlog(poller.checkpoint)
    assert (0 < part.amount < 9, part.is_more) == (True, True)


def test_counting_stops_where_nobody_counts_on(lite: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(9):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan(limit=3)
    lite.run("UPDATE items SET a = 'new'")
    monkeypatch.setattr("azure_functions_db.sources.hashdiff.source._MOST_COUNTED", 3)
    part = lite.source().backlog(poller.checkpoint)
    assert (3 <= part.amount < 9, part.is_more) == (True, True)


def test_a_scan_that_has_passed_no_key_is_told_by_its_number(lite: Table) -> None:
    cursor = {"kind": "scan", "value": 3, "snapshot": "x", "place": 0, "tiebreaker": {}, "finished_at": None}
    assert lite.source().describe({"cursor": cursor}) == "scan 3"


def test_a_page_of_updates_comes_again_until_its_checkpoint_is_used(lite: Table) -> None:
    for key in range(3):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan()
    lite.run("UPDATE items SET a = 'new'")
    reader, keys = lite.source().open(), list[Any]()
    checkpoint, more = poller.checkpoint, True
    while more:
        page, again = reader.fetch_changes(checkpoint, 1), reader.fetch_changes(checkpoint, 1)
        assert [change.position for change in again.records] == [change.position for change in page.records]
        keys += [change.key["id"] for change in page.records]
        checkpoint, more = page.next_checkpoint, bool(page.more)
    assert keys == [0, 1, 2]


def test_a_column_that_goes_between_two_pages_ends_no_scan(lite: Table) -> None:
    for key in range(3):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan()
    lite.run("UPDATE items SET a = 'new'")
    drops = ["ALTER TABLE items DROP COLUMN b"]
    told = poller.scan(limit=1, between=lambda: lite.run(drops.pop()) if drops else None)
    poller.scan()
    assert told
    assert poller.target.rows == lite.rows()


def test_a_scan_that_ends_with_nothing_more_to_tell_is_over(lite: Table) -> None:
    """Or else the next one would not begin, and never look at what was passed before."""
    for key in range(2):
        put(lite, key)
    poller = Poller(lite.source)
    poller.scan()
    lite.run("UPDATE items SET a = 'new'")
    begun = lite.source().fetch_changes(poller.checkpoint, 1)
    assert [change.key["id"] for change in begun.records] == [0]
    put(lite, 1)  # as it was
    over = lite.source().fetch_changes(begun.next_checkpoint, 10)
    assert over.records == []
    put(lite, 0, "newer")
    following = lite.source().fetch_changes(over.next_checkpoint, 10)
    assert [change.key["id"] for change in following.records] == [0]


def test_a_quiet_scan_is_the_last_for_its_interval(lite: Table) -> None:
    now = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]
    poller = Poller(lambda: lite.source(scan_interval_seconds=3600, now=lambda: now[0]))
    assert poller.scan() == []
    assert poller.checkpoint == {}, "of an empty table nothing is kept"
    put(lite, 1)
    assert len(poller.scan()) == 1
    now[0] += dt.timedelta(hours=1)
    assert poller.scan() == []
    put(lite, 2)
    now[0] += dt.timedelta(minutes=1)
    assert poller.scan() == []
    now[0] += dt.timedelta(hours=1)
    assert len(poller.scan()) == 1


def test_a_session_that_commits_each_statement_writes_values_in_one_form(
    postgres_database: str, provider: EngineProvider
) -> None:
    table = Table(postgres_database, provider, "CREATE TABLE items (id int PRIMARY KEY, d date)", ["id"])
    table.run("INSERT INTO items VALUES (1, '2026-03-04')")
    config = DbConfig(connection_url=postgres_database, connect_args={"autocommit": True})
    options: dict[str, Any] = {"table": "items", "pk_columns": ["id"], "snapshots": MemorySnapshots()}
    poller = Poller(lambda: HashDiffSource(db_config=config, engine_provider=provider, **options))
    assert len(poller.scan()) == 1
    table.run(f"ALTER DATABASE {postgres_database.rsplit('/', 1)[1]} SET DateStyle = 'German'")
    provider.dispose_all()
    assert poller.scan() == []


def test_a_key_that_comes_twice_later_is_refused(sqlite_database: str, provider: EngineProvider) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (id integer, a text)", ["id"])
    table.run("INSERT INTO items VALUES (1, 'a'), (2, 'a')")
    poller = Poller(table.source)
    poller.scan()
    table.run("INSERT INTO items VALUES (2, 'b')")
    with pytest.raises(SourceConfigurationError, match=r"does not tell rows apart: two of them have \(2,\)"):
        poller.scan()


def test_keys_of_several_columns_are_compared_by_all_of_them(database_url: str, provider: EngineProvider) -> None:
    ddl = "CREATE TABLE items (k integer, n integer, m integer, v integer, PRIMARY KEY (k, n, m))"
    table = Table(database_url, provider, ddl, ["k", "n", "m"], block_rows=2)
    places = [(k, n, m) for k in (1, 2) for n in (1, 2) for m in (1, 2, 3)]
    table.run("INSERT INTO items VALUES " + ", ".join(f"({k}, {n}, {m}, 1)" for k, n, m in places))
    poller = Poller(table.source)
    assert [tuple(change.key.values()) for change in poller.scan(limit=2)] == places
    assert poller.scan() == []
    table.run("UPDATE items SET v = 2 WHERE m = 2")
    table.run("DELETE FROM items WHERE k = 1 AND n = 2 AND m = 3")
    assert sorted(change.op for change in poller.scan(limit=2)) == ["delete", *["update"] * 4]
    assert poller.target.rows == table.rows()


DELIVERED = {
    "sqlite": ("t timestamp, d numeric(5, 2)", dt.datetime(2026, 4, 7, 1)),  # noqa: DTZ001 - as it is written
    "mysql": ("t datetime, d decimal(5, 2), z timestamp", dt.datetime(2026, 4, 7, 1)),  # noqa: DTZ001 - without a zone
    "postgresql": ("t timestamptz, d numeric(5, 2)", dt.datetime(2026, 4, 7, 1, tzinfo=dt.UTC)),
}


def test_values_come_as_their_columns_have_them(database_url: str, provider: EngineProvider) -> None:
    dialect = create_engine(database_url).dialect.name
    columns, moment = DELIVERED[dialect]
    table = Table(database_url, provider, f"CREATE TABLE items (id integer PRIMARY KEY, {columns})", ["id"])
    zone = "+00" if dialect == "postgresql" else ""
    row = {"t": f"2026-04-07 01:00:00{zone}"}
    table.run("INSERT INTO items (id, t, d) VALUES (1, :t, 1.5)", **row)
    [change] = table.source().fetch_changes({}, 10).records
    assert (change.after["t"], change.after["d"]) == (moment, Decimal("1.5"))
    assert type(change.after["d"]) is Decimal


def test_a_failure_while_a_row_is_salvaged_puts_no_row_aside(postgres_database: str, provider: EngineProvider) -> None:
    table = Table(postgres_database, provider, "CREATE TABLE items (id int PRIMARY KEY, d date)", ["id"])
    table.run("INSERT INTO items VALUES (1, '2026-01-01'), (2, '0044-03-15 BC')")
    hashed: list[str] = []

    def fail(statement: str) -> None:
        if "md5" in statement:
            hashed.append(statement)
        if len(hashed) == 3:  # all rows, all as texts, then one by one
            raise RuntimeError("gone")

    with table.watched(fail), pytest.raises(RuntimeError, match="gone"):
        table.source().fetch_changes({}, 10)


def test_a_row_that_goes_while_another_one_is_salvaged_is_left_out(
    postgres_database: str, provider: EngineProvider
) -> None:
    table = Table(postgres_database, provider, "CREATE TABLE items (id int PRIMARY KEY, d date)", ["id"])
    table.run("INSERT INTO items VALUES (1, '2026-01-01'), (2, '0044-03-15 BC')")
    hashed: list[str] = []

    def delete(statement: str) -> None:
        if "md5" in statement:
            hashed.append(statement)
            if len(hashed) == 3:  # all rows, all as texts, then one by one
                table.run("DELETE FROM items WHERE id = 1")

    with table.watched(delete):
        page = table.source().fetch_changes({}, 10)
    assert ([change.key["id"] for change in page.records], list(page.undecodable)) == ([2], [0])


@pytest.mark.parametrize("kind", ["timestamp", "date", "time", "numeric(5, 2)", "json"])
def test_a_value_that_is_not_of_its_columns_type_comes_as_it_is(
    sqlite_database: str, provider: EngineProvider, kind: str
) -> None:
    table = Table(sqlite_database, provider, f"CREATE TABLE items (id integer PRIMARY KEY, v {kind})", ["id"])
    table.run("INSERT INTO items VALUES (1, 'soon'), (2, NULL)")
    page = table.source().fetch_changes({}, 10)
    assert [change.after["v"] for change in page.records] == ["soon", None]
    assert page.undecodable == {}
