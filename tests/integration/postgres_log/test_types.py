"""A value is the same whether it comes from the log, from a snapshot, from `SqlAlchemySource` or from `DbReader`."""

from __future__ import annotations

import datetime as dt
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql import Range

from azure_functions_db import DbReader, SqlAlchemySource
from tests.integration.test_values import COLUMNS, PREPARED

if TYPE_CHECKING:
    from tests.integration.postgres_log.scene import Scene

MORE = [
    ("int4range[]", "'{\"[1,2)\"}'"), ("pair[]", "'{\"(1,x)\"}'"), ("float4[]", "'{0.1}'"), ("json[]", "'{\"{}\"}'"),
    ("interval[]", "'{1 day}'"), ("bytea[]", "'{\"\\\\x00\"}'"), ("price", "NULL"), ("mood", "NULL"), ("int[]", "'{}'"),
    ("text", "''"), ("text", "'\\N'"), ("real", "'NaN'"), ("numeric(30, 20)", "0.00000000000000000001"),
    ("timestamptz", "'1883-11-18 12:03:58-04:56:02'"), ("interval", "'-1 day +02:03:04'"),
    ("bytea", "''"), ("regclass", "'pg_class'"), ("box", "'(1,1),(0,0)'"), ("nummultirange", "'{}'"),
    ("jsonb", "'{\"é\": [1e400, \"\\u2028\"]}'"), ("varchar[]", "'{\"a,b\",\"c\\\"d\",NULL,\"NULL\"}'"),
    ("macaddr8", "'08:00:2b:01:02:03:04:05'"),
]  # fmt: skip

# `DbReader.get` hands these out as psycopg does, `SqlAlchemySource` and the log as SQLAlchemy does.
AS_THE_DRIVER_GIVES_THEM = {
    "bit(3)", "varbit", "int4range", "tstzrange", "daterange", "int4range[]", "int4multirange", "nummultirange",
    "mood[]",
}  # fmt: skip


def columns_of(scene: Scene) -> list[tuple[str, str]]:
    has_xml = scene.value("SELECT count(*) FROM pg_config WHERE setting LIKE '%--with-libxml%'")
    return [(kind, value) for kind, value in COLUMNS["postgres"] + MORE if kind != "xml" or has_xml]


@pytest.fixture
def kinds(scene: Scene) -> list[str]:
    """A table with a column of every type, and a row without NULLs beside one that has nothing else."""
    chosen = columns_of(scene)
    for statement in PREPARED["postgres"]:
        name = statement.split()[2]
        if not scene.value("SELECT count(*) FROM pg_type WHERE typname = :name", name=name):
            scene.run(statement)
    declared = ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(chosen))
    scene.run(f"CREATE TABLE %t (id int PRIMARY KEY, {declared})", "ALTER TABLE %t REPLICA IDENTITY FULL")
    return [f"{kind} {value}" for kind, value in chosen]


def insert(scene: Scene, *ids: int) -> None:
    values = ", ".join(value for _, value in columns_of(scene))
    for number in ids:
        scene.run(f"INSERT INTO %t VALUES ({number}, {values})", f"INSERT INTO %t (id) VALUES ({number + 100})")


def shown(rows: list[Any], kinds: list[str]) -> list[dict[str, str]]:
    """The values and their types, by what was written; the same for each way to read them."""
    return [
        {kind: f"{type(row[f'c{number}']).__name__} {row[f'c{number}']!r}" for number, kind in enumerate(kinds)}
        for row in rows
    ]


