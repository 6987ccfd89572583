"""Importing and configuring are cheap and touch nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import azure_functions_db


def run(program: str) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_a_configuration_needs_no_database_library() -> None:
    program = """
import sys
from azure_functions_db import DbConfig, DbError, EngineProvider, MetricsCollector
config = DbConfig(connection_url="%NOT_SET%", credential="default")
provider = EngineProvider()
print([name for name in ("azure", "opentelemetry", "pydantic", "sqlalchemy") if name in sys.modules])
"""
    assert run(program) == "[]\n"


def test_importing_every_public_name_touches_no_network_database_or_process() -> None:
    program = """
import sys
touched = []
def watch(event, args):
    if event.split(".")[0] in {"socket", "sqlite3", "subprocess"} and event != "socket.__new__":
        touched.append(event)
sys.addaudithook(watch)
from azure_functions_db import *
print(touched)
"""
    assert run(program) == "[]\n"


@pytest.mark.parametrize("name", ["DbReadr", "dbreader"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(azure_functions_db, name)


def test_a_name_is_looked_up_once() -> None:
    assert azure_functions_db.DbError is azure_functions_db.DbError
    assert "DbError" in vars(azure_functions_db)
