"""One tick's reading of a change stream and of its collections."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from bson import Binary, Timestamp, json_util
from bson.binary import UUID_SUBTYPE, UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from pymongo import ReadPreference, errors
from pymongo.read_concern import ReadConcern

from azure_functions_db.core.errors import (
    FetchError,
    PollerError,
    PositionLostError,
    SourceConfigurationError,
    masked_error,
)
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.types import Change, OpenChange
from azure_functions_db.sources.stream import LogPage, RowsPage, StreamHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pymongo import MongoClient
    from pymongo.change_stream import ChangeStream
    from pymongo.client_session import ClientSession
    from pymongo.collection import Collection

    from azure_functions_db.core.types import Operation
    from azure_functions_db.sources.mongo.source import MongoChangeStreamSource
    from azure_functions_db.sources.stream import LogPosition, OnPositionLost, SnapshotMode


T = TypeVar("T")

FullDocument = Literal["updateLookup", "whenAvailable", "required", "off"]
"""Whether an update comes with the document: as it is now, as it was after the update, or not at all."""
BeforeChange = Literal["off", "whenAvailable", "required"]
"""Whether a change comes with the document as it was before."""

EVERY: Final = "*"
"""Stands for all collections of a database."""
# For so long the server waits for changes before it says that there are none.
_AWAIT_MILLISECONDS: Final = 20
_ATTEMPTS: Final = 10
# Below this share of the log's length the position may be gone before the poller has read on.
_SHORT_OF_TIME: Final = 0.25
# A log that has only just begun has lost nothing yet.
_SHORT: Final = 600.0
# The members of a set tell each other every two seconds how late it is.
_HEARTBEATS_SECONDS, _PAUSE_SECONDS = 5.0, 0.25
_MAJORITY: Final = ReadConcern("majority")
_OPERATIONS: Final[Mapping[str, Operation]] = {
    "insert": "insert",
    "update": "update",
    "replace": "update",
    "delete": "delete",
    "drop": "truncate",
    "rename": "truncate",
}
# Nothing that concerns documents: their collections were told of one by one.
_SILENT: Final = frozenset({"dropDatabase", "invalidate"})
_TIME: Final = re.compile(r"(?P<seconds>\d{1,10}):(?P<increment>\d{1,10})")

# The log has thrown away what was just being read.
_ROLLED_AWAY: Final = 136
_TOO_LARGE: Final = 10334
_NO_IMAGE: Final = 47
_FATAL: Final = 280
_INVALID_OPTIONS: Final = 72
# History that is gone, a token that is not found, and tokens that nobody could have written.
_LOST: Final = frozenset({15, _ROLLED_AWAY, 260, _FATAL, 286, 40647, 40649, 50811})
_FORBIDDEN: Final = frozenset({13, 8000})
# Stages and options that the server does not know, rights, views, a server without a log.
_DEFINITION: Final = frozenset({2, 9, 13, 14, 18, 20, 26, 59, 73, 115, 166, 167, 168, 8000, 40324, 40415, 40573, 40602})


@dataclass(frozen=True, slots=True, kw_only=True)
class MongoOptions:
    """What the user of a source has chosen."""

    database: str
    collection: str | None = None
    pipeline: tuple[Mapping[str, Any], ...] = ()
    full_document: FullDocument = "updateLookup"
    full_document_before_change: BeforeChange = "off"
    snapshot: SnapshotMode = "initial"
    start_at: str = "now"
    on_position_lost: OnPositionLost = "stop"
    idle_seconds: float = 60.0


class MongoLog:
    """The change stream of a collection or a database."""

    def __init__(self, source: MongoChangeStreamSource, client: MongoClient[Any], options: MongoOptions) -> None:
        self.source = source  # which closes its client when nobody has it any more
        self.client = client
        self.options = options
        self.database = client.get_database(options.database)
        self.table = options.collection or EVERY
        """What is read before the stream."""
        self._open: _OpenStream | None = None
        self._expected: LogPosition | None = None

    # The port.

    def begin(self, *, anew: bool) -> LogPosition:
        """Fix where the stream begins: right after a moment that a majority of the servers has seen."""
        wants_rows = self.options.on_position_lost == "snapshot" if anew else self.options.snapshot != "never"
        with self.reading():
            if wants_rows:
                return at_time(self.now())
            if anew:
                return self._oldest()
            return self.started_at(self.options.start_at)

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        """Return the next documents in the order of their ids; of all collections one after the other."""
        if not isinstance(after, dict | None):
            raise _no_position()
        if after is None and position.get("replaced"):
            # What the collection held before went with it, and no change tells of that.
            gone = Change("truncate", f"{position['value']} to", {}, None, metadata={"collection": table})
            return RowsPage([gone], position, {"collection": table})
        with self.reading(), self.seeing(position) as session:
            name = (after or {}).get("collection") or self._first_of(table)
            if name is None:
                return RowsPage([], position, None)
            ids, documents = once_known(lambda: self._page(name, after, limit, session))
            following = self._following(name, table, ids, limit)
        metadata, prefix = {"collection": name, "snapshot": True}, f"snapshot {position['value']} {name}"
        changes = [
            Change("upsert", f"{prefix} {_text(key)}", Document({"_id": key}), document, metadata=metadata)
            for key, document in documents
        ]
        return RowsPage(changes, position, following)

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        """Return the changes after a position."""
        try:
            with self.reading():
                return self._changes(position, limit)
        except BaseException:
            # What was taken so far is lost with the page: whoever tries again begins where the position is.
            self.close()
            raise

    def acknowledge(self, position: LogPosition) -> None:
        """Do nothing: the servers keep their log whoever reads it."""

    def close(self) -> None:
        """End the stream."""
        if self._open is not None:
            self._open.close()
        self._open = self._expected = None

    # Beginning.

    def now(self) -> Timestamp:
        """Return the newest moment that a majority of the servers has seen: it cannot be taken back."""
        with self.client.start_session() as session:
            name = self.options.collection or "any"  # whether it is there makes no difference
            self.database.get_collection(name, read_concern=_MAJORITY).find_one({}, {"_id": 1}, session=session)
            if session.operation_time is None:
                raise SourceConfigurationError("The server keeps no log of changes: it has to be a replica set")
            return session.operation_time

    def _oldest(self) -> LogPosition:
        """Return the oldest position that can be read from; now, where this login may not look at the log."""
        for attempt in range(_ATTEMPTS):
            oldest, _ = self.bounds()
            if oldest is None:
                break
            # What is oldest now may be thrown away the next moment: a little later is safer each time.
            position = at_time(Timestamp(oldest.time + attempt, oldest.inc))
            if self._can_read_from(position):
                return position
        return at_time(self.now())

    def _can_read_from(self, position: LogPosition) -> bool:
        try:
            _OpenStream(self, position, 1).close()
        except errors.OperationFailure as error:
            if not _is_lost(error.code, str(error)):
                raise
            return False
        return True

    def started_at(self, text: str) -> LogPosition:
        """Return the position of a word or of a text."""
        return at_time(self.now()) if text == "now" else parsed(text)

    @contextmanager
    def seeing(self, position: LogPosition) -> Iterator[ClientSession]:
        """Open a session that sees whatever lies before a position, on whichever server it reads."""
        with self.client.start_session() as session:
            session.advance_operation_time(time_of(position))
            yield session

    # For operators; nothing is consumed.

    def reading(self) -> AbstractContextManager[None]:
        """Raise errors that a poller knows in place of the driver's."""
        return reading(self.source.name)

    def refusal(self) -> str | None:
        """Open the stream and look for a document; return why the server refuses, None where it does not."""
        try:
            _OpenStream(self, at_time(self.now()), 1).close()
        except errors.OperationFailure as error:
            if error.code not in _FORBIDDEN:
                raise
            return _words(error)
        return None

    def waiting(self, position: LogPosition, most: int) -> tuple[int, dt.datetime | None]:
        """Return how many changes follow a position, up to so many, and when the first of them was committed."""
        with closing(MongoLog(self.source, self.client, replace(self.options, snapshot="never"))) as reader:
            changes = reader.changes(position, most).changes
        return len(changes), changes[0].metadata.get("committed_at") if changes else None

    def bounds(self) -> tuple[Timestamp | None, Timestamp | None]:
        """Return the times of the oldest and the newest entry of the log; None where this login may not read it."""
        return self._bound(1), self._bound(-1)

    def _bound(self, direction: Literal[1, -1]) -> Timestamp | None:
        for _ in range(_ATTEMPTS):
            try:
                entry = self.client["local"]["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", direction)])
            except errors.OperationFailure as error:
                if error.code != _ROLLED_AWAY:
                    break
            else:
                return None if entry is None else entry.get("ts")
        return None

    def health(self, position: LogPosition | None) -> StreamHealth:
        """Return how far behind a position is, and how far from the end of the log."""
        oldest, newest = self.bounds()
        moment = None if position is None else time_of(position)
        if moment is None or not moment.time or oldest is None or newest is None:
            return StreamHealth()
        length, left = float(newest.time - oldest.time), float(moment.time - oldest.time)
        return StreamHealth(
            lag_seconds=max(0.0, float(newest.time - moment.time)),
            last_commit_at=moment.as_datetime(),
            details={"log_retention_seconds": length, "retention_left_seconds": left},
            warning=_warning(left, length),
        )

    # The collections.

    def document(self, name: str, key: Any) -> Document | None:
        """Return a document by its id."""
        found = self.database.get_collection(name, read_concern=_MAJORITY).find_one({"_id": {"$eq": key}})
        return _document(found)

    def _page(
        self, name: str, after: Any, limit: int, session: ClientSession
    ) -> tuple[list[Any], list[tuple[Any, Document | None]]]:
        """Return the ids of a page, and those of its documents that the pipeline lets through."""
        collection = self.database.get_collection(name, read_concern=_MAJORITY)
        fields = {"_id": 1} if self.options.pipeline else None
        with collection.find(_beyond(after), fields, session=session, batch_size=limit) as found:
            documents = list(found.sort("_id", 1).limit(limit))
        ids = [document["_id"] for document in documents]
        if not self.options.pipeline or not ids:
            return ids, [(document["_id"], Document(document)) for document in documents]
        return ids, list(self._let_through(collection, ids, session))

    def _let_through(
        self, collection: Collection[Any], ids: list[Any], session: ClientSession
    ) -> Iterator[tuple[Any, Document | None]]:
        """Return documents as the pipeline leaves them when they come as inserts."""
        event = {
            "_id": {"_data": ""},
            "operationType": {"$literal": "insert"},
            "ns": {"$literal": {"db": self.options.database, "coll": collection.name}},
            "documentKey": {"_id": "$_id"},
            "fullDocument": "$$ROOT",
        }
        wanted: list[Mapping[str, Any]] = [{"$match": {"_id": {"$in": ids}}}, {"$sort": {"_id": 1}}]
        with collection.aggregate([*wanted, {"$replaceWith": event}, *self.options.pipeline], session=session) as found:
            for each in found:
                _check_whole(each)
                yield each["documentKey"]["_id"], _document(each.get("fullDocument"))

    def _following(self, name: str, table: str, ids: list[Any], limit: int) -> Any:
        if len(ids) == limit:
            return {"collection": name, "id": extended(ids[-1])}
        following = self._collection_after(name) if table == EVERY else None
        return None if following is None else {"collection": following}

    def _first_of(self, table: str) -> str | None:
        return self._collection_after("") if table == EVERY else table

    def _collection_after(self, name: str) -> str | None:
        return next((other for other in self.collections() if other > name), None)

    def collections(self) -> list[str]:
        """Return the collections that change streams tell of, in the order of their names."""
        # A follower may not know the newest ones yet, and a listing does not wait.
        database = self.database.with_options(read_preference=ReadPreference.PRIMARY)
        found = database.list_collections(filter={"type": "collection"})
        return sorted(each["name"] for each in found if not each["name"].startswith("system."))

    def watched(self) -> list[str]:
        """Return the collections that are watched."""
        return [self.options.collection] if self.options.collection is not None else self.collections()

    # The stream.

    def _changes(self, position: LogPosition, limit: int) -> LogPage:
        if self._open is None or position != self._expected:
            self.close()
            self._open = _OpenStream(self, position, limit)
        stream = self._open
        taken: list[Change] = []
        reads_anew: str | None = None
        while len(taken) < limit and reads_anew is None and (event := stream.next()) is not None:
            kind, name = event["operationType"], event.get("ns", {}).get("coll", "")
            if kind not in _SILENT and self._watches(name):
                taken.append(_change(event))
            if kind == "rename":
                reads_anew = self._comes_from_elsewhere(event)
        if reads_anew is not None:
            stream.position["replaced"] = True
        is_end = len(taken) < limit and reads_anew is None
        reached = stream.position if stream.has_moved or stream.is_worth_a_write() else position
        self._expected = reached
        return LogPage(taken, reached, not is_end, [_health(reached, is_end=is_end)], reads_anew=reads_anew)

    def _watches(self, name: str) -> bool:
        return self.options.collection in {None, name}

    def _comes_from_elsewhere(self, event: Mapping[str, Any]) -> str | None:
        """Return the collection that a renamed one has become: its documents were never told under that name."""
        to = event.get("to") or {}
        is_ours = to.get("db") == self.options.database and self._watches(to.get("coll", ""))
        return to["coll"] if is_ours and self.options.snapshot != "never" else None


