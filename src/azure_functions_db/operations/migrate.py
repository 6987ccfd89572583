"""An app of release 0.8: what it has to change, read from its files alone, and its checkpoints carried over."""

from __future__ import annotations

import ast
import re
import tokenize
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.operations.reset import PlannedChange
from azure_functions_db.trigger.retry import FORMER_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.state.store import DocumentStateStore

Grade = Literal["change", "warning", "note"]
"""It does not work as it is; it works and warns; it works and is worth knowing."""

_PACKAGE = "azure_functions_db"
_STORE = {"acquire_lease", "renew_lease", "release_lease", "load_checkpoint", "commit_checkpoint"}
_REQUIREMENT = re.compile(r"""["'\s]*azure[-_]functions[-_]db\b[^#;]*?(==|~=|<=?)\s*(0\b|1(\.0)*\s*["',]*\s*$)""")
_NOT_THE_APP = {".venv", "venv", ".python_packages", "node_modules", "site-packages", "__pycache__", ".git"}


@dataclass(frozen=True, slots=True, order=True)
class Advice:
    """What one line of an app says, and what it would say today."""

    file: str
    line: int
    grade: Grade
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class AppReading:
    """What the files of an app tell."""

    advice: list[Advice] = field(default_factory=list)
    pollers: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    """The containers that its state is kept in, as ``--store`` takes them."""


def read_app(place: Path) -> AppReading:
    """Read the files of an app; nothing of it is imported or run."""
    files = sorted(_files(place)) if place.is_dir() else [place]
    if not any(file.suffix == ".py" for file in files):
        raise ConfigurationError(f"There is no Python file at {place}")
    root, reading = place if place.is_dir() else place.parent, AppReading()
    for file in files:
        name = str(file.relative_to(root))
        if file.suffix != ".py":
            reading.advice.extend(_requirements(name, file.read_text(errors="replace")))
            continue
        module = Module(name, _parsed(file))
        reading.advice.extend(sorted(set(module.advice())))
        reading.pollers.extend(module.pollers())
        reading.stores.extend(store for store in module.stores() if store not in reading.stores)
    return reading


def carrying_over(store: DocumentStateStore, poller: str, *, force: bool = False) -> PlannedChange:
    """Plan to go on from the state that release 0.8 has left of a poller."""
    return PlannedChange("carry over from 0.8", poller, store, lambda chosen: chosen.carry_over(poller, force=force))


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A poller's checkpoint on its way from release 0.8."""

    poller: str
    fate: Literal["ready", "carried over", "not carried over"]
    checkpoint: CheckpointJson | None
    text: str


@dataclass(frozen=True, slots=True)
class Migration:
    """What an app would have to change, and what becomes of its checkpoints."""

    advice: list[Advice]
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    dry_run: bool = True
    store: str | None = None


def planned(store: DocumentStateStore, pollers: Iterable[str], *, force: bool = False) -> list[CheckpointReport]:
    """Return what carrying over would do for each poller; nothing is written."""
    return [_report(carrying_over(store, poller, force=force), None) for poller in pollers]


def carried_over(
    store: DocumentStateStore, reports: Iterable[CheckpointReport], backups: Path, *, force: bool = False
) -> list[CheckpointReport]:
    """Carry over what is ready; the documents of release 0.8 stay where they are."""
    return [
        _report(carrying_over(store, report.poller, force=force), backups) if report.fate == "ready" else report
        for report in reports
    ]


def _report(change: PlannedChange, backups: Path | None) -> CheckpointReport:
    try:
        done = change.dry_run() if backups is None else change.apply(backups)
    except StateStoreError as refused:
        return CheckpointReport(change.poller, "not carried over", None, str(refused))
    fate: Literal["ready", "carried over"] = "ready" if backups is None else "carried over"
    return CheckpointReport(change.poller, fate, done.after["checkpoint"], "goes on where release 0.8 stopped")


