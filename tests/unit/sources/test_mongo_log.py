"""What is made of a change stream's answers, without a server."""

from __future__ import annotations

import datetime as dt
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from bson import Timestamp
from pymongo import _csot, errors

from azure_functions_db import FetchError, MongoChangeStreamSource, PositionLostError, SourceConfigurationError
from azure_functions_db.sources.mongo import log as module
from azure_functions_db.sources.mongo.log import MongoLog, at_time
from azure_functions_db.sources.mongo.source import _close
from azure_functions_db.sources.stream import LogPage, Place, StreamHealth

TOKEN = "82" * 10
NOW = at_time(Timestamp(9, 1))


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A server at one moment, with a log that goes back for a while."""
    monkeypatch.setattr(MongoLog, "now", lambda _log: Timestamp(9, 1))
    monkeypatch.setattr(MongoLog, "bounds", lambda _log: (Timestamp(5, 1), Timestamp(8, 1)))
    return monkeypatch


def made(**options: Any) -> MongoLog:
    """Return a log; its client connects to nothing until it is asked for something."""
    return MongoChangeStreamSource(**{"uri": "mongodb://127.0.0.1:1", "database": "shop", **options})._log()


def failure(code: int, says: str = "no") -> errors.OperationFailure:
    return errors.OperationFailure(says, code)


# Beginning.


@pytest.mark.parametrize(
    ("options", "anew", "expected"),
    [
        ({"start_at": "5:7"}, False, NOW),
        ({"snapshot": "never", "start_at": "5:7"}, False, at_time(Timestamp(5, 7))),
        ({"snapshot": "never"}, False, NOW),
        ({"snapshot": "never", "start_at": "5:7", "on_position_lost": "snapshot"}, True, NOW),
        ({"on_position_lost": "continue"}, True, at_time(Timestamp(5, 1))),
    ],
)
def test_a_stream_begins_where_its_documents_are_read_or_where_it_was_told(
    patch: pytest.MonkeyPatch, options: dict[str, Any], anew: bool, expected: Any
) -> None:
    patch.setattr(MongoLog, "_can_read_from", lambda _log, _position: True)
    assert made(**options).begin(anew=anew) == expected


def test_a_beginning_that_the_server_refuses_is_an_error_that_a_poller_knows(patch: pytest.MonkeyPatch) -> None:
    def refuse(_log: MongoLog) -> None:
        raise failure(13, "not you")

    patch.setattr(MongoLog, "now", refuse)
    with pytest.raises(SourceConfigurationError, match="not you"):
        made().begin(anew=False)


@pytest.mark.parametrize(("readable", "expected"), [(0, "5:1"), (3, "8:1"), (9, "14:1"), (10, "9:1")])
def test_the_oldest_position_is_one_that_can_still_be_read_from(
    patch: pytest.MonkeyPatch, readable: int, expected: str
) -> None:
    answers = iter([*[False] * readable, True])
    patch.setattr(MongoLog, "_can_read_from", lambda _log, _position: next(answers))
    assert made()._oldest()["value"] == expected


def test_without_a_look_at_the_log_the_oldest_position_is_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MongoLog, "bounds", lambda _log: (None, None))
    assert made()._oldest() == NOW


class Opened:
    """A stream that was opened; it fails where a failure is named."""

    failure: errors.OperationFailure | None = None
    closed = 0

    def __init__(self, *_arguments: object) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        type(self).closed += 1


def opened(patch: pytest.MonkeyPatch, code: int | None) -> type[Opened]:
    kind = type("Opened", (Opened,), {"failure": None if code is None else failure(code)})
    patch.setattr(module, "_OpenStream", kind)
    return kind


def test_history_that_is_gone_cannot_be_read_from(patch: pytest.MonkeyPatch) -> None:
    stream = opened(patch, None)
    assert made()._can_read_from(NOW)
    assert stream.closed == 1
    opened(patch, 286)
    assert not made()._can_read_from(NOW)
    opened(patch, 13)
    with pytest.raises(errors.OperationFailure):
        made()._can_read_from(NOW)


def test_only_a_missing_right_is_a_refusal(patch: pytest.MonkeyPatch) -> None:
    stream = opened(patch, None)
    assert (made().refusal(), stream.closed) == (None, 1)
    opened(patch, 13)
    assert made().refusal() == "no"
    opened(patch, 1)
    with pytest.raises(errors.OperationFailure):
        made().refusal()


@pytest.mark.parametrize("moment", [None, Timestamp(9, 1)])
def test_a_server_without_a_time_keeps_no_log(monkeypatch: pytest.MonkeyPatch, moment: Timestamp | None) -> None:
    log = made()
    session = SimpleNamespace(operation_time=moment)
    monkeypatch.setattr(log, "client", SimpleNamespace(start_session=lambda: nullcontext(session)))
    collection = SimpleNamespace(find_one=lambda *_arguments, **_options: None)
    monkeypatch.setattr(log, "database", SimpleNamespace(get_collection=lambda *_name, **_options: collection))
    if moment is not None:
        assert log.now() == moment
        return
    with pytest.raises(SourceConfigurationError, match="has to be a replica set"):
        log.now()


# For operators.


@pytest.mark.parametrize(
    ("position", "oldest", "newest"),
    [
        (None, Timestamp(5, 1), Timestamp(8, 1)),
        ({"value": TOKEN}, Timestamp(5, 1), Timestamp(8, 1)),
        (NOW, None, Timestamp(8, 1)),
        (NOW, Timestamp(5, 1), None),
    ],
)
def test_what_is_not_known_is_not_told(patch: pytest.MonkeyPatch, position: Any, oldest: Any, newest: Any) -> None:
    patch.setattr(MongoLog, "bounds", lambda _log: (oldest, newest))
    assert made().health(position) == StreamHealth()


@pytest.mark.parametrize(("moment", "lag"), [(6, 2.0), (9, 0.0)])
def test_how_far_behind_a_position_is_is_told(patch: pytest.MonkeyPatch, moment: int, lag: float) -> None:
    health = made().health(at_time(Timestamp(moment, 1)))
    assert (health.lag_seconds, health.warning) == (lag, None)
    assert health.details == {"log_retention_seconds": 3.0, "retention_left_seconds": moment - 5.0}


def test_a_backlog_has_the_age_of_its_first_change(patch: pytest.MonkeyPatch) -> None:
    at = dt.datetime(2026, 4, 7, tzinfo=dt.UTC)
    pages: list[Any] = [[], [SimpleNamespace(metadata={"committed_at": at}), SimpleNamespace(metadata={})]]
    patch.setattr(MongoLog, "changes", lambda _log, position, _most: LogPage(pages.pop(), position, more=False))
    assert made().waiting(NOW, 10) == (2, at)
    assert made().waiting(NOW, 10) == (0, None)


def test_a_pipeline_that_takes_the_key_of_a_document_is_told() -> None:
    found = nullcontext([{"operationType": "insert", "ns": {"coll": "items"}, "fullDocument": {}}])
    collection: Any = SimpleNamespace(name="items", aggregate=lambda _stages, **_options: found)
    with pytest.raises(SourceConfigurationError, match="takes documentKey out of events"):
        list(made(pipeline=[{"$unset": "documentKey"}])._let_through(collection, [1], None))  # type: ignore[arg-type]


# Pages of changes.


class Events:
    """An open stream with some events."""

    def __init__(self, *events: Any, is_worth_a_write: bool = False) -> None:
        self.events = list(events)
        self.position: dict[str, Any] = {"value": "0:0"}
        self.has_moved = False
        self.is_worth_a_write = lambda: is_worth_a_write
        self.closed = False

    def next(self) -> Any:
        if not self.events:
            return None
        if isinstance(self.events[0], Exception):
            raise self.events.pop(0)
        self.has_moved, self.position = True, {"value": f"{len(self.events)}:0"}
        return self.events.pop(0)

    def close(self) -> None:
        self.closed = True


def event(kind: str, name: str | None = "items", key: int = 1, **parts: Any) -> dict[str, Any]:
    place = {} if name is None else {"ns": {"db": "shop", "coll": name}}
    return {"_id": {"_data": TOKEN}, "operationType": kind, "documentKey": {"_id": key}, **place, **parts}


def reading(patch: pytest.MonkeyPatch, *streams: Events, **options: Any) -> MongoLog:
    """Return a log that opens these streams, one after the other."""
    left = list(streams)
    patch.setattr(module, "_OpenStream", lambda *_arguments: left.pop(0))
    return made(**{"collection": "items", **options})


def test_what_concerns_no_document_of_ours_is_passed_and_not_told(patch: pytest.MonkeyPatch) -> None:
    stream = Events(event("insert", "other"), event("invalidate"), event("dropDatabase", None), event("insert"))
    page = reading(patch, stream).changes(NOW, 10)
    assert ([change.op for change in page.changes], page.position, page.more) == (["insert"], {"value": "1:0"}, False)
    silent = reading(patch, Events(event("insert", "other"))).changes(NOW, 10)
    assert (silent.changes, silent.position) == ([], {"value": "1:0"})
    every = reading(patch, Events(event("insert", "other")), collection=None).changes(NOW, 10)
    assert len(every.changes) == 1


def test_a_page_that_is_full_says_so_and_the_stream_stays_open_for_the_next(patch: pytest.MonkeyPatch) -> None:
    stream = Events(*(event("insert", key=key) for key in (1, 2, 3)))
    log = reading(patch, stream, Events(event("insert", key=7)))
    first = log.changes(NOW, 2)
    assert ([change.key["_id"] for change in first.changes], first.more) == ([1, 2], True)
    second = log.changes(first.position, 2)
    assert ([change.key["_id"] for change in second.changes], second.more) == ([3], False)
    assert not stream.closed
    again = log.changes(first.position, 2)
    assert ([change.key["_id"] for change in again.changes], stream.closed) == ([7], True)


def test_a_quiet_stream_moves_on_when_that_is_worth_a_write(patch: pytest.MonkeyPatch) -> None:
    assert reading(patch, Events()).changes(NOW, 2).position == NOW
    assert reading(patch, Events(is_worth_a_write=True)).changes(NOW, 2).position == {"value": "0:0"}


def test_a_page_that_fails_is_read_again_from_its_position(patch: pytest.MonkeyPatch) -> None:
    broken, whole = Events(event("insert"), failure(1)), Events(event("insert"), event("delete"))
    log = reading(patch, broken, whole)
    with pytest.raises(FetchError):
        log.changes(NOW, 10)
    assert broken.closed
    assert [change.op for change in log.changes(NOW, 10).changes] == ["insert", "delete"]


def test_history_that_ends_under_a_reader_is_a_lost_position(patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PositionLostError):
        reading(patch, Events(failure(286))).changes(NOW, 10)


def test_documents_that_come_by_a_rename_are_read_before_what_follows(patch: pytest.MonkeyPatch) -> None:
    renamed = event("rename", "other", to={"db": "shop", "coll": "items"})
    page = reading(patch, Events(renamed, event("insert"))).changes(NOW, 10)
    assert (page.changes, page.more, page.reads_anew) == ([], True, "items")
    assert page.position == {"value": "2:0", "replaced": True}
    away = reading(patch, Events(event("rename", to={"db": "shop", "coll": "old"}), event("insert"))).changes(NOW, 10)
    assert ([change.op for change in away.changes], away.more, away.reads_anew) == (["truncate", "insert"], False, None)


def test_a_log_that_was_closed_opens_its_stream_anew(patch: pytest.MonkeyPatch) -> None:
    first, second = Events(), Events(event("insert"))
    log = reading(patch, first, second)
    assert log.changes(NOW, 10).changes == []
    log.close()
    assert first.closed
    log.close()
    assert len(log.changes(NOW, 10).changes) == 1


# An open stream.


class Answers:
    """A stream of the driver's: events, failures, and at last nothing, be it that it is over."""

    def __init__(self, *answers: Any, alive: bool = True, token: str | None = TOKEN, closes: bool = True) -> None:
        self._answers = list(answers)
        self.alive = alive
        self.resume_token = token and {"_data": token}
        self._closes = closes
        self.closed = False

    def try_next(self) -> Any:
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True
        if not self._closes:
            raise errors.AutoReconnect("gone")


