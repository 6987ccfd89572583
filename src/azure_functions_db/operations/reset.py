"""Operators' changes of a poller's state: first a dry run, then the change itself, with a backup that leads back."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, DbError, LeaseConflictError, StateStoreError
from azure_functions_db.core.files import listed, make_folder, write_new
from azure_functions_db.core.ports import (
    ComparesItself,
    CountsBacklog,
    CountsChanges,
    NamesColumns,
    ParsesPositions,
)
from azure_functions_db.core.serializers import is_label, serialize_position
from azure_functions_db.operations.positions import cursor_from, key_from, range_source, reads_log, typed_source
from azure_functions_db.operations.reports import jsonable
from azure_functions_db.operations.status import has_one_reader
from azure_functions_db.state.backend import document_name
from azure_functions_db.trigger.batch import Checkpoint
from azure_functions_db.trigger.normalizers import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure_functions_db.core.ports import ChangeSource
    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.operations.pollers import Poller
    from azure_functions_db.state.reset import StateChange
    from azure_functions_db.state.store import DocumentStateStore

_MOMENT = "%Y%m%dT%H%M%S.%fZ"
# How long the backup of a replaced document is kept.
_KEPT = dt.timedelta(days=30)
# A row may be written while the end is looked for.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """What was changed in a poller's state, or is about to be."""

    action: str
    poller: str
    before: dict[str, Any] | None
    after: dict[str, Any]
    backup: str | None = None
    done: bool = False
    rows_again: int | None = None
    """How many rows will come once more; None where that cannot be told."""
    rows_skipped: int | None = None
    """How many rows will never come; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One change of one poller's state document."""

    action: str
    poller: str
    """The poller whose document is replaced."""
    store: DocumentStateStore
    change: Callable[[DocumentStateStore], StateChange]
    source: ChangeSource | None = None
    """What the position is one of, where rows are to be counted."""

    def dry_run(self) -> ChangeReport:
        """Return what would change; what would be refused is refused here."""
        return self._reported(self.change(self.store.dry_run()))

    def apply(self, backups: Path) -> ChangeReport:
        """Keep the present document in a file of the folder, then change it."""
        # In the form that `reset --to-checkpoint` reads.
        present = self.store.raw_document(self.poller)
        backup = None if present is None else saved(backups, self.poller, present)
        counted = self.dry_run()  # afterwards the poller may be at work already
        change = self.change(self.store)
        return replace(counted, before=change.before, after=change.after, backup=backup, done=True)

    def _reported(self, change: StateChange) -> ChangeReport:
        again, skipped = _moved_rows(self.source, change)
        return ChangeReport(
            self.action, self.poller, change.before, change.after, rows_again=again, rows_skipped=skipped
        )


def to_beginning(poller: Poller, *, force: bool = False) -> PlannedChange:
    """Plan to deliver everything again."""
    name = poller.name
    return _planned(
        poller, "reset to the beginning", lambda store: store.reset_to_beginning(name, force=force), counts=True
    )


def to_end(poller: Poller, *, force: bool = False) -> PlannedChange:
    """Plan to skip everything that waits: the poller goes on with what comes from now on."""
    name, checkpoint = poller.name, _end_of(poller.defined.settings.source)
    return _planned(
        poller, "reset to the end", lambda store: store.reset_to(name, checkpoint, force=force), counts=True
    )


def forget(poller: Poller, *, force: bool = False) -> PlannedChange:
    """Plan to remove a poller's state."""
    poller.check_state()
    return _planned(poller, "forget", lambda store: store.forget(poller.name, force=force))


@dataclass(frozen=True, slots=True)
class Marks:
    """What was changed in the states of several pollers, such as the partitions of one function."""

    changes: list[ChangeReport]


def pause(pollers: Sequence[Poller], by: str, why: str | None = None) -> Marks:
    """Let no instance tick until `resume`; whoever is at work ends its tick."""
    if not all(is_label(text) for text in (by, why or "")):
        raise ConfigurationError("Who pauses, and why, is said on one short line")
    return Marks([_marked(poller, "pause", lambda store, name: store.pause(name, by, why)) for poller in pollers])


def operator() -> str:
    """Return who is at the command line, for what is written down about an act."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without such a user
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def resume(pollers: Sequence[Poller]) -> Marks:
    """Let the instances tick again."""
    return Marks([_marked(poller, "resume", lambda store, name: store.resume(name)) for poller in pollers])


def _marked(poller: Poller, action: str, mark: Callable[[DocumentStateStore, str], StateChange]) -> ChangeReport:
    change = mark(poller.documents, poller.name)
    return ChangeReport(action, poller.name, change.before, change.after, done=True)


def to_checkpoint(poller: Poller, file: Path, *, force: bool = False) -> PlannedChange:
    """Plan to restore the position of an exported document or a backup."""
    name = poller.name
    return _planned(
        poller,
        f"reset to {file.name}",
        lambda store: store.reset_to_checkpoint(name, file, force=force),
        counts=True,
    )


def to_cursor(
    poller: Poller, text: str, kind: str | None = None, pk: tuple[str, ...] = (), *, force: bool = False
) -> PlannedChange:
    """Plan to go on after a row: its cursor value as a person types it, and its key as ``name=value``.

    Without a key, with the first row of that cursor value. A source without a cursor column reads by itself what was
    typed.
    """
    name = poller.name
    source = None if poller.definition is None else poller.definition.settings.source
    if isinstance(source, ParsesPositions) and not isinstance(source, NamesColumns):
        if reads_log(source) and pk:
            raise ConfigurationError(
                f"A {type(source).__name__} stands at a place in a log, which has no key: leave --pk out"
            )
        position = source.parse(" ".join([text, *pk]))
        if position and not force:
            _check_readable(source, position)
        return _planned(
            poller, f"reset to {text}", lambda store: store.reset_to(name, position, force=force), counts=True
        )
    document = _present_document(poller, force=force)
    value = cursor_from(text, kind, document, typed_source(source))
    key = key_from(pk, document, typed_source(source)) if pk else {}
    if source is not None and not force:
        _check_readable(source, {"cursor": serialize_position(value, key)})
    return _planned(
        poller, f"reset to {text}", lambda store: store.reset_to_cursor(name, value, key, force=force), counts=True
    )


def adopt_fingerprint(poller: Poller, *, force: bool = False) -> PlannedChange:
    """Plan to keep the position for a source whose definition has changed."""
    name, fingerprint = poller.name, poller.defined.settings.source.source_descriptor.fingerprint
    return _planned(poller, "adopt the source", lambda store: store.adopt_fingerprint(name, fingerprint, force=force))


def clone(poller: Poller, new: str, *, force: bool = False) -> PlannedChange:
    """Plan to give another poller this one's position."""
    poller.existing()
    name = poller.name
    return PlannedChange(
        f"clone of {name}", new, poller.documents, lambda store: store.clone_checkpoint(name, new, force=force)
    )


