"""The change streams of MongoDB as a source."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import weakref
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import Code, ConfigurationError, SourceConfigurationError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.types import AdapterCapability, Backlog, Finding, SourceDescriptor
from azure_functions_db.sources.stream import OnPositionLost, Place, SnapshotMode, StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bson import Timestamp
    from pymongo import MongoClient

    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import CheckpointJson, FetchResult, RawRecord
    from azure_functions_db.sources.mongo.log import BeforeChange, FullDocument, MongoLog, MongoOptions

_KIND = "mongo-change-stream"
_FULL = ("updateLookup", "whenAvailable", "required", "off")
_BEFORE = ("off", "whenAvailable", "required")
_MOST_COUNTED = 1000
_GOODBYE_SECONDS = 0.2
_DAY = 86_400
_POSITION = re.compile(r"\d{1,10}:\d{1,10}|(?:[0-9A-Fa-f]{2}){9,}|\{.*\}", re.DOTALL)
_HOSTS = re.compile(r"mongodb(?:\+srv)?://(?:[^@]*@)?(?P<hosts>[^/?]+)", re.IGNORECASE)


class MongoChangeStreamSource:
    """Reads every change of a collection, or of all collections of a database, from MongoDB's change streams.

    Making one only checks its arguments; the server is first looked at when something is read. It needs pymongo
    (``pip install "azure-functions-db[mongo]"``), a replica set or a sharded cluster, and a login with ``read`` on the
    database.

    - ``uri``:
      As MongoDB writes it; ``%NAME%`` stands for an environment variable.
    - ``database``, ``collection``:
      What to watch; without a collection, all of the database.
    - ``pipeline``:
      Stages that filter or reshape the events on the server; documents of the snapshot pass it as inserts.
    - ``full_document``:
      With an update comes the document as it is now ("updateLookup"), as the update left it ("whenAvailable",
      "required": post-images have to be on), or only what has changed ("off").
    - ``full_document_before_change``:
      "whenAvailable" or "required": changes come with the document as it was; pre-images have to be on.
    - ``snapshot``:
      "initial": the documents that are there come first, then the changes. "never": changes only. "only": documents
      only.
    - ``start_at``:
      Where to begin without a checkpoint and with ``snapshot="never"``: "now", a resume token, a time with its zone,
      or a cluster time ``seconds:increment``.
    - ``on_position_lost``:
      What to do when the log no longer has what follows the checkpoint. "stop": raise `PositionLostError` until
      somebody decides. "snapshot": read the documents anew. "continue": go on with the oldest log that is left.
    - ``idle_seconds``:
      A position that moved though nothing changed is written after this time.
    - ``client_options``:
      Go to pymongo's client beside the URI.
    """

    def __init__(
        self,
        *,
        uri: str,
        database: str,
        collection: str | None = None,
        pipeline: Sequence[Mapping[str, Any]] | None = None,
        full_document: FullDocument = "updateLookup",
        full_document_before_change: BeforeChange = "off",
        snapshot: SnapshotMode = "initial",
        start_at: str = "now",
        on_position_lost: OnPositionLost = "stop",
        idle_seconds: float = 60.0,
        client_options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        _check_choice("full_document", full_document, _FULL)
        _check_choice("full_document_before_change", full_document_before_change, _BEFORE)
        _check_choice("snapshot", snapshot, get_args(SnapshotMode))
        _check_choice("on_position_lost", on_position_lost, get_args(OnPositionLost))
        self._uri = _checked_uri(uri)
        self._options: dict[str, Any] = {
            "database": _checked_name("database", database),
            "collection": None if collection is None else _checked_name("collection", collection),
            "pipeline": _checked_pipeline(pipeline),
            "full_document": full_document,
            "full_document_before_change": full_document_before_change,
            "snapshot": snapshot,
            "start_at": _checked_start(start_at),
            "on_position_lost": on_position_lost,
            "idle_seconds": idle_seconds,
        }
        self.name = name or (database if collection is None else f"{database}.{collection}")
        self._client_options = dict(client_options or {})
        self._client: tuple[int, MongoClient[Any]] | None = None

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        place = [self._hosts(), self._options["database"], self._options["collection"]]
        written = json.dumps([_KIND, *place, *self._options["pipeline"]], default=str)
        return SourceDescriptor(self.name, _KIND, f"sha256:{hashlib.sha256(written.encode()).hexdigest()}")

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """The URI as it is written, the collection and the database; nothing is looked up."""
        return self._uri, self._options["collection"], self._options["database"]

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""
        return AdapterCapability(
            detects_deletes=True,
            before_images=self._options["full_document_before_change"] != "off",
            distinguishes_insert=True,
            every_change=True,
            native_resume_token=True,
        )

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the server disagree."""
        for finding in self.examine():
            if finding.grade == "error":
                raise SourceConfigurationError(
                    f"Source {self.name!r}: {finding.text}: {finding.remedy}", source=self.name, setting=finding.check
                )

    def open(self) -> StreamReader:
        """Begin to read; nothing is asked of the server yet."""
        log = self._log()
        return StreamReader(
            log,
            kind=_KIND,
            tables=[log.table],
            snapshot=self._options["snapshot"],
            on_position_lost=self._options["on_position_lost"],
        )

    def close(self) -> None:
        """Do nothing: readers are closed, not the source."""

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return the changes after the checkpoint, as a reader for this once."""
        with closing(self.open()) as reader:
            return reader.fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Do nothing: the servers keep their log whoever reads it."""

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many changes follow the checkpoint, and the age of the first; before a snapshot, documents."""
        place = Place.of(checkpoint)
        with self._asked() as log:
            if place is None and self._options["snapshot"] != "never":
                return Backlog(sum(log.database[name].estimated_document_count() for name in log.watched()))
            if place is not None and place.is_over:
                return Backlog(0, "changes", lag_seconds=0.0)
            position = log.begin(anew=False) if place is None else place.position
            count, first = log.waiting(position, _MOST_COUNTED)
        lag = 0.0 if first is None else max(0.0, (dt.datetime.now(dt.UTC) - first).total_seconds())
        return Backlog(count, "changes", is_more=count == _MOST_COUNTED, lag_seconds=lag)

    def report(self, checkpoint: CheckpointJson) -> Sequence[Fact]:
        """Return how far behind the checkpoint is, and how long the servers keep what follows it."""
        place = Place.of(checkpoint)
        with self._asked() as log:
            return [log.health(None if place is None else place.position)]

    def examine(self) -> list[Finding]:
        """Return what an operator should know: the kind of server, rights, the length of its log, images."""
        with self._asked() as log:
            return list(_examined(log))

    checkup = examine

    def create_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Turn images on where they are wanted and off; return the commands."""
        with self._asked() as log:
            names = _without_images(log, log.watched()) if _wants_images(log.options) else []
            for name in () if dry_run else names:
                log.database.command("collMod", name, changeStreamPreAndPostImages={"enabled": True})
        return [_images_on(name) for name in names]

    def drop_stream(self, *, dry_run: bool = False) -> Sequence[str]:  # noqa: ARG002 - nothing to do either way
        """Do nothing: the log is the servers', and images may serve others."""
        return []

    def show_stream(self) -> Mapping[str, Any]:
        """Return what streams are read from: the server, its log, and which collections keep images."""
        with self._asked() as log:
            hello = log.client.admin.command("hello")
            oldest, newest = log.bounds()
            watched = log.watched()
            without = _without_images(log, watched)
            version = log.client.server_info()["version"]
        return {
            "server": version,
            "replica_set": hello.get("setName"),
            "is_sharded": hello.get("msg") == "isdbgrid",
            "collections": watched,
            "collections_with_images": [name for name in watched if name not in without],
            "oplog_oldest": None if oldest is None else oldest.as_datetime().isoformat(),
            "oplog_newest": None if newest is None else newest.as_datetime().isoformat(),
            "oplog_hours": None if oldest is None or newest is None else round((newest.time - oldest.time) / 3600, 2),
        }

    def describe(self, checkpoint: CheckpointJson) -> str:
        """Return a checkpoint's position as people read it, and as `parse` takes it."""
        place = Place.of(checkpoint)
        return "beginning" if place is None else str(place.position["value"])

    def parse(self, text: str) -> CheckpointJson:
        """Return the checkpoint of a position that somebody has typed: a token, a time, "now" or "beginning"."""
        if text.strip() == "beginning":
            return {}
        with self._asked() as log:
            return Place(log.started_at(text.strip())).checkpoint(_KIND)

    def current_row(self, key: Mapping[str, Any]) -> RawRecord | None:
        """Return the document of a key as it is now; None where it is gone."""
        if self._options["collection"] is None:
            raise SourceConfigurationError("A key does not tell its collection: look in the database", source=self.name)
        with self._asked() as log:
            return log.document(self._options["collection"], key.get("_id"))

    @staticmethod
    def revived(row: Mapping[str, Any], *, strict: bool = False) -> RawRecord:  # noqa: ARG004 - all of it fits
        """Return the document that an event's JSON holds, with values of MongoDB's types."""
        from azure_functions_db.sources.mongo.log import Document, revived

        return Document({name: revived(value) for name, value in row.items()})

    def __repr__(self) -> str:
        return f"MongoChangeStreamSource({self.name!r})"

    @contextmanager
    def _asked(self) -> Iterator[MongoLog]:
        """Give what asks the server; what goes wrong there becomes an error that a poller knows."""
        log = self._log()
        with log.reading():
            yield log

    def _log(self) -> MongoLog:
        try:
            from azure_functions_db.sources.mongo.log import MongoLog, MongoOptions, reading
        except ModuleNotFoundError:
            raise SourceConfigurationError(
                'MongoChangeStreamSource needs the package pymongo: pip install "azure-functions-db[mongo]"',
                code=Code.PACKAGE_MISSING,
            ) from None
        with reading(self.name):
            return MongoLog(self, self._connected(), MongoOptions(**self._options))

    def _connected(self) -> MongoClient[Any]:
        """Return the client of this process; one from before a fork is left alone."""
        if self._client is None or self._client[0] != os.getpid():
            client = _new_client(self._resolved_uri(), self._client_options)
            weakref.finalize(self, _close, client)
            self._client = os.getpid(), client
        return self._client[1]

    def _resolved_uri(self) -> str:
        try:
            return expanded(self._uri)
        except ConfigurationError as error:
            raise SourceConfigurationError(str(error), source=self.name, setting=error.setting) from None

    def _hosts(self) -> list[str]:
        found = _HOSTS.match(self._resolved_uri())
        if found is None:
            raise SourceConfigurationError("uri= begins with mongodb:// or mongodb+srv://", source=self.name)
        return sorted(found["hosts"].lower().split(","))


