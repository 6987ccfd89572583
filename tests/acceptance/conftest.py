"""Databases with a schema, for whole apps."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

Sql = Callable[..., Sequence[Any]]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def sql() -> Sql:
    """Run a statement on a database and return its rows as tuples."""

    def run(url: str, statement: str, **parameters: Any) -> Sequence[Any]:
        engine = create_engine(url)
        try:
            with engine.begin() as connection:
                result = connection.execute(text(statement), parameters)
                return [tuple(row) for row in result] if result.returns_rows else []
        finally:
            engine.dispose()

    return run


@pytest.fixture
def site(azurite: str) -> dict[str, str]:
    """The settings of an app of its own: storage, and a name under which nobody else keeps state."""
    return {"AzureWebJobsStorage": azurite, "WEBSITE_SITE_NAME": f"site-{secrets.token_hex(8)}"}


@pytest.fixture
def with_schema() -> Callable[[str, str], str]:
    """Create the tables of an example in a database and return the database's URL."""

    def create(url: str, example: str) -> str:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql((EXAMPLES / example / "schema.sql").read_text())
        engine.dispose()
        return url

    return create
