"""MongoDB's change streams as a source: every change in its order, none lost without a word.

What the server says is recorded (tests/support/mongo.py); where `AZFDB_MONGOD` names one, a real server says it.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo import MongoClient

from azure_functions_db import (
    FetchError,
    MongoChangeStreamSource,
    PollTrigger,
    PositionLostError,
    RowsFailed,
    SourceConfigurationError,
)
from azure_functions_db.operations.pollers import Definition
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.memory import MemoryQuarantine
from azure_functions_db.trigger.events import RowChange
from tests.support.mongo import Mirror, Stage, fail, fail_streams, text

if TYPE_CHECKING:
    from pymongo.database import Database

    from azure_functions_db.core.types import Change

ID = ObjectId("507f1f77bcf86cd799439011")
MOMENT = dt.datetime(2026, 11, 16, 12, 30, 0, 123000, dt.UTC)
DOCUMENT = {
    "_id": ID,
    "price": Decimal128("12.50"),
    "at": MOMENT,
    "raw": b"\x00\xff",
    "old_uuid": Binary(b"0" * 16, 3),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "large": Int64(2**60),
    "ratio": 0.5,
    "infinite": float("-inf"),
    "pattern": Regex("^a", "i"),
    "stamp": Timestamp(5, 6),
    "ends": [MinKey(), MaxKey(), None, True],
    "code": Code("f()"),
    "far": DatetimeMS(2**60),
    "ref": DBRef("others", ID),
    "nested": {"list": [{"id": ID}, [MOMENT]], "empty": {}},
    "hostile": {"$oid": "no oid", "$literal": {"$date": 1}},
    "text": "50\u20ac \U0001f600 '; DROP",
}


@pytest.fixture
def shop(mongo_uri: str) -> Iterator[Database[Any]]:
    forms: dict[str, Any] = {"tz_aware": True, "uuidRepresentation": "standard", "datetime_conversion": "DATETIME_AUTO"}
    with MongoClient[Any](mongo_uri, **forms) as client:
        client.drop_database("shop")
        client["shop"].create_collection("items")
        yield client["shop"]


@pytest.fixture
def new_mirror(shop: Database[Any], mongo_uri: str) -> Any:
    def new_mirror(**options: Any) -> Mirror:
        mirror = Mirror(mongo_uri, **options)
        if options.get("snapshot") == "never":
            mirror.drain()  # it begins here
        return mirror

    return new_mirror


def told(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [(change.op, change.before, change.after) for change in changes]


def held(shop: Database[Any], *names: str) -> dict[Any, Any]:
    return {(name, text(row["_id"])): row for name in names or ["items"] for row in shop[name].find()}


# Changes.


def test_inserts_updates_replacements_and_deletes_come_in_their_order(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(snapshot="never")
    shop["items"].insert_one({"_id": 1, "name": "a"})
    shop["items"].update_one({"_id": 1}, {"$set": {"name": "b"}})
    mirror.drain()
    shop["items"].replace_one({"_id": 1}, {"name": "c"})
    shop["items"].delete_one({"_id": 1})
    mirror.drain()
    assert told(mirror.changes) == [
        ("insert", None, {"_id": 1, "name": "a"}),
        ("update", None, {"_id": 1, "name": "b"}),
        ("update", None, {"_id": 1, "name": "c"}),
        ("delete", None, None),
    ]
    assert [change.key for change in mirror.changes] == [{"_id": 1}] * 4
    assert mirror.changes[1].metadata["update"] == {"updatedFields": {"name": "b"}}
    assert {change.metadata["collection"] for change in mirror.changes} == {"items"}
    assert all(change.metadata["committed_at"].tzinfo is not None for change in mirror.changes)
    assert mirror.rows == {}


def test_images_before_and_after_a_change_are_those_of_that_change(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(snapshot="never", full_document="required", full_document_before_change="required")
    assert mirror.source.create_stream(dry_run=True) == mirror.source.create_stream() != []
    assert mirror.source.create_stream() == []
    shop["items"].insert_one({"_id": 1, "n": 1})
    for number in (2, 3):
        shop["items"].update_one({"_id": 1}, {"$set": {"n": number}})
    shop["items"].delete_one({"_id": 1})
    versions = [{"_id": 1, "n": number} for number in (1, 2, 3)]
    assert told(mirror.drain()) == [
        ("insert", None, versions[0]),
        ("update", versions[0], versions[1]),
        ("update", versions[1], versions[2]),
        ("delete", versions[2], None),
    ]


def test_images_that_are_required_and_not_kept_are_a_clear_error(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(snapshot="never", full_document_before_change="required")
    shop["items"].insert_one({"_id": 1})
    shop["items"].delete_one({"_id": 1})
    with pytest.raises(SourceConfigurationError, match="azfdb stream create"):
        mirror.drain()
    with pytest.raises(SourceConfigurationError, match="collMod"):
        mirror.source.validate()


def test_an_update_of_a_document_that_is_gone_has_none(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(snapshot="never")
    shop["items"].insert_one({"_id": 1, "n": 1})
    shop["items"].update_one({"_id": 1}, {"$set": {"n": 2}})
    shop["items"].delete_one({"_id": 1})
    assert [(change.op, change.after) for change in mirror.drain()] == [
        ("insert", {"_id": 1, "n": 1}),
        ("update", None),
        ("delete", None),
    ]


def test_without_full_documents_an_update_tells_what_has_changed(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(snapshot="never", full_document="off")
    shop["items"].insert_one({"_id": 1, "n": 1, "m": 1})
    shop["items"].update_one({"_id": 1}, {"$set": {"n": ID}, "$unset": {"m": 1}})
    updated = mirror.drain()[1]
    assert (updated.after, updated.metadata["update"]) == (None, {"updatedFields": {"n": ID}, "removedFields": ["m"]})


def test_a_transaction_passes_document_by_document_and_can_be_left_in_the_middle(
    shop: Database[Any], new_mirror: Any
) -> None:
    mirror = new_mirror(snapshot="never")
    with shop.client.start_session() as session, session.start_transaction():
        shop["items"].insert_many([{"_id": number} for number in range(10)], session=session)
    changes = mirror.drain(limit=3)
    assert [change.key["_id"] for change in changes] == list(range(10))
    assert len({change.position for change in changes}) == 10
    assert len({change.metadata["transaction"] for change in changes}) == 1


# Types.


def test_every_type_arrives_as_it_is_and_comes_back_from_the_json_of_its_event(
    shop: Database[Any], new_mirror: Any
) -> None:
    mirror = new_mirror()
    mirror.drain()
    shop["items"].insert_one(DOCUMENT)
    [event] = delivered(mirror.source, mirror.checkpoint)
    assert event.after == DOCUMENT
    written = json.loads(json.dumps(event.to_json(), allow_nan=False))
    assert written["pk"] == {"_id": {"$oid": str(ID)}}
    assert written["after"]["price"] == {"$numberDecimal": "12.50"}
    assert written["after"]["at"] == {"$date": "2026-11-16T12:30:00.123Z"}
    assert written["after"]["raw"] == {"$binary": {"base64": "AP8=", "subType": "00"}}
    assert MongoChangeStreamSource.revived(written["after"]) == DOCUMENT
    assert event.to_cloudevent()["subject"] == f"_id={ID}"


def test_a_quarantined_document_is_replayed_with_its_types(shop: Database[Any], new_mirror: Any) -> None:
    from azure_functions_db.operations.quarantine import Entry, event_of

    source, sink = new_mirror().source, MemoryQuarantine()
    shop["items"].insert_one(DOCUMENT)

    def refuse(events: list[RowChange]) -> None:
        raise RowsFailed({event.event_id: "no good" for event in events})

    trigger = PollTrigger(
        name="poison", source=source, checkpoint_store=MemoryStateStore(), quarantine=sink, max_attempts=1
    )
    trigger.run(timer=None, handler=refuse)
    [row] = sink.entries()
    replayed: Any = event_of(Entry(row, sink, Definition(Mock(), trigger)))
    assert (replayed.after, replayed.pk, replayed.event_id) == (DOCUMENT, {"_id": ID}, row.event_id)


def test_a_single_document_is_looked_up_as_it_is_now(shop: Database[Any], new_mirror: Any) -> None:
    shop["items"].insert_one(DOCUMENT)
    source = new_mirror().source
    assert (source.current_row({"_id": ID}), source.current_row({"_id": {"$gt": 1}})) == (DOCUMENT, None)
    with pytest.raises(SourceConfigurationError, match="collection"):
        new_mirror(collection=None).source.current_row({"_id": ID})


# The snapshot.


def test_the_documents_come_first_in_pages_that_resume_and_then_what_changed_meanwhile(
    shop: Database[Any], new_mirror: Any
) -> None:
    keys = [None, 1, Int64(2**40), 2.5, Decimal128("7.5"), "a", "b", {"k": 1}, b"x", ID, False, True, MOMENT, MinKey()]
    shop["items"].insert_many([{"_id": key, "n": 1} for key in keys])
    mirror = new_mirror()
    first = mirror.page(limit=3)
    assert [change.op for change in first] == ["upsert"] * 3
    assert all(change.metadata["snapshot"] for change in first)
    shop["items"].update_many({}, {"$inc": {"n": 1}})
    shop["items"].delete_one({"_id": "a"})
    shop["items"].insert_one({"_id": "aa", "n": 1})
    mirror.drain(limit=3)
    assert sum(change.metadata.get("snapshot", False) for change in mirror.changes) == len(keys)
    assert mirror.rows == held(shop)


def test_a_snapshot_alone_ends_and_a_stream_alone_begins_now(shop: Database[Any], new_mirror: Any) -> None:
    shop["items"].insert_many([{"_id": number} for number in range(3)])
    only, never = new_mirror(snapshot="only"), new_mirror(snapshot="never")
    only.drain(limit=2)
    shop["items"].insert_one({"_id": 3})
    assert (len(only.changes), only.drain(), len(never.drain())) == (3, [], 1)


def test_a_whole_database_is_read_collection_by_collection_and_then_streamed(
    shop: Database[Any], new_mirror: Any
) -> None:
    shop.create_collection("measured", timeseries={"timeField": "at"})
    shop.create_collection("seen", viewOn="items")
    for name in ("a", "items", "z"):
        shop[name].insert_many([{"_id": number, "in": name} for number in range(3)])
    mirror = new_mirror(collection=None)
    mirror.page(limit=2)
    shop["z"].delete_one({"_id": 1})
    shop["between"].insert_one({"_id": 1})
    shop["a"].drop()
    mirror.drain(limit=2)
    assert mirror.rows == held(shop, "a", "between", "items", "z")


def test_an_empty_database_is_watched_from_its_beginning(mongo_uri: str, new_mirror: Any, shop: Database[Any]) -> None:
    shop.client.drop_database("shop")
    mirror = new_mirror(collection=None)
    assert mirror.drain() == []
    shop["items"].insert_one({"_id": 1})
    mirror.drain()
    assert mirror.rows == held(shop)


# Collections that come and go.


def test_a_dropped_collection_is_told_and_its_successor_followed(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror()
    shop["items"].insert_one({"_id": 1})
    mirror.drain()
    shop["items"].drop()
    shop["items"].insert_one({"_id": 2})
    shop["items"].drop()
    shop["items"].insert_one({"_id": 3})
    changes = mirror.drain(limit=1)
    assert [change.op for change in changes] == ["truncate", "insert", "truncate", "insert"]
    assert changes[0].metadata["operation"] == "drop"
    assert mirror.rows == held(shop)


def test_after_a_drop_that_nothing_has_followed_yet_the_position_is_good(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror()
    shop["items"].insert_one({"_id": 1})
    mirror.drain()
    shop["items"].drop()
    mirror.drain()
    assert (mirror.drain(), mirror.rows) == ([], {})
    shop["items"].insert_one({"_id": 2})
    mirror.drain()
    assert mirror.rows == held(shop)


@pytest.mark.parametrize("limit", [1, 100])
def test_a_collection_that_takes_the_name_of_another_is_read_anew(
    shop: Database[Any], new_mirror: Any, limit: int
) -> None:
    mirror = new_mirror()
    shop["items"].insert_many([{"_id": number, "of": "old"} for number in range(3)])
    mirror.drain(limit)
    shop["new"].insert_many([{"_id": number, "of": "new"} for number in (1, 5)])
    shop["new"].rename("items", dropTarget=True)
    shop["items"].insert_one({"_id": 7})
    mirror.drain(limit)
    assert mirror.rows == held(shop)
    shop["items"].rename("away")
    mirror.drain(limit)
    assert mirror.rows == {}
    shop["items"].insert_one({"_id": 9})
    mirror.drain(limit)
    assert mirror.rows == held(shop)


@pytest.mark.parametrize("limit", [1, 100])
def test_a_mirror_of_a_database_follows_renamed_collections(shop: Database[Any], new_mirror: Any, limit: int) -> None:
    mirror = new_mirror(collection=None)
    shop["items"].insert_many([{"_id": number} for number in range(3)])
    shop["old"].insert_one({"_id": "old"})
    mirror.drain(limit)
    shop["items"].rename("old", dropTarget=True)
    shop["old"].insert_one({"_id": 7})
    shop["old"].delete_one({"_id": 1})
    mirror.drain(limit)
    assert mirror.rows == held(shop, "old")


# The pipeline.


def test_a_pipeline_filters_documents_of_the_snapshot_as_it_filters_changes(
    shop: Database[Any], new_mirror: Any
) -> None:
    shop["items"].insert_many([{"_id": number, "is_wanted": number % 2 == 0} for number in range(7)])
    mirror = new_mirror(pipeline=[{"$match": {"fullDocument.is_wanted": True}}])
    mirror.drain(limit=2)
    shop["items"].insert_many([{"_id": number, "is_wanted": number % 2 == 0} for number in (10, 11)])
    mirror.drain(limit=2)
    assert [change.key["_id"] for change in mirror.changes] == [0, 2, 4, 6, 10]


def test_a_pipeline_that_hides_the_end_of_a_collection_does_not_end_the_stream(
    shop: Database[Any], new_mirror: Any
) -> None:
    mirror = new_mirror(snapshot="never", pipeline=[{"$match": {"operationType": "insert"}}])
    for key in (1, 2):
        shop["items"].insert_one({"_id": key})
        shop["items"].drop()
        mirror.drain()
    shop["items"].insert_one({"_id": 3})
    mirror.drain()
    assert [change.key["_id"] for change in mirror.changes] == [1, 2, 3]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"$project": {"operationType": 0}}, "operationType"),
        ({"$unset": "documentKey"}, "documentKey"),
        ({"$project": {"_id": 0}}, "modified by the pipeline"),
        ({"$nonsense": 1}, "nonsense"),
    ],
)
def test_a_pipeline_that_cannot_work_is_a_clear_error(
    shop: Database[Any], new_mirror: Any, stage: dict[str, Any], message: str
) -> None:
    mirror = Mirror(new_mirror().uri, snapshot="never", pipeline=[stage], start_at=now(shop))
    shop["items"].insert_one({"_id": 1})
    with pytest.raises(SourceConfigurationError, match=message):
        mirror.drain()


# Positions.


def now(shop: Database[Any]) -> str:
    with shop.client.start_session() as session:
        shop["items"].find_one({}, session=session)
        assert session.operation_time is not None
        return f"{session.operation_time.time}:{session.operation_time.inc}"


def test_history_that_is_lost_stops_the_poller_until_somebody_decides(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror()
    mirror.drain()
    shop["items"].insert_one({"_id": 1})
    for _ in range(2):
        fail_streams(shop.client, 286)
        with pytest.raises(PositionLostError, match="no longer have"):
            mirror.drain()
    mirror.drain()
    assert mirror.rows == held(shop)


def test_after_a_loss_the_documents_can_be_read_anew(
    shop: Database[Any], new_mirror: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = new_mirror(on_position_lost="snapshot")
    mirror.drain()
    shop["items"].insert_many([{"_id": number} for number in range(3)])
    fail_streams(shop.client, 286)
    mirror.drain(limit=2)
    assert mirror.rows == held(shop)
    [lost] = [fact for fact in mirror.facts if fact.log_event == "position_lost"]
    assert lost.log_level == logging.ERROR
    assert mirror.checkpoint["cursor"]["gap"]["reason"]


def test_after_a_loss_the_stream_can_go_on_with_the_oldest_that_is_left(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(on_position_lost="continue", snapshot="never")
    shop["items"].insert_one({"_id": 1})
    mirror.drain()
    fail_streams(shop.client, 286)
    mirror.drain()
    # All of the log is left here: what was delivered before comes again.
    assert [change.key["_id"] for change in mirror.changes if change.op == "insert"][-1] == 1
    assert mirror.checkpoint["cursor"]["gap"]["to"].count(":") == 1


@pytest.mark.parametrize("token", ["FFFF" * 5, "82" + "FF" * 20, '{"_data": 5}'])
def test_a_token_that_no_server_could_have_given_is_a_lost_position(
    shop: Database[Any], new_mirror: Any, token: str
) -> None:
    mirror = new_mirror()
    mirror.checkpoint = mirror.source.parse(token)
    with pytest.raises(PositionLostError):
        mirror.drain()


@pytest.mark.parametrize("kind", ["stream", "snapshot"])
def test_a_server_that_was_set_back_is_told(
    shop: Database[Any], new_mirror: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("azure_functions_db.sources.mongo.log._HEARTBEATS_SECONDS", -1)
    mirror = new_mirror(snapshot="never" if kind == "stream" else "initial")
    mirror.checkpoint = mirror.source.parse("4000000000:1")
    if kind == "snapshot":
        mirror.checkpoint["cursor"]["snapshot"] = {"table": "items", "after": None}
    with pytest.raises(PositionLostError, match="clusterTime"):
        mirror.drain()


def test_a_position_that_was_typed_is_read_on_from(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(snapshot="never")
    shop["items"].insert_many([{"_id": number} for number in range(3)])
    first = mirror.page(limit=1)[0]
    for typed in (mirror.source.describe(mirror.checkpoint), first.position):
        mirror.checkpoint = mirror.source.parse(typed)
        assert [change.key["_id"] for change in mirror.drain()] == [1, 2]


def test_the_position_behind_a_dropped_collection_can_be_typed(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror(snapshot="never")
    shop["items"].drop()
    mirror.drain()
    assert mirror.checkpoint["cursor"]["invalidated"]
    mirror.checkpoint = mirror.source.parse(mirror.source.describe(mirror.checkpoint))
    shop["items"].insert_one({"_id": 1})
    assert [change.key["_id"] for change in mirror.drain()] == [1]


@pytest.mark.parametrize(
    "cursor",
    [
        {"value": "5:5", "time": "soon"},
        {"value": "{nothing"},
        {"value": "{}"},
        {"value": ""},
        {"value": "5:5", "snapshot": {"table": "items", "after": 5}},
        {"value": "5:9999999999"},
    ],
)
def test_a_checkpoint_that_is_damaged_is_told_with_what_to_do(cursor: dict[str, Any]) -> None:
    source = MongoChangeStreamSource(uri="mongodb://127.0.0.1:1", database="shop", collection="items")
    with pytest.raises(SourceConfigurationError, match="reset the poller"):
        source.fetch_changes({"cursor": {"kind": "mongo-change-stream", **cursor}}, 1)


def test_an_idle_position_moves_once_that_is_worth_a_write(shop: Database[Any], new_mirror: Any) -> None:
    patient, eager = new_mirror(snapshot="never"), new_mirror(snapshot="never", idle_seconds=0)
    shop["others"].insert_one({"_id": 1})
    before = [patient.checkpoint, eager.checkpoint]
    assert patient.drain() == eager.drain() == []
    assert patient.checkpoint == before[0]
    assert eager.checkpoint != before[1]
    shop["items"].insert_one({"_id": 1})
    assert len(patient.drain()) == len(eager.drain()) == 1


def test_a_page_that_failed_in_the_middle_comes_whole_from_the_same_reader(
    shop: Database[Any], new_mirror: Any
) -> None:
    mirror = new_mirror(snapshot="never")
    shop["items"].insert_many([{"_id": number} for number in range(13)])
    with mirror.reading() as reader:
        first = reader.fetch_changes(mirror.checkpoint, 4)
        # The server sends four at a time: the page has got some when it fails.
        fail(shop.client, "getMore", 286, {"skip": 1})
        with pytest.raises(PositionLostError):
            reader.fetch_changes(first.next_checkpoint, 9)
        fail(shop.client, "getMore", 286, "off")
        rest = reader.fetch_changes(first.next_checkpoint, 9)
    assert [change.key["_id"] for change in rest.records] == list(range(4, 13))


def test_a_lost_connection_is_told_as_passing_and_nothing_is_missed(
    mongo_stage: Stage, request: pytest.FixtureRequest
) -> None:
    with mongo_stage.front(request.node.nodeid) as front, MongoClient[Any](front.uri) as client:
        client.drop_database("shop")
        mirror = Mirror(front.uri, client_options={"serverSelectionTimeoutMS": 2000})
        mirror.drain()
        client["shop"]["items"].insert_many([{"_id": number} for number in range(5)])
        with mirror.reading() as reader:
            first = reader.fetch_changes(mirror.checkpoint, 2)
            front.refuse = True
            front.lose_connections()
            with pytest.raises(FetchError) as told_error:
                reader.fetch_changes({"cursor": {**mirror.checkpoint["cursor"], "value": "5:1"}}, 2)
        assert told_error.value.transient
        front.refuse = False
        mirror.checkpoint = first.next_checkpoint
        assert [change.key["_id"] for change in mirror.drain()] == [2, 3, 4]


# Operators.


def test_doctor_knows_the_replica_set_the_rights_the_log_and_the_images(shop: Database[Any], new_mirror: Any) -> None:
    found = {finding.check: finding for finding in new_mirror(full_document="whenAvailable").source.examine()}
    assert found["server"].text.startswith("the replica set rs0 of MongoDB ")
    assert found["rights"].grade == "ok"
    assert found["retention"].grade == "warning"  # a server that has only just begun
    assert "collMod" in str(found["collection items"].remedy)
    assert found["collection"].grade == "ok"


@pytest.mark.parametrize(("name", "grade"), [("missing", "note"), ("view", "error")])
def test_doctor_knows_what_has_no_stream(shop: Database[Any], new_mirror: Any, name: str, grade: str) -> None:
    shop.create_collection("view", viewOn="items")
    if grade == "error":
        with pytest.raises(SourceConfigurationError, match="view"):
            new_mirror(collection=name).source.validate()
    else:
        assert {finding.grade for finding in new_mirror(collection=name).source.examine()} >= {grade}


def test_a_login_that_may_not_read_changes_is_told_which_right_it_lacks(shop: Database[Any], new_mirror: Any) -> None:
    fail_streams(shop.client, 13)
    [refused] = [finding for finding in new_mirror().source.examine() if finding.grade == "error"]
    assert (refused.check, "grantRolesToUser" in str(refused.remedy)) == ("rights", True)


def test_a_server_that_stands_alone_is_refused(mongo_stage: Stage, request: pytest.FixtureRequest) -> None:
    with mongo_stage.front(request.node.nodeid, set_name=None) as front:
        source = MongoChangeStreamSource(uri=front.uri, database="shop")
        with pytest.raises(SourceConfigurationError, match="replSet"):
            source.validate()


def test_backlog_and_health_consume_nothing(shop: Database[Any], new_mirror: Any) -> None:
    mirror = new_mirror()
    shop["items"].insert_many([{"_id": number} for number in range(4)])
    assert (mirror.source.backlog({}).amount, mirror.source.backlog({}).unit) == (4, "rows")
    mirror.drain()
    assert mirror.source.backlog(mirror.checkpoint).amount == 0
    shop["items"].update_many({}, {"$set": {"n": 1}})
    waiting = mirror.source.backlog(mirror.checkpoint)
    assert (waiting.amount, waiting.unit) == (4, "changes")
    assert waiting.lag_seconds is not None
    [health] = mirror.source.report(mirror.checkpoint)
    assert health.log_fields()["retention_left_seconds"] >= 0
    assert len(mirror.drain()) == 4


def test_show_tells_what_is_streamed_from(shop: Database[Any], new_mirror: Any) -> None:
    shown = new_mirror(collection=None).source.show_stream()
    assert (shown["replica_set"], shown["collections"], shown["collections_with_images"]) == ("rs0", ["items"], [])
    assert shown["oplog_hours"] >= 0


def delivered(source: MongoChangeStreamSource, checkpoint: dict[str, Any]) -> list[RowChange]:
    store, events = MemoryStateStore(), list[RowChange]()
    store.commit_checkpoint("one", checkpoint, store.acquire_lease("one", 60))
    store.break_lease("one")
    PollTrigger(name="one", source=source, checkpoint_store=store).run(timer=None, handler=events.extend)
    return events


# Arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uri": "postgresql://x"}, "mongodb://"),
        ({"uri": 5}, "mongodb://"),
        ({"database": ""}, "database="),
        ({"collection": "a$b"}, "collection="),
        ({"pipeline": {"$match": {}}}, "pipeline="),
        ({"pipeline": [{"$match": {}, "$limit": 1}]}, "pipeline="),
        ({"full_document": "always"}, "full_document="),
        ({"full_document_before_change": "updateLookup"}, "full_document_before_change="),
        ({"snapshot": "sometimes"}, "snapshot="),
        ({"on_position_lost": "ignore"}, "on_position_lost="),
        ({"start_at": "yesterday"}, "start_at="),
        ({"start_at": "2026-11-16T12:00:00"}, "start_at="),
    ],
)
def test_an_argument_that_cannot_be_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceConfigurationError, match=message):
        MongoChangeStreamSource(**{"uri": "mongodb://server", "database": "shop", **options})


def test_no_error_shows_the_password() -> None:
    uri = "mongodb://user:hush-hush@127.0.0.1:1/?serverSelectionTimeoutMS=50&directConnection=true"
    source = MongoChangeStreamSource(uri=uri, database="shop")
    with pytest.raises(FetchError) as told_error:
        source.fetch_changes({}, 1)
    assert told_error.value.transient
    for told_text in (repr(source), str(told_error.value), repr(told_error.value.__cause__)):
        assert "hush" not in told_text


def test_a_setting_that_is_missing_is_named() -> None:
    source = MongoChangeStreamSource(uri="%SHOP_MONGO%", database="shop")
    with pytest.raises(SourceConfigurationError, match="SHOP_MONGO"):
        _ = source.source_descriptor