def _new_client(uri: str, options: Mapping[str, Any]) -> MongoClient[Any]:
    from pymongo import MongoClient

    forms = {
        "tz_aware": True,
        "uuidRepresentation": "standard",
        "datetime_conversion": "DATETIME_AUTO",
        "unicode_decode_error_handler": "replace",  # one bad text must not hold up all that follows
    }
    try:
        return MongoClient(uri, **{**forms, **options})
    except (TypeError, ValueError) as error:
        raise SourceConfigurationError(f"client_options= or uri=: {masked_words(error)}") from None


def _close(client: MongoClient[Any]) -> None:
    """Let go of a client whose source is gone; a server that does not answer is not waited for."""
    from pymongo import timeout

    with timeout(_GOODBYE_SECONDS):
        client.close()


# What an operator should know.


def _examined(log: MongoLog) -> Iterator[Finding]:
    server = _server(log)
    yield server
    if server.grade == "error":
        return
    rights = _rights(log)
    yield rights
    if rights.grade == "error":
        return
    watched = log.watched()
    yield _retention(*log.bounds())
    if _wants_images(log.options):
        yield from (_images(log, name) for name in _without_images(log, watched))
    yield from _collections(log, watched)


def _server(log: MongoLog) -> Finding:
    hello, version = log.client.admin.command("hello"), log.client.server_info()["version"]
    if hello.get("msg") == "isdbgrid":
        return Finding("server", "ok", f"a sharded cluster of MongoDB {version}: order is that of the cluster time")
    if hello.get("setName"):
        return Finding("server", "ok", f"the replica set {hello['setName']} of MongoDB {version}")
    return Finding(
        "server",
        "error",
        "a server that stands alone has no change streams",
        "make it a replica set, of one member at least: mongod --replSet rs0, then rs.initiate()",
    )


