"""What an operator may do to a poller's state; each act tells the state before and after it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.core.serializers import parsed_json, serialize_position
from azure_functions_db.core.types import Pause
from azure_functions_db.state.backend import ForgettingBackend, PlacedBackend
from azure_functions_db.state.document import (
    Document,
    as_dict,
    broken,
    decoded,
    encoded,
    is_free,
    lease_conflict,
    lost_race,
    salvaged,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping
    from os import PathLike

    from azure_functions_db.core.types import CheckpointJson, CursorPart
    from azure_functions_db.state.backend import Backend, DocumentName, Stored, Version
    from azure_functions_db.state.store import StoredDocument


# A holder's heartbeat or commit may come between the look and the write.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class StateChange:
    """A state document before and after an operator's act; there may have been none before."""

    before: dict[str, Any] | None
    after: dict[str, Any]


class Resets:
    """The operator's acts on a state store.

    All are refused while a lease is alive (`LeaseConflictError`). ``force=True`` breaks the
    lease: its holder then fails to commit. It also replaces a document that cannot be read, and
    keeps of it what can be.
    """

    _backend: Backend
    _clock: Callable[[], dt.datetime]

    def reset_to_beginning(self, poller_name: str, *, force: bool = False) -> StateChange:
        """Forget the position and the source's definition, as if the poller had never run."""
        return self._rewrite(poller_name, lambda _: Document(poller_name), force=force)

    def reset_to_checkpoint(self, poller_name: str, file: str | PathLike[str], *, force: bool = False) -> StateChange:
        """Restore the position from a JSON file: a checkpoint, or a whole document as it was saved."""
        checkpoint, fingerprint = _saved(Path(file))

        def restored(current: Document) -> Document:
            return Document(poller_name, checkpoint, source_fingerprint=fingerprint or current.source_fingerprint)

        return self._rewrite(poller_name, restored, force=force)

    def reset_to(self, poller_name: str, checkpoint: CheckpointJson, *, force: bool = False) -> StateChange:
        """Continue from a position that the poller's own source has given."""
        return self._rewrite(poller_name, lambda _: Document(poller_name, checkpoint), force=force)

    def reset_to_cursor(
        self, poller_name: str, value: CursorPart, pk: Mapping[str, CursorPart], *, force: bool = False
    ) -> StateChange:
        """Continue after the row with this cursor value and key; the next tick's source owns the position."""
        return self.reset_to(poller_name, {"cursor": serialize_position(value, pk)}, force=force)

    def clone_checkpoint(self, poller_name: str, new_poller_name: str, *, force: bool = False) -> StateChange:
        """Give another poller this one's position; one that has a position of its own only by force."""
        origin = self.inspect(poller_name)
        if origin is None:
            raise StateStoreError(f"There is no state of poller {poller_name!r}", poller_name=poller_name)

        def cloned(current: Document) -> Document:
            if current.checkpoint and not force:
                raise StateStoreError(
                    f"Poller {new_poller_name!r} has a checkpoint of its own; --force (force=True) replaces it",
                    poller_name=new_poller_name,
                )
            return Document(new_poller_name, origin["checkpoint"], source_fingerprint=origin["source_fingerprint"])

        return self._rewrite(new_poller_name, cloned, force=force)

    def adopt_fingerprint(self, poller_name: str, fingerprint: str, *, force: bool = False) -> StateChange:
        """Declare that the stored position holds for a changed source as well."""
        return self._rewrite(
            poller_name, lambda current: replace(current, source_fingerprint=fingerprint), force=force, must_exist=True
        )

    def carry_over(self, poller_name: str, *, force: bool = False) -> StateChange:
        """Go on from the state that release 0.8 has left, whatever its fingerprint says; other apps then begin anew."""
        stored = self._backend.read(self._stored(poller_name).name)
        if stored is None or stored.version is not None:
            has = "no state of release 0.8" if stored is None else "a state of its own, from which it goes on"
            raise StateStoreError(f"Poller {poller_name!r} has {has}", poller_name=poller_name)
        return self._rewrite(poller_name, lambda current: replace(current, source_fingerprint=None), force=force)

    def break_lease(self, poller_name: str) -> StateChange:
        """Free a lease at once, whoever holds it; the holder cannot commit any more."""
        return self._rewrite(poller_name, lambda current: current, force=True, must_exist=True)

    def pause(self, poller_name: str, by: str, why: str | None = None) -> StateChange:
        """Let no instance tick from its next tick on; whoever is at work ends what it has begun."""
        mark = Pause(by, self._clock(), why)
        return self._mark(poller_name, lambda current: replace(current, paused=mark))

    def resume(self, poller_name: str) -> StateChange:
        """Let the instances tick again."""
        return self._mark(poller_name, lambda current: replace(current, paused=None), must_exist=True)

    def forget(self, poller_name: str, *, force: bool = False) -> StateChange:
        """Remove a poller's state as if it had never run; nothing is left of its position, its lease and its pause."""
        place = self._stored(poller_name)
        stored = self._backend.read(place.name)
        if stored is None or stored.version is None:
            raise StateStoreError(f"There is no state of poller {poller_name!r}", poller_name=poller_name)
        now = self._clock()
        document = _readable(stored, poller_name, salvaged_at=now if force else None)
        if not force and not is_free(document, now):
            raise lease_conflict(document)
        if not isinstance(self._backend, ForgettingBackend):
            raise ConfigurationError(f"A {type(self).__name__} cannot remove a state")
        if not self._backend.delete(place.name, stored.version):
            raise lost_race(poller_name)
        place.forgotten()
        return StateChange(_shown(stored, poller_name), {})

    def check_place(self) -> None:
        """Refuse a place that is not there, which has no pollers for another reason than that none has run."""
        missing = self._backend.missing_place() if isinstance(self._backend, PlacedBackend) else None
        if missing is not None:
            raise ConfigurationError(f"There is no {missing} here: it is made by the first tick of a poller")

    def inspect(self, poller_name: str) -> dict[str, Any] | None:
        """Return a poller's document as its JSON has it; None where there is none."""
        stored = self._backend.read(self._stored(poller_name).name)
        return None if stored is None else as_dict(decoded(stored.content, poller_name))

    def raw_document(self, poller_name: str) -> bytes | None:
        """Return what is stored for a poller, whether it makes sense or not."""
        stored = self._backend.read(self._stored(poller_name).name)
        return None if stored is None else stored.content

    def _mark(
        self, poller_name: str, change: Callable[[Document], Document], *, must_exist: bool = False
    ) -> StateChange:
        """Change a document beside whoever is working with it: a holder's next write takes the mark along."""
        place = self._stored(poller_name)
        for _ in range(_TRIES):
            stored = self._backend.read(place.name)
            _check_there(stored, poller_name, must_exist=must_exist)
            after = change(_readable(stored, poller_name, salvaged_at=None))
            version, origin = (stored.version, stored.origin) if stored else (None, None)
            won, _ = place.swap(decoded(encoded(after), poller_name), version, origin)
            if won:
                return StateChange(_shown(stored, poller_name), as_dict(after))
        raise lost_race(poller_name)

    def _rewrite(
        self,
        poller_name: str,
        change: Callable[[Document], Document],
        *,
        force: bool,
        must_exist: bool = False,
    ) -> StateChange:
        """Change a document that nobody is working with; whoever held its lease is shut out."""
        place = self._stored(poller_name)
        stored = self._backend.read(place.name)
        _check_there(stored, poller_name, must_exist=must_exist)
        now = self._clock()
        before = _readable(stored, poller_name, salvaged_at=now if force else None)
        if not force and not is_free(before, now):
            raise lease_conflict(before)
        changed = replace(change(before), lease=broken(before, now).lease, paused=before.paused)
        after = decoded(encoded(changed), poller_name)  # what an operator brings is written only if it can be read
        version, origin = (stored.version, stored.origin) if stored else (None, None)
        # Who gives the position another value does not carry it over.
        won, _ = place.swap(after, version, origin if after.checkpoint == before.checkpoint else None)
        if not won:
            raise lost_race(poller_name)
        return StateChange(_shown(stored, poller_name), as_dict(changed))

    def _stored(self, poller_name: str) -> StoredDocument:
        raise NotImplementedError