def break_lease(poller: Poller, *, force: bool = False) -> PlannedChange:
    """Plan to free a lease; one that is alive only by force."""
    poller.check_state()
    return _planned(poller, "break the lease", lambda store: _broken(store, poller.name, force=force))


def saved(folder: Path, name: str, content: Any) -> str:
    """Write what is about to be lost into a file of its own; return the file's path."""
    moment = dt.datetime.now(dt.UTC).strftime(_MOMENT)
    path = folder / f"{document_name('backup', name).poller}-{moment}.json"
    written = content if isinstance(content, bytes) else json.dumps(jsonable(content), indent=2).encode()
    try:
        make_folder(folder)
        write_new(path, written)
        _prune(folder)
    except OSError as failure:
        raise ConfigurationError(
            f"Nothing was changed: no backup can be written to {path}: {failure.strerror}"
        ) from None
    return str(path)


def backups_in(folder: Path, name: str, younger_than: dt.timedelta) -> list[Path]:
    """Return the files of a name that `saved` has written not longer ago than that, the newest first."""
    since = dt.datetime.now(dt.UTC) - younger_than
    prefix = document_name("backup", name).poller
    named = [path for path in listed(folder) if path.name.rpartition("-")[0] == prefix]
    young = [path for path in named if (moment := _saved_at(path)) is not None and moment >= since]
    return sorted(young, reverse=True)  # their names tell the time


def _prune(folder: Path) -> None:
    """Remove backups that nobody will ask for any more."""
    until = dt.datetime.now(dt.UTC) - _KEPT
    for path in listed(folder):
        moment = _saved_at(path)
        if moment is not None and moment < until:
            path.unlink(missing_ok=True)


def _saved_at(path: Path) -> dt.datetime | None:
    """Return when a backup was written, by its name; None for any other file."""
    try:
        return dt.datetime.strptime(f"{path.name.rpartition('-')[2]}+0000", f"{_MOMENT}.json%z")
    except ValueError:
        return None


def _planned(
    poller: Poller, action: str, change: Callable[[DocumentStateStore], StateChange], *, counts: bool = False
) -> PlannedChange:
    source = poller.definition.settings.source if counts and poller.definition is not None else None
    return PlannedChange(action, poller.name, poller.documents, change, source)


def _moved_rows(source: ChangeSource | None, change: StateChange) -> tuple[int | None, int | None]:
    """Return how many rows come again, and how many are skipped; None where that cannot be told."""
    if not isinstance(source, CountsChanges) or "unreadable" in (change.before or {}):
        return None, None
    try:
        before, after = (_count_behind(source, each) for each in (change.before or {}, change.after))
    except DbError:
        return None, None
    return max(0, after - before), max(0, before - after)


def _count_behind(source: CountsChanges, document: Mapping[str, Any]) -> int:
    return source.count_changes(Checkpoint.of(document.get("checkpoint") or {}).position)


def _end_of(source: Any) -> CheckpointJson:
    """Return the position behind all that is there now; what running transactions may still write comes later."""
    if isinstance(source, ComparesItself):
        raise ConfigurationError(f"A {type(source).__name__} cannot skip what waits: only its next scan can tell")
    if reads_log(source):
        return dict(source.parse("now"))
    ranges = range_source(source)
    for _ in range(_TRIES):
        with reading(ranges.ranged("now", None)) as reader:
            page = reader.fetch_changes({}, 1)
        if not page.records:
            return dict(page.next_checkpoint)
    raise ConfigurationError("Rows come faster than the end can be found: pause the writers, or use --to-cursor")


def _present_document(poller: Poller, *, force: bool) -> dict[str, Any] | None:
    try:
        return poller.document()
    except StateStoreError:
        if not force:
            raise
        return None


def _check_readable(source: ChangeSource, checkpoint: CheckpointJson) -> None:
    """Refuse a position that cannot be read; a source with one reader is only asked how much follows it."""
    if not has_one_reader(source):
        with reading(source) as reader:
            reader.fetch_changes(checkpoint, 1)
    elif isinstance(source, CountsBacklog):
        source.backlog(checkpoint)


def _broken(store: DocumentStateStore, name: str, *, force: bool) -> StateChange:
    held = None if force else store.look(name).lease
    if held is not None:
        raise LeaseConflictError(
            f"The lease of poller {name!r} is alive: {held.owner_id} renewed it at {held.heartbeat_at:%H:%M:%S}Z. "
            "--force breaks it all the same",
            poller_name=name,
            owner_id=held.owner_id,
        )
    return store.break_lease(name)