class Session:
    """A session of the driver's."""

    def __init__(self, *, ends: bool = True) -> None:
        self.operation_time: Timestamp | None = Timestamp(100, 1)
        self.reached: list[Timestamp] = []
        self._ends = ends
        self.ended = False

    def advance_operation_time(self, moment: Timestamp) -> None:
        self.reached.append(moment)

    def end_session(self) -> None:
        self.ended = True
        if not self._ends:
            raise errors.AutoReconnect("gone")


class Watched:
    """A collection whose streams are known beforehand, and a log that reads it."""

    def __init__(self, *streams: Answers | Exception, session: Session | None = None, **options: Any) -> None:
        self._streams = list(streams)
        self.session = session or Session()
        self.begun: list[dict[str, Any]] = []
        self.client = SimpleNamespace(start_session=lambda: self.session)
        self.options = module.MongoOptions(**{"database": "shop", "collection": "items", **options})
        self.database = {"items": self}

    def watch(self, stages: Any, **options: Any) -> Answers:
        start: dict[str, Any] = {name: value for name, value in options.items() if name.startswith(("start", "resume"))}
        self.begun.append({"stages": stages, **start})
        stream = self._streams.pop(0)
        if isinstance(stream, Exception):
            raise stream
        return stream

    def open(self, position: Any = NOW) -> Any:
        log: Any = self
        return module._OpenStream(log, position, 10)


