"""Stores, sinks and options that other packages add by entry points; ours come first."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from azure_functions_db import FileStateStore, MemoryStateStore
from azure_functions_db.cli import options
from azure_functions_db.cli.main import app
from azure_functions_db.operations import stores
from azure_functions_db.testing.memory import MemoryQuarantine

OPENED: list[tuple[str, str | None]] = []


def open_store(url: str, app_name: str | None) -> MemoryStateStore:
    OPENED.append((url, app_name))
    return MemoryStateStore()


def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")


@pytest.fixture(autouse=True)
def another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that adds a store, a sink and two options, one by a name that is taken."""
    module = ModuleType("their_package")
    vars(module).update(open_store=open_store, open_sink=lambda _url: MemoryQuarantine(), greet=greet)
    monkeypatch.setitem(sys.modules, "their_package", module)
    every = EntryPoints(
        EntryPoint(name, f"their_package:{function}", group)
        for name, function, group in [
            ("drawer", "open_store", stores.STORES),
            ("file", "open_store", stores.STORES),
            ("drawer", "open_sink", stores.SINKS),
            ("greet", "greet", options.VERBS),
            ("status", "greet", options.VERBS),
        ]
    )
    for asking in (stores, options):
        monkeypatch.setattr(asking, "entry_points", every.select)


def test_a_url_of_another_package_opens_its_store_and_its_sink() -> None:
    assert isinstance(stores.store_at("drawer://top/left", "shop"), MemoryStateStore)
    assert OPENED[-1] == ("drawer://top/left", "shop")
    assert isinstance(stores.sink_at("drawer://top/right"), MemoryQuarantine)


def test_our_own_schemes_cannot_be_taken(tmp_path: object) -> None:
    assert isinstance(stores.store_at(f"file://{tmp_path}", None), FileStateStore)


def test_a_command_of_another_package_is_listed_and_runs() -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["--help"], prog_name="azfdb").output
    assert "Added by their_package." in listed
    assert listed.count("status ") == 1
    greeted = runner.invoke(app, ["greet", "Ann"])
    assert (greeted.output, greeted.exception) == ("hello Ann\n", None)
    assert "Greet somebody." in runner.invoke(app, ["greet", "--help"]).output
    assert "Show where every poller stands" in runner.invoke(app, ["status", "--help"]).output