class _OpenStream:
    """A stream that is being read; an invalidated one goes on behind what ended it."""

    def __init__(self, log: MongoLog, position: LogPosition, batch_size: int) -> None:
        self._log = log
        self._batch_size = batch_size
        self._start = position
        self.has_moved = False
        """Whether the position is behind an event, be it one that is not handed out."""
        self._position: LogPosition = dict(position)
        self._last: Mapping[str, Any] | None = None
        self._session: ClientSession = log.client.start_session()
        self._splits = False
        try:
            self._stream = once_known(self._begun)
        except BaseException:
            self._session.end_session()
            raise

    def next(self) -> dict[str, Any] | None:
        """Return the next event, put together where it comes in fragments; None at the end."""
        event = self._read()
        if event is None and not self._stream.alive:
            self._pass_unseen_end()
            event = self._read()
        if event is None:
            return None
        _check_whole(event)
        self._last = event
        self.has_moved = True
        if event["operationType"] == "invalidate":
            self._reopen()
        return event

    @property
    def position(self) -> LogPosition:
        """Behind the last event."""
        if self._last is not None:  # put into words once for a page
            self._position, self._last = self._behind(self._last), None
        return self._position

    def is_worth_a_write(self) -> bool:
        """Move on though nothing has changed, once that alone is worth a checkpoint."""
        token, moment = self._stream.resume_token, self._session.operation_time
        if token is None or moment is None:
            return False
        idle = moment.time - time_of(self._start).time
        if idle >= self._log.options.idle_seconds:
            self._position = self._start = _written(token, moment)
            return True
        return False

    def close(self) -> None:
        """End the stream; a lost connection changes nothing about that."""
        with suppress(errors.PyMongoError):
            self._stream.close()
        with suppress(errors.PyMongoError):
            self._session.end_session()

    def _opened(self) -> ChangeStream[Any]:
        options = self._log.options
        target: Any = self._log.database if options.collection is None else self._log.database[options.collection]
        # The server refuses to look beyond its own time: it is another one, or was set back.
        self._session.advance_operation_time(time_of(self.position))
        stages = [*options.pipeline, *([{"$changeStreamSplitLargeEvent": {}}] if self._splits else [])]
        stream: ChangeStream[Any] = target.watch(
            stages,
            full_document=None if options.full_document == "off" else options.full_document,
            full_document_before_change=_or_none(options.full_document_before_change),
            batch_size=self._batch_size,
            max_await_time_ms=_AWAIT_MILLISECONDS,
            session=self._session,
            **_start(self.position),
        )
        return stream

    def _begun(self) -> ChangeStream[Any]:
        """Open the stream; in fragments where its first event is larger than a reply may be."""
        try:
            return self._opened()
        except errors.OperationFailure as error:
            self._split_for(error)
        return self._opened()

    def _read(self) -> dict[str, Any] | None:
        """Return the next event; from the same place on in fragments where it is larger than a reply may be."""
        try:
            return self._whole()
        except errors.OperationFailure as error:
            self._split_for(error)
        self._reopen()
        return self._whole()

    def _split_for(self, error: errors.OperationFailure) -> None:
        """Ask for fragments from now on; raise what they do not cure."""
        if self._splits or not _wants_fragments(error):
            raise error
        self._splits = True

    def _pass_unseen_end(self) -> None:
        """Go on behind the end of a collection that the pipeline has kept from us."""
        token = self._stream.resume_token
        if token is not None:
            self._position, self._last = _written(token, self._session.operation_time) | {"invalidated": True}, None
            self.has_moved = True
            self._reopen()

    def _reopen(self) -> None:
        with suppress(errors.PyMongoError):
            self._stream.close()
        self._stream = self._begun()

    def _whole(self) -> dict[str, Any] | None:
        event: dict[str, Any] | None = self._stream.try_next()
        if event is None or "splitEvent" not in event:
            return event
        while event["splitEvent"]["fragment"] < event["splitEvent"]["of"]:
            fragment = self._stream.try_next()
            if fragment is None:
                raise FetchError("An event ends in the middle of its fragments", transient=True)
            event |= fragment
        return event

    def _behind(self, event: Mapping[str, Any]) -> LogPosition:
        position = _written(event["_id"], event.get("clusterTime") or self._session.operation_time)
        if event["operationType"] == "invalidate":
            position["invalidated"] = True
        return position