class Module:
    """One file of an app, and what its lines mean."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self._file = file
        self._nodes = list(ast.walk(tree))
        self._tree = tree

    def advice(self) -> Iterator[Advice]:
        """Return what the file would have to change, and what is worth knowing."""
        for node in self._nodes:
            match node:
                case ast.ImportFrom() | ast.Import():
                    yield from self._imports(node)
                case ast.Call():
                    yield from self._call(node)
                case ast.ClassDef():
                    yield from self._class(node)
                case ast.FunctionDef() | ast.AsyncFunctionDef() if self._trigger_of(node) is not None:
                    yield from self._handler(node)
                case ast.Attribute(attr="create_isolated_engine"):
                    yield self._says(node, "change", "an EngineProvider has no create_isolated_engine", "get_engine()")

    def pollers(self) -> Iterator[str]:
        """Return the names of the pollers that the file defines, as far as they can be read."""
        for node in self._nodes:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and (call := self._trigger_of(node)) is not None
            ):
                yield self._text(_keyword(call, "name")) or node.name
            elif isinstance(node, ast.Call) and self._called(node) == "PollTrigger":
                yield from filter(None, [self._text(_keyword(node, "name"))])

    def stores(self) -> Iterator[str]:
        """Return the containers of its stores, as far as they can be read."""
        for node in self._nodes:
            if isinstance(node, ast.Call) and self._called(node) == "BlobCheckpointStore":
                setting, container = self._container(_keyword(node, "container_client"))
                setting = setting or self._text(_keyword(node, "connection"))
                container = container or self._text(_keyword(node, "container"))
                if setting and container:
                    yield f"azureblob://{setting}/{container}"

    # What stands in a line.

    def _imports(self, node: ast.ImportFrom | ast.Import) -> Iterator[Advice]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == _PACKAGE and not _is_there(alias.name):
                    yield self._says(node, "change", f"there is no module {alias.name}", f"import from {_PACKAGE}")
            return
        module = node.module or ""
        if node.level or module.partition(".")[0] != _PACKAGE:
            return
        for alias in node.names:
            if alias.name != "*" and not _is_there(module, alias.name):
                yield self._says(node, "change", f"{module} has no {alias.name}", f"see the names of {_PACKAGE}")

    def _call(self, node: ast.Call) -> Iterator[Advice]:
        match self._called(node):
            case "RetryPolicy":
                yield from self._retry_policy(node)
            case "SqlAlchemySource":
                yield from self._unknown(node, "SqlAlchemySource")
                if (types := _keyword(node, "cursor_types")) is not None:
                    yield self._says(types, "warning", "cursor_types= is not needed", "leave it out")
            case "BlobCheckpointStore":
                yield self._says(
                    node,
                    "note",
                    "the state of a poller is at state/{app}/{poller}.json, no longer at state/{poller}.json",
                    "stop the app before the new version starts; the first tick carries its checkpoint over",
                )
            case "PollRunner":
                yield self._says(
                    node, "change", "a PollRunner is made of other parts", "PollTrigger(…).run(timer=…, handler=…)"
                )

    def _retry_policy(self, node: ast.Call) -> Iterator[Advice]:
        if not node.keywords:
            yield self._says(node, "note", "RetryPolicy() calls 3 times, 0.8 called 4 times", "max_attempts=4")
        for keyword in node.keywords:
            if (translate := FORMER_ARGUMENTS.get(keyword.arg or "")) is not None:
                yield self._says(
                    keyword.value, "warning", f"{keyword.arg}= has another name", _spelled(translate, keyword.value)
                )
        yield from self._unknown(node, "RetryPolicy", FORMER_ARGUMENTS)

    def _unknown(self, node: ast.Call, name: str, former: Iterable[str] = ()) -> Iterator[Advice]:
        known = [*signature(getattr(import_module(_PACKAGE), name)).parameters, *former]
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in known:
                yield self._says(keyword.value, "change", f"{name} has no {keyword.arg}=", f"it has {', '.join(known)}")

    def _class(self, node: ast.ClassDef) -> Iterator[Advice]:
        parts = {name for child in node.body for name in _defined(child)}
        if {"fetch", "source_descriptor"} <= parts:
            yield self._says(
                node,
                "note",
                f"{node.name}.fetch is given a time, a Decimal or a UUID as such where 0.8 gave its text",
                "compare them as they are; a cursor of a normalizer of your own comes back as that made it",
            )
        if parts >= _STORE:
            yield from self._own_store(node)

    def _own_store(self, node: ast.ClassDef) -> Iterator[Advice]:
        yield self._says(
            node,
            "note",
            f"a checkpoint that {node.name} is given has more in it, and its cursor is an object",
            "keep it as a whole, as JSON",
        )
        for inner in ast.walk(node):
            match inner:
                case ast.Subscript(slice=ast.Constant(value="batch_id")):
                    yield self._says(inner, "change", 'a checkpoint has no "batch_id"', '["last_successful_batch_id"]')

    def _handler(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Advice]:
        for inner in ast.walk(node):
            match inner:
                case ast.Subscript(value=ast.Attribute(attr="cursor")):
                    yield self._says(inner, "change", "an event's cursor is one value", "event.cursor, event.pk")
                case ast.Attribute(attr="cursor"):
                    yield self._says(
                        inner,
                        "note",
                        "an event's cursor is one value, 0.8 gave (cursor, *key)",
                        "(event.cursor, *event.pk.values()) is what it was",
                    )

    # What names stand for.

    @cached_property
    def _ours(self) -> dict[str, str]:
        """What is imported from the package, by the name that the file gives it."""
        found: dict[str, str] = {}
        for node in self._nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == _PACKAGE:
                found |= {alias.asname or alias.name: alias.name for alias in node.names}
        return found

    @cached_property
    def _assigned(self) -> dict[str, ast.expr]:
        """What is assigned to a name of the module."""
        found: dict[str, ast.expr] = {}
        for node in self._tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    found[name] = value
        return found

    def _called(self, node: ast.Call) -> str | None:
        """Return the name of what is called, where it is the package's."""
        match node.func:
            case ast.Name(id=name):
                return self._ours.get(name)
            case ast.Attribute() as path if ast.unparse(path).partition(".")[0] == _PACKAGE:
                return path.attr
            case _:
                return None

    def _trigger_of(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Call | None:
        """Return the decorator that makes a function a poller's handler."""
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(func=ast.Attribute(attr="trigger")) if _keyword(decorator, "checkpoint_store"):
                    return decorator
        return None

    def _text(self, node: ast.expr | None) -> str | None:
        """Return the text that an expression stands for, where the file itself says it."""
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.Name(id=name) if name in self._assigned:
                return self._text(self._assigned[name])
            case _:
                return None

    def _container(self, node: ast.expr | None) -> tuple[str | None, str | None]:
        """Return the setting and the container of a client, where the file itself says them."""
        match node:
            case ast.Name(id=name) if name in self._assigned:
                return self._container(self._assigned[name])
            case ast.Call(func=ast.Attribute(attr="from_connection_string"), args=[connection, *rest]):
                container = rest[0] if rest else _keyword(node, "container_name")
                return self._setting(connection), self._text(container)
            case ast.Call(func=ast.Attribute(attr="get_container_client", value=service)) as call:
                container = call.args[0] if call.args else _keyword(call, "container")
                return self._container(service)[0], self._text(container)
            case _:
                return None, None

    def _setting(self, node: ast.expr) -> str | None:
        """Return the environment variable that an expression reads."""
        match node:
            case ast.Name(id=name) if name in self._assigned:
                return self._setting(self._assigned[name])
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=name):
                return self._text(name)
            case ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[name, *_]):
                return self._text(name)
            case _:
                return None

    def _says(self, node: ast.AST, grade: Grade, text: str, remedy: str) -> Advice:
        return Advice(self._file, getattr(node, "lineno", 1), grade, text, remedy)


