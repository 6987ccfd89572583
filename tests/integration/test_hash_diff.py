"""What a hash diff finds, what it survives, and what it refuses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from azure_functions_db import (
    EngineProvider,
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
from azure_functions_db.sources.hashdiff.snapshots import MemorySnapshots
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
        for key in range(start, start + 10):
            put(lite, key)
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
    table = Table(postgres_database, provider, "CREATE TABLE items (id int PRIMARY KEY, d date)", ["id"])
    table.run("INSERT INTO items VALUES (1, '2026-01-01'), (2, '0044-03-15 BC'), (3, NULL)")
    sink, seen = MemoryQuarantine(), list[Any]()
    trigger = PollTrigger(name="t", source=table.source(), checkpoint_store=MemoryStateStore(), quarantine=sink)
    trigger.run(timer=None, handler=lambda events: seen.extend(event.pk["id"] for event in events))
    assert seen == [1, 3]
    assert [row.event["after"]["d"] for row in sink.entries()] == ["0044-03-15 BC"]


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
        ({"name": "x" * 300}, "too long"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceConfigurationError, match=message):
        HashDiffSource(**{"url": "sqlite://", "table": "items", "pk_columns": ["id"], **options})


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
