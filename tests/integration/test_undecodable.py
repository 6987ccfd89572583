"""Values that the database can keep and Python cannot: the row is put aside or told as text, the others go on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pymysql.converters
import pytest
from sqlalchemy import create_engine, make_url, text

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    FetchError,
    MemoryStateStore,
    PollTrigger,
    RowChange,
    SerializationError,
    SqlAlchemySource,
    SqlStateStore,
)
from azure_functions_db.core.errors import HandlerError
from azure_functions_db.quarantine import SqlQuarantine
from azure_functions_db.sources.keyset.horizon_postgres import PostgresWatch
from azure_functions_db.sql import mysql_wire
from azure_functions_db.testing.memory import MemoryQuarantine

if TYPE_CHECKING:
    from azure_functions_db.core.types import QuarantinedRow

DEEP = "[" * 5000 + "]" * 5000
POSTGRES = [
    ("jsonb", "1e5000", "1" + "0" * 5000),
    ("jsonb", DEEP, DEEP),
    ("timestamp", "infinity", "infinity"),
    ("timestamptz", "-infinity", "-infinity"),
    ("date", "infinity", "infinity"),
    ("date", "0044-03-15 BC", "0044-03-15 BC"),
    ("timestamp", "20000-01-01", "20000-01-01 00:00:00"),
    ("time", "24:00", "24:00:00"),
    ("date[]", "{infinity}", "{infinity}"),
]


class Seen:
    """A handler that remembers its rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, events: Sequence[RowChange]) -> None:
        self.rows += [dict(event.after or {}) for event in events]

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows]


def filled(url: str, *statements: str, **parameters: Any) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), parameters)
    engine.dispose()


def orders(url: str, kind: str, value: str, *, at: Sequence[int] = (3,), count: int = 6) -> None:
    filled(
        url,
        f"CREATE TABLE orders (id integer PRIMARY KEY, version integer NOT NULL, note text, odd {kind})",
        "CREATE INDEX ix_orders ON orders (version, id)",
        *(f"INSERT INTO orders (id, version, note) VALUES ({number}, {number}, 'n')" for number in range(count)),
        *(f"UPDATE orders SET odd = CAST(:value AS {kind}) WHERE id = {number}" for number in at),
        value=value,
    )


def source(url: str, **options: Any) -> SqlAlchemySource:
    defaults: dict[str, Any] = {"table": "orders", "cursor_column": "version", "pk_columns": ["id"]}
    return SqlAlchemySource(url=url, **(defaults | options))


def poller(source: SqlAlchemySource, **options: Any) -> PollTrigger:
    defaults: dict[str, Any] = {"checkpoint_store": MemoryStateStore(), "batch_size": 4, "max_batches_per_tick": 10}
    return PollTrigger(name="orders", source=source, **(defaults | options))


def run(trigger: PollTrigger, handler: Any) -> int:
    return trigger.run(timer=None, handler=handler)


def entries(sink: Any) -> list[QuarantinedRow]:
    return list(sink.entries("orders"))


@pytest.mark.parametrize(
    ("kind", "value", "told"), POSTGRES, ids=[f"{kind} {value[:12]}" for kind, value, _ in POSTGRES]
)
def test_a_row_that_cannot_be_decoded_is_put_aside_and_the_others_go_on(
    postgres_database: str, kind: str, value: str, told: str
) -> None:
    orders(postgres_database, kind, value, at=(3, 4))
    sink, seen = MemoryQuarantine(), Seen()
    assert run(poller(source(postgres_database), quarantine=sink), seen) == 4
    assert seen.ids == [0, 1, 2, 5]
    first, second = entries(sink)
    assert (first.event["pk"], first.event["cursor"]) == ({"id": 3}, 3)
    assert first.error_type == "SerializationError"
    assert "'odd'" in first.error
    assert first.event["after"] == {"id": 3, "version": 3, "note": "n", "odd": told}
    assert second.event["pk"] == {"id": 4}


def test_without_a_quarantine_the_error_names_key_cursor_and_column(postgres_database: str) -> None:
    orders(postgres_database, "date", "infinity")
    seen = Seen()
    with pytest.raises(SerializationError, match=r"'odd'.*id=3 and cursor 3.*undecodable="):
        run(poller(source(postgres_database)), seen)
    assert seen.rows == []


