"""What the documentation covers, and that its site needs nothing from elsewhere."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

import azure_functions_db
from azure_functions_db.cli.main import app
from azure_functions_db.cli.options import SUMMARIES, Exit
from azure_functions_db.core import signals
from azure_functions_db.core.errors import Code
from azure_functions_db.core.signals import Stage
from tests.docs.pages import CHECKOUT
from tests.support.errors import all_errors
from tools import site
from tools.record import COLOURS, Recording, drawn

if TYPE_CHECKING:
    from azure_functions_db.core.errors import DbError

DOCS = CHECKOUT / "docs"
EXTRAS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
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
    missing = {name for name in SUMMARIES if not re.search(rf"^\| .*`{name}\b", page, re.MULTILINE)}
    assert missing == set()


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


LINK = re.compile(r"(?<!`)!?\[[^\]]*\]\(([^)\s]+)\)")
LINKED = [*sorted(DOCS.rglob("*.md")), *sorted(CHECKOUT.glob("*.md")), *sorted(CHECKOUT.glob("examples/*/README.md"))]


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings as the site and GitHub write them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lost = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            lost.append(target)
    assert lost == []


def test_what_the_readme_links_is_in_the_source_distribution() -> None:
    built = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    packed = tuple(name.removeprefix("/") for name in built["include"])
    links = [link for link in LINK.findall((CHECKOUT / "README.md").read_text()) if not re.match(r"[a-z]+:|#", link)]
    assert [link for link in links if link.partition("/")[0] not in packed] == []
    assert len(links) > 10


def test_readme_links_the_documentation_and_shows_a_picture() -> None:
    top = (CHECKOUT / "README.md").read_text().partition("\n## ")[0]
    assert "](docs/index.md)" in top
    assert re.search(r"!\[[^]]+\]\(docs/assets/\w+\.svg\)", top)


@pytest.mark.parametrize("picture", sorted((DOCS / "assets").glob("*.svg")), ids=lambda path: path.stem)
def test_pictures_are_readable_in_dark_mode(picture: Path) -> None:
    """A picture has a dark ground of its own, or changes its colours with the reader's."""
    drawn = picture.read_text()
    assert 'fill="#16181d"' in drawn or "prefers-color-scheme: dark" in drawn


def test_a_recording_shows_what_the_terminal_showed(tmp_path: Path) -> None:
    script = r"printf '\033[1;31mfailed\033[0m  <a & b>'"
    recording = Recording(40, 5).run(["/bin/sh", "-c", script], tmp_path)
    picture = ET.fromstring(drawn(recording, "sh", "a line"))
    last = list(picture.iter("{http://www.w3.org/2000/svg}g"))[-1]
    told = [(part.text, part.get("fill"), part.get("font-weight")) for part in last]
    assert told == [("failed", COLOURS["red"], "700"), ("<a & b>", COLOURS["default"], None)]


def test_what_pages_say_about_the_code_is_up_to_date() -> None:
    assert site.stale() == []


def test_readers_that_are_programs_are_told_of_every_page() -> None:
    listed = PAGE.findall((CHECKOUT / "mkdocs.yml").read_text())
    assert re.findall(r"^- \[[^]]+\]\((\S+)\): \S", site.llms(), re.MULTILINE) == listed


def test_the_place_of_a_page_that_is_out_of_date_is_filled_anew() -> None:
    old = "before\n<!-- made of: version -->\n0.0.1\n<!-- end -->\nafter"
    assert site.filled(old) != old
    assert azure_functions_db.__version__ in site.filled(old)


def console_lines() -> list[tuple[str, str]]:
    """Return what readers are told to type, with the page that says so."""
    found = []
    for page in [*sorted(DOCS.rglob("*.md")), CHECKOUT / "README.md"]:
        for block in re.findall(r"^ *```console\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
            told = re.findall(r"^ *\$ (.+)$", block, re.MULTILINE)
            found += [(str(page.relative_to(CHECKOUT)), re.sub(r"\s+#.*| &$", "", line)) for line in told]
    return found


def mistakes_in(line: str) -> list[str]:
    """Return what a reader would stumble over when typing a line."""
    mistakes = []
    for extras in re.findall(r"azure-functions-db\[([\w,]+)\]", line):
        mistakes += [f"no extra {extra}" for extra in extras.split(",") if extra not in EXTRAS]
    if line.startswith("make "):
        target = line.split()[1]
        mistakes += [] if re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE) else [target]
    if line.startswith("azfdb "):
        command = re.split(r" (?:\d?>|\|)", line)[0]  # where its output goes is the shell's
        mistakes += azfdb_mistakes(shlex.split(command)[1:])
    return mistakes


def azfdb_mistakes(words: list[str]) -> list[str]:
    """Let the program read a command and its options, and do nothing: it is asked for help at the end."""
    answer = CliRunner().invoke(app, [*words, "--help"])
    return [answer.output] if answer.exit_code else []


@pytest.mark.parametrize(("page", "line"), console_lines())
def test_what_readers_are_told_to_type_is_there(page: str, line: str) -> None:
    assert mistakes_in(line) == []


@pytest.mark.parametrize(
    "line", ["azfdb stauts", "azfdb status --wach", 'pip install "azure-functions-db[postgers]"', "make dmeo"]
)
def test_a_line_that_would_not_work_is_noticed(line: str) -> None:
    assert mistakes_in(line)
