"""What happens around a long-lived app: migrations, dropped connections, unusual names and rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

from azure_functions_db import ConfigurationError, DbConfig, DbConnectionError, DbReader, DbWriter, WriteError
from azure_functions_db.binding import writer
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from tests.integration.binding.conftest import Place


def test_an_added_column_is_seen_at_once(place: Place) -> None:
    reader, writer = place.reader(), place.writer()
    writer.insert(data={"id": 1})
    for _ in range(8):  # often enough for a driver to have prepared it
        reader.get(pk={"id": 1})
        reader.query("SELECT * FROM items WHERE id = :id", params={"id": 1})
    place.execute("ALTER TABLE items ADD COLUMN extra INTEGER DEFAULT 3")

    assert reader.query("SELECT * FROM items WHERE id = :id", params={"id": 1})[0]["extra"] == 3
    assert reader.get(pk={"id": 1}) == {"id": 1, "code": None, "name": None, "size": 7, "extra": 3}
    writer.insert(data={"id": 2, "extra": 4})
    writer.insert_many(rows=[{"id": 3, "extra": 5}])
    assert [row["extra"] for row in place.rows()] == [3, 4, 5]


def test_a_column_added_with_a_type_of_its_own_is_read_as_that_type(sqlite: Place) -> None:
    from datetime import date

    reader, writer = sqlite.reader(), sqlite.writer()
    writer.insert(data={"id": 1})
    reader.get(pk={"id": 1})
    sqlite.execute("ALTER TABLE items ADD COLUMN due DATE DEFAULT '2026-01-02'")

    found = reader.get(pk={"id": 1})

    assert found is not None
    assert found["due"] == date(2026, 1, 2)


def test_a_dropped_column_is_seen_at_once(place: Place) -> None:
    reader, writer = place.reader(), place.writer()
    writer.insert(data={"id": 1, "name": "a"})
    assert reader.get(pk={"id": 1}) is not None
    place.execute("ALTER TABLE items DROP COLUMN name")

    assert reader.get(pk={"id": 1}) == {"id": 1, "code": None, "size": 7}
    with pytest.raises(ConfigurationError, match="'name'"):
        writer.insert(data={"id": 2, "name": "b"})
    writer.insert(data={"id": 2})
    assert len(place.rows()) == 2


def test_a_widened_column_takes_what_it_can_now_hold(postgres: Place) -> None:
    writer = postgres.writer()
    writer.insert(data={"id": 1, "size": 1})
    postgres.execute("ALTER TABLE items ALTER COLUMN size TYPE BIGINT")

    writer.insert(data={"id": 2, "size": 2**40})
    writer.upsert_many(rows=[{"id": key, "size": 2**40} for key in range(2, 200)], conflict_columns=["id"])

    assert postgres.reader().get(pk={"id": 150}) == {"id": 150, "code": None, "name": None, "size": 2**40}


def test_a_dropped_connection_costs_no_error_outside_a_transaction(server: Place) -> None:
    reader, writer = server.reader(), server.writer()
    calls: list[Any] = [
        lambda: writer.insert(data={"id": 1}),
        lambda: reader.get(pk={"id": 1}),
        lambda: reader.query("SELECT 1 AS one", params={}),
        lambda: list(reader.stream("SELECT 1 AS one", params={})),
        lambda: writer.insert_many(rows=[{"id": key} for key in range(10, 200)]),
        lambda: writer.delete(pk={"id": 1}),
    ]
    for call in calls:
        reader.query("SELECT 1 AS one", params={})
        server.kill_other_sessions()
        call()
    assert server.count() == 190


def test_a_connection_dropped_inside_a_transaction_is_a_connection_error_and_nothing_is_kept(server: Place) -> None:
    writer = server.writer()
    with pytest.raises(DbConnectionError), writer.transaction():
        writer.insert(data={"id": 1})
        server.kill_other_sessions()
        writer.insert_many(rows=[{"id": 2}])
    writer.insert(data={"id": 3})
    assert [row["id"] for row in server.rows()] == [3]


NAMES = [
    'quo"te',
    "back`tick",
    "with space",
    "per%cent",
    "per%%cents %s %(x)s",
    "co:lon :x",
    "do.t",
    "UPPER",
    "select",
    "brack[et]",
    "brace{0}",
    "ünïcode",
    "back\\slash",
    "quest?ion",
    "(paren) VALUES",
]


@pytest.mark.parametrize("count", [1, 150])
def test_any_name_works_on_every_path(place: Place, count: int) -> None:
    table = 'Odd "table" `of` 100% :names, (yes). select'[:60]
    quote = place.side_door.dialect.identifier_preparer.quote_identifier
    raw = [quote(name).replace("%%", "%") if "%%" in quote("%") else quote(name) for name in (table, *NAMES)]
    columns = ", ".join(f"{name} VARCHAR(20) NOT NULL DEFAULT 'd'" for name in raw[1:])
    with place.side_door.begin() as connection:
        connection.connection.cursor().execute(f"CREATE TABLE {raw[0]} (id INTEGER PRIMARY KEY, {columns})")
    rows = [
        {"id": key, **{name: f"{index} of {key}" for index, name in enumerate(NAMES)}} for key in range(1, count + 1)
    ]
    writer, reader = place.writer(table), place.reader(table)

    writer.insert(data={**rows[0], "id": 9999})
    writer.insert_many(rows=rows)
    assert reader.get(pk={"id": count}) == rows[-1]
    changed = [{**row, "select": "changed"} for row in rows]
    writer.upsert_many(rows=changed, conflict_columns=["id"])
    writer.upsert(data=changed[0], conflict_columns=["id"])
    assert reader.get(pk={"id": count}) == changed[-1]
    writer.update(data=dict.fromkeys(NAMES, "u"), pk={"id": 9999})
    assert reader.get(pk={"id": 9999}) == {"id": 9999} | dict.fromkeys(NAMES, "u")
    assert writer.insert(data={**rows[0], "id": 10000}, returning=NAMES) == {name: rows[0][name] for name in NAMES}
    back = writer.upsert_many(rows=changed, conflict_columns=["id"], returning=["per%cent"])
    assert back == [{"per%cent": row["per%cent"]} for row in rows]
    writer.delete(pk={"id": 9999})
    assert reader.get(pk={"id": 9999}) is None


def test_long_rows_stay_within_the_servers_packet(mariadb: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_STATEMENT_BYTES", 10**9)
    mariadb.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, body LONGTEXT)")
    packet = int(mariadb.rows("SELECT @@max_allowed_packet AS n")[0]["n"])
    body = "é" * 300_000
    rows = [{"id": key, "body": body} for key in range(1, packet // 600_000 + 10)]

    mariadb.writer("texts").insert_many(rows=rows)

    assert mariadb.rows("SELECT count(*) AS n, min(length(body)) AS least FROM texts") == [
        {"n": len(rows), "least": 600_000}
    ]
    with pytest.raises((WriteError, DbConnectionError)):
        mariadb.writer("texts").insert(data={"id": 0, "body": "x" * (packet + 10)})


def test_what_copy_refuses_is_inserted(postgres: Place) -> None:
    """Row-level security, a view, and a role that may not make temporary tables."""
    postgres.execute(
        "CREATE ROLE limited LOGIN PASSWORD 'limited'" if not _has_role(postgres) else "SELECT 1",
        "GRANT ALL ON items TO limited",
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY everyone ON items USING (true) WITH CHECK (true)",
        "CREATE VIEW seen AS SELECT id, name FROM items",
        "GRANT ALL ON seen TO limited",
        "DO $$ BEGIN EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()); END $$",
    )
    url = postgres.side_door.url.set(username="limited", password="limited").render_as_string(hide_password=False)
    rows = [{"id": key, "name": "n"} for key in range(1, 300)]

    DbWriter(url=url, table="items", engine_provider=postgres.provider).insert_many(rows=rows)
    DbWriter(url=url, table="items", engine_provider=postgres.provider).upsert_many(rows=rows, conflict_columns=["id"])
    more = [{"id": key, "name": "n"} for key in range(300, 600)]
    DbWriter(url=url, table="seen", engine_provider=postgres.provider).insert_many(rows=more)

    assert postgres.count() == 599


def _has_role(place: Place) -> bool:
    return bool(place.rows("SELECT 1 AS one FROM pg_roles WHERE rolname = 'limited'"))


def test_a_single_statement_is_one_round_trip(server: Place) -> None:
    at = server.side_door.url
    assert at.host is not None
    assert at.port is not None
    with Proxy(at.host, at.port) as proxy:
        server.url = at.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        reader, writer = server.reader(), server.writer()
        calls: list[Any] = [
            lambda: reader.get(pk={"id": 1}),
            lambda: reader.query("SELECT * FROM items WHERE id = :id", params={"id": 1}),
            lambda: writer.upsert(data={"id": 1}, conflict_columns=["id"]),
        ]
        for call in calls:
            for _ in range(10):  # the first ones connect, look at the table, prepare
                call()
            before = proxy.requests
            for _ in range(20):
                call()
            assert proxy.requests - before == 20
        server.provider.dispose_all()


def test_whoever_watches_statements_sees_them_all(place: Place) -> None:
    reader, writer = place.reader(), place.writer()
    engine: Engine = reader._database.engine
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _cursor, sql, *_rest: seen.append(sql))

    writer.insert(data={"id": 1})
    reader.get(pk={"id": 1})

    assert [sql.split()[0] for sql in seen if "items" in sql and sql.split()[0] in {"INSERT", "SELECT"}][-2:] == [
        "INSERT",
        "SELECT",
    ]


def test_a_chosen_isolation_level_reaches_single_reads(postgres: Place) -> None:
    config = DbConfig(connection_url=postgres.url, engine_kwargs={"isolation_level": "SERIALIZABLE"})
    reader = DbReader(db_config=config, engine_provider=postgres.provider)

    assert reader.scalar("SHOW transaction_isolation", params={}) == "serializable"


def test_a_plain_engine_of_the_provider_still_has_transactions(place: Place) -> None:
    """Other users of the shared engine get SQLAlchemy's usual behaviour, after single statements too."""
    place.writer().insert(data={"id": 1})
    engine = place.writer()._database.engine
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO items (id) VALUES (2)"))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO items (id) VALUES (3)"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("INSERT INTO items (id) VALUES (4)"))
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO items (id) VALUES (5)"))

    assert [row["id"] for row in place.rows()] == [1, 3, 4]
    assert create_engine(place.url, poolclass=NullPool) is not engine