def _beyond(after: Any) -> dict[str, Any]:
    """Return the filter for documents behind one; as an expression, it compares ids of different types, too."""
    if after is None or "id" not in after:
        return {}
    return {"$expr": {"$gt": ["$_id", {"$literal": revived(after["id"])}]}}


# Positions.


def at_time(moment: Timestamp) -> LogPosition:
    """Return the position behind all that happened up to a moment."""
    return {"value": f"{moment.time}:{moment.inc}", "time": [moment.time, moment.inc]}


def time_of(position: LogPosition) -> Timestamp:
    """Return the moment of a position; that of a typed token is not known."""
    try:
        seconds, increment = position.get("time") or (0, 1)
        return Timestamp(seconds, increment)
    except (TypeError, ValueError):
        raise _no_position() from None


def parsed(text: str) -> LogPosition:
    """Return a position that somebody has typed: a resume token, ``seconds:increment``, or a time with its zone."""
    with suppress(ValueError, OverflowError, PollerError):
        if found := _TIME.fullmatch(text):
            return at_time(Timestamp(int(found["seconds"]), int(found["increment"])))
        if re.fullmatch(r"(?:[0-9A-Fa-f]{2}){9,}", text) or text.startswith("{"):
            # Nobody says whether it is that of an invalidation, behind which only one way leads; it leads behind all.
            position = {"value": text, "invalidated": True}
            _start(position)
            return position
        moment = dt.datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return at_time(Timestamp(int(moment.timestamp()), 0))
    raise SourceConfigurationError(
        f'{text!r} is no position: it is "now", a resume token, seconds:increment, or a time with its zone '
        "such as 2026-11-16T12:00:00Z"
    )


