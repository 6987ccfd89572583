"""Checks the model of the lease protocol (`proof/lease.pml`) exhaustively, then breaks each of its rules once.

Prints a line for each property and for each broken rule, whose harm SPIN has to find.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.services.packages import install_debian_packages
from tools.services.server import CHECKOUT

MODEL = CHECKOUT / "proof" / "lease.pml"
FILES = {"spin": "/usr/bin/spin", "gcc": "/usr/bin/gcc", "libc6-dev": "/usr/include/stdio.h"}

_SAFETY = ("-DSAFETY", "-DNOCLAIM")
# Faults are bounded there, and so is how often the lease passes on.
_LIVENESS = ("FAIR", "TAKES=6", "REWINDS=0")
_STATES = re.compile(r"([\d.e+]+) states, stored")
_ERRORS = re.compile(r"errors: (\d+)")
_INCOMPLETE = ("max search depth too small", "out of memory", "VECTORSZ")


@dataclass(frozen=True)
class Run:
    """One search through all states of a variant of the model."""

    says: str
    macros: tuple[str, ...] = ()
    is_broken: bool = False

    @property
    def is_about_progress(self) -> bool:
        return "FAIR" in self.macros


def broken(rule: str, harm: str) -> Run:
    """Return the search that must find the harm that comes of a broken rule."""
    macros = _LIVENESS if harm == "delivered" else (f"PROPERTY={harm}",)
    return Run(f"{rule}: {_HARM[harm]}", (rule, *macros), is_broken=True)


_HARM = {
    "two_holders": "two live holders at once",
    "overtaken": "a commit after that of a later holder",
    "skipped": "a row passed that was neither handled nor put aside",
    "let_go": "a position acknowledged that is needed again",
    "delivered": "a row that is never delivered",
}

RUNS = (
    Run("never two live holders, no late commit, no row skipped, nothing acknowledged that is needed again"),
    Run(
        "no commit after that of a later holder, however wrong the clocks are",
        ("SKEW=5", "CRASHES=0", "REWINDS=0", "PROPERTY=overtaken"),
    ),
    Run("every row is delivered in the end, and acknowledged", _LIVENESS),
    broken("NO_VERSION", "two_holders"),
    broken("NO_TAKER_MARGIN", "two_holders"),
    broken("NO_HOLDER_MARGIN", "two_holders"),
    broken("COUNTS_FROM_REPLY", "two_holders"),
    broken("SKEW=3", "two_holders"),
    broken("NO_FENCING", "overtaken"),
    broken("ASIDE_AFTER_COMMIT", "skipped"),
    broken("TAKES_BACK_ANY", "skipped"),
    broken("ACTS_WITHOUT_LOOK", "let_go"),
    broken("NO_OWN_CLOCK", "let_go"),
    broken("ACKNOWLEDGE_FIRST", "let_go"),
    broken("RELEASE_BEFORE_ACKNOWLEDGE", "let_go"),
    broken("NO_HEARTBEAT", "delivered"),
    broken("NO_EXPIRY", "delivered"),
    broken("NO_ACKNOWLEDGE_AT_START", "delivered"),
)


def main() -> int:
    missing = [package for package, file in FILES.items() if not Path(file).exists()]
    if missing:
        install_debian_packages(missing)
    with ThreadPoolExecutor(2) as pool:
        wrong = [run for run, told in zip(RUNS, pool.map(searched, RUNS), strict=True) if not reported(run, told)]
    return len(wrong)


def reported(run: Run, told: str) -> bool:
    """Print what a search has come to; tell whether it is as it must be."""
    is_right = is_as_expected(run, told)
    verdict = ("is found" if run.is_broken else "holds") if is_right else "WRONG"
    states = _STATES.search(told)
    print(f"{verdict:8} {run.says} ({float(states[1]) if states else 0:,.0f} states)", flush=True)
    if not is_right:
        print(told, file=sys.stderr)
    return is_right


def is_as_expected(run: Run, told: str) -> bool:
    errors = _ERRORS.search(told)
    is_whole = not any(words in told for words in _INCOMPLETE)
    return errors is not None and is_whole and (errors[1] != "0") == run.is_broken


def searched(run: Run) -> str:
    """Return what SPIN says of all states of a variant."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _run(folder, "spin", "-a", *(f"-D{macro}" for macro in run.macros), str(MODEL))
        # A broken rule is found soon: compiling well would take longer.
        optimised = "-O0" if run.is_broken else "-O2"
        flags = () if run.is_about_progress else _SAFETY
        _run(folder, "gcc", "-w", optimised, *flags, "-o", "pan", "pan.c")
        search = ("-a", "-f") if run.is_about_progress else ("-E",)
        return _run(folder, "./pan", *search, "-m100000")


def _run(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
