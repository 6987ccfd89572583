"""Follows a page as its reader does: saves its files, types its commands, compares what is printed.

A block with a title is a file of that name; a further block of the same title goes on where the last one ended, or
takes its place if it begins with the same line.
A ``console`` block is a terminal: ``$`` begins a command, what stands below it is what it prints, ``…`` stands for
anything, and ``^C`` at the end for a key that is pressed when all of that has been printed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w+)(?P<rest>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)
_TITLE = re.compile(r'title="([^"]+)"')
_STATE = "typist-state"
# What a shell sets by itself.
_OF_THE_SHELL = {"_", "PWD", "OLDPWD", "SHLVL"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    title: str | None
    code: str
    line: int


@dataclass(frozen=True)
class Command:
    """What is typed, what it prints, and whether Ctrl-C ends it."""

    typed: str
    prints: str
    interrupted: bool

    @property
    def expected(self) -> re.Pattern[str]:
        lines = [re.escape(line.rstrip()).replace("…", ".*?") for line in self.prints.splitlines()]
        whole = "".join(r"(?:.*\n)*?" if line == ".*?" else rf"{line} *\n" for line in lines)
        return re.compile(whole)


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    found = []
    for match in _BLOCK.finditer(page):
        title = _TITLE.search(match["rest"])
        lines = [line.removeprefix(match["indent"]) for line in match["code"].splitlines()]
        line = page.count("\n", 0, match.start("code")) + 1
        found.append(Block(match["kind"], title and title[1], "\n".join(lines) + "\n", line))
    return found


def commands_of(console: str) -> Iterator[Command]:
    """Return what is typed in a terminal, one after the other."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        typed, _, below = part.partition("\n")
        while below.startswith("> "):
            more, _, below = below[2:].partition("\n")
            typed += f"\n{more}"
        ends = below.endswith("^C\n")
        yield Command(typed, below.removesuffix("^C\n").rstrip("\n") + "\n" if below.strip() else "", ends)


@dataclass
class Typist:
    """A reader with a folder, a shell that remembers what was exported, and addresses of their own."""

    folder: Path
    environment: dict[str, str]
    own: Mapping[str, str] = field(default_factory=dict)
    """What this reader has in place of the page's addresses: settings by their names, and other texts."""
    printed: str = ""

    def follow(self, page: Path) -> None:
        """Save every file and type every command."""
        for block in blocks_of(page.read_text()):
            self.take(block, page)

    def take(self, block: Block, page: Path) -> None:
        """Do what one block says."""
        if block.kind == "console":
            for command in commands_of(block.code):
                self.type(command, f"{page}:{block.line}")
        elif block.title:
            self.save(block.title, block.code)

    def save(self, name: str, content: str) -> None:
        """Write a file, or add to one that the page has begun."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if name in self._begun else ""
        starts_anew = before.partition("\n")[0] == content.partition("\n")[0]
        self._begun.add(name)
        path.write_text(content if starts_anew or not before else f"{before}\n{content}")

    def type(self, command: Command, place: str = "") -> None:
        """Type a command; it must succeed, or print what the page says."""
        where = f"{place}: {command.typed}"
        code = self._interrupt(command) if command.interrupted else self._run(command.typed)
        told = f"{where}\n--- wanted\n{command.prints}--- printed\n{self.printed}"
        if command.prints:
            assert command.expected.match(self.printed), told
            if not command.interrupted:
                assert command.expected.fullmatch(self.printed), told
        else:
            assert code == 0, told

    def _run(self, typed: str) -> int:
        state = self.folder.parent / _STATE
        script = f"{self._mine(typed)}\ncode=$?; pwd > {state}; env -0 >> {state}; exit $code"
        done = subprocess.run(["bash", "-c", script], **self._place, timeout=500, check=False)
        self.printed = done.stdout
        if state.exists():
            self._remember(state.read_text())
            state.unlink()
        return done.returncode

    def _remember(self, state: str) -> None:
        place, _, variables = state.partition("\n")
        self.folder = Path(place)
        pairs = [pair.partition("=") for pair in variables.split("\0") if pair]
        self.environment = {name: value for name, _, value in pairs if name not in _OF_THE_SHELL}

    def _interrupt(self, command: Command) -> int:
        self.printed = ""
        script = f"exec {self._mine(command.typed)}"
        with subprocess.Popen(["bash", "-c", script], **self._place) as running:
            assert running.stdout is not None
            for line in running.stdout:
                self.printed += line
                if command.expected.match(self.printed):
                    break
            running.send_signal(signal.SIGINT)
            self.printed += running.stdout.read()
            return running.wait(timeout=60)

    @property
    def _place(self) -> dict[str, Any]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return {"cwd": self.folder, "env": self.environment, "text": True, **pipes}

    def _mine(self, typed: str) -> str:
        for name, value in self.own.items():
            typed = (
                re.sub(rf"\b{name}=\S+", f"{name}='{value}'", typed)
                if name.isidentifier()
                else typed.replace(name, value)
            )
        return typed

    def __post_init__(self) -> None:
        self._begun: set[str] = set()
        self.environment |= {name: value for name, value in self.own.items() if name.isidentifier()}


def fresh_environment(folder: Path, packages: Iterable[str]) -> dict[str, str]:
    """Make an environment with these packages and what they need, and nothing else; return its variables."""
    python, pip = folder / "bin" / "python", folder / "bin" / "pip"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    for package in _with_all_they_need(packages):
        _copy(distribution(package), folder)
    # Debian's Python may lack ensurepip; the pip of an interpreter works for any environment.
    pip.write_text(f'#!/bin/sh\nexec {sys._base_executable} -m pip --python {python} "$@"\n')  # type: ignore[attr-defined]
    pip.chmod(0o755)
    ours = ("AZFDB_", "PYTEST", "COLUMNS", "PG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # in pip's words: hatchling is there already
    }


def _with_all_they_need(packages: Iterable[str]) -> set[str]:
    """Return the names of packages and of all that they require here."""
    wanted = [Requirement(package) for package in packages]
    found: dict[str, set[str]] = {}
    while wanted:
        one = wanted.pop()
        new = one.extras - found.get(one.name, set()) if one.name in found else {"", *one.extras}
        found.setdefault(one.name, set()).update(new)
        needs = [Requirement(need) for need in distribution(one.name).requires or ()]
        wanted += [need for need in needs for extra in new if _applies(need, extra)]
    return set(found)


def _applies(need: Requirement, extra: str) -> bool:
    return not extra if need.marker is None else need.marker.evaluate({"extra": extra})


def _copy(package: Distribution, folder: Path) -> None:
    """Copy what the tests' own environment has: nothing is downloaded a second time."""
    site = next((folder / "lib").glob("python*")) / "site-packages"
    for file in package.files or ():
        source, target = Path(str(file.locate())), site / file
        if not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if ".." in file.parts:  # a script, which names its interpreter
            target.write_text(source.read_text().replace(sys.prefix, str(folder)))
            target.chmod(0o755)
        else:
            shutil.copy2(source, target)
