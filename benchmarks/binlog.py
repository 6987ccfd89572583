"""Draining the binary log: `MySqlBinlogSource` beside the floor and beside `mysql-replication` alone.

Ten columns; single-row transactions, and transactions of 1,000 rows. The floor is PyMySQL's own reading of the packets,
each thrown away undecoded. A ratio below 1 is quicker than what it is held against; targets are a quarter of
`mysql-replication` for single rows, and no slower in bulk. The last line holds the memory of a transaction of many rows
against that of a small one.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import time
import tracemalloc
from contextlib import closing, redirect_stdout
from functools import partial
from typing import Any

from common import databases
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent
from sqlalchemy import create_engine, make_url

from azure_functions_db import DbConfig, MySqlBinlogSource

SINGLE, BULK, MANY = 3_000, 30_000, 200_000
ROUNDS = 5
TABLE = (
    "CREATE TABLE wide (id int AUTO_INCREMENT PRIMARY KEY, a varchar(40), b int unsigned, c decimal(12,2), "
    "d datetime(6), e double, f bigint, g varchar(80), h date, i tinyint)"
)
ROW = "(NULL, 'some text', 5, 12.34, now(6), 1.5, 77777777777, 'a longer text of some eighty letters', curdate(), 1)"


def source_of(url: str) -> MySqlBinlogSource:
    config = DbConfig(connection_url=url, connect_args={"ssl_disabled": True})
    return MySqlBinlogSource(db_config=config, tables=["wide"], snapshot="never")


def drained(source: MySqlBinlogSource, start: dict[str, Any], count: int) -> None:
    with closing(source.open()) as reader:
        taken, place = 0, start
        while taken < count:
            page = reader.fetch_changes(place, 1000)
            place = page.next_checkpoint
            taken += len(page.records)


def rival_drained(url: str, start: dict[str, Any], count: int) -> None:
    place, cursor = make_url(url), start["cursor"]
    login = {"host": place.host, "port": place.port, "user": place.username, "passwd": place.password}
    stream = BinLogStreamReader(
        connection_settings={**login, "ssl_disabled": True},
        server_id=4711,
        log_file=cursor["file"],
        log_pos=cursor.get("end", cursor["offset"]),
        resume_stream=True,
        only_events=[WriteRowsEvent],
        only_tables=["wide"],
        blocking=True,
        is_mariadb=False,
    )
    with closing(stream), redirect_stdout(io.StringIO()):
        taken = 0
        for event in stream:
            taken += len(event.rows)
            if taken >= count:
                break


def floor_drained(url: str, start: dict[str, Any]) -> None:
    engine, cursor = create_engine(url, connect_args={"ssl_disabled": True}), start["cursor"]
    pooled = engine.raw_connection()
    pooled.detach()
    connection: Any = pooled.dbapi_connection
    with connection.cursor() as statement:
        statement.execute("SET @master_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4")
    place = struct.pack("<IHI", cursor.get("end", cursor["offset"]), 1, 4712)
    connection._execute_command(0x12, place + cursor["file"].encode())  # noqa: SLF001 - there is no public way
    while not connection._read_packet().is_eof_packet():  # noqa: SLF001 - as above
        pass
    connection._force_close()  # noqa: SLF001 - as above
    engine.dispose()


def timed(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(case: str, ours: Any, other: Any, count: int, target: float | None) -> None:
    times: dict[Any, list[float]] = {ours: [], other: []}
    for _ in range(ROUNDS):
        for work, taken in times.items():
            taken.append(timed(work))
    mine, theirs = min(times[ours]), min(times[other])
    line = {"benchmark": "binlog", "case": case, "ratio": round(mine / theirs, 3), "target": target}
    print(json.dumps({**line, "ours_ms": round(mine * 1000), "baseline_ms": round(theirs * 1000), "rows": count}))
    sys.stdout.flush()


def peak(source: MySqlBinlogSource, start: dict[str, Any], count: int) -> float:
    tracemalloc.start()
    drained(source, start, count)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 2**20


def main() -> None:
    with databases() as urls:
        url = urls["mariadb"]
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        source = source_of(url)
        starts: list[dict[str, Any]] = []
        with engine.connect() as connection:
            connection.exec_driver_sql(TABLE)
            starts.append(source.fetch_changes({}, 1).next_checkpoint)
            for _ in range(SINGLE):
                connection.exec_driver_sql(f"INSERT INTO wide VALUES {ROW}")
            starts.append(source.parse("now"))
            for _ in range(BULK // 1000):
                connection.exec_driver_sql(f"INSERT INTO wide VALUES {', '.join([ROW] * 1000)}")
        for case, start, count, target in (("single rows", starts[0], SINGLE, 0.25), ("bulk", starts[1], BULK, 1.0)):
            ours, rival = partial(drained, source, start, count), partial(rival_drained, url, start, count)
            compare(f"{case}, beside mysql-replication", ours, rival, count, target)
        ours, floor = partial(drained, source, starts[0], SINGLE + BULK), partial(floor_drained, url, starts[0])
        compare("all, beside the floor", ours, floor, SINGLE + BULK, None)
        small = peak(source, starts[1], 10_000)
        start = source.parse("now")
        with engine.begin() as connection:
            connection.exec_driver_sql("BEGIN")
            for _ in range(MANY // 1000):
                connection.exec_driver_sql(f"INSERT INTO wide VALUES {', '.join([ROW] * 1000)}")
            connection.exec_driver_sql("COMMIT")
        large = peak(source, start, MANY)
        line = {"benchmark": "binlog", "case": f"memory, one transaction of {MANY} rows", "target": 1.3}
        print(json.dumps({**line, "ratio": round(large / small, 3), "ours_mb": round(large, 1)}))
        engine.dispose()


if __name__ == "__main__":
    main()