def _written(token: Mapping[str, Any], moment: Timestamp | None) -> LogPosition:
    return {"value": _token_text(token)} | ({} if moment is None else {"time": [moment.time, moment.inc]})


def _token_text(token: Mapping[str, Any]) -> str:
    data = token.get("_data")
    return data if isinstance(data, str) and len(token) == 1 else json.dumps(extended(token))


def _start(position: LogPosition) -> dict[str, Any]:
    """Return how a stream is told where to begin."""
    value = str(position["value"])
    try:
        if found := _TIME.fullmatch(value):
            return {"start_at_operation_time": Timestamp(int(found["seconds"]), int(found["increment"]) + 1)}
        token = revived(json.loads(value)) if value.startswith("{") else {"_data": value}
    except (ValueError, TypeError, RecursionError):
        raise _no_position() from None
    if not (isinstance(token, dict) and token.get("_data")):  # with an empty one the driver would begin now
        raise _no_position()
    return {"start_after" if position.get("invalidated") else "resume_after": token}


def _no_position() -> SourceConfigurationError:
    return SourceConfigurationError(
        "The checkpoint holds no position of a change stream: reset the poller (azfdb reset --to-beginning)"
    )


# Events.


def _change(event: Mapping[str, Any]) -> Change:
    key = event.get("documentKey")
    change: Any = OpenChange()
    change.op = _OPERATIONS.get(event["operationType"], "unknown")
    change.position = _token_text(event["_id"])
    change.key = Document() if key is None else Document(_id=key.get("_id"))
    change.after = _document(event.get("fullDocument"))
    change.before = _document(event.get("fullDocumentBeforeChange"))
    change.cursor = None
    change.metadata = dict(_metadata(event))
    change.__class__ = Change
    return change  # type: ignore[no-any-return]


