"""Pollers and where they are found: in an app, in this process, or by the state that they left in a store.

A store, or a sink of quarantined rows, is named by a URL; other packages add theirs by entry points.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import Code, ConfigurationError, StateStoreError, did_you_mean
from azure_functions_db.core.ports import CountsQuarantined
from azure_functions_db.core.serializers import shown
from azure_functions_db.decorator.composition import polling_of
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from azure_functions_db.core.ports import QuarantineSink, StateStore
    from azure_functions_db.trigger.poll import PollSettings, PollTrigger

    OpenStore = Callable[[str, str | None], DocumentStateStore]
    OpenSink = Callable[[str], QuarantineSink]


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


STORES = "azure_functions_db.stores"
"""The group of entry points named by a URL's scheme: each a function of the URL and the app's name, or None."""
SINKS = "azure_functions_db.sinks"
"""The group of entry points named by a URL's scheme: each a function of the URL."""
_DEFAULT_SETTING = "AzureWebJobsStorage"
_TABLE = re.compile(r"(?:(?P<schema>\w+)\.)?(?P<table>\w+)")
_FORMS = (
    "azureblob://SETTING/CONTAINER, azuretable://SETTING/TABLE, cosmos://SETTING/DATABASE/CONTAINER, "
    "file:///DIRECTORY or a database URL such as postgresql+psycopg://user@host/name"
)


def store_at(url: str, app_name: str | None = None) -> DocumentStateStore:
    """Return the state store at a URL; nothing is contacted yet."""
    opened: OpenStore = _opener(url, _STORES, STORES, _sql_store)
    return opened(url, app_name)


def sink_at(url: str) -> QuarantineSink:
    """Return the sink of quarantined rows at a URL; nothing is contacted yet."""
    opened: OpenSink = _opener(url, _SINKS, SINKS, _sql_sink)
    return opened(url)


def _opener(url: str, ours: Mapping[str, Any], group: str, otherwise: Any) -> Any:
    """Return what opens URLs of this scheme; every other scheme is taken for a database's."""
    scheme, separator, _ = url.partition("://")
    if not separator and not re.fullmatch(r"%\w+%", url):
        raise ConfigurationError(f"--store and --quarantine take a URL: {_FORMS}")
    if scheme in ours:
        return ours[scheme]
    others = [entry for entry in entry_points(group=group) if entry.name == scheme]
    return others[0].load() if others else otherwise


def _blob_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.blob import BlobCheckpointStore

    return BlobCheckpointStore(**_storage(url, "container"), app_name=app_name)


def _table_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.table import TableStateStore

    return TableStateStore(**_storage(url, "table"), app_name=app_name)


def _cosmos_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.cosmos import CosmosStateStore

    parts = _parts(url)
    database, _, container = parts.path.strip("/").partition("/")
    if not (parts.netloc and database and container):
        raise ConfigurationError("A store in Cosmos DB is named by cosmos://SETTING/DATABASE/CONTAINER")
    return CosmosStateStore(connection=parts.netloc, database=database, container=container, app_name=app_name)


def _file_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.file import FileStateStore

    return FileStateStore(_existing_directory(url), app_name=app_name)


def _sql_store(url: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.state.sql import SqlStateStore

    return SqlStateStore(**database_at(url), app_name=app_name)


def _blob_sink(url: str) -> QuarantineSink:
    from azure_functions_db.quarantine import BlobQuarantine

    return BlobQuarantine(**_storage(url, "container"))


def _file_sink(url: str) -> QuarantineSink:
    from azure_functions_db.quarantine import FileQuarantine

    return FileQuarantine(_existing_directory(url))


def _sql_sink(url: str) -> QuarantineSink:
    from azure_functions_db.quarantine import SqlQuarantine

    return SqlQuarantine(**database_at(url))


_STORES: dict[str, OpenStore] = {
    "azureblob": _blob_store,
    "azuretable": _table_store,
    "cosmos": _cosmos_store,
    "file": _file_store,
}
_SINKS: dict[str, OpenSink] = {"azureblob": _blob_sink, "file": _file_sink}


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # a bracket, which begins an address of IPv6 where it means anything
        raise ConfigurationError(f"--store and --quarantine take a URL: {_FORMS}") from None


def _storage(url: str, place: str) -> dict[str, Any]:
    parts = _parts(url)
    named = parts.path.strip("/")
    return {"connection": parts.netloc or _DEFAULT_SETTING, **({place: named} if named else {})}


def _existing_directory(url: str) -> str:
    path = unquote(expanded(url.removeprefix("file://")))
    with suppress(OSError):  # a name that no directory can have
        if Path(path).is_dir():
            return path
    raise ConfigurationError(f"There is no directory {shown(path)}")


def database_at(url: str) -> dict[str, Any]:
    """Return the arguments that a URL with an optional ``#schema.table`` stands for."""
    before, separator, after = url.rpartition("#")
    named = _TABLE.fullmatch(after) if separator else None
    if named is None:
        return {"url": url}
    return {"url": before, "table": named["table"], "schema": named["schema"]}
