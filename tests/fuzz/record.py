"""Records what servers really send into `corpus/`: run as a module, with the services up (`make up`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, text

from azure_functions_db.sources.mysql.log import Replica, random_server_id
from tests.support.binlog import end_of_log, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Engine

CORPUS = Path(__file__).parent / "corpus"
SLOT = "azfdb_fuzz"

POSTGRES = (
    (
        "CREATE TABLE fuzz (id bigint PRIMARY KEY, t text, n numeric(12,4), f float8, b bool, raw bytea, "
        "d date, ts timestamp, tz timestamptz, iv interval, u uuid, j jsonb, a int[], r int4range, "
        "e fuzz_mood)"
    ),
    (
        "INSERT INTO fuzz VALUES (1, 'é\n', 1.5, 'NaN', true, '\\x00ff', 'infinity', '2026-04-07 1:2:3.4', "
        "'2026-04-07 1:2:3+05:45', '1 mon -3 days', gen_random_uuid(), '{\"a\": [1, null]}', '{1,NULL,3}', "
        "'[1,5)', 'glad')"
    ),
    "ALTER TABLE fuzz ALTER t SET STORAGE EXTERNAL",
    "INSERT INTO fuzz (id, t) VALUES (2, repeat('long', 520)), (3, NULL)",
    "UPDATE fuzz SET f = 2 WHERE id = 2",
    "UPDATE fuzz SET id = 4 WHERE id = 3",
    "ALTER TABLE fuzz REPLICA IDENTITY FULL",
    "UPDATE fuzz SET b = false WHERE id = 1",
    "DELETE FROM fuzz WHERE id = 4",
    "ALTER TABLE fuzz DROP COLUMN a, ADD COLUMN later int DEFAULT 7",
    "INSERT INTO fuzz (id) VALUES (5)",
    "SELECT pg_logical_emit_message(true, 'fuzz', 'said')",
    "TRUNCATE fuzz",
)
MARIADB = (
    (
        "CREATE TABLE fuzz (id bigint unsigned PRIMARY KEY, t varchar(40), l longtext, n decimal(20,6), "
        "f double, g float, y year, d date, dt datetime(6), ts timestamp(3), ti time(2), b bit(9), bl blob, "
        "e enum('a','é'), s set('x','y','z'), j json, m mediumint, u uuid, c char(3) CHARACTER SET latin1)"
    ),
    (
        "INSERT INTO fuzz VALUES (1, 'é', 'long', -12.345678, 1e300, 1.5, 2026, '2026-04-07', "
        "'2026-04-07 01:02:03.456789', '2026-04-07 01:02:03.456', '-12:34:56.78', b'101010101', x'00ff', "
        "'é', 'x,z', '{\"a\": [1, null]}', -8388608, uuid(), 'ü')"
    ),
    "INSERT INTO fuzz (id) VALUES (2), (3)",
    "UPDATE fuzz SET t = 'other' WHERE id < 3",
    "UPDATE fuzz SET id = 9 WHERE id = 3",
    "DELETE FROM fuzz WHERE id = 2",
    "ALTER TABLE fuzz DROP COLUMN g",
    "INSERT INTO fuzz (id, t) VALUES (5, NULL)",
    "TRUNCATE TABLE fuzz",
)


def write(name: str, lines: Iterable[Sequence[object]]) -> None:
    """Write one line for each message."""
    (CORPUS / name).write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))


def record_postgres(engine: Engine, name: str) -> None:
    """Record the messages of one table's life."""
    run(engine, "DROP TABLE IF EXISTS fuzz", "DROP TYPE IF EXISTS fuzz_mood", "CREATE TYPE fuzz_mood AS ENUM ('glad')")
    run(engine, POSTGRES[0], "DROP PUBLICATION IF EXISTS fuzz", "CREATE PUBLICATION fuzz FOR TABLE fuzz")
    run(engine, f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    try:
        for statement in POSTGRES[1:]:
            with engine.begin() as connection:
                connection.exec_driver_sql(statement)
        changes = (
            "pg_logical_slot_peek_binary_changes(:slot, NULL, NULL, 'proto_version', '1', 'publication_names', 'fuzz')"
        )
        messages = run(engine, f"SELECT data FROM {changes}", slot=SLOT)
        write(name, [(bytes(data).hex(),) for (data,) in messages])
    finally:
        run(engine, f"SELECT pg_drop_replication_slot('{SLOT}')")


def record_mariadb(engine: Engine, name: str) -> None:
    """Record the events of one table's life: kind, time, server, start, end, checksum and body."""
    run(engine, "DROP TABLE IF EXISTS fuzz", "FLUSH BINARY LOGS")
    file = end_of_log(engine)
    for statement in MARIADB:
        with engine.begin() as connection:
            connection.execute(text(statement))
    checksums = run(engine, "SELECT @@global.binlog_checksum")[0][0] != "NONE"
    replica = Replica(engine, random_server_id(), is_mariadb=True, checksums=checksums)
    try:
        events = list(replica.dump(file, 4))
    finally:
        replica.close()
    write(name, [(e.kind, e.timestamp, e.server_id, e.start, e.end, e.crc, e.body.hex()) for e in events])


if __name__ == "__main__":
    CORPUS.mkdir(exist_ok=True)
    for setting, name in (("POSTGRES", "pgoutput-15"), ("POSTGRES18", "pgoutput-18")):
        record_postgres(create_engine(os.environ[f"AZFDB_TEST_{setting}_URL"]), f"{name}.txt")
    record_mariadb(create_engine(os.environ["AZFDB_TEST_MARIADB_URL"]), "binlog-mariadb.txt")