def _metadata(event: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "collection", event.get("ns", {}).get("coll")
    moment = event.get("clusterTime")
    committed_at = event.get("wallTime") or (None if moment is None else moment.as_datetime())
    if committed_at is not None:
        yield "committed_at", committed_at
    if "txnNumber" in event:
        yield "transaction", f"{event['lsid']['id']}:{event['txnNumber']}"
    if event["operationType"] in {"drop", "rename"} or event["operationType"] not in _OPERATIONS:
        yield "operation", event["operationType"]
    if "to" in event:
        yield "renamed_to", event["to"]["coll"]
    if "updateDescription" in event:
        yield "update", Document({name: part for name, part in event["updateDescription"].items() if part})
    if len(event.get("documentKey") or {}) > 1:
        yield "document_key", Document(event["documentKey"])


def _document(found: Any) -> Document | None:
    return None if found is None else Document(found)


def _check_whole(event: Mapping[str, Any]) -> None:
    if "documentKey" in event and "ns" in event and "operationType" in event:
        return
    missing = [name for name in ("operationType",) if name not in event]
    if event.get("operationType") in _OPERATIONS:
        missing += ["ns"] if "ns" not in event else []
    if event.get("operationType") in {"insert", "update", "replace", "delete"}:
        missing += ["documentKey"] if "documentKey" not in event else []
    if missing:
        raise SourceConfigurationError(f"pipeline= takes {', '.join(missing)} out of events, which are needed")


def _health(position: LogPosition, *, is_end: bool) -> StreamHealth:
    moment = time_of(position)
    committed = dt.datetime.fromtimestamp(moment.time, dt.UTC) if moment.time else None
    lag = 0.0 if is_end or committed is None else max(0.0, time.time() - moment.time)
    return StreamHealth(lag_seconds=lag, last_commit_at=committed)


def _warning(left: float, length: float) -> str | None:
    if length < _SHORT:
        return None
    if left < 0:
        return "the servers no longer have what follows the position"
    if left < _SHORT_OF_TIME * length:
        return f"the servers keep what the poller has not read for about {left / 3600:.2g} more hours only"
    return None


def _text(key: Any) -> str:
    return json.dumps(extended(key), separators=(",", ":"))


def _or_none(choice: str) -> str | None:
    return None if choice == "off" else choice


# The server.


def once_known(read: Callable[[], T]) -> T:
    """Read what lies at a time that the server does not know yet: a follower hears of it within seconds."""
    until = time.monotonic() + _HEARTBEATS_SECONDS
    while True:
        try:
            return read()
        except errors.OperationFailure as error:
            if error.code != _INVALID_OPTIONS or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_SECONDS)


