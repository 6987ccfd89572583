"""What the documentation covers, and that its site needs nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

import pytest

import azure_functions_db
from azure_functions_db.cli.exits import Exit
from azure_functions_db.cli.main import app
from azure_functions_db.core import signals
from azure_functions_db.core.errors import Code
from azure_functions_db.core.signals import Stage
from azure_functions_db.trigger.poll import PollOptions, all_options
from tests.docs.pages import CHECKOUT
from tests.support.errors import all_errors

if TYPE_CHECKING:
    from azure_functions_db.core.errors import DbError

DOCS = CHECKOUT / "docs"
IDENTIFIER = re.compile(r"^::: (\S+)$", re.MULTILINE)
PAGE = re.compile(r"^ *- (?:[^:\n]+: )?(\S+\.md)$", re.MULTILINE)


def documented() -> set[str]:
    return {name for page in (DOCS / "reference").glob("*.md") for name in IDENTIFIER.findall(page.read_text())}


@pytest.mark.parametrize("name", [name for name in azure_functions_db.__all__ if not name.startswith("__")])
def test_every_public_name_has_its_place_in_the_reference(name: str) -> None:
    homes = {path.rpartition(".")[2] for path in documented()}
    whole_modules = {"azure_functions_db.core.errors", "azure_functions_db.core.ports"}
    home = f"azure_functions_db.{azure_functions_db._HOME_OF[name]}"
    assert name in homes or home in whole_modules & documented()


def test_every_page_is_in_the_navigation_once() -> None:
    listed = PAGE.findall((CHECKOUT / "mkdocs.yml").read_text())
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(set(listed)) == sorted(listed)
    # Decisions are written one by one beside the code; the site finds the newest by search, too. The pages of
    # errors are found from their index.
    assert {page for page in there - set(listed) if not page.startswith(("decisions/", "errors/AZFDB-"))} == set()
    assert set(listed) <= there


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    page = (DOCS / "operations" / "command-line.md").read_text()
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    groups = {str(group.typer_instance.info.name) for group in app.registered_groups if group.typer_instance}
    assert {name for name in commands | groups if not re.search(rf"^\| `{name}\b", page, re.MULTILINE)} == set()


@pytest.mark.parametrize("code", Exit)
def test_every_exit_code_is_explained(code: Exit) -> None:
    assert f"\n| {code.value} | " in (DOCS / "operations" / "command-line.md").read_text()


def test_every_code_of_an_error_has_its_page_and_every_page_its_code() -> None:
    pages = {page.stem: page.read_text() for page in (DOCS / "errors").glob("AZFDB-*.md")}
    assert set(pages) == {code.value for code in Code}
    index = (DOCS / "errors" / "index.md").read_text()
    for code, page in pages.items():
        title = page.partition("\n")[0].removeprefix(f"# {code}: ")
        assert f"\n| [{code}]({code}.md) | {title} | " in index
        assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["What happened", "Why", "What to do"]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_the_page_of_an_error_names_its_class(kind: type[DbError]) -> None:
    page = (DOCS / "errors" / f"{kind.code}.md").read_text()
    assert f"`{kind.__name__}`" in page.split("## What happened", maxsplit=1)[0]


@pytest.mark.parametrize("picture", sorted((DOCS / "assets").glob("*.svg")), ids=lambda path: path.stem)
def test_pictures_are_described_and_fetch_nothing(picture: Path) -> None:
    drawn = picture.read_text()
    assert "<title>" in drawn
    assert not re.search(r"(href|src|url)\s*[=(]", drawn)


@pytest.mark.parametrize("name", sorted(set(re.findall(r'"(azfdb_\w+)"', Path(signals.__file__).read_text()))))
def test_every_metric_is_explained(name: str) -> None:
    assert f"`{name}`" in (DOCS / "operations" / "metrics-and-logs.md").read_text()


@pytest.mark.parametrize("stage", Stage)
def test_every_failure_in_the_log_is_explained(stage: Stage) -> None:
    assert f"`{stage.value}_failed`" in (DOCS / "operations" / "metrics-and-logs.md").read_text()


@pytest.mark.parametrize("name", PollOptions.__annotations__)
def test_every_option_of_a_trigger_is_in_the_reference_as_the_code_has_it(name: str) -> None:
    option = all_options()[name]
    hint = get_args(get_type_hints(PollOptions, include_extras=True)[name])[0]
    page = (DOCS / "reference" / "trigger.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[2:5]]
    assert cells[1:] == [f"`{option.default!r}`", option.text]
    assert getattr(hint, "__name__", str(hint)).rpartition(".")[2] in cells[0] or "None" in cells[0]
