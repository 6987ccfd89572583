"""Operators' changes of a poller's state: first a dry run, then the change itself, with a backup that leads back."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, LeaseConflictError, StateStoreError
from azure_functions_db.core.files import make_folder, write_new
from azure_functions_db.core.ports import CountsBacklog, TellsPositions
from azure_functions_db.core.serializers import serialize_position
from azure_functions_db.operations.positions import cursor_from, key_from, typed_source
from azure_functions_db.operations.reports import jsonable
from azure_functions_db.operations.status import has_one_reader
from azure_functions_db.state.backend import document_name
from azure_functions_db.trigger.adapters import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.ports import ChangeSource
    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.operations.pollers import Poller
    from azure_functions_db.state.reset import StateChange
    from azure_functions_db.state.store import DocumentStateStore


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """What was changed in a poller's state, or is about to be."""

    action: str
    poller: str
    before: dict[str, Any] | None
    after: dict[str, Any]
    backup: str | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One change of one poller's state document."""

    action: str
    poller: str
    """The poller whose document is replaced."""
    store: DocumentStateStore
    change: Callable[[DocumentStateStore], StateChange]

    def dry_run(self) -> ChangeReport:
        """Return what would change; what would be refused is refused here."""
        change = self.change(self.store.dry_run())
        return ChangeReport(self.action, self.poller, change.before, change.after)

    def apply(self, backups: Path) -> ChangeReport:
        """Keep the present document in a file of the folder, then change it."""
        # In the form that `reset --to-checkpoint` reads.
        present = self.store.raw_document(self.poller)
        backup = None if present is None else saved(backups, self.poller, present)
        change = self.change(self.store)
        return ChangeReport(self.action, self.poller, change.before, change.after, backup, done=True)


def to_beginning(poller: Poller, *, force: bool = False) -> PlannedChange:
    """Plan to deliver everything again."""
    name = poller.name
    return _planned(poller, "reset to the beginning", lambda store: store.reset_to_beginning(name, force=force))


def to_checkpoint(poller: Poller, file: Path, *, force: bool = False) -> PlannedChange:
    """Plan to restore the position of an exported document or a backup."""
    name = poller.name
    return _planned(poller, f"reset to {file.name}", lambda store: store.reset_to_checkpoint(name, file, force=force))


def to_cursor(
    poller: Poller, text: str, kind: str | None = None, pk: tuple[str, ...] = (), *, force: bool = False
) -> PlannedChange:
    """Plan to go on after a row: its cursor value as a person types it, and its key as ``name=value``."""
    name = poller.name
    source = None if poller.definition is None else poller.definition.settings.source
    if isinstance(source, TellsPositions):
        return _to_position(poller, source, text, pk, force=force)
    document = _present_document(poller, force=force)
    value = cursor_from(text, kind, document, typed_source(source))
    key = key_from(pk, document, typed_source(source))
    if source is not None and not force:
        _check_readable(source, {"cursor": serialize_position(value, key)})
    return _planned(poller, f"reset to {text}", lambda store: store.reset_to_cursor(name, value, key, force=force))


def _to_position(poller: Poller, source: Any, text: str, pk: tuple[str, ...], *, force: bool) -> PlannedChange:
    """Plan to go on at a place in a log."""
    if pk:
        raise ConfigurationError(
            f"A {type(source).__name__} stands at a place in a log, which has no key: leave --pk out"
        )
    position, name = source.parse(text), poller.name
    if not force:
        _check_readable(source, position)
    return _planned(poller, f"reset to {text}", lambda store: store.reset_to_position(name, position, force=force))


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
    moment = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"{document_name('backup', name).poller}-{moment}.json"
    written = content if isinstance(content, bytes) else json.dumps(jsonable(content), indent=2).encode()
    try:
        make_folder(folder)
        write_new(path, written)
    except OSError as failure:
        raise ConfigurationError(
            f"Nothing was changed: no backup can be written to {path}: {failure.strerror}"
        ) from None
    return str(path)


def _planned(poller: Poller, action: str, change: Callable[[DocumentStateStore], StateChange]) -> PlannedChange:
    return PlannedChange(action, poller.name, poller.documents, change)


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
