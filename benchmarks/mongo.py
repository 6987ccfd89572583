"""Draining a change stream: `MongoChangeStreamSource` beside pymongo alone; only where `AZFDB_MONGOD` names a server.

Ten fields with an ObjectId, a Decimal128 and a date; single inserts as they stand in the log. A ratio below 1 would be
quicker than pymongo's own loop over the same events, each thrown away; both by processor time of this process.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bson import Decimal128
from pymongo import MongoClient

from azure_functions_db import MongoChangeStreamSource
from tests.support.mongo import IS_REAL, replica_set

EVENTS = int(os.environ.get("AZFDB_BENCH_EVENTS", "30000"))
ROUNDS = 5
PAGE = 1000


def document() -> dict[str, Any]:
    texts = {f"text{number}": "some text of forty letters, more or less" for number in range(5)}
    return {**texts, "price": Decimal128("12.50"), "at": dt.datetime.now(dt.UTC), "n": 7, "ratio": 1.5}


def drained(source: MongoChangeStreamSource, start: dict[str, Any]) -> None:
    with closing(source.open()) as reader:
        taken, place = 0, start
        while taken < EVENTS:
            page = reader.fetch_changes(place, PAGE)
            place = page.next_checkpoint
            taken += len(page.records)


def alone(client: MongoClient[Any], start: dict[str, Any]) -> None:
    token = {"_data": start["cursor"]["value"]}
    options: dict[str, Any] = {"resume_after": token, "full_document": "updateLookup", "batch_size": PAGE}
    with client["bench"]["wide"].watch(**options) as stream:
        for _ in range(EVENTS):
            stream.next()


def measured(work: Any) -> tuple[float, float]:
    processor, clock = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - clock


def main() -> None:
    if not IS_REAL:
        return
    with replica_set() as [member], MongoClient[Any](member.uri, tz_aware=True) as client:
        wide = client["bench"]["wide"]
        source = MongoChangeStreamSource(
            uri=member.uri, database="bench", collection="wide", snapshot="never", idle_seconds=0
        )
        start = source.fetch_changes(source.parse("now"), 1).next_checkpoint
        for first in range(0, EVENTS, PAGE):
            wide.insert_many([document() for _ in range(min(PAGE, EVENTS - first))])
        sides = partial(drained, source, start), partial(alone, client, start)
        rounds = [[measured(side) for side in sides] for _ in range(ROUNDS)]
        (ours, our_clock), (bare, bare_clock) = (min(each[side] for each in rounds) for side in (0, 1))
        line = {"benchmark": "mongo", "case": "events of single inserts, beside pymongo alone", "target": None}
        speeds = {"events_per_s": round(EVENTS / our_clock), "baseline_events_per_s": round(EVENTS / bare_clock)}
        print(
            json.dumps(
                {**line, "ratio": round(ours / bare, 3), "us_per_event": round(ours / EVENTS * 1e6, 1), **speeds}
            )
        )


if __name__ == "__main__":
    main()