def _files(folder: Path) -> Iterator[Path]:
    """Return the files of an app that can tell something; other people's packages in it are not the app."""
    for path in folder.iterdir():
        if path.is_dir():
            if path.name not in _NOT_THE_APP and not path.is_symlink() and not (path / "pyvenv.cfg").exists():
                yield from _files(path)
        elif path.suffix == ".py" or path.name == "pyproject.toml" or re.fullmatch(r"requirements.*\.txt", path.name):
            yield path


def _parsed(file: Path) -> ast.Module:
    try:
        with tokenize.open(file) as text:
            return ast.parse(text.read())
    except (OSError, SyntaxError, ValueError, RecursionError) as wrong:
        raise ConfigurationError(f"{file} is no Python that can be read here: {wrong}") from None


def _requirements(file: str, text: str) -> Iterator[Advice]:
    for number, line in enumerate(text.splitlines(), 1):
        if _REQUIREMENT.match(line):
            yield Advice(file, number, "change", f"{line.strip()} keeps release 0.8", "azure-functions-db>=1")


def _is_there(module: str, name: str | None = None) -> bool:
    """Tell whether this release has a module, or a name in it."""
    try:
        found = import_module(module)
        return name is None or hasattr(found, name) or _is_there(f"{module}.{name}")
    except ImportError:
        return False


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _defined(node: ast.stmt) -> Sequence[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def _spelled(translate: Any, value: ast.expr) -> str:
    """Return today's argument; its value where the file says it."""
    match value:
        case ast.Constant(value=int() | float() as number):
            return ", ".join(f"{name}={new!r}" for name, new in translate(number).items())
        case _:
            written, more = ast.unparse(value), bool(translate(0).get("max_attempts"))
            return f"{next(iter(translate(0)))}={written}{' + 1' if more else ''}"