def _rights(log: MongoLog) -> Finding:
    """Open the stream and look for a document, which consumes nothing."""
    refusal = log.refusal()
    if refusal is not None:
        return Finding(
            "rights", "error", f"this login may not read the changes: {refusal}", 'db.grantRolesToUser("…", ["read"])'
        )
    return Finding("rights", "ok", "this login may read the documents and their changes")


def _retention(oldest: Timestamp | None, newest: Timestamp | None) -> Finding:
    if oldest is None or newest is None:
        return Finding(
            "retention",
            "note",
            "how far back the log goes cannot be seen by this login",
            'db.grantRolesToUser("…", [{role: "read", db: "local"}])',
        )
    hours = (newest.time - oldest.time) / 3600
    text = f"the log goes back {hours:.3g} hours"
    if hours * 3600 < _DAY:
        return Finding(
            "retention",
            "warning",
            f"{text}: a poller that stands still for longer loses its position",
            "db.adminCommand({replSetResizeOplog: 1, minRetentionHours: 72})",
        )
    return Finding("retention", "ok", text)


def _images(log: MongoLog, name: str) -> Finding:
    is_needed = "required" in {log.options.full_document, log.options.full_document_before_change}
    return Finding(
        f"collection {name}",
        "error" if is_needed else "warning",
        f"collection {name} keeps no images of documents before and after a change",
        _images_on(name),
    )


