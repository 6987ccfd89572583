"""Stores, sinks and options that other packages add by entry points; ours come first."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest
import typer
from typer.testing import CliRunner

from azure_functions_db import FileStateStore, MemoryStateStore
from azure_functions_db.cli import options
from azure_functions_db.cli.main import app
from azure_functions_db.operations import pollers
from azure_functions_db.testing.memory import MemoryQuarantine

OPENED: list[tuple[str, str | None]] = []


def open_store(url: str, app_name: str | None) -> MemoryStateStore:
    OPENED.append((url, app_name))
    return MemoryStateStore()


def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")


ENTRY_POINTS = f"""
[{pollers.STORES}]
drawer = their_package:open_store
file = their_package:open_store

[{pollers.SINKS}]
drawer = their_package:open_sink

[{options.VERBS}]
greet = their_package:greet
status = their_package:greet
"""


@pytest.fixture(autouse=True)
def another_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installed package that adds a store, a sink and two options, one by a name that is taken; its place."""
    module = ModuleType("their_package")
    vars(module).update(open_store=open_store, open_sink=lambda _url: MemoryQuarantine(), greet=greet)
    monkeypatch.setitem(sys.modules, "their_package", module)
    place = tmp_path / "installed"
    description = place / "their_package-1.0.dist-info"
    description.mkdir(parents=True)
    (description / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (description / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(place))
    return place


def test_a_url_of_another_package_opens_its_store_and_its_sink() -> None:
    assert isinstance(pollers.store_at("drawer://top/left", "shop"), MemoryStateStore)
    assert OPENED[-1] == ("drawer://top/left", "shop")
    assert isinstance(pollers.sink_at("drawer://top/right"), MemoryQuarantine)


def test_our_own_schemes_cannot_be_taken(tmp_path: object) -> None:
    assert isinstance(pollers.store_at(f"file://{tmp_path}", None), FileStateStore)


def test_a_command_of_another_package_is_listed_and_runs() -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["--help"], prog_name="azfdb").output
    assert "Added by their_package." in listed
    assert listed.count("status ") == 1
    greeted = runner.invoke(app, ["greet", "Ann"])
    assert (greeted.output, greeted.exception) == ("hello Ann\n", None)
    assert "Greet somebody." in runner.invoke(app, ["greet", "--help"]).output
    assert "Show where every poller stands" in runner.invoke(app, ["status", "--help"]).output


def test_a_command_of_a_package_in_an_archive_is_listed(
    another_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "installed.zip"
    with ZipFile(archive, "w") as packed:
        for file in another_package.glob("*/*"):
            packed.write(file, file.relative_to(another_package))
    monkeypatch.setattr(sys, "path", [str(archive), *(place for place in sys.path if place != str(another_package))])
    assert "Added by their_package." in CliRunner().invoke(app, ["--help"], prog_name="azfdb").output