def _wants_fragments(error: errors.OperationFailure) -> bool:
    """Tell whether an event is too large to be sent at once, or the position lies behind one that was."""
    return error.code == _TOO_LARGE or (error.code == _FATAL and "split event" in str(error))


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Raise `PositionLostError`, `SourceConfigurationError` or `FetchError` in place of what the driver raises."""
    try:
        yield
    except PollerError:
        raise
    except (errors.PyMongoError, BSONError) as failure:
        error, cause = _translated(source, failure), failure
    else:
        return
    # Raised out here, so that an error that could show a password is not even its context.
    raise error from masked_error(cause)


def _is_lost(code: int | None, says: str) -> bool:
    if code == _INVALID_OPTIONS:
        return "clusterTime" in says
    return (code in _LOST or "resume token" in says) and "modified by the pipeline" not in says


def _words(error: Exception) -> str:
    return masked_words(error).partition(", full error:")[0]


def _translated(source: str, error: Exception) -> PollerError:
    says = _words(error)
    code = error.code if isinstance(error, errors.OperationFailure) else None
    if code == _NO_IMAGE:
        return SourceConfigurationError(
            f"Source {source!r} wants images that the server has not: {says}: turn them on (azfdb stream create), or "
            'choose "whenAvailable"',
            source=source,
        )
    if _is_lost(code, says):
        return PositionLostError(
            f"Source {source!r}: the servers no longer have what follows the position: {says} ({code})", source=source
        )
    if code in _DEFINITION or code == _FATAL or isinstance(error, errors.ConfigurationError | errors.InvalidURI):
        return SourceConfigurationError(f"Source {source!r} does not fit its server: {says}", source=source)
    if isinstance(error, errors.ConnectionFailure):
        return FetchError(f"Source {source!r}: the server cannot be reached: {says}", source=source, transient=True)
    transient = isinstance(error, errors.PyMongoError) and (
        error.has_error_label("ResumableChangeStreamError") or error.timeout
    )
    return FetchError(f"Source {source!r} cannot be read: {says}", source=source, transient=bool(transient))


_FORM: Final = json_util.RELAXED_JSON_OPTIONS.with_options(
    tz_aware=True, uuid_representation=UuidRepresentation.STANDARD, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_READ: Final = _FORM.with_options(uuid_representation=UuidRepresentation.UNSPECIFIED)
_AS_THEY_ARE: Final = frozenset({str, int, bool, type(None)})
# A document may have fields with the names that Extended JSON gives to types: then this stands around it.
_LITERAL: Final = "$literal"


class Document(dict[str, Any]):
    """A document with values of MongoDB's types; in the JSON form of an event it is Extended JSON."""

    __slots__ = ()

    def json_form(self) -> dict[str, Any]:
        """Return the document as JSON can hold it."""
        return extended(self)  # type: ignore[no-any-return]  # of a document, one

    def copy(self) -> Document:
        """Return a document of its own with the same fields."""
        return Document(self)


def extended(value: Any) -> Any:
    """Return a value as Extended JSON: an ObjectId is ``{"$oid": …}``, plain texts and numbers stay what they are."""
    if type(value) in _AS_THEY_ARE:
        return value
    match value:
        case Mapping():
            written = {name: extended(inner) for name, inner in value.items()}
            return {_LITERAL: written} if any(name.startswith("$") for name in value) else written
        case list() | tuple():
            return [extended(inner) for inner in value]
        case int():
            return int(value)
        case float() if math.isfinite(value):
            return value
        case float():
            return {"$numberDouble": {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")}
        case _:
            return json_util.default(value, _FORM)


def revived(written: Any) -> Any:
    """Return the value that `extended` wrote."""
    match written:
        case {"$literal": dict() as document}:
            return {name: revived(inner) for name, inner in document.items()}
        case dict():
            value = json_util.object_hook({name: revived(inner) for name, inner in written.items()}, _READ)
            # Bytes in the older form of a UUID have stayed bytes, too.
            return value.as_uuid() if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE else value
        case list():
            return [revived(inner) for inner in written]
        case _:
            return written
