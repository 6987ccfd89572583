"""A change stream without a server: positions, events, and what a server says in words of ours."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from bson import Binary, Int64, ObjectId, Timestamp
from bson.errors import InvalidBSON
from pymongo import errors

from azure_functions_db import FetchError, MongoChangeStreamSource, PositionLostError, SourceConfigurationError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.mongo import log, source
from azure_functions_db.sources.mongo.log import Document, MongoOptions, at_time, extended, parsed, revived, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "82" * 10


def made(**options: Any) -> MongoChangeStreamSource:
    return MongoChangeStreamSource(**{"uri": "mongodb://127.0.0.1:1", "database": "shop", **options})


# Positions.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5:7", {"value": "5:7", "time": [5, 7]}),
        ("1970-01-01T00:01:00Z", {"value": "60:0", "time": [60, 0]}),
        ("1970-01-01T01:01:00+01:00", {"value": "60:0", "time": [60, 0]}),
        (TOKEN, {"value": TOKEN, "invalidated": True}),
        ('{"_data": "82"}', {"value": '{"_data": "82"}', "invalidated": True}),
    ],
)
def test_a_position_that_was_typed_is_a_time_or_a_token(text: str, expected: dict[str, Any]) -> None:
    assert parsed(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "soon", "5:99999999999", "9999999999:1", "1970-01-01T00:01:00", "82" * 8, "{}", "{", '{"_data": ""}', "[]"],
)
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(SourceConfigurationError, match="is no position"):
        parsed(text)


def test_a_stream_begins_right_behind_a_time_and_behind_a_token() -> None:
    assert log._start({"value": "5:7"}) == {"start_at_operation_time": Timestamp(5, 8)}
    assert log._start({"value": TOKEN}) == {"resume_after": {"_data": TOKEN}}
    assert log._start({"value": TOKEN, "invalidated": True}) == {"start_after": {"_data": TOKEN}}
    odd = json.dumps({"_data": {"$binary": {"base64": "AQI=", "subType": "00"}}, "x": 1})
    assert log._start({"value": odd}) == {"resume_after": {"_data": b"\1\2", "x": 1}}


@pytest.mark.parametrize(
    "value", ["{", "{}", '{"_data": ""}', "", '{"$oid": "000000000000000000000000"}', "{" * 100_000]
)
def test_a_checkpoint_without_a_token_is_refused(value: str) -> None:
    with pytest.raises(SourceConfigurationError, match="holds no position"):
        log._start({"value": value})


def test_a_token_is_written_in_a_form_that_is_read_again() -> None:
    for token in ({"_data": TOKEN}, {"_data": TOKEN, "x": 1}, {"_data": b"\1"}):
        position = log._written(token, Timestamp(5, 7))
        assert position["time"] == [5, 7]
        assert log._start(position) == {"resume_after": token}
    assert log._written({"_data": TOKEN}, None) == {"value": TOKEN}


def test_the_time_of_a_typed_token_is_not_known() -> None:
    assert time_of({"value": TOKEN}) == Timestamp(0, 1)
    assert time_of(at_time(Timestamp(5, 7))) == Timestamp(5, 7)
    for damaged in ("soon", [1], [1, 2, 3], [-1, 1]):
        with pytest.raises(SourceConfigurationError, match="holds no position"):
            time_of({"value": "5:5", "time": damaged})


def test_documents_behind_one_are_asked_for_whatever_their_ids_are() -> None:
    assert log._beyond(None) == log._beyond({"collection": "items"}) == {}
    assert log._beyond({"collection": "items", "id": {"$oid": "0" * 24}}) == {
        "$expr": {"$gt": ["$_id", {"$literal": ObjectId("0" * 24)}]}
    }
    assert log._beyond({"id": None}) == {"$expr": {"$gt": ["$_id", {"$literal": None}]}}


# Values.


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("text", "text"),
        (5, 5),
        (Int64(5), 5),
        (True, True),
        (None, None),
        (0.5, 0.5),
        (float("inf"), {"$numberDouble": "Infinity"}),
        (float("-inf"), {"$numberDouble": "-Infinity"}),
        (ObjectId("0" * 24), {"$oid": "0" * 24}),
        ((1, "a"), [1, "a"]),
        ({"$oid": 5}, {"$literal": {"$oid": 5}}),
        ({"$oid": 5, "a": 1}, {"$literal": {"$oid": 5, "a": 1}}),
        ({"a": {"$x": ObjectId("0" * 24)}}, {"a": {"$literal": {"$x": {"$oid": "0" * 24}}}}),
    ],
)
def test_a_value_is_written_as_extended_json_and_read_again(value: Any, written: Any) -> None:
    assert (extended(value), type(extended(value))) == (written, type(written))
    assert revived(written) == (list(value) if isinstance(value, tuple) else value)


def test_what_is_no_number_stays_none() -> None:
    assert extended(float("nan")) == {"$numberDouble": "NaN"}
    assert revived({"$numberDouble": "NaN"}) != revived({"$numberDouble": "NaN"})


def test_ids_in_both_forms_of_a_uuid_come_back_as_they_were() -> None:
    own = uuid.UUID(int=5)
    assert revived(extended(own)) == own
    older = Binary(own.bytes, 3)
    assert revived(extended(older)) == older
    assert revived(extended(Binary(b"ab", 0))) == b"ab"


def test_a_copy_of_a_document_is_a_document_of_its_own() -> None:
    one = Document(a=ObjectId("0" * 24))
    other = one.copy()
    other["b"] = 1
    assert (type(other), "b" in one, other.json_form()) == (Document, False, {"a": {"$oid": "0" * 24}, "b": 1})


# Events.


def event(kind: str, **parts: Any) -> dict[str, Any]:
    whole = {"_id": {"_data": TOKEN}, "operationType": kind, "ns": {"db": "shop", "coll": "items"}}
    return {**whole, "documentKey": {"_id": 1}, **parts}


def test_an_event_is_a_change_with_what_the_server_tells_of_it() -> None:
    change = log._change(
        event(
            "update",
            fullDocument={"_id": 1, "a": 2},
            fullDocumentBeforeChange={"_id": 1, "a": 1},
            clusterTime=Timestamp(60, 1),
            lsid={"id": "s"},
            txnNumber=7,
            updateDescription={"updatedFields": {"a": 2}, "removedFields": []},
            documentKey={"_id": 1, "region": "x"},
        )
    )
    assert (change.op, change.position, change.key) == ("update", TOKEN, {"_id": 1})
    assert (type(change), change.cursor) == (Change, None)
    assert (change.before, change.after) == ({"_id": 1, "a": 1}, {"_id": 1, "a": 2})
    assert change.metadata == {
        "collection": "items",
        "committed_at": dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC),
        "transaction": "s:7",
        "update": {"updatedFields": {"a": 2}},
        "document_key": {"_id": 1, "region": "x"},
    }


def test_an_event_that_tells_little_is_a_change_as_well() -> None:
    change = log._change({"_id": {"_data": TOKEN}, "operationType": "delete", "documentKey": {"_id": 1}})
    assert (change.op, change.before, change.after, change.metadata) == ("delete", None, None, {"collection": None})
    at = dt.datetime(2026, 4, 7, tzinfo=dt.UTC)
    change = log._change(event("insert", wallTime=at, clusterTime=Timestamp(60, 1)))
    assert change.metadata == {"collection": "items", "committed_at": at}


@pytest.mark.parametrize(
    ("kind", "op"), [("drop", "truncate"), ("rename", "truncate"), ("create", "unknown"), ("replace", "update")]
)
def test_what_happens_to_a_collection_is_told_by_its_name(kind: str, op: str) -> None:
    parts = {"to": {"db": "shop", "coll": "others"}} if kind == "rename" else {}
    change = log._change(event(kind, documentKey=None, **parts))
    assert (change.op, change.key) == (op, {})
    assert change.metadata.get("operation") == (None if kind == "replace" else kind)
    assert change.metadata.get("renamed_to") == ("others" if kind == "rename" else None)


@pytest.mark.parametrize(
    ("left", "missing"),
    [
        ({}, "operationType"),
        ({"documentKey": 1, "ns": 1}, "operationType"),
        ({"operationType": "insert", "documentKey": 1}, "ns"),
        ({"operationType": "insert", "ns": 1}, "documentKey"),
        ({"operationType": "insert"}, "ns, documentKey"),
        ({"operationType": "drop"}, "ns"),
    ],
)
def test_a_pipeline_that_takes_away_what_is_needed_is_told(left: dict[str, Any], missing: str) -> None:
    with pytest.raises(SourceConfigurationError, match=f"takes {missing} out"):
        log._check_whole(left)


@pytest.mark.parametrize(
    "whole", [{"operationType": "drop", "ns": 1}, {"operationType": "invalidate"}, {"operationType": "dropDatabase"}]
)
def test_an_event_without_a_document_is_whole(whole: dict[str, Any]) -> None:
    log._check_whole(whole)


# What a server says.


def told_as(error: Exception) -> Exception:
    with pytest.raises((FetchError, PositionLostError, SourceConfigurationError)) as told, log.reading("orders"):
        raise error
    return told.value


@pytest.mark.parametrize("code", [15, 136, 260, 280, 286, 40647, 40649, 50811])
def test_history_that_is_gone_is_a_lost_position(code: int) -> None:
    assert isinstance(told_as(errors.OperationFailure("gone", code)), PositionLostError)


def test_a_time_that_the_server_has_not_reached_is_a_lost_position_and_other_options_are_not() -> None:
    assert isinstance(told_as(errors.OperationFailure("readConcern afterClusterTime", 72)), FetchError)
    assert isinstance(told_as(errors.OperationFailure("later than the clusterTime", 72)), PositionLostError)
    assert isinstance(told_as(errors.OperationFailure("resume token was not found", 1)), PositionLostError)


@pytest.mark.parametrize(
    "error",
    [
        errors.OperationFailure("not authorized", 13),
        errors.OperationFailure("no images", 47),
        errors.OperationFailure("the resume token was modified by the pipeline", 280),
        errors.ConfigurationError("no"),
        errors.InvalidURI("no"),
    ],
)
def test_what_does_not_fit_the_server_is_an_error_of_the_definition(error: Exception) -> None:
    assert isinstance(told_as(error), SourceConfigurationError)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (errors.ServerSelectionTimeoutError("nobody"), True),
        (errors.OperationFailure("busy", 1, {"errorLabels": ["ResumableChangeStreamError"]}), True),
        (errors.OperationFailure("slow", 50), True),
        (errors.OperationFailure("other", 1), False),
        (InvalidBSON("bad"), False),
    ],
)
def test_any_other_failure_is_one_of_reading(error: Exception, transient: bool) -> None:
    told: Any = told_as(error)
    assert (type(told), told.transient) == (FetchError, transient)


def test_an_error_of_ours_is_not_told_in_other_words() -> None:
    ours = PositionLostError("ours")
    assert told_as(ours) is ours


@pytest.mark.parametrize(
    ("error", "wants"),
    [
        (errors.OperationFailure("large", 10334), True),
        (errors.OperationFailure("inside a split event", 280), True),
        (errors.OperationFailure("other", 280), False),
        (errors.OperationFailure("split event", 1), False),
    ],
)
def test_an_event_that_is_too_large_is_read_in_fragments(error: errors.OperationFailure, wants: bool) -> None:
    assert log._wants_fragments(error) is wants


def test_a_time_that_a_follower_does_not_know_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(log, "time", SimpleNamespace(sleep=naps.append, monotonic=time.monotonic))
    answers = iter([errors.OperationFailure("", 72), errors.OperationFailure("", 72), 5])

    def read() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert (log.once_known(read), len(naps)) == (5, 2)


def test_what_a_follower_will_never_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 10.0])
    monkeypatch.setattr(log, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(moments)))
    for code, asked in ((1, 1), (72, 2)):
        calls: list[int] = []

        def read(code: int = code, calls: list[int] = calls) -> None:
            calls.append(code)
            raise errors.OperationFailure("", code)

        moments = iter([0.0, 1.0, 10.0])
        with pytest.raises(errors.OperationFailure):
            log.once_known(read)
        assert len(calls) == asked


@pytest.mark.parametrize(
    ("left", "length", "said"),
    [
        (-1.0, 599.0, None),
        (-1.0, 600.0, "no longer have"),
        (100.0, 1000.0, "more hours only"),
        (250.0, 1000.0, None),
    ],
)
def test_a_position_near_the_end_of_the_log_is_warned_of(left: float, length: float, said: str | None) -> None:
    warning = log._warning(left, length)
    assert (warning is None) == (said is None)
    assert said is None or said in str(warning)


def test_the_lag_is_that_of_the_last_change_and_none_at_the_end() -> None:
    long_ago = at_time(Timestamp(60, 1))
    assert log._health(long_ago, is_end=True).lag_seconds == 0.0
    behind = log._health(long_ago, is_end=False)
    assert behind.lag_seconds is not None
    assert behind.lag_seconds > 10**9
    assert behind.last_commit_at == dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)
    unknown = log._health({"value": TOKEN}, is_end=False)
    assert (unknown.lag_seconds, unknown.last_commit_at) == (0.0, None)
    ahead = log._health(at_time(Timestamp(2**32 - 1, 1)), is_end=False)
    assert ahead.lag_seconds == 0.0


# The source.


def test_a_source_is_told_from_another_by_its_hosts_its_place_and_its_pipeline() -> None:
    prints = {
        made(**options).source_descriptor.fingerprint
        for options in (
            {},
            {"uri": "mongodb://other:1"},
            {"database": "other"},
            {"collection": "items"},
            {"pipeline": [{"$match": {"a": 1}}]},
        )
    }
    assert len(prints) == 5
    one = made(uri="mongodb://user:secret@B:1,a:2/?x=1").source_descriptor
    assert one.fingerprint == made(uri="mongodb://a:2,b:1").source_descriptor.fingerprint
    assert one.name == "shop"
    assert made(collection="items").name == "shop.items"
    assert made(name="mine", collection="items").name == "mine"


def test_a_setting_that_holds_no_uri_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_MONGO", "postgresql://x")
    with pytest.raises(SourceConfigurationError, match="begins with mongodb://"):
        _ = made(uri="%SHOP_MONGO%").source_descriptor


def test_before_images_are_promised_where_they_are_asked_for() -> None:
    assert not made().capability().before_images
    assert made(full_document_before_change="required").capability().before_images


@pytest.mark.parametrize("option", [{"client_options": {"nonsense": 1}}, {"client_options": {"tz_aware": "soon"}}])
def test_an_option_that_the_driver_refuses_is_told(option: dict[str, Any]) -> None:
    with pytest.raises(SourceConfigurationError):
        made(**option).open()


def test_a_key_does_not_tell_its_collection() -> None:
    with pytest.raises(SourceConfigurationError, match="does not tell its collection"):
        made().current_row({"_id": 1})


def test_a_position_is_described_as_it_is_parsed() -> None:
    one = made(collection="items")
    assert (one.describe({}), one.parse(" beginning ")) == ("beginning", {})
    assert one.describe(one.parse(" 5:7 ")) == "5:7"


def test_a_process_that_was_forked_gets_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made()
    first = one._connected()
    assert one._connected() is first
    monkeypatch.setattr("azure_functions_db.sources.mongo.source.os.getpid", lambda: -1)
    assert one._connected() is not first


@pytest.mark.parametrize(
    ("oldest", "newest", "grade"),
    [
        (None, None, "note"),
        (Timestamp(0, 1), None, "note"),
        (None, Timestamp(0, 1), "note"),
        (Timestamp(0, 1), Timestamp(86_399, 1), "warning"),
        (Timestamp(0, 1), Timestamp(86_400, 1), "ok"),
    ],
)
def test_how_far_back_the_log_goes_is_judged(oldest: Any, newest: Any, grade: str) -> None:
    assert source._retention(oldest, newest).grade == grade


@pytest.mark.parametrize(
    ("options", "wants", "grade"),
    [
        ({}, False, "warning"),
        ({"full_document": "whenAvailable"}, True, "warning"),
        ({"full_document": "required"}, True, "error"),
        ({"full_document_before_change": "required"}, True, "error"),
        ({"full_document_before_change": "whenAvailable"}, True, "warning"),
    ],
)
def test_images_are_wanted_by_what_was_chosen(options: dict[str, Any], wants: bool, grade: str) -> None:
    chosen = MongoOptions(database="shop", **options)
    watched: Any = SimpleNamespace(options=chosen)
    assert source._wants_images(chosen) is wants
    assert source._images(watched, "items").grade == grade


def listing(*collections: dict[str, Any], name: str | None = None) -> Any:
    database = SimpleNamespace(list_collections=lambda: list(collections))
    return SimpleNamespace(database=database, options=MongoOptions(database="shop", collection=name))


def test_collections_without_images_are_named() -> None:
    seen = listing(
        {"name": "with", "options": {"changeStreamPreAndPostImages": {"enabled": True}}},
        {"name": "off", "options": {"changeStreamPreAndPostImages": {"enabled": False}}},
        {"name": "never", "options": {}},
        {"name": "old"},
    )
    assert source._without_images(seen, ["with", "off", "never", "old", "missing"]) == ["off", "never", "old"]


@pytest.mark.parametrize(
    ("name", "grade", "said"),
    [
        (None, "ok", "2 collection"),
        ("items", "ok", "collection items"),
        ("new", "note", "not there yet"),
        ("seen", "error", "is a view"),
    ],
)
def test_what_is_watched_is_looked_at(name: str | None, grade: str, said: str) -> None:
    seen = listing({"name": "items", "type": "collection"}, {"name": "seen", "type": "view"}, name=name)
    [finding] = source._collections(seen, ["items", "others"])
    assert (finding.grade, said in finding.text) == (grade, True)


@pytest.mark.parametrize(
    ("hello", "grade", "said"),
    [
        ({"msg": "isdbgrid"}, "ok", "sharded"),
        ({"setName": "rs0"}, "ok", "replica set rs0"),
        ({}, "error", "stands alone"),
    ],
)
def test_the_kind_of_a_server_is_told(hello: dict[str, Any], grade: str, said: str) -> None:
    admin = SimpleNamespace(command=lambda _name: hello)
    client = SimpleNamespace(admin=admin, server_info=lambda: {"version": "8.0"})
    finding = source._server(SimpleNamespace(client=client))  # type: ignore[arg-type]
    assert (finding.grade, said in finding.text) == (grade, True)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("database", "a\0b"), ("database", 5), ("collection", ""), ("start_at", "82" * 8), ("pipeline", "[]")],
)
def test_an_argument_that_cannot_be_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(SourceConfigurationError, match=f"{argument}="):
        made(**{argument: value})


@pytest.mark.parametrize("start", ["now", "5:7", TOKEN, '{"_data": "82"}', "2026-11-16T12:00:00Z"])
def test_a_start_that_can_be_is_taken(start: str) -> None:
    assert made(start_at=start, snapshot="never").name == "shop"


def test_a_rename_that_brings_documents_of_elsewhere_is_read_anew() -> None:
    def comes(to: dict[str, Any] | None, **options: Any) -> str | None:
        fake: Any = SimpleNamespace(options=MongoOptions(database="shop", **options))
        fake._watches = lambda name: log.MongoLog._watches(fake, name)
        return log.MongoLog._comes_from_elsewhere(fake, {} if to is None else {"to": to})

    ours: dict[str, Any] = {"db": "shop", "coll": "items"}
    assert comes(ours) == comes(ours, collection="items") == "items"
    assert comes(ours, collection="others") is None
    assert comes({**ours, "db": "elsewhere"}) is None
    assert comes(ours, snapshot="never") is None
    assert comes(None) is None


def test_an_oldest_entry_that_is_thrown_away_meanwhile_is_asked_for_again() -> None:
    def bound(*answers: Any) -> tuple[Any, int]:
        left = list(answers)

        def find_one(*_: Any, **__: Any) -> Any:
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        fake: Any = SimpleNamespace(client={"local": {"oplog.rs": SimpleNamespace(find_one=find_one)}})
        return log.MongoLog._bound(fake, 1), len(left)

    gone, forbidden = errors.OperationFailure("", 136), errors.OperationFailure("", 13)
    assert bound(gone, {"ts": Timestamp(5, 1)}) == (Timestamp(5, 1), 0)
    assert bound(None) == (None, 0)
    assert bound(forbidden, {"ts": Timestamp(5, 1)}) == (None, 1)
    assert bound(*[gone] * 12) == (None, 2)


@pytest.mark.parametrize("ask", [lambda one: one.examine(), lambda one: one.backlog({}), lambda one: one.report({})])
def test_a_server_that_is_not_there_is_an_error_that_a_poller_knows(
    ask: Callable[[MongoChangeStreamSource], object],
) -> None:
    with pytest.raises(FetchError, match="cannot be reached") as told:
        ask(made(uri="mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1&directConnection=true"))
    assert told.value.transient
