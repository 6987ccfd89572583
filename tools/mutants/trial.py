"""A mutant's trial: a forked copy of a process that has everything loaded gets the mutant's code and runs tests."""

from __future__ import annotations

import ast
import gc
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tools.mutants.edits import Mutant

_MEMORY = 4 << 30  # an endless loop that collects something ends here
_SLACK = 5.0


class Unfit(Exception):  # noqa: N818 - no error: such a mutant is left out
    """The mutant cannot be put in the place of the original."""


class Originals:
    """The functions of this process by the code that they run, found once: a forked child has no time to look."""

    def __init__(self, package: str) -> None:
        self.modules = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{package}.")]
        files = {getattr(module, "__file__", None) for module in self.modules}
        self._functions: defaultdict[tuple[str, str], list[FunctionType]] = defaultdict(list)
        gc.unfreeze()  # what the tests have put out of the collector's sight
        for thing in gc.get_objects():
            if type(thing) is FunctionType and (code := thing.__code__).co_filename in files:
                self._functions[code.co_filename, code.co_qualname].append(thing)
        gc.freeze()  # or the first collection of each child would copy all of the memory that it shares

    def replace_by(self, mutant: Mutant) -> None:
        """Let every function of this process that runs the original run the mutant instead."""
        mutant.edit.apply()
        if isinstance(mutant.edit.holder, ast.arguments):
            _replace_default(mutant, self.of(mutant.path, mutant.unit))
        elif codes := list(_codes_of(mutant)):
            for code in codes:
                _replace_code(self.of(mutant.path, code.co_qualname), code)
        else:
            _replace_constant(mutant, self.modules)

    def of(self, path: Path, name: str) -> list[FunctionType]:
        """Return the functions that were made from one definition."""
        return self._functions[str(path), name]


def _codes_of(mutant: Mutant) -> Iterator[CodeType]:
    """Compile the mutant's function, with just the classes around it: a whole module takes long."""
    *classes, name = mutant.unit.split(".")
    body = _named(mutant.tree.body, (classes or [name])[0])
    if classes:
        outermost = body[0]
        body = [_emptied(outermost, [*classes[1:], name])] if isinstance(outermost, ast.ClassDef) else []
    module = ast.Module([ast.parse("from __future__ import annotations").body[0], *body], [])
    for code in _codes_in(compile(ast.fix_missing_locations(module), str(mutant.path), "exec")):
        if code.co_qualname.partition(".<locals>")[0] == mutant.unit:
            yield code


def _named(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    return [node for node in body if getattr(node, "name", None) == name]


def _emptied(node: ast.ClassDef, names: list[str]) -> ast.ClassDef:
    """Return the class with nothing but the named member in it."""
    body = _named(node.body, names[0])
    if len(names) > 1 and isinstance(body[0], ast.ClassDef):
        body = [_emptied(body[0], names[1:])]
    return ast.copy_location(ast.ClassDef(node.name, [], [], body, []), node)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _replace_code(functions: list[FunctionType], code: CodeType) -> None:
    for function in functions:
        # Two definitions may share a name: the getter and the setter of a property.
        if function.__code__.co_firstlineno == code.co_firstlineno:
            try:
                function.__code__ = code
            except ValueError as other_closure:
                raise Unfit from other_closure


def _replace_default(mutant: Mutant, functions: list[FunctionType]) -> None:
    edit = mutant.edit
    new = edit.new[0]
    if not isinstance(new, ast.Constant) or edit.place is None or not isinstance(edit.holder, ast.arguments):
        raise Unfit
    for function in functions:
        if edit.field == "defaults" and function.__defaults__:
            place = edit.place
            function.__defaults__ = (*function.__defaults__[:place], new.value, *function.__defaults__[place + 1 :])
        elif function.__kwdefaults__:
            function.__kwdefaults__[edit.holder.kwonlyargs[edit.place].arg] = new.value


def _replace_constant(mutant: Mutant, modules: list[ModuleType]) -> None:
    """Give the constant its new value wherever its name was imported to."""
    home = next((module for module in modules if getattr(module, "__file__", None) == str(mutant.path)), None)
    if home is None or not hasattr(home, mutant.unit):
        raise Unfit
    old = getattr(home, mutant.unit)
    scratch = dict(vars(home))
    exec(compile(ast.Module([_assignment(mutant)], []), str(mutant.path), "exec"), scratch)
    for module in modules:
        if vars(module).get(mutant.unit) is old:
            setattr(module, mutant.unit, scratch[mutant.unit])


def _assignment(mutant: Mutant) -> ast.stmt:
    for node in mutant.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == mutant.unit:
            return node
    raise Unfit


class Verdict:
    """What came of a trial, by the words that are kept."""

    KILLED, TIMEOUT, SURVIVED, UNREACHED, UNFIT = "killed", "timeout", "survived", "unreached", "unfit"


Tell = Callable[[int], None]
"""Says which test begins, by its place."""


def tried(run: Callable[[Tell], str], seconds: Sequence[float]) -> tuple[str, int]:
    """Run tests in a forked child; return its verdict and the place of the test that was the last.

    The child says when a test begins. One that takes many times as long as it should is ended, and
    with it whatever it has started.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_child(run, writing)
    os.close(writing)
    try:
        return _watched(reading, seconds)
    finally:
        os.close(reading)
        _end(pid)


def _be_child(run: Callable[[Tell], str], writing: int) -> NoReturn:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))

    def tell(place: int) -> None:
        os.write(writing, f"{place}\n".encode())

    verdict = Verdict.KILLED  # whatever cannot even run is noticed
    try:
        verdict = run(tell)
    finally:
        os.write(writing, f"={verdict}\n".encode())
        os._exit(0)


def _watched(reading: int, seconds: Sequence[float]) -> tuple[str, int]:
    place, heard = -1, b""
    deadline = time.monotonic() + _SLACK * 3
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return Verdict.TIMEOUT, place
        chunk = os.read(reading, 4096)
        if not chunk:
            return Verdict.KILLED, place  # it crashed
        *lines, heard = (heard + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"="):
                return line[1:].decode(), place
            place = int(line)
            deadline = time.monotonic() + _SLACK + 8 * seconds[place]


def _end(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # it was not yet the head of its group
    os.waitpid(pid, 0)
