"""What only real servers can show: killed pollers, elections, a log that rolls over; for where `AZFDB_MONGOD` is."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from azure_functions_db import MongoChangeStreamSource, PositionLostError
from azure_functions_db.sources.mongo.log import extended
from tests.support.mongo import IS_REAL, Mirror, primary_of, replica_set
from tests.support.waiting import wait_for
from tools.services.mongodb import MongoDb

pytestmark = [
    pytest.mark.skipif(not IS_REAL, reason="AZFDB_MONGOD names no server program"),
    pytest.mark.timeout(300),
]

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "12"))


class SmallLog(MongoDb):
    """Its log rolls over soon."""

    oplog_megabytes = 1


def test_a_mirror_equals_its_source_after_kills_elections_drops_and_renames(tmp_path: Path) -> None:
    """Documents with keys of many types; the poller is killed all the time, the primary again and again."""
    file, stop = tmp_path / "mirror.sqlite", tmp_path / "stop"
    with replica_set(3) as members:
        uri = f"mongodb://{','.join(member.name for member in members)}/?replicaSet=rs0&w=majority"
        poller = _poller(uri, file, stop)
        with MongoClient[Any](uri, serverSelectionTimeoutMS=20_000) as client:
            writer = _Writer(client)
            writer.fill()
            ends, kills, elections = time.monotonic() + SECONDS, 0, 0
            while time.monotonic() < ends:
                writer.write_for(0.4)
                poller.kill()
                poller.wait()
                poller, kills = _poller(uri, file, stop), kills + 1
                if kills % 6 == 3:
                    primary = primary_of(members)
                    assert primary is not None
                    primary.kill()
                    writer.write_for(0.4)
                    wait_for(lambda: primary_of(members), 60, "no primary was elected")
                    primary.start()
                    elections += 1
            writer.write_for(0.4)
            stop.touch()
            assert poller.wait(120) == 0
            assert (kills > 3, elections > 0, writer.renames > 0, writer.drops > 0) == (True,) * 4
            assert _mirrored(file) == _held(client)


def test_a_log_that_rolled_over_is_a_lost_position(tmp_path: Path) -> None:
    with replica_set(kind=SmallLog) as [member], MongoClient[Any](member.uri) as client:
        mirrors = {policy: Mirror(member.uri, on_position_lost=policy) for policy in ("stop", "snapshot", "continue")}
        client["shop"]["items"].insert_one({"_id": 0})
        for mirror in mirrors.values():
            mirror.drain()
        oldest = _oldest(client)

        def has_rolled() -> bool:
            client["shop"]["noise"].insert_many([{"text": os.urandom(50_000).hex()} for _ in range(40)])
            return _oldest(client) > oldest and _position(mirrors["stop"]) < _oldest(client)

        client["shop"]["items"].insert_one({"_id": 1})
        client["shop"]["items"].delete_one({"_id": 0})
        wait_for(has_rolled, 120, "the log does not roll over")
        with pytest.raises(PositionLostError, match="286"):
            mirrors["stop"].drain()
        [health] = mirrors["stop"].source.report(mirrors["stop"].checkpoint)
        assert health.log_fields()["retention_left_seconds"] <= 0
        for mirror in (mirrors["snapshot"], mirrors["continue"]):
            mirror.drain()
            assert mirror.checkpoint["cursor"]["gap"]["from"]
        client["shop"]["items"].insert_one({"_id": 2})
        assert [change.key["_id"] for change in mirrors["snapshot"].changes if change.metadata.get("snapshot")] == [
            0,
            1,
        ]
        for mirror in (mirrors["snapshot"], mirrors["continue"]):
            assert [change.key["_id"] for change in mirror.drain()] == [2]


def test_an_event_larger_than_a_document_may_be_comes_whole() -> None:
    with replica_set() as [member], MongoClient[Any](member.uri) as client:
        client["shop"].create_collection("items", changeStreamPreAndPostImages={"enabled": True})
        mirror = Mirror(member.uri, full_document_before_change="required")
        mirror.drain()
        first, second = ({"_id": 1, "text": letter * 9_000_000} for letter in "ab")
        client["shop"]["items"].insert_one(first)
        client["shop"]["items"].replace_one({"_id": 1}, second)
        client["shop"]["items"].insert_one({"_id": 2})
        changes = mirror.drain(limit=1)
        assert [change.key["_id"] for change in changes] == [1, 1, 2]
        assert (changes[1].before, changes[1].after) == (first, second)
        changes.clear()
        assert len(Mirror(member.uri, full_document_before_change="required", snapshot="never").drain()) == 0


def test_a_snapshot_on_a_follower_that_lags_behind_misses_nothing() -> None:
    with replica_set(3) as members:
        primary = primary_of(members)
        assert primary is not None
        [follower, _other] = [member for member in members if member is not primary]
        with MongoClient[Any](primary.uri) as client, MongoClient[Any](follower.uri) as behind:
            items = client["shop"].get_collection("items", write_concern=WriteConcern(3))
            items.insert_many([{"_id": number} for number in range(10)])
            entered = behind.admin.command("configureFailPoint", "rsSyncApplyStop", mode="alwaysOn")["count"]
            behind.admin.command("waitForFailPoint", "rsSyncApplyStop", timesEntered=entered + 1, maxTimeMS=20_000)
            items.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": 10})
            position = (
                MongoChangeStreamSource(uri=primary.uri, database="shop", collection="items")._log().begin(anew=False)
            )
            mirror = Mirror(follower.uri)
            mirror.checkpoint = {"cursor": {"kind": "x", **position, "snapshot": {"table": "items", "after": None}}}
            unaware = behind["shop"].get_collection("items", read_concern=ReadConcern("majority"))
            assert unaware.count_documents({}) == 10
            # A read of what lies before the position waits until the follower has it.
            release = Timer(1, behind.admin.command, ("configureFailPoint", "rsSyncApplyStop"), {"mode": "off"})
            release.start()
            assert len(mirror.drain()) == 11
            release.join()


class _Writer:
    """Writes documents with keys of many types into collections that come and go."""

    def __init__(self, client: MongoClient[Any]) -> None:
        self._shop = client["shop"]
        self._random = random.Random(7)
        self._keys = [self._key(number) for number in range(60)]
        self.writes = self.renames = self.drops = 0

    def fill(self) -> None:
        for name in ("a", "b", "c"):
            self._shop[name].insert_many([{"_id": key, "n": Decimal128("0.1")} for key in self._keys])

    def write_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with suppress(PyMongoError):  # while there is no primary; whether it was written, the server knows
                self._write()
                self.writes += 1

    def _write(self) -> None:
        name, key, dice = self._random.choice("abc"), self._random.choice(self._keys), self._random.random()
        if dice < 0.5:
            self._shop[name].update_one({"_id": key}, {"$set": {"n": self.writes}}, upsert=True)
        elif dice < 0.8:
            self._shop[name].replace_one({"_id": key}, {"r": self.writes, "d": Decimal128("1.5")}, upsert=True)
        elif dice < 0.97:
            self._shop[name].delete_one({"_id": key})
        elif dice < 0.985:
            self._shop[name].drop()
            self.drops += 1
        else:
            self._shop[name].rename(self._random.choice("abc".replace(name, "")), dropTarget=True)
            self.renames += 1

    def _key(self, number: int) -> Any:
        kinds: list[Callable[[int], Any]] = [
            int,
            str,
            lambda n: Decimal128(f"{n}.25"),
            lambda n: ObjectId(f"{n:024x}"),
            lambda n: {"k": n},
        ]
        return kinds[number % 5](number)


def _poller(uri: str, file: Path, stop: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.integration.mongo_mirror", uri, str(file), str(stop)]
    return subprocess.Popen(command)


def _mirrored(file: Path) -> dict[tuple[str, str], Any]:
    with closing(sqlite3.connect(file)) as place:
        rows = place.execute("SELECT collection, id, document FROM mirror").fetchall()
    return {(name, key): json.loads(document) for name, key, document in rows}


def _held(client: MongoClient[Any]) -> dict[tuple[str, str], Any]:
    shop = client["shop"]
    return {
        (name, json.dumps(extended(row["_id"]))): extended(row)
        for name in shop.list_collection_names()
        for row in shop.get_collection(name, read_concern=ReadConcern("majority")).find()
    }


def _oldest(client: MongoClient[Any]) -> tuple[int, int]:
    while True:
        with suppress(PyMongoError):  # it is thrown away while it is read
            found = client["local"]["oplog.rs"].find_one({}, sort=[("$natural", 1)])
            assert found is not None
            return found["ts"].time, found["ts"].inc


def _position(mirror: Mirror) -> tuple[int, ...]:
    return tuple(mirror.checkpoint["cursor"]["time"])