def _check_there(stored: Stored | None, poller_name: str, *, must_exist: bool) -> None:
    if stored is None and must_exist:
        raise StateStoreError(f"There is no state of poller {poller_name!r}", poller_name=poller_name)


class DryRunBackend:
    """Reads what is there; what is written goes nowhere."""

    def __init__(self, real: Backend) -> None:
        self._real = real

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document that is really there."""
        return self._real.read(name)

    def create(self, name: DocumentName, content: bytes) -> Version | None:  # noqa: ARG002 - see the class
        """Pretend to write."""
        return "dry run"

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:  # noqa: ARG002 - see the class
        """Pretend to write."""
        return "dry run"

    def claim(self, name: DocumentName, origin: Version) -> bool:  # noqa: ARG002 - see the class
        """Pretend to mark."""
        return True

    def delete(self, name: DocumentName, version: Version) -> bool:  # noqa: ARG002 - see the class
        """Pretend to remove."""
        return True

    def pollers(self, app: str) -> Iterable[str]:
        """Return the pollers that are really there."""
        return self._real.pollers(app)


def _readable(stored: Stored | None, poller_name: str, *, salvaged_at: dt.datetime | None) -> Document:
    """Return the document; by force, at a given time, what is left of one that cannot be read."""
    if stored is None:
        return Document(poller_name)
    try:
        return decoded(stored.content, poller_name)
    except StateStoreError:
        if salvaged_at is None:
            raise
        return salvaged(stored.content, poller_name, salvaged_at)


def _shown(stored: Stored | None, poller_name: str) -> dict[str, Any] | None:
    if stored is None:
        return None
    try:
        return as_dict(decoded(stored.content, poller_name))
    except StateStoreError:
        return {"unreadable": stored.content.decode(errors="replace")}


def _saved(file: Path) -> tuple[CheckpointJson, str | None]:
    try:
        written = parsed_json(file.read_bytes())
    except (OSError, ValueError) as failure:
        why = getattr(failure, "strerror", None) or failure  # without the path once more
        raise ConfigurationError(f"The checkpoint cannot be read from {file}: {why}") from None
    match written:
        case {"version": _, "poller_name": str() as name}:
            document = decoded(json.dumps(written).encode(), name)
            return document.checkpoint, document.source_fingerprint
        case {"checkpoint": _} | {"poller_name": _} | {"lease": _}:  # taken for a position, it would be one of nowhere
            raise ConfigurationError(f"{file} is a state document that lacks its version or its poller_name")
        case dict() if written:
            return written, None
        case _:
            raise ConfigurationError(f"{file} holds no checkpoint; an empty one would start from the beginning")