SPLIT: dict[str, Any] = {"$changeStreamSplitLargeEvent": {}}
BEGIN = {"start_at_operation_time": Timestamp(9, 2)}


def test_a_stream_begins_behind_its_position_and_waits_until_that_is_known() -> None:
    watched = Watched(Answers(event("insert")), pipeline=({"$match": {}},))
    assert watched.open().next()["operationType"] == "insert"
    assert watched.begun == [{"stages": [{"$match": {}}], **BEGIN}]
    assert watched.session.reached == [Timestamp(9, 1)]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_an_event_in_fragments_is_put_together_and_passed_as_a_whole(parts: int) -> None:
    fragments = [
        {"_id": {"_data": f"{TOKEN}0{part}"}, "splitEvent": {"fragment": part, "of": parts}, f"part{part}": part}
        for part in range(1, parts + 1)
    ]
    stream = Watched(Answers(event("insert") | fragments[0], *fragments[1:], event("delete"))).open()
    assert {name for name in stream.next() if name.startswith("part")} == {f"part{n}" for n in range(1, parts + 1)}
    assert stream.position["value"] == f"{TOKEN}0{parts}"
    assert stream.next()["operationType"] == "delete"


def test_an_event_that_ends_in_its_middle_is_read_again() -> None:
    first = event("insert", splitEvent={"fragment": 1, "of": 2})
    with pytest.raises(FetchError) as failed:
        Watched(Answers(first)).open().next()
    assert failed.value.transient


