"""Every type, written by every path, is read back equal."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.integration.binding.conftest import Place

ZONE = dt.timezone(dt.timedelta(hours=5, minutes=30))


class Colour(enum.StrEnum):
    RED = "red"


TEXT = "Grüße 🚀 \"quoted\" 'single' back\\slash %s %% :name \t\n end"
MOMENT = dt.datetime(2026, 4, 7, 1, 23, 45, 123456)  # noqa: DTZ001 - naive on purpose
Types = dict[str, tuple[str, list[Any]]]
COMMON: Types = {
    "integer": ("BIGINT", [2**53 + 1, -(2**63), 2**63 - 1, 0]),
    "decimal": ("DECIMAL(30, 10)", [Decimal("12345678901234567890.1234567891"), Decimal("-0.5"), Decimal(7)]),
    "float": ("DOUBLE PRECISION", [0.1, -1e300, 3.0]),
    "boolean": ("BOOLEAN", [True, False]),
    "text": ("TEXT", [TEXT, "", "plain", Colour.RED]),
    "date": ("DATE", [dt.date(2026, 2, 28), dt.date(1999, 12, 31)]),
    "naive": ("TIMESTAMP", [MOMENT, MOMENT.replace(microsecond=0)]),
}
POSTGRES: Types = {
    **COMMON,
    "numeric": ("NUMERIC", [Decimal("1e-20"), Decimal("NaN"), Decimal(10) ** 40]),
    "bytes": ("BYTEA", [b"\x00\xff'\\%s", b""]),
    "time": ("TIME", [dt.time(1, 2, 3, 456789)]),
    "aware": ("TIMESTAMPTZ", [MOMENT.replace(tzinfo=ZONE), MOMENT.replace(tzinfo=dt.UTC)]),
    "interval": ("INTERVAL", [dt.timedelta(days=3, microseconds=5)]),
    "uuid": ("UUID", [uuid.UUID("12345678-1234-5678-1234-567812345678")]),
    "json": ("JSON", [{"a": [1, None, "ü"]}, [1, 2], "text", 5]),
    "jsonb": ("JSONB", [{"a": {"b": True}}, []]),
    "integers": ("INTEGER[]", [[1, 2, None], []]),
    "texts": ("TEXT[]", [["a,b", 'c"d', "ü"]]),
    "enum": ("mood", ["sad", "happy"]),
    "enums": ("mood[]", [["sad", "happy"]]),
    "infinite": ("DOUBLE PRECISION", [float("inf")]),
}
MARIADB: Types = {
    **COMMON,
    "naive": ("DATETIME(6)", [MOMENT, MOMENT.replace(microsecond=0)]),
    "text": ("TEXT CHARACTER SET utf8mb4", [TEXT, "", "nul \x00 inside", Colour.RED]),
    "bytes": ("BLOB", [b"\x00\xff'\\%s", b""]),
    "time": ("TIME(6)", [dt.time(1, 2, 3, 456789)]),
    "uuid": ("UUID", [uuid.UUID("12345678-1234-5678-1234-567812345678")]),
    "json": ("JSON", [{"a": [1, None, "ü"]}, [1, 2]]),
    "enum": ("ENUM('sad', 'happy')", ["sad", "happy"]),
}
SQLITE: Types = {
    **COMMON,
    "decimal": ("DECIMAL(30, 10)", [Decimal("12345.678"), Decimal("-0.5"), Decimal(7)]),
    "text": ("TEXT", [TEXT, "", "nul \x00 inside", Colour.RED]),
    "bytes": ("BLOB", [b"\x00\xff'\\%s", b""]),
    "time": ("TIME", [dt.time(1, 2, 3, 456789), dt.time(1)]),
    "aware": ("TIMESTAMP", [MOMENT.replace(tzinfo=ZONE), MOMENT.replace(tzinfo=dt.UTC)]),
    "json": ("JSON", [{"a": [1, None, "ü"]}, [1, 2]]),
}
TYPES = {"postgres": POSTGRES, "mariadb": MARIADB, "sqlite": SQLITE}

Write = Callable[[Place, list[dict[str, Any]]], None]


def one_by_one(place: Place, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        place.writer("types").insert(data=row)


def many(place: Place, rows: list[dict[str, Any]]) -> None:
    place.writer("types").insert_many(rows=rows)


def bulk(place: Place, rows: list[dict[str, Any]]) -> None:
    fillers = [{name: rows[0][name] for name in rows[0]} | {"id": key} for key in range(1000, 1200)]
    place.writer("types").insert_many(rows=[*rows, *fillers])


def upserted(place: Place, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        place.writer("types").upsert(data=row, conflict_columns=["id"])


def many_upserted(place: Place, rows: list[dict[str, Any]]) -> None:
    place.writer("types").upsert_many(rows=rows, conflict_columns=["id"])


def bulk_upserted(place: Place, rows: list[dict[str, Any]]) -> None:
    fillers = [{name: rows[0][name] for name in rows[0]} | {"id": key} for key in range(1000, 1200)]
    place.writer("types").upsert_many(rows=[*rows, *fillers], conflict_columns=["id"])


def updated(place: Place, rows: list[dict[str, Any]]) -> None:
    writer = place.writer("types")
    writer.insert_many(rows=[{"id": row["id"]} for row in rows])
    for row in rows:
        writer.update(data={name: value for name, value in row.items() if name != "id"}, pk={"id": row["id"]})


def returned(place: Place, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    back = place.writer("types").insert_many(rows=rows, returning=names)
    assert [_comparable(row) for row in back] == [_comparable(row) for row in rows]


@pytest.mark.parametrize(
    "write",
    [one_by_one, many, bulk, upserted, many_upserted, bulk_upserted, updated, returned],
    ids=lambda way: way.__name__,
)
def test_every_type_is_read_back_equal(place: Place, write: Write) -> None:
    types = TYPES[place.kind]
    if place.kind == "postgres":
        place.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    quote = "`" if place.kind == "mariadb" else '"'
    columns = ", ".join(f"{quote}{name}{quote} {kind} NULL" for name, (kind, _) in types.items())
    place.execute(f"CREATE TABLE types (id INTEGER PRIMARY KEY, {columns})")
    longest = max(len(values) for _, values in types.values())
    rows: list[dict[str, Any]] = [
        {"id": key + 1, **{name: values[key] if key < len(values) else None for name, (_, values) in types.items()}}
        for key in range(longest)
    ]

    write(place, rows)

    reader = place.reader("types")
    for row in rows:
        found = reader.get(pk={"id": row["id"]})
        assert found is not None
        assert _comparable(found) == _comparable(row)
        for name in ("decimal", "naive", "date", "json", "boolean", "uuid", "time", "aware"):
            if name in row and row[name] is not None and (place.kind, name) != ("mariadb", "boolean"):
                assert type(found[name]) is type(row[name]), name


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: repr(value) if repr(value) == "Decimal('NaN')" else value for name, value in row.items()}


def test_an_offset_is_not_dropped_where_a_column_has_none(mariadb: Place) -> None:
    mariadb.execute("CREATE TABLE moments (id INTEGER PRIMARY KEY, at DATETIME(6))")

    mariadb.writer("moments").insert(data={"id": 1, "at": MOMENT.replace(tzinfo=ZONE)})

    in_utc = MOMENT.replace(tzinfo=ZONE).astimezone(dt.UTC).replace(tzinfo=None)
    assert mariadb.reader("moments").get(pk={"id": 1}) == {"id": 1, "at": in_utc}


def test_values_of_a_query_are_prepared_like_those_of_a_row(sqlite: Place) -> None:
    sqlite.execute("CREATE TABLE moments (id INTEGER PRIMARY KEY, at TIMESTAMP, price DECIMAL(10, 2), token CHAR(36))")
    token = uuid.uuid4()
    sqlite.writer("moments").insert(data={"id": 1, "at": MOMENT, "price": Decimal("9.99"), "token": token})

    found = sqlite.reader(None).query(
        "SELECT id FROM moments WHERE at = :at AND price = :price AND token = :token",
        params={"at": MOMENT, "price": Decimal("9.99"), "token": token},
    )

    assert found == [{"id": 1}]


def test_a_value_added_to_an_enumeration_later_is_written_and_read(postgres: Place) -> None:
    postgres.execute("CREATE TYPE mood AS ENUM ('sad')", "CREATE TABLE moods (id INTEGER PRIMARY KEY, mood mood)")
    writer, reader = postgres.writer("moods"), postgres.reader("moods")
    writer.insert(data={"id": 1, "mood": "sad"})
    postgres.execute("ALTER TYPE mood ADD VALUE 'happy'")

    writer.insert(data={"id": 2, "mood": "happy"})

    assert reader.get(pk={"id": 2}) == {"id": 2, "mood": "happy"}
