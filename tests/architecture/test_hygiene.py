"""What the tracked files of the repository may not contain."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LOCKS = ["package-lock.json", *(f"requirements/{name}.txt" for name in ("competitor", "dev", "docs", "runtime"))]

# Written in pieces, so that this file does not contain what it looks for.
REGISTRY = re.compile(
    "|".join(("pypi" + r"\.org", "pythonhosted" + r"\.org", "npmjs" + r"\.(org|com)", "yarnpkg" + r"\.com"))
)
MACHINE_PATH = re.compile(r"(?<![\w.~/])/" + "(root|work|home|Users)" + r"/\w")


def tracked_files() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    files = {name: CHECKOUT / name for name in listed.stdout.split("\0") if name}
    return {name: path.read_text(errors="replace") for name, path in files.items() if path.is_file()}


@pytest.mark.parametrize("forbidden", [REGISTRY, MACHINE_PATH], ids=["registry hosts", "machine paths"])
def test_no_tracked_file_mentions(forbidden: re.Pattern[str]) -> None:
    found = {name: match[0] for name, text in tracked_files().items() if (match := forbidden.search(text))}
    assert not found


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_files_hold_no_web_address(lock: str) -> None:
    assert "://" not in (CHECKOUT / lock).read_text()


@pytest.mark.parametrize("lock", LOCKS[1:])
def test_every_pinned_requirement_has_a_hash(lock: str) -> None:
    requirements = re.split(r"\n(?=\w)", (CHECKOUT / lock).read_text().strip())
    assert requirements
    assert not [text for text in requirements if "==" not in text or "--hash=sha256:" not in text]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [("https://" + "pypi" + ".org/simple", True), ("files." + "pythonhosted" + ".org", True), ("PyPI", False)],
)
def test_registry_hosts_are_recognised(text: str, is_found: bool) -> None:
    assert bool(REGISTRY.search(text)) is is_found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [("see /" + "root/wt", True), ("(/" + "home/me/x)", True), ("docs/work/plan.md", False), ("a/root/b", False)],
)
def test_machine_paths_are_recognised(text: str, is_found: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) is is_found
