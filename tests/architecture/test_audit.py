"""No floor and no pin of the project lets a release with a known vulnerability in."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.audit import CHECKOUT, KNOWN_BAD, advisories, audited

KNOWN = advisories(KNOWN_BAD.read_text())
PROJECT = '[project]\nname = "x"\ndependencies = ["{}"]\n[project.optional-dependencies]\nmore = ["{}"]\n'


def planted(folder: Path, *, dependency: str = "rich", extra: str = "rich", pin: str = "rich==15.0.0") -> list[str]:
    (folder / "requirements").mkdir()
    (folder / "pyproject.toml").write_text(PROJECT.format(dependency, extra))
    (folder / "requirements" / "dev.txt").write_text(
        f"attrs==26.1.0 \\\n    --hash=sha256:00\n{pin} \\\n    --hash=sha256:11\n"
    )
    return list(audited(folder, KNOWN))


def test_nothing_known_to_be_bad_is_let_in() -> None:
    assert list(audited(CHECKOUT, KNOWN)) == []


@pytest.mark.parametrize(
    "floor", ["pymysql[rsa]>=1.1", "PyMySQL", "pymysql<2", "pydantic>=2", "pyjwt>=2.6,<3", "pyjwt~=2.10.0"]
)
def test_a_floor_that_is_too_low_is_found(tmp_path: Path, floor: str) -> None:
    [found] = planted(tmp_path, extra=floor)
    assert found.startswith("pyproject.toml: ")
    assert "CVE-" in found


def test_a_floor_of_the_library_itself_is_found(tmp_path: Path) -> None:
    assert "CVE-2024-35255" in planted(tmp_path, dependency="azure-identity>=1.15")[0]


@pytest.mark.parametrize("floor", ["pymysql>=1.1.1", "pymysql[rsa]>=1.1.1,<2", "pydantic>=2.4", "pyjwt>=2.6,!=2.10.0"])
def test_a_good_floor_is_let_pass(tmp_path: Path, floor: str) -> None:
    assert planted(tmp_path, dependency=floor) == []


@pytest.mark.parametrize(
    "pin", ["urllib3==1.26.5", "cryptography==43.0.1", "PyJWT==2.10.0", 'pymysql==1.1.0 ; python_version > "3"']
)
def test_a_bad_pin_is_found(tmp_path: Path, pin: str) -> None:
    [found] = planted(tmp_path, pin=pin)
    assert found.startswith("requirements/dev.txt: ")


def test_the_check_is_part_of_make_check() -> None:
    recipe = (CHECKOUT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    assert "tools/audit.py" in recipe


def test_every_dependency_has_a_floor() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [Requirement(text) for text in [*project["dependencies"], *(each for extra in extras for each in extra)]]
    floorless = [str(each) for each in wanted if not any(bound.operator == ">=" for bound in each.specifier)]
    assert [name for name in floorless if not name.startswith("azure-functions-db[")] == []
