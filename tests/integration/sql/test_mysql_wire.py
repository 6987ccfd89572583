"""Pages of MariaDB read by their packets, beside PyMySQL's own cursor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest
from pymysql import converters
from pymysql.constants import FIELD_TYPE
from sqlalchemy import make_url

from azure_functions_db.sql import mysql_wire
from azure_functions_db.sql.mysql_wire import PageCursor

CONVERSIONS: dict[Any, Any] = converters.conversions
COLUMNS = {
    "id": ("bigint", "1", "-9223372036854775808"),
    "small": ("tinyint unsigned", "255", "0"),
    "huge": ("bigint unsigned", "18446744073709551615", "0"),
    "padded": ("int zerofill", "7", "0"),
    "exact": ("decimal(30, 10)", "12345678901234567890.0123456789", "-0.5"),
    "real": ("double", "0.1", "-1e300"),
    "single": ("float", "0.1", "16777216"),
    "word": ("varchar(300)", "'ä€'", "''"),
    "wide": ("varchar(10) CHARACTER SET utf8mb4", "convert(x'f09f9880' USING utf8mb4)", "'x'"),
    "latin": ("varchar(10) CHARACTER SET latin1", "'ä'", "'x'"),
    "long": ("longtext", "repeat('long', 60000)", "repeat('x', 251)"),
    "bytes": ("varbinary(300)", "x'00ff27'", "repeat(x'00', 251)"),
    "blob": ("longblob", "repeat(x'fe', 70000)", "''"),
    "bits": ("bit(12)", "b'101'", "0"),
    "day": ("date", "'2026-11-17'", "'0000-00-00'"),
    "clock": ("time(6)", "'12:30:15.123456'", "'-838:59:59'"),
    "moment": ("datetime(6)", "'2026-11-17 12:30:15.123456'", "'0000-00-00'"),
    "stamp": ("timestamp NULL", "'2026-11-17 12:30:15'", "'0000-00-00'"),
    "year": ("year", "2026", "0"),
    "document": ("json", '\'{"a": [1, "ä"]}\'', "'null'"),
    "kind": ("enum('a', 'b')", "'b'", "'a'"),
    "some": ("set('a', 'b')", "'a,b'", "''"),
    "place": ("point", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(0 0)')"),
}


@pytest.fixture(params=["compiled", "Python", "another PyMySQL"])
def _reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages read in each way in turn."""
    if request.param == "Python":
        monkeypatch.setattr(mysql_wire, "speedups", None)
    monkeypatch.setattr(mysql_wire, "IS_KNOWN", request.param != "another PyMySQL")


@pytest.fixture
def driver(mariadb_database: str) -> Iterator[Any]:
    """Connects by PyMySQL alone, with options of its own."""
    url, opened = make_url(mariadb_database), list[Any]()

    def connect(**options: Any) -> Any:
        address: Any = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
        opened.append(pymysql.connect(**address, database=url.database, ssl_disabled=True, **options))
        return opened[-1]

    yield connect
    for each in opened:
        if each.open:
            each.close()


def fetched(connection: Any, statement: str, **form: Any) -> Any:
    with closing(connection.cursor(**form)) as cursor:
        cursor.execute(statement)
        return cursor.description, list(cursor.fetchall())


@pytest.mark.usefixtures("_reading")
@pytest.mark.parametrize(
    "options",
    [
        {"charset": "utf8mb4"},
        {"charset": "latin1"},
        {"charset": "utf8mb4", "use_unicode": False, "conv": converters.encoders},
        {"charset": "utf8mb4", "conv": converters.encoders},
        {"charset": "utf8mb4", "conv": {**CONVERSIONS, FIELD_TYPE.DATETIME: str.upper, FIELD_TYPE.JSON: len}},
    ],
    ids=["as ours", "latin1", "bytes", "texts", "others' decoders"],
)
def test_every_type_is_what_pymysql_makes_of_it(driver: Any, options: dict[str, Any]) -> None:
    connection = driver(**options)
    with connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(
            f"CREATE TEMPORARY TABLE odd ({', '.join(f'`{name}` {kind} NULL' for name, (kind, *_) in COLUMNS.items())})"
        )
        for place in (1, 2):
            cursor.execute(f"INSERT IGNORE INTO odd VALUES ({', '.join(column[place] for column in COLUMNS.values())})")
        cursor.execute(f"INSERT INTO odd VALUES ({', '.join(['NULL'] * len(COLUMNS))})")
    plain = fetched(connection, "SELECT * FROM odd")
    assert fetched(connection, "SELECT * FROM odd", cursor=PageCursor) == plain
    assert set(plain[1][2]) == {None}


@pytest.mark.usefixtures("_reading")
def test_a_page_of_many_rows_and_one_of_none(driver: Any) -> None:
    connection = driver()
    for rows in (1, 254, 255, 256, 20_000):  # packets are numbered up to 255
        statement = f"SELECT seq, repeat('x', seq % 300) FROM seq_1_to_{rows}"
        assert fetched(connection, statement, cursor=PageCursor) == fetched(connection, statement)
    assert fetched(connection, "SELECT 1 AS n FROM dual WHERE false", cursor=PageCursor)[1] == []


@pytest.mark.usefixtures("_reading")
def test_a_value_that_cannot_be_read_costs_no_connection(driver: Any) -> None:
    connection = driver(charset="latin1")
    statement = "SELECT seq, IF(seq = 5, x'81', 'x') AS c FROM seq_1_to_10000"
    with pytest.raises(pymysql.DataError, match="UnicodeDecodeError while a row was read"):
        fetched(connection, f"SELECT seq, convert(c USING latin1) FROM ({statement}) AS rows_", cursor=PageCursor)
    assert fetched(connection, "SELECT 1", cursor=PageCursor)[1] == [(1,)]


@pytest.mark.usefixtures("_reading")
def test_an_error_in_the_middle_of_a_page_leaves_a_connection_that_can_be_used(driver: Any) -> None:
    connection = driver()
    twice = "SELECT seq, IF(seq = 9000, (SELECT 1 UNION SELECT 2), repeat('x', 100)) FROM seq_1_to_10000"
    with pytest.raises(pymysql.OperationalError, match="more than 1 row"):
        fetched(connection, twice, cursor=PageCursor)
    assert fetched(connection, "SELECT 1", cursor=PageCursor)[1] == [(1,)]


def test_a_connection_that_is_killed_in_the_middle_of_a_page_is_lost(driver: Any) -> None:
    def kill(text: str) -> int:
        if killer.open:
            killer.kill(victim.thread_id())
            killer.close()
        return int(text)

    killer, victim = driver(), driver(conv={**CONVERSIONS, FIELD_TYPE.LONGLONG: kill})
    with pytest.raises(pymysql.OperationalError):
        fetched(victim, "SELECT seq, repeat('x', 1000) FROM seq_1_to_100000", cursor=PageCursor)
    assert not victim.open
