"""`core` is the language of the library: nothing in it needs a database, a cloud or telemetry, not even a type."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import azure_functions_db.core

FOREIGN = {"azure", "opentelemetry", "pydantic", "sqlalchemy"}
FILES = sorted(Path(azure_functions_db.core.__file__).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the top packages that a file imports anywhere: lazily and for type checkers too."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    members = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in [*plain, *members]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_core_imports_nothing_foreign(path: Path) -> None:
    assert not imported(path) & FOREIGN
