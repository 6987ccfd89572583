"""Pollers and where they are found: in an app, in this process, or by the state that they left in a store."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import Code, ConfigurationError, StateStoreError, did_you_mean
from azure_functions_db.core.ports import CountsQuarantined
from azure_functions_db.decorator.composition import polling_of
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from azure_functions_db.core.ports import QuarantineSink, StateStore
    from azure_functions_db.trigger.poll import PollSettings, PollTrigger


class UnknownPollerError(ConfigurationError):
    """There is no poller of that name here."""

    code = Code.POLLER_UNKNOWN


@dataclass(frozen=True, slots=True)
class Definition:
    """A poller as its app defines it."""

    function: AppFunction
    trigger: PollTrigger

    @property
    def settings(self) -> PollSettings:
        """What the poller is made of."""
        return self.trigger.settings


@dataclass(frozen=True, slots=True)
class Poller:
    """One poller: its state store, and its definition where an app has one."""

    name: str
    store: StateStore
    sink: QuarantineSink | None = None
    definition: Definition | None = None

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
    def defined(self) -> Definition:
        """The poller's definition, which must be there; a store alone does not have it."""
        if self.definition is None:
            raise ConfigurationError("This needs the poller's source: give --app instead of --store")
        return self.definition

    @property
    def quarantine(self) -> QuarantineSink:
        """The sink of the poller's quarantined rows, which must be there."""
        if self.sink is None:
            where = "give --quarantine with --store" if self.definition is None else "its trigger has no quarantine="
            raise ConfigurationError(f"Poller {self.name!r} has no quarantine: {where}")
        return self.sink

    @property
    def fingerprints(self) -> set[str | None]:
        """The fingerprints that the poller's document may have, of this release and of earlier ones."""
        given = self.store.source_fingerprint if isinstance(self.store, DocumentStateStore) else None
        descriptor = self.defined.settings.source.source_descriptor
        return {None, given or descriptor.fingerprint, *descriptor.former}

    def quarantined(self) -> int | None:
        """Return how many rows of the poller are in quarantine; None where it has none."""
        if self.sink is None:
            return None
        if isinstance(self.sink, CountsQuarantined):
            return self.sink.count(self.name)
        return sum(1 for _ in self.sink.entries(self.name))

    def document(self) -> dict[str, Any] | None:
        """Return the poller's state document; None where it has never run."""
        return self.documents.inspect(self.name)

    def check_state(self) -> None:
        """Refuse a poller that has no state, readable or not."""
        if self.documents.raw_document(self.name) is None:
            raise UnknownPollerError(f"Poller {self.name!r} has no state yet")

    def existing(self) -> dict[str, Any]:
        """Return the poller's state document, which must be there."""
        document = self.document()
        if document is None:
            raise UnknownPollerError(f"Poller {self.name!r} has no state yet")
        return document


class Pollers:
    """The pollers of an app with what they left in its stores, or those of one store."""

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        store: DocumentStateStore | None = None,
        sink: QuarantineSink | None = None,
    ) -> None:
        self._definitions = definitions
        self._store = store
        self._sink = sink

    @classmethod
    def of_app(cls, app: App, sink: QuarantineSink | None = None) -> Pollers:
        """Return the pollers that an app defines; the sink stands in for the quarantines that it names."""
        pollers = ((function, trigger) for function in app.functions for trigger in function.pollers)
        return cls({trigger.name: Definition(function, trigger) for function, trigger in pollers}, sink=sink)

    @classmethod
    def in_process(cls) -> Pollers:
        """Return the pollers of the function apps that this process has loaded."""
        return cls.of_app(app_in_process())

    @classmethod
    def in_store(cls, store: DocumentStateStore, sink: QuarantineSink | None = None) -> Pollers:
        """Return the pollers that have left their state in a store; the sink has their quarantined rows."""
        return cls({}, store, sink)

    def names(self) -> list[str]:
        """Return the names of the pollers that the app defines; nothing is contacted."""
        return sorted(self._definitions)

    def all(self) -> list[Poller]:
        """Return every poller of the app, or of the store, by name."""
        if self._store is None:
            return [self._defined(name) for name in self.names()]
        stored = [self._stored(self._store, name) for name in self._store.poller_names()]
        if not stored:
            self._store.check_place()
        return stored

    def with_others(self) -> list[Poller]:
        """Return every poller, and what else has left its state in the app's stores: backfills, clones, old names."""
        pollers = {poller.name: poller for poller in self.all()}
        for store in self._app_stores:
            with suppress(StateStoreError):  # a store that does not answer is reported with its pollers
                pollers = {name: self._stored(store, name) for name in store.poller_names()} | pollers
        return [pollers[name] for name in sorted(pollers)]

    def one(self, name: str) -> Poller:
        """Return the poller of a name; `UnknownPollerError` says which ones there are."""
        if name in self._definitions:
            return self._defined(name)
        stores = self._app_stores if self._store is None else [self._store]
        for store in stores:
            if store.raw_document(name) is not None:
                return self._stored(store, name)
        raise _unknown(name, [poller.name for poller in self.with_others()])

    def named(self, name: str) -> list[Poller]:
        """Return the poller of a name, or the partitions of a function of that name."""
        partitions = [
            poller for poller in self.with_others() if re.fullmatch(rf"{re.escape(name)}-\d+-of-\d+", poller.name)
        ]
        return partitions or [self.one(name)]

    def chosen(self, name: str | None) -> list[Poller]:
        """Return the poller of a name, or all of them where none is named."""
        return self.all() if name is None else [self.one(name)]

    def _defined(self, name: str) -> Poller:
        definition = self._definitions[name]
        return Poller(name, definition.settings.store, self._sink or definition.settings.quarantine, definition)

    def _stored(self, store: DocumentStateStore, name: str) -> Poller:
        return Poller(name, store, self._sink)

    @property
    def _app_stores(self) -> list[DocumentStateStore]:
        stores = (definition.settings.store for definition in self._definitions.values())
        return [store for store in stores if isinstance(store, DocumentStateStore)]


