"""Finds known-bad releases among the project's floors and pins, without a network: `python tools/audit.py`.

A floor is bad when it lets a release of `known_bad.txt` in; a pin is bad when it is one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

CHECKOUT = Path(__file__).resolve().parents[1]
KNOWN_BAD = Path(__file__).with_name("known_bad.txt")
PIN = re.compile(r"^(?P<name>[\w.-]+)(?:\[[^]]*\])?==(?P<version>[^\s;\\]+)", re.MULTILINE)
NO_FLOOR = Version("0")


@dataclass(frozen=True)
class Advisory:
    """Releases of one package, and where it is told what is wrong with them."""

    package: str
    releases: SpecifierSet
    told: str

    def admits(self, allowed: SpecifierSet) -> bool:
        """Tell whether a requirement lets one of the bad releases in."""
        lowest = [Version(each.version) for each in allowed if each.operator in {">=", "~=", "=="}] or [NO_FLOOR]
        edges = [Version(each.version) for each in self.releases]
        return any(self._is_bad(release) and allowed.contains(release, prereleases=True) for release in lowest + edges)

    def _is_bad(self, release: Version) -> bool:
        return self.releases.contains(release, prereleases=True)


def advisories(listed: str) -> list[Advisory]:
    """Return what a list of known-bad releases says."""
    lines = [line.split() for line in listed.splitlines() if line.strip() and not line.startswith("#")]
    found = [(Requirement(bad), told) for bad, told in lines]
    return [Advisory(canonicalize_name(bad.name), bad.specifier, told) for bad, told in found]


def floors(project: str) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield what a pyproject.toml requires, with its extras."""
    table = tomllib.loads(project)["project"]
    extras = table.get("optional-dependencies", {}).values()
    for text in [*table.get("dependencies", ()), *(each for extra in extras for each in extra)]:
        wanted = Requirement(text)
        yield canonicalize_name(wanted.name), wanted.specifier


def pins(lock: str) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield what a file of pinned requirements installs."""
    for found in PIN.finditer(lock):
        yield canonicalize_name(found["name"]), SpecifierSet(f"=={found['version']}")


def audited(checkout: Path, known: list[Advisory]) -> Iterator[str]:
    """Yield a line for each floor and pin that lets a known-bad release in."""
    read = {checkout / "pyproject.toml": floors, **dict.fromkeys(sorted(checkout.glob("requirements/*.txt")), pins)}
    for file, wanted in read.items():
        for name, allowed in wanted(file.read_text()):
            for advisory in known:
                if advisory.package == name and advisory.admits(allowed):
                    place = file.relative_to(checkout)
                    yield f"{place}: {name}{allowed} lets in {name}{advisory.releases} ({advisory.told})"


def main() -> None:
    """Print what is bad; the exit code tells whether anything is."""
    found = list(audited(CHECKOUT, advisories(KNOWN_BAD.read_text())))
    print("\n".join(found) or "No known-bad release is let in.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
