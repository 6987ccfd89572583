"""The tool that takes guards away finds the guards, notices who misses them, and tells whom nobody missed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.mutants.__main__ import ACCEPTED, CHECKOUT, HOME, PACKAGES, accepted_mutants
from tools.mutants.edits import mutants_of

GUARDED = """
LIMIT = 10

def spend(purse, amount, *, twice=False):
    "Take money out."
    if amount < 0 or purse.locked:
        raise ValueError("no")
    with purse.lock:
        purse.money -= amount
        purse.spent += 1
    return purse.money if twice else None
"""
GUARDS_OF_A_LEASE = "is_free,is_released,acquired,renewed,committed,noted,released,broken,identified,_held_lease"
DOCUMENT_TESTS = "tests/unit/test_state_document.py"
UNMINDFUL = """
from datetime import UTC, datetime
from azure_functions_db.state.document import Document, broken, is_abandoned, is_free

def test_nothing():
    is_free(Document("orders"), datetime.now(UTC))
    broken(Document("orders"), datetime.now(UTC))
"""


def tried(folder: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    """Run the tool; return its exit code and what came of each mutant."""
    command = [sys.executable, "-m", "tools.mutants", "--cache", str(folder), "--json", str(folder / "results.json")]
    done = subprocess.run(
        [*command, *arguments],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": "."},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    results: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return done.returncode, {result["key"]: result["verdict"] for result in results}


def test_conditions_operands_bounds_blocks_and_statements_are_taken_away(tmp_path: Path) -> None:
    module = tmp_path / "purse.py"
    module.write_text(GUARDED)
    assert [mutant.key for mutant in mutants_of(module)] == [
        "LIMIT: 10 → 11",
        "spend: False → True",
        "spend: if amount < 0 or purse.locked → if True",
        "spend: if amount < 0 or purse.locked → if False",
        "spend: amount < 0 or purse.locked → purse.locked",
        "spend: amount < 0 → amount <= 0",
        "spend: 0 → 1",
        "spend: amount < 0 or purse.locked → amount < 0",
        "spend: with purse.lock → (without)",
        "spend: purse.money -= amount → before with purse.lock",
        "spend: purse.money -= amount → pass",
        "spend: purse.spent += 1 → pass",
        "spend: 1 → 2",
        "spend: purse.money if twice else None → purse.money",
        "spend: purse.money if twice else None → None",
    ]


def test_numbers_sums_and_keyword_arguments_are_no_guards(tmp_path: Path) -> None:
    module = tmp_path / "purse.py"
    module.write_text(GUARDED + "    spend(purse, amount + 1, twice=True)\n")
    assert [mutant.key for mutant in mutants_of(module) if not mutant.edit.is_guard] == [
        "LIMIT: 10 → 11",
        "spend: False → True",
        "spend: 0 → 1",
        "spend: 1 → 2",
        "spend: spend(twice=…) → (without)",
        "spend: amount + 1 → amount - 1",
        "spend: 1 → 2 (2)",
        "spend: True → False",
    ]


def test_every_guard_of_a_lease_is_missed(tmp_path: Path) -> None:
    document = str(HOME / "state" / "document.py")
    code, results = tried(tmp_path, document, "--functions", GUARDS_OF_A_LEASE, "--tests", DOCUMENT_TESTS)
    survivors = {key for key, verdict in results.items() if verdict == "survived"}
    assert len(results) > 50
    assert survivors <= set(accepted_mutants(ACCEPTED))
    assert code == 0


def test_what_no_test_missed_is_told(tmp_path: Path) -> None:
    idle = tmp_path / "test_idle.py"
    idle.write_text(UNMINDFUL)
    document = str(HOME / "state" / "document.py")
    code, results = tried(tmp_path, document, "--functions", "is_free,is_abandoned,broken", "--tests", str(idle))
    assert code == 1
    verdicts = {key.partition(":")[0]: set[str]() for key in results}
    for key, verdict in results.items():
        verdicts[key.partition(":")[0]].add(verdict)
    assert "survived" in verdicts["is_free"]
    assert verdicts["is_abandoned"] == {"unreached"}
    assert results["broken: if lease is None → if True"] == "survived"
    assert results["broken: 1 → 2"] == "unreached", "no test comes as far as that line"


def test_every_mutant_that_may_live_still_exists() -> None:
    """A reason outlives neither the code nor the guard that it speaks of."""
    files = (file for package in PACKAGES for file in (HOME / package).rglob("*.py"))
    keys = {mutant.key for file in files for mutant in mutants_of(file)}
    assert set(accepted_mutants(ACCEPTED)) - keys == set()