def test_an_event_that_is_too_large_is_asked_for_in_fragments_from_the_same_place() -> None:
    watched = Watched(Answers(failure(10334)), Answers(event("insert")))
    assert watched.open().next()["operationType"] == "insert"
    assert watched.begun == [{"stages": [], **BEGIN}, {"stages": [SPLIT], **BEGIN}]
    opened_so = Watched(failure(10334), Answers(event("insert")))
    assert opened_so.open().next()["operationType"] == "insert"
    assert opened_so.begun == watched.begun


@pytest.mark.parametrize("failures", [[1], [10334, 10334]])
def test_a_failure_that_fragments_do_not_cure_is_told(failures: list[int]) -> None:
    watched = Watched(*(Answers(failure(code)) for code in failures), Answers(event("insert")))
    with pytest.raises(errors.OperationFailure):
        watched.open().next()
    assert len(watched.begun) == len(failures)


def test_an_event_that_is_too_large_though_it_comes_in_fragments_is_told() -> None:
    watched = Watched(Answers(failure(10334)), Answers(event("insert"), failure(10334)), Answers())
    stream = watched.open()
    assert stream.next()["operationType"] == "insert"
    with pytest.raises(errors.OperationFailure):
        stream.next()
    assert len(watched.begun) == 2


def test_a_stream_that_cannot_be_opened_leaves_no_session() -> None:
    watched = Watched(failure(286))
    with pytest.raises(errors.OperationFailure):
        watched.open()
    assert watched.session.ended