def test_the_value_is_handed_out_as_text_where_that_is_wanted(postgres_database: str) -> None:
    orders(postgres_database, "date", "0044-03-15 BC")
    filled(postgres_database, "UPDATE orders SET odd = '2026-01-01' WHERE id = 4")
    sink, seen = MemoryQuarantine(), Seen()
    assert run(poller(source(postgres_database, undecodable="text"), quarantine=sink), seen) == 6
    assert str(seen.rows[3]["odd"]) == "0044-03-15 BC"
    assert seen.rows[4]["odd"].isoformat() == "2026-01-01", "only where it has to be"
    assert entries(sink) == []


def test_a_page_in_the_drivers_faster_form_is_read_around_it_too(postgres_database: str) -> None:
    orders(postgres_database, "timestamptz", "infinity", at=(3, 9), count=12)
    sink, seen = MemoryQuarantine(), Seen()
    trigger = poller(source(postgres_database), quarantine=sink, batch_size=2)
    assert run(trigger, seen) == 10
    assert [row.event["pk"]["id"] for row in entries(sink)] == [3, 9]
    assert seen.ids == [0, 1, 2, 4, 5, 6, 7, 8, 10, 11]


@pytest.mark.parametrize("options", [{}, {"columns": ["odd", "note"]}, {"partition": (0, 1)}, {"where": "id > -1"}])
def test_it_holds_for_every_way_to_define_a_source(postgres_database: str, options: dict[str, Any]) -> None:
    orders(postgres_database, "time", "24:00")
    sink, seen = MemoryQuarantine(), Seen()
    assert run(poller(source(postgres_database, **options), quarantine=sink), seen) == 5
    assert [row.event["after"]["odd"] for row in entries(sink)] == ["24:00:00"]


def test_it_holds_for_a_query(postgres_database: str) -> None:
    orders(postgres_database, "jsonb", "1e5000")
    sink, seen = MemoryQuarantine(), Seen()
    query = "SELECT id, version, odd FROM orders"
    assert run(poller(source(postgres_database, table=None, query=query), quarantine=sink), seen) == 5
    assert len(entries(sink)) == 1


def test_text_that_is_not_utf8(sqlite_database: str) -> None:
    orders(sqlite_database, "text", "x")
    filled(sqlite_database, "UPDATE orders SET odd = CAST(x'ff61' AS text) WHERE id = 3")
    sink, seen = MemoryQuarantine(), Seen()
    assert run(poller(source(sqlite_database), quarantine=sink), seen) == 5
    assert [row.event["after"]["odd"] for row in entries(sink)] == ["\\xffa"]
    wanted = Seen()
    assert run(poller(source(sqlite_database, undecodable="text")), wanted) == 6


def test_what_mariadb_keeps_and_python_cannot_hold_is_handed_out_as_text(mariadb_database: str) -> None:
    filled(
        mariadb_database,
        "CREATE TABLE orders (id int PRIMARY KEY, version int NOT NULL, day date, clock time, KEY (version, id))",
        "SET sql_mode = ''",
        "INSERT INTO orders VALUES (1, 1, '0000-00-00', '800:00:00'), (2, 2, '2020-00-00', '10:00:00')",
    )
    seen = Seen()
    assert run(poller(source(mariadb_database)), seen) == 2
    assert [row["day"] for row in seen.rows] == ["0000-00-00", "2020-00-00"]


MOMENTS = ["datetime", *(f"datetime({digits})" for digits in range(1, 7)), "timestamp", "timestamp(3)"]


def moments(url: str) -> None:
    """Two moments in every form that MariaDB has for them, among them some that Python cannot hold."""
    columns = ", ".join(f"m{place} {kind} NULL" for place, kind in enumerate(MOMENTS))
    texts = ("'2026-01-02 03:04:05.123456'", "'0000-00-00 00:00:00'", "'2026-00-01 00:00:00'", "NULL")
    rows = ", ".join(f"({i}, {i}, {', '.join([text] * len(MOMENTS))})" for i, text in enumerate(texts))
    filled(
        url,
        f"CREATE TABLE orders (id int PRIMARY KEY, version int NOT NULL, {columns}, KEY (version, id))",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"INSERT IGNORE INTO orders VALUES {rows}",
    )


