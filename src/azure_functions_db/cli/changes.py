"""How a command changes state: shown beforehand, confirmed by hand, and with a backup that leads back."""

from __future__ import annotations

import datetime as dt
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.errors import NotConfirmedError
from azure_functions_db.cli.plain import jsonable
from azure_functions_db.cli.words import shown
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.files import make_folder, write_new
from azure_functions_db.state.backend import document_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.state.reset import StateChange
    from azure_functions_db.state.store import DocumentStateStore

    Act = Callable[[DocumentStateStore], StateChange]


@dataclass(frozen=True, slots=True)
class Change:
    """What a command changed, or is about to change."""

    action: str
    poller: str
    before: dict[str, Any] | None
    after: dict[str, Any]
    backup: str | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Changing:
    """One act on one poller's state."""

    action: str
    poller: str
    """The poller whose document is replaced."""
    act: Act

    def rehearsed(self, store: DocumentStateStore) -> Change:
        """Return what the act would do; what would refuse it does so here."""
        change = self.act(store.dry_run())
        return Change(self.action, self.poller, change.before, change.after)

    def performed(self, store: DocumentStateStore, backups: Path) -> Change:
        """Keep the present document and act."""
        saved = _backup(store, self.poller, backups)
        change = self.act(store)
        return Change(self.action, self.poller, change.before, change.after, saved, done=True)


def confirm(*pollers: str, yes: bool) -> None:
    """Go on only with ``--yes`` or after the pollers' names were typed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmedError("Nothing was changed: add --yes, or run this where the poller's name can be typed")
    wanted = shown(" ".join(pollers))
    print(f"Type the poller's name ({wanted}) to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().split() != list(pollers):
        raise NotConfirmedError("Nothing was changed: that is not the poller's name")


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


def _backup(store: DocumentStateStore, poller: str, folder: Path) -> str | None:
    """Write the present document where `reset --to-checkpoint` can read it; return the file's path."""
    content = store.raw_document(poller)
    return None if content is None else saved(folder, poller, content)


def exported(document: dict[str, Any]) -> str:
    """Return a document as the text that `reset --to-checkpoint` reads."""
    return json.dumps(document, indent=2)