def test_every_value_is_what_other_readers_give_for_the_same_column(scene: Scene, kinds: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.SAWarning)  # of types that SQLAlchemy does not know
        insert(scene, 1)
        source = scene.source()
        snapshot = scene.delivered(source)
        insert(scene, 1001)
        scene.run("UPDATE %t SET id = id + 5000 WHERE id > 1000")
        streamed = scene.delivered(source)
        keyset = SqlAlchemySource(
            url=scene.url, table=scene.table, cursor_column="id", pk_columns=["id"], in_flight="ignore",
            engine_provider=scene.provider,
        )  # fmt: skip
        polled = [dict(record) for record in keyset.fetch_changes({}, 10).records]
        with DbReader(url=scene.url, engine_provider=scene.provider, table=scene.table) as reader:
            read = [reader.get(pk={"id": number}) for number in (1, 101, 6001, 6101)]
    wanted = shown(polled[:2], kinds)
    inserts = [event.after for event in streamed if event.op == "insert"]
    befores = [event.before for event in streamed if event.op == "delete"]
    ways = {"snapshot": [event.after for event in snapshot], "inserts": inserts[:2],
            "befores": befores, "moved": inserts[2:]}  # fmt: skip
    for way, rows in ways.items():
        assert differences(shown(rows, kinds), wanted) == [], way
    for found in (read[:2], read[2:]):
        own = {kind.split()[0] for kind, *_ in differences(shown(found, kinds), wanted)}
        assert own <= AS_THE_DRIVER_GIVES_THEM


def differences(found: list[dict[str, str]], wanted: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    """What differs, with the declaration of its column."""
    assert len(found) == len(wanted)
    pairs = zip(found, wanted, strict=True)
    return [(kind, one[kind], other[kind]) for one, other in pairs for kind in other if one[kind] != other[kind]]


@pytest.mark.parametrize("setting", ["datestyle = 'SQL, DMY'", "intervalstyle = iso_8601", "bytea_output = escape",
                                     "timezone = 'Asia/Kolkata'", "extra_float_digits = 0"])  # fmt: skip
@pytest.mark.parametrize("transport", ["stream", "sql"])
def test_values_do_not_depend_on_how_the_database_is_set_to_write_them(
    scene: Scene, setting: str, transport: str
) -> None:
    scene.run("CREATE TABLE %t (id int PRIMARY KEY, d date, i interval, b bytea, at timestamptz, f float)")
    database = scene.engine.url.database
    scene.run(f"ALTER DATABASE {database} SET {setting}")
    try:
        source = scene.streaming()
        scene.run(
            "INSERT INTO %t VALUES (1, '2026-02-01', '1 day 02:03:04', '\\x00ff', '2026-01-01Z', 0.1::float + 0.2)"
        )
        [event] = scene.delivered(source)
    finally:
        scene.run(f"ALTER DATABASE {database} RESET {setting.partition(' ')[0]}")
    assert event.after == {
        "id": 1,
        "d": dt.date(2026, 2, 1),
        "i": dt.timedelta(days=1, hours=2, minutes=3, seconds=4),
        "b": b"\x00\xff",
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "f": 0.1 + 0.2,
    }
    zone = dt.timedelta(hours=5, minutes=30) if "Kolkata" in setting else dt.timedelta(0)
    assert event.after is not None
    assert event.after["at"].utcoffset() == zone, "a moment is told as every session of this database tells it"


def test_a_value_of_a_column_that_had_another_type_is_read_as_it_was_then(scene: Scene) -> None:
    scene.run("CREATE TABLE %t (id int PRIMARY KEY, v text)")
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, '[1,2)')", "ALTER TABLE %t ALTER v TYPE int4range USING v::int4range")
    scene.run("INSERT INTO %t VALUES (2, '[3,4)')")
    assert [event.after and event.after["v"] for event in scene.delivered(source)] == ["[1,2)", Range(3, 4)]


def test_a_value_of_a_domain_of_a_domain_is_one_of_the_type_behind_them(scene: Scene) -> None:
    scene.each("CREATE DOMAIN size_%t AS int", "CREATE DOMAIN width_%t AS size_%t")
    scene.run("CREATE TABLE %t (id int PRIMARY KEY, v width_%t)")
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 3)")
    assert [event.after for event in scene.delivered(source)] == [{"id": 1, "v": 3}]