def test_an_end_that_the_pipeline_keeps_from_us_is_passed() -> None:
    over = Answers(alive=False, closes=False)
    watched = Watched(over, Answers(event("insert")))
    stream = watched.open()
    assert stream.next()["operationType"] == "insert"
    assert (over.closed, stream.has_moved) == (True, True)
    assert watched.begun[1] == {"stages": [], "start_after": {"_data": TOKEN}}
    quiet = Watched(Answers(alive=False), Answers()).open()
    assert (quiet.next(), quiet.has_moved, quiet.position["invalidated"]) == (None, True, True)


@pytest.mark.parametrize("answers", [Answers(), Answers(alive=False, token=None)])
def test_a_stream_without_news_stays_as_it_is(answers: Answers) -> None:
    watched = Watched(answers)
    stream = watched.open()
    assert (stream.next(), stream.has_moved, stream.position) == (None, False, NOW)
    assert len(watched.begun) == 1


def test_a_stream_goes_on_behind_what_has_ended_it() -> None:
    ended = Answers(event("invalidate"), alive=False, closes=False)
    watched = Watched(ended, Answers(event("insert")))
    stream = watched.open()
    assert stream.next()["operationType"] == "invalidate"
    assert (ended.closed, stream.position) == (True, {"value": TOKEN, "time": [100, 1], "invalidated": True})
    assert watched.begun[1] == {"stages": [], "start_after": {"_data": TOKEN}}
    assert stream.next()["operationType"] == "insert"
    assert stream.position == {"value": TOKEN, "time": [100, 1]}, "an event without a time has that of its session"


def test_a_position_has_the_time_of_its_event() -> None:
    stream = Watched(Answers(event("insert", clusterTime=Timestamp(50, 2)))).open()
    stream.next()
    assert stream.position == {"value": TOKEN, "time": [50, 2]}


@pytest.mark.parametrize(
    ("token", "moment", "worth"),
    [(TOKEN, 69, True), (TOKEN, 68, False), (None, 100, False), (TOKEN, None, False)],
)
def test_a_position_that_moved_by_nothing_is_written_after_a_while(
    token: str | None, moment: int | None, worth: bool
) -> None:
    watched = Watched(Answers(token=token))
    stream = watched.open()
    watched.session.operation_time = None if moment is None else Timestamp(moment, 1)
    assert stream.is_worth_a_write() is worth
    assert stream.position == ({"value": TOKEN, "time": [69, 1]} if worth else NOW)
    assert not stream.is_worth_a_write(), "once"


@pytest.mark.parametrize("lost", [True, False])
def test_a_stream_ends_with_its_session_though_the_connection_is_lost(lost: bool) -> None:
    answers, session = Answers(closes=not lost), Session(ends=not lost)
    Watched(answers, session=session).open().close()
    assert (answers.closed, session.ended) == (True, True)


# What operators ask the source.


def asked(monkeypatch: pytest.MonkeyPatch, log: dict[str, Any], **options: Any) -> MongoChangeStreamSource:
    """Return a source whose server is there for these questions alone."""
    source = MongoChangeStreamSource(**{"uri": "mongodb://127.0.0.1:1", "database": "shop", **options})
    monkeypatch.setattr(source, "_log", lambda: SimpleNamespace(reading=nullcontext, **log))
    return source