def test_mariadbs_moments_are_what_its_driver_makes_of_them(mariadb_database: str) -> None:
    moments(mariadb_database)
    engine, seen = create_engine(mariadb_database), Seen()
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM orders ORDER BY id").mappings().all()
    engine.dispose()
    run(poller(source(mariadb_database)), seen)
    assert seen.rows == [dict(row) for row in rows]
    assert {type(value) for row in seen.rows for value in row.values()} >= {str, dt.datetime}


def test_decoders_that_somebody_has_chosen_stay(mariadb_database: str) -> None:
    moments(mariadb_database)
    chosen = {**pymysql.converters.conversions, 12: lambda text: f"<{text}>"}
    config, seen = DbConfig(connection_url=mariadb_database, connect_args={"conv": chosen}), Seen()
    run(poller(source(None, db_config=config)), seen)  # type: ignore[arg-type]  # a config has the url
    assert seen.rows[0]["m0"] == "<2026-01-02 03:04:05>"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_text_that_its_character_set_does_not_have(
    mariadb_database: str, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latin1 has a place for each byte in MariaDB, and not in Python. Moments are still told in UTC."""
    monkeypatch.setattr(mysql_wire, "IS_KNOWN", is_known)
    filled(
        mariadb_database,
        "CREATE TABLE orders (id int PRIMARY KEY, version timestamp(6) NOT NULL, odd varchar(9) CHARACTER SET latin1)",
        "SET time_zone = '+00:00'",
        "INSERT INTO orders SELECT seq, timestamp '2026-11-17 12:00:00' + INTERVAL seq SECOND, "
        "IF(seq IN (3, 4), convert(x'61818d' USING latin1), 'n') FROM seq_1_to_9",
    )
    url = make_url(mariadb_database).update_query_dict(
        {"charset": "latin1", "init_command": "SET time_zone = '+05:00'"}
    )
    sink, seen = MemoryQuarantine(), Seen()
    trigger = poller(source(url.render_as_string(hide_password=False)), quarantine=sink)
    assert run(trigger, seen) == 7
    assert [row["version"].isoformat() for row in seen.rows] == [
        f"2026-11-17T12:00:0{number}+00:00" for number in (1, 2, 5, 6, 7, 8, 9)
    ]
    assert [entry.event["after"]["odd"] for entry in entries(sink)] == ["a\\x81\\x8d"] * 2


def test_a_connection_is_given_back_with_the_decoders_it_had(mariadb_database: str) -> None:
    moments(mariadb_database)
    provider = EngineProvider()
    orders = source(mariadb_database, engine_provider=provider)
    run(poller(orders), Seen())
    with provider.get_engine(DbConfig(connection_url=mariadb_database)).connect() as connection:
        assert connection.connection.dbapi_connection.decoders[12] is pymysql.converters.convert_datetime  # type: ignore[union-attr]
    provider.dispose_all()


def test_an_infinite_cursor_stops_the_poller_after_all_rows_before_it(postgres_database: str) -> None:
    filled(
        postgres_database,
        "CREATE TABLE orders (id int PRIMARY KEY, version timestamptz NOT NULL)",
        "CREATE INDEX ix_orders ON orders (version, id)",
        "INSERT INTO orders VALUES (1, '2020-01-01'), (2, '2021-01-01'), (3, 'infinity')",
    )
    sink, seen = MemoryQuarantine(), Seen()
    trigger = poller(source(postgres_database, in_flight="ignore"), quarantine=sink)
    assert run(trigger, seen) == 2
    with pytest.raises(FetchError, match=r"cursor or key that Python cannot hold.*where="):
        run(trigger, seen)
    assert (seen.ids, entries(sink)) == ([1, 2], [])
    waiting = Seen()
    assert run(poller(source(postgres_database)), waiting) == 2, "the end of time has not come"


@pytest.mark.parametrize("at", [(4,), (5,), (6,), (4, 5), (5, 6), (4, 6)], ids=str)
def test_a_page_of_a_backlogs_end_and_of_what_has_come_since(
    postgres_database: str, at: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two statements read it: either may meet a row that cannot be decoded."""
    orders(postgres_database, "date", "infinity", at=[number for number in at if number < 6])
    late = "INSERT INTO orders SELECT id, id, 'n', CASE WHEN id = ANY(:at) THEN date 'infinity' END"
    look, looks = PostgresWatch.look, list[None]()

    def look_later(*given: Any) -> bool:
        looks.append(None)
        if len(looks) == 2:
            filled(postgres_database, f"{late} FROM generate_series(6, 8) AS id", at=list(at))
        return look(*given)

    monkeypatch.setattr(PostgresWatch, "look", look_later)
    sink, seen = MemoryQuarantine(), Seen()
    assert run(poller(source(postgres_database), quarantine=sink), seen) == 9 - len(at)
    assert {row["id"]: row["odd"] for row in seen.rows} == dict.fromkeys(sorted({*range(9)} - {*at}))
    told = {entry.event["pk"]["id"]: entry.event["after"]["odd"] for entry in entries(sink)}
    assert told == dict.fromkeys(at, "infinity")


@pytest.mark.parametrize("newest", [6, 8])
def test_what_comes_before_a_key_that_python_cannot_hold_is_handled_in_a_backlog_too(
    postgres_database: str, newest: int
) -> None:
    filled(
        postgres_database,
        "CREATE TABLE orders (id int, day date, version int NOT NULL, PRIMARY KEY (id, day))",
        "CREATE INDEX ix_orders ON orders (version, id, day)",
        "INSERT INTO orders SELECT i, CASE i WHEN 6 THEN 'infinity' ELSE date '2026-01-01' + i END, i "
        f"FROM generate_series(1, {newest}) AS i",
    )
    seen = Seen()
    trigger = poller(source(postgres_database, pk_columns=["id", "day"]))
    assert run(trigger, seen) == 5
    with pytest.raises(FetchError, match="cursor or key that Python cannot hold"):
        run(trigger, seen)
    assert seen.ids == [1, 2, 3, 4, 5]


def test_a_document_nested_deeper_than_python_calls_itself(postgres_database: str) -> None:
    deep = "[" * 700 + "]" * 700
    orders(postgres_database, "jsonb", deep, at=(3,))
    sink, seen = MemoryQuarantine(), Seen()

    def choosy(events: Sequence[RowChange]) -> None:
        for event in events:
            if (event.after or {})["odd"]:
                raise ValueError("too deep for me")
        seen(events)

    assert run(poller(source(postgres_database), quarantine=sink), seen) == 6
    trigger = poller(source(postgres_database), quarantine=sink, max_attempts=1)
    run(trigger, choosy)
    [row] = entries(sink)
    assert row.event["after"]["odd"] == deep
    SqlQuarantine(url=postgres_database).put([row])


def test_poison_next_to_a_row_that_cannot_be_decoded_is_found(postgres_database: str) -> None:
    orders(postgres_database, "date", "infinity", at=(1, 2))
    sink, seen = MemoryQuarantine(), Seen()

    def choosy(events: Sequence[RowChange]) -> None:
        if any(event.pk["id"] == 0 for event in events):
            raise ValueError("never 0")
        seen(events)

    trigger = poller(source(postgres_database), quarantine=sink, max_attempts=2)
    with pytest.raises(HandlerError):
        run(trigger, choosy)
    assert entries(sink) == [], "nothing is put aside before the rest of its batch is done"
    run(trigger, choosy)
    assert sorted(row.event["pk"]["id"] for row in entries(sink)) == [0, 1, 2]
    assert set(seen.ids) == {3, 4, 5}


def test_with_effect_and_checkpoint_in_one_transaction(sqlite_database: str) -> None:
    orders(sqlite_database, "text", "x")
    filled(sqlite_database, "UPDATE orders SET odd = CAST(x'ff61' AS text) WHERE id = 3")
    sink, seen = SqlQuarantine(url=sqlite_database), Seen()
    trigger = poller(
        source(sqlite_database),
        checkpoint_store=SqlStateStore(url=sqlite_database),
        quarantine=sink,
        transactional=True,
    )
    assert run(trigger, seen) == 5
    assert [row.event["pk"]["id"] for row in entries(sink)] == [3]


def test_a_document_that_sqlite_keeps_as_text_and_python_cannot_parse_stays_text(sqlite_database: str) -> None:
    orders(sqlite_database, "json", DEEP)
    filled(sqlite_database, "UPDATE orders SET odd = :value WHERE id = 3", value=DEEP)
    seen = Seen()
    assert run(poller(source(sqlite_database)), seen) == 6
    assert seen.rows[3]["odd"] == DEEP
