"""Runs the tests that reach a function against each mutant of it: `python -m tools.mutants [FILE OR FOLDER …]`."""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import time
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tools.mutants.edits import Mutant, mutants_of, units_of
from tools.mutants.reach import ALL_LINES, Reach, Reached, Recorder, Unit, content_of, definitions_of
from tools.mutants.trial import Originals, Tell, Unfit, Verdict, tried

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = "azure_functions_db"
HOME = CHECKOUT / "src" / PACKAGE
PACKAGES = ("trigger", "state", "sources")
SUITES = ("tests/unit", "tests/contract", "tests/integration")
ACCEPTED = Path(__file__).with_name("accepted.toml")
CACHE = CHECKOUT / ".cache" / "mutants"

_FEWEST = 5  # tests of a mutant, however slow they are


@dataclass(frozen=True)
class Result:
    """What came of one mutant."""

    key: str
    path: str
    line: int
    content: str
    verdict: str
    test: str = ""
    test_content: str = ""
    tests: int = 0
    seconds: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Tell whether no test has noticed the mutant."""
        return self.verdict in {Verdict.SURVIVED, Verdict.UNREACHED}


class Mutation:
    """The plugin that tries mutants where pytest would run tests."""

    def __init__(self, options: argparse.Namespace, mutants: Sequence[Mutant]) -> None:
        self._options = options
        self._mutants = mutants
        self._reach = Reach(options.cache / "reach.json", CHECKOUT)
        self._killers: defaultdict[Unit, list[str]] = defaultdict(list)
        self._new_tests: set[str] = set()
        self._failed = False
        self.results: list[Result] = []

    def pytest_configure(self) -> None:
        """Let a failure be just that: nobody reads which example was the smallest."""
        import hypothesis  # not before pytest, which wants to rewrite it

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", hypothesis.settings.default, phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record what is not known of the tests, then try each mutant."""
        self._items = {item.nodeid: item for item in session.items}
        self._order = {name: place for place, name in enumerate(self._items)}
        self._contents = {path: content_of(path) for path in {item.path for item in session.items}}
        self._record()
        self._by_unit = self._reach.by_unit(self._items)
        for path in {mutant.path for mutant in self._mutants}:
            import_module(".".join(path.relative_to(HOME.parent).with_suffix("").parts))
        self._originals = Originals(PACKAGE)
        kept = _kept_results(self._options.cache / "results.jsonl")
        began = time.monotonic()
        with (self._options.cache / "results.jsonl").open("a") as file:
            for number, mutant in enumerate(self._mutants, 1):
                result = self._known(mutant, kept) or self._new(mutant, file, survived=mutant.content in kept)
                self.results.append(result)
                if result.is_alive and result.key not in self._options.accepted:
                    print(f"{result.path}:{result.line}: {result.key} [{result.verdict}, {result.tests}]", flush=True)
                if number % 100 == 0:
                    print(f"… {number} of {len(self._mutants)}, {time.monotonic() - began:.0f} s", flush=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a failure."""
        self._failed |= report.failed

    # Which tests reach what.

    def _record(self) -> None:
        """Run the tests that are not known in a child, so that this process stays as it is: loaded and unused."""
        new = [item for item in self._items.values() if self._is_new(item)]
        self._new_tests = {item.nodeid for item in new}
        if not new:
            return
        print(f"recording what {len(new)} tests reach …", flush=True)
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                self._record_all(new)
            except BaseException:  # noqa: BLE001 - a child must not go on as if it were its parent
                traceback.print_exc()
            os._exit(0)
        os.waitpid(pid, 0)
        self._reach = Reach(self._options.cache / "reach.json", CHECKOUT)
        lost = [item.nodeid for item in new if self._is_new(item)]
        if lost:
            raise pytest.UsageError(f"recording ended before {lost[0]}")
        for item in new:
            if not self._reach.tests[item.nodeid].passed:
                print(f"failed and left out: {item.nodeid}", flush=True)

    def _is_new(self, item: pytest.Item) -> bool:
        known = self._reach.tests.get(item.nodeid)
        return known is None or known.content != self._contents[item.path]

    def _record_all(self, items: Sequence[pytest.Item]) -> None:
        recorder = Recorder(CHECKOUT, HOME.rglob("*.py"))
        for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            reached = Reached(self._contents[item.path])
            self._failed = False
            with recorder.recording(reached):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            reached.passed = not self._failed
            self._reach.tests[item.nodeid] = reached
            if number % 200 == 0:
                self._reach.save()
        self._reach.save()

    # Trying.

    def _known(self, mutant: Mutant, kept: dict[str, Result]) -> Result | None:
        """Return an earlier result that still holds: the test that killed the mutant is what it was."""
        result = kept.get(mutant.content)
        if result is None or self._options.again:
            return None
        if result.is_alive:
            return result if self._options.trust or mutant.key in self._options.accepted else None
        item = self._items.get(result.test)
        if item is None or (result.test_content and self._contents[item.path] != result.test_content):
            return None
        self._killers[_unit_of(mutant)].append(result.test)
        return result

    def _new(self, mutant: Mutant, file: Any, *, survived: bool) -> Result:
        began = time.monotonic()
        tests = self._tests_for(mutant, survived=survived)
        verdict, place = (Verdict.UNREACHED, -1) if not tests else self._try(mutant, tests)
        test = tests[place] if place >= 0 and verdict in {Verdict.KILLED, Verdict.TIMEOUT} else ""
        if test:
            self._killers[_unit_of(mutant)].append(test)
        result = Result(
            key=mutant.key,
            path=str(mutant.path.relative_to(CHECKOUT)),
            line=mutant.edit.line,
            content=mutant.content,
            verdict=verdict,
            test=test,
            test_content=self._contents[self._items[test].path] if test else "",
            tests=len(tests),
            seconds=round(time.monotonic() - began, 2),
        )
        print(json.dumps(asdict(result)), file=file, flush=True)
        return result

    def _tests_for(self, mutant: Mutant, *, survived: bool) -> list[str]:
        """Return who is asked: killers of its neighbours, then the rest as long as the time allows, file by file.

        One that has survived before is tried against the new tests first: they are likely to be written for it.
        """
        reaching = list(dict.fromkeys(chain.from_iterable(self._reaching(*place) for place in _touched(mutant))))
        chosen, seconds = list[str](), 0.0
        for name in self._varied(reaching):
            if seconds + self._seconds(name) <= self._options.budget or len(chosen) < _FEWEST:
                chosen.append(name)
                seconds += self._seconds(name)
        known = set(reaching)
        first = [name for name in dict.fromkeys(reversed(self._killers[_unit_of(mutant)])) if name in known][:10]
        if survived:
            first += [name for name in reaching if name in self._new_tests and name not in first]
        return [*first, *sorted(set(chosen) - set(first), key=self._by_file(chosen))]

    def _reaching(self, unit: Unit, lines: int) -> Iterator[str]:
        return (name for name, run in self._by_unit.get(unit, {}).items() if run & lines)

    def _varied(self, names: Sequence[str]) -> list[str]:
        """Return cheap tests first, and few of one name: what one of them has not seen, its variants seldom see."""
        turns: Counter[str] = Counter()
        costs: dict[str, float] = {}
        for name in names:
            bare = name.rpartition("::")[2].partition("[")[0]
            turns[bare] += 1
            costs[name] = self._reach.tests[name].cost * turns[bare] ** 2
        return sorted(names, key=costs.__getitem__)

    def _by_file(self, names: Sequence[str]) -> Callable[[str], tuple[float, int]]:
        costs: defaultdict[str, list[float]] = defaultdict(list)
        for name in names:
            costs[name.partition("::")[0]].append(self._seconds(name))
        return lambda name: (
            min(costs[name.partition("::")[0]]) + max(costs[name.partition("::")[0]]),
            self._order[name],
        )

    def _seconds(self, name: str) -> float:
        return self._reach.tests[name].seconds

    def _try(self, mutant: Mutant, tests: Sequence[str]) -> tuple[str, int]:
        return tried(lambda tell: self._run(mutant, tests, tell), [self._seconds(name) for name in tests])

    def _run(self, mutant: Mutant, tests: Sequence[str], tell: Tell) -> str:
        """Be the mutant's child: run the tests until one fails."""
        try:
            self._originals.replace_by(mutant)
        except Unfit:
            return Verdict.UNFIT
        items = [self._items[name] for name in tests]
        self._failed = False
        for place, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            tell(place)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                item.session._setupstate.teardown_exact(None)  # noqa: SLF001 - no database may be left behind
                return Verdict.KILLED
        return Verdict.SURVIVED


def _unit_of(mutant: Mutant) -> Unit:
    return str(mutant.path.relative_to(CHECKOUT)), mutant.unit


_users: dict[str, list[Unit]] = {}


def _touched(mutant: Mutant) -> list[tuple[Unit, int]]:
    """Return the function of a mutant and the lines of its statement, or all functions that name the constant."""
    if all(isinstance(node, ast.Assign) for unit, node in units_of(mutant.tree) if unit == mutant.unit):
        if not _users:
            _users.update(_users_of_names())
        return [(unit, ALL_LINES) for unit in _users.get(mutant.unit, [])]
    if isinstance(mutant.edit.holder, ast.arguments):
        return [(_unit_of(mutant), ALL_LINES)]
    first = definitions_of(mutant.path)[mutant.unit].first
    return [(_unit_of(mutant), sum(1 << line - first for line in mutant.lines))]


def _users_of_names() -> dict[str, list[Unit]]:
    users: defaultdict[str, list[Unit]] = defaultdict(list)
    for path in sorted(HOME.rglob("*.py")):
        for unit, node in units_of(ast.parse(path.read_text())):
            for name in {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}:
                users[name].append((str(path.relative_to(CHECKOUT)), unit))
    return users


def _kept_results(file: Path) -> dict[str, Result]:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = file.read_text().splitlines() if file.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {result.content: result for result in results}


# Which mutants.


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    files = sorted({file for place in options.places for file in _files_of(place)})
    found = [mutant for file in files for mutant in mutants_of(file)]
    if options.functions:
        found = [mutant for mutant in found if mutant.unit in options.functions]
    if options.guards:
        found = [mutant for mutant in found if mutant.edit.is_guard]
    if options.since:
        changed = dict(_changed_lines(options.since))
        found = [mutant for mutant in found if _is_changed(mutant, changed)]
    if options.sample and options.sample < len(found):
        picked = set(random.Random(options.seed).sample(range(len(found)), options.sample))
        found = [mutant for number, mutant in enumerate(found) if number in picked]
    return sorted(found, key=lambda mutant: not mutant.edit.is_guard)


def _files_of(place: Path) -> Iterable[Path]:
    return place.rglob("*.py") if place.is_dir() else [place]


def _changed_lines(revision: str) -> Iterator[tuple[Path, set[int]]]:
    """Yield the files of the package that differ from a revision, with the lines that are new."""
    command = ["git", "diff", "--unified=0", "--no-prefix", revision, "--", str(HOME)]
    shown = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    for part in re.split(r"^diff --git .*$", shown, flags=re.MULTILINE)[1:]:
        if name := re.search(r"^\+\+\+ (.+)$", part, re.MULTILINE):
            lines = set[int]()
            for start, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", part, re.MULTILINE):
                lines |= set(range(int(start), int(start) + int(count or 1)))
            yield CHECKOUT / name[1], lines


def _is_changed(mutant: Mutant, changed: dict[Path, set[int]]) -> bool:
    return mutant.edit.line in changed.get(mutant.path, ())


# What is told.


def accepted_mutants(file: Path) -> dict[str, str]:
    """Return the mutants that may live, with the reason."""
    if not file.exists():
        return {}
    return {key: group["why"] for group in tomllib.loads(file.read_text()).get("group", []) for key in group["mutants"]}


_COLUMNS = ("generated", "tried", "killed", "accepted", "survived", Verdict.UNREACHED, Verdict.UNFIT, "untried")


def _summary(mutants: Sequence[Mutant], results: dict[str, Result], accepted: dict[str, str]) -> Iterator[str]:
    """Yield a table of what came of the mutants of each package, by their contents."""
    yield f"{'':<10}" + "".join(f"{column:>11}" for column in _COLUMNS)
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        outcome = _outcome(mutant, results.get(mutant.content), accepted)
        groups[mutant.path.relative_to(HOME).parts[0]].update(["generated", "tried" * (outcome != "untried"), outcome])
    for name, counts in groups.items():
        yield f"{name:<10}" + "".join(f"{counts[column]:>11}" for column in _COLUMNS)


def _outcome(mutant: Mutant, result: Result | None, accepted: dict[str, str]) -> str:
    if result is None:
        return "untried"
    if result.is_alive:
        return "accepted" if mutant.key in accepted else result.verdict
    return result.verdict if result.verdict == Verdict.UNFIT else "killed"


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    places = [HOME / name for name in PACKAGES]
    parser.add_argument("places", nargs="*", type=lambda text: Path(text).resolve(), default=places)
    parser.add_argument("--functions", type=lambda text: set(text.split(",")), help="only these, by their names")
    parser.add_argument("--guards", action="store_true", help="no numbers, sums and keyword arguments")
    parser.add_argument("--since", metavar="REVISION", help="only lines that are new since then")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many, picked by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="*", default=SUITES, help="the suites to choose tests from")
    parser.add_argument("-k", dest="expression", default="", help="only tests that match, as pytest reads it")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests for each mutant")
    parser.add_argument("--again", action="store_true", help="try all again, whatever came of them before")
    parser.add_argument("--trust", action="store_true", help="do not try survivors of earlier runs again")
    parser.add_argument("--known", action="store_true", help="try nothing, and tell what came of them before")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument("--cache", type=Path, default=CACHE)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the chosen mutants; return 1 when one survived that nobody has accepted."""
    options = _parsed(arguments)
    options.accepted = accepted_mutants(ACCEPTED)
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(options.cache / "hypothesis"))
    mutants = _chosen(options)
    if options.known:
        print("\n".join(_summary(mutants, _kept_results(options.cache / "results.jsonl"), options.accepted)))
        return 0
    mutation = Mutation(options, mutants)
    quiet = ["-q", "-s", "-n", "0", "-p", "no:cacheprovider", "--no-summary", "--tb=native", "--hypothesis-seed=0"]
    code = pytest.main([*quiet, "-k", options.expression, *options.tests], plugins=[mutation])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return 2
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in mutation.results], indent=1))
    print("\n".join(_summary(mutants, {result.content: result for result in mutation.results}, options.accepted)))
    return int(any(result.is_alive and result.key not in options.accepted for result in mutation.results))


if __name__ == "__main__":
    sys.exit(main())