def _collections(log: MongoLog, watched: list[str]) -> Iterator[Finding]:
    kinds = {each["name"]: each["type"] for each in log.database.list_collections()}
    name = log.options.collection
    if name is None:
        yield Finding("collections", "ok", f"{len(watched)} collection(s) of database {log.options.database}")
    elif name not in kinds:
        yield Finding("collection", "note", f"collection {name} is not there yet: its first document makes it")
    elif kinds[name] != "collection":
        yield Finding(
            "collection", "error", f"{name} is a {kinds[name]}, which has no change stream", "watch a collection"
        )
    else:
        yield Finding("collection", "ok", f"collection {name}")


def _wants_images(options: MongoOptions) -> bool:
    return options.full_document_before_change != "off" or options.full_document in {"whenAvailable", "required"}


def _without_images(log: MongoLog, names: Sequence[str]) -> list[str]:
    found = {each["name"]: each.get("options", {}) for each in log.database.list_collections()}
    return [
        name
        for name in names
        if name in found and not found[name].get("changeStreamPreAndPostImages", {}).get("enabled")
    ]


def _images_on(name: str) -> str:
    command = {"collMod": name, "changeStreamPreAndPostImages": {"enabled": True}}
    return f"db.runCommand({json.dumps(command, ensure_ascii=False)})"


# Arguments.


def _check_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise SourceConfigurationError(f"{argument}= must be one of {', '.join(map(repr, choices))}, not {value!r}")


def _checked_uri(uri: object) -> str:
    if not isinstance(uri, str) or not uri.startswith(("mongodb://", "mongodb+srv://", "%")):
        raise SourceConfigurationError("uri= begins with mongodb:// or mongodb+srv://, or is a setting: %NAME%")
    return uri


def _checked_name(argument: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value or "$" in value:
        raise SourceConfigurationError(f"{argument}= is the name of a {argument}, not {value!r}")
    return value


def _checked_start(text: str) -> str:
    """Refuse what is no position; whether the log has it is for the server to say."""
    if not (text == "now" or _POSITION.fullmatch(str(text)) or _is_moment(str(text))):
        raise SourceConfigurationError(
            'start_at= is "now", a resume token, seconds:increment, or a time with its zone such as '
            f"2026-11-16T12:00:00Z, not {text!r}"
        )
    return text


def _is_moment(text: str) -> bool:
    try:
        return dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _checked_pipeline(pipeline: Sequence[Mapping[str, Any]] | None) -> tuple[Mapping[str, Any], ...]:
    stages = () if pipeline is None else pipeline
    if isinstance(stages, str | dict) or not all(isinstance(stage, dict) and len(stage) == 1 for stage in stages):
        raise SourceConfigurationError('pipeline= is a list of stages, such as [{"$match": {"fullDocument.a": 1}}]')
    return tuple(stages)
