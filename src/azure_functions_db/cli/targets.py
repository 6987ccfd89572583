"""What a command is about: a poller with its state, and where an app is given, its source and handler."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.cli.errors import UnknownPollerError
from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    from azure_functions_db.cli.apps import AppFunction
    from azure_functions_db.core.ports import QuarantineSink, StateStore
    from azure_functions_db.trigger.poll import PollSettings, PollTrigger


@dataclass(frozen=True, slots=True)
class AppPoller:
    """A poller as its app defines it."""

    function: AppFunction
    trigger: PollTrigger

    @property
    def settings(self) -> PollSettings:
        """What the poller is made of."""
        return self.trigger.settings


@dataclass(frozen=True, slots=True)
class Target:
    """One poller: its state store, and its definition where an app tells it."""

    name: str
    store: StateStore
    sink: QuarantineSink | None = None
    poller: AppPoller | None = None

    @property
    def shows_documents(self) -> bool:
        """Whether the store is one whose documents can be looked at and changed."""
        return isinstance(self.store, DocumentStateStore)

    @property
    def documents(self) -> DocumentStateStore:
        """The store as one whose documents can be looked at and changed."""
        if not isinstance(self.store, DocumentStateStore):
            raise ConfigurationError(
                f"The store of poller {self.name!r} is a {type(self.store).__name__}: only the stores of this "
                "library can be looked at and changed from here"
            )
        return self.store

    @property
    def defined(self) -> AppPoller:
        """The poller's definition; a store alone does not tell it."""
        if self.poller is None:
            raise ConfigurationError("This needs the poller's source: give --app instead of --store")
        return self.poller

    @property
    def quarantine(self) -> QuarantineSink:
        """The sink of the poller's quarantined rows."""
        if self.sink is None:
            where = "give --quarantine with --store" if self.poller is None else "its trigger has no quarantine="
            raise ConfigurationError(f"Poller {self.name!r} has no quarantine: {where}")
        return self.sink

    def document(self) -> dict[str, Any] | None:
        """Return the poller's state document; None where it has never run."""
        return self.documents.inspect(self.name)

    def check_state(self) -> None:
        """Refuse a poller that has no state, readable or not."""
        if self.documents.raw_document(self.name) is None:
            raise UnknownPollerError(f"Poller {self.name!r} has no state yet")

    def existing(self) -> dict[str, Any]:
        """Return the poller's state document, which must be there."""
        found = self.document()
        if found is None:
            raise UnknownPollerError(f"Poller {self.name!r} has no state yet")
        return found


class Targets:
    """The pollers of an app, or those that have left their state in a store."""

    def __init__(
        self,
        app: str | None = None,
        store: str | None = None,
        app_name: str | None = None,
        quarantine: str | None = None,
    ) -> None:
        if app is not None and store is not None:
            raise ConfigurationError("Give one of --app and --store, not both")
        # What an app and its parts log is not what was asked for; commands tell what matters themselves.
        logging.getLogger().addHandler(logging.NullHandler())
        self._app = "." if app is None and store is None else app
        self._store_url = store
        self._app_name = app_name
        self._sink_url = quarantine

    def names(self) -> list[str]:
        """Return the names of the pollers that the app defines; nothing is contacted."""
        return sorted(self._pollers)

    def all(self) -> list[Target]:
        """Return every poller of the app, or of the store, by name."""
        if self._app is not None:
            return [self._defined(name) for name in self.names()]
        return [self._stored(self._store, name) for name in self._store.poller_names()]

    def with_strangers(self) -> list[Target]:
        """Return every poller, and what else has left its state in the app's stores: backfills, clones, old names."""
        known = {target.name: target for target in self.all()}
        for store in self._app_stores:
            with suppress(StateStoreError):  # a store that does not answer is told of with its pollers
                known = {name: self._stored(store, name) for name in store.poller_names()} | known
        return [known[name] for name in sorted(known)]

    def one(self, name: str) -> Target:
        """Return the poller of a name; `UnknownPollerError` tells which ones there are."""
        if self._app is not None and name in self._pollers:
            return self._defined(name)
        stores = [self._store] if self._app is None else self._app_stores
        for store in stores:
            if _has_state(store, name):
                return self._stored(store, name)
        raise _unknown(name, [target.name for target in self.with_strangers()])

    def chosen(self, name: str | None) -> list[Target]:
        """Return the poller of a name, or all of them where none is named."""
        return self.all() if name is None else [self.one(name)]

    def _defined(self, name: str) -> Target:
        poller = self._pollers[name]
        return Target(name, poller.settings.store, poller.settings.quarantine, poller)

    def _stored(self, store: DocumentStateStore, name: str) -> Target:
        from azure_functions_db.cli.store_urls import sink_at

        return Target(name, store, None if self._sink_url is None else sink_at(self._sink_url))

    @cached_property
    def _pollers(self) -> dict[str, AppPoller]:
        from azure_functions_db.cli.apps import load_app
        from azure_functions_db.cli.aside import printed_aside

        with printed_aside():
            app = load_app(self._app or ".")
        return {
            trigger.name: AppPoller(function, trigger) for function in app.functions for trigger in function.pollers
        }

    @property
    def _app_stores(self) -> list[DocumentStateStore]:
        if self._app is None:
            return []
        stores = (poller.settings.store for poller in self._pollers.values())
        return [store for store in stores if isinstance(store, DocumentStateStore)]

    @cached_property
    def _store(self) -> DocumentStateStore:
        from azure_functions_db.cli.store_urls import store_at

        return store_at(self._store_url or "", self._app_name)


def _has_state(store: DocumentStateStore, name: str) -> bool:
    return store.raw_document(name) is not None


def _unknown(name: str, known: list[str]) -> UnknownPollerError:
    shown = ", ".join(known) or "none"
    return UnknownPollerError(f"There is no poller {name!r}; there are: {shown}")