def test_where_documents_alone_were_wanted_nothing_waits_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Place(NOW, is_over=True).checkpoint("mongo-change-stream")
    waiting = asked(monkeypatch, {}, snapshot="only").backlog(over)
    assert (waiting.amount, waiting.unit, waiting.lag_seconds) == (0, "changes", 0.0)


@pytest.mark.parametrize(
    ("count", "age", "more"), [(0, None, False), (5, 60.0, False), (1000, 60.0, True), (5, -60.0, False)]
)
def test_changes_wait_for_as_long_as_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch, count: int, age: float | None, more: bool
) -> None:
    first = None if age is None else dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age)
    answers = {"waiting": lambda position, _most: (count if position == NOW else -1, first)}
    waiting = asked(monkeypatch, answers).backlog(Place(NOW).checkpoint("mongo-change-stream"))
    assert (waiting.amount, waiting.is_more) == (count, more)
    assert waiting.lag_seconds is not None
    assert waiting.lag_seconds >= age if age == 60.0 else waiting.lag_seconds == 0.0
    begun = asked(monkeypatch, {**answers, "begin": lambda *, anew: {} if anew else NOW}, snapshot="never")
    assert begun.backlog({}).amount == count


@pytest.mark.parametrize("oldest", [None, Timestamp(0, 1)])
@pytest.mark.parametrize("newest", [None, Timestamp(5400, 1)])
@pytest.mark.parametrize("is_sharded", [True, False])
def test_what_streams_are_read_from_is_shown(
    monkeypatch: pytest.MonkeyPatch, oldest: Timestamp | None, newest: Timestamp | None, is_sharded: bool
) -> None:
    hello = {"msg": "isdbgrid"} if is_sharded else {"setName": "rs0"}
    images = {"changeStreamPreAndPostImages": {"enabled": True}}
    log = {
        "client": SimpleNamespace(
            admin=SimpleNamespace(command=lambda _name: hello), server_info=lambda: {"version": "8.0"}
        ),
        "bounds": lambda: (oldest, newest),
        "watched": lambda: ["items", "others"],
        "database": SimpleNamespace(
            list_collections=lambda: [{"name": "items", "options": images}, {"name": "others", "options": {}}]
        ),
    }
    assert asked(monkeypatch, log).show_stream() == {
        "server": "8.0",
        "replica_set": None if is_sharded else "rs0",
        "is_sharded": is_sharded,
        "collections": ["items", "others"],
        "collections_with_images": ["items"],
        "oplog_oldest": None if oldest is None else "1970-01-01T00:00:00+00:00",
        "oplog_newest": None if newest is None else "1970-01-01T01:30:00+00:00",
        "oplog_hours": None if oldest is None or newest is None else 1.5,
    }


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_images_are_turned_on_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, dry_run: bool
) -> None:
    done: list[Any] = []
    log = {
        "options": module.MongoOptions(database="shop", full_document="required" if wanted else "off"),
        "watched": lambda: ["items"],
        "database": SimpleNamespace(
            list_collections=lambda: [{"name": "items"}], command=lambda *words, **_options: done.append(words)
        ),
    }
    commands = asked(monkeypatch, log).create_stream(dry_run=dry_run)
    assert (len(commands), done) == (int(wanted), [("collMod", "items")] if wanted and not dry_run else [])


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure_functions_db.sources.mongo.log", None)
    with pytest.raises(SourceConfigurationError, match=r"azure-functions-db\[mongo\]"):
        made()


def test_a_client_whose_source_is_gone_is_not_waited_for_long() -> None:
    limits: list[float | None] = []
    client: Any = SimpleNamespace(close=lambda: limits.append(_csot.get_timeout()))
    _close(client)
    assert limits == [0.2]


@pytest.mark.parametrize("pipeline", ["", {}, {"$match": {}}, ["x"], [{}], [{"$match": {}, "$unset": "a"}]])
def test_a_pipeline_that_is_no_list_of_stages_is_refused(pipeline: Any) -> None:
    with pytest.raises(SourceConfigurationError, match="pipeline= is a list of stages"):
        made(pipeline=pipeline)