def _unknown(name: str, names: list[str]) -> UnknownPollerError:
    shown = ", ".join(names) or "none"
    return UnknownPollerError(f"There is no poller {name!r}; there are: {shown}{did_you_mean(name, names)}")


@dataclass(frozen=True, slots=True)
class AppFunction:
    """One function of an app: its name, what the host would call, and its bindings."""

    name: str
    call: Any
    trigger: Any
    bindings: tuple[Any, ...]

    @property
    def outputs(self) -> list[Any]:
        """The output bindings that the host writes once the function has returned."""
        return [each for each in self.bindings if _is_output(each)]

    @property
    def late_outputs(self) -> list[Any]:
        """Those of a function that polls: they are written after the checkpoint has moved."""
        return self.outputs if self.pollers else []

    @property
    def pollers(self) -> tuple[PollTrigger, ...]:
        """The pollers behind the function; none for other functions."""
        polling = polling_of(self.call)
        return () if polling is None else polling.pollers


@dataclass(frozen=True, slots=True)
class App:
    """A function app that is loaded, and the directory that it works in."""

    directory: Path
    functions: tuple[AppFunction, ...]

    def pollers(self) -> dict[str, PollTrigger]:
        """Return every poller of the app by its name."""
        return {poller.name: poller for function in self.functions for poller in function.pollers}


def app_of(*registers: Any, directory: Path | None = None) -> App:
    """Return what function apps (``func.FunctionApp`` or blueprints) define; nothing is imported or contacted."""
    # The SDK warns of HTTP settings in an app without HTTP functions; here nobody asked.
    root = logging.getLogger()
    root.addFilter(_unasked)
    try:
        functions = tuple(function for register in registers for function in _functions(register))
    except ValueError as refused:  # a function without a trigger, two of one name
        raise ConfigurationError(f"The host would refuse the app: {refused}", code=Code.DECORATORS_WRONG) from None
    finally:
        root.removeFilter(_unasked)
    return App(directory or Path.cwd(), functions)


def app_in_process() -> App:
    """Return what the function apps in the modules of this process define, as in a running worker."""
    registers = {id(register): register for module in list(sys.modules.values()) for register in registers_in(module)}
    return app_of(*registers.values())


def registers_in(module: Any) -> list[Any]:
    """Return the function apps that a module defines."""
    sdk = sys.modules.get("azure.functions")
    if sdk is None:
        return []
    return [value for value in list(vars(module).values()) if isinstance(value, sdk.FunctionRegister)]


def _is_output(binding: Any) -> bool:
    return str(getattr(binding, "direction", "")).rpartition(".")[2].lower() in {"out", "1"}


def _functions(register: Any) -> Iterator[AppFunction]:
    for function in _registered(register):
        yield AppFunction(
            name=str(function.get_function_name()),
            call=function.get_user_function(),
            trigger=function.get_trigger(),
            bindings=tuple(function.get_bindings()),
        )


def _registered(register: Any) -> list[Any]:
    """Return a function app's functions and leave it as it was: the host has read them before, or will."""
    # The SDK takes every name that it is asked for once more for a second function of that name.
    seen = getattr(register, "functions_bindings", None)
    register.functions_bindings = None
    try:
        return list(register.get_functions())
    finally:
        register.functions_bindings = seen


def _unasked(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Auth level is not applied")
