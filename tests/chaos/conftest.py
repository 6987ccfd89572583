"""The scene of a test: on PostgreSQL with its state in blob storage, unless the test says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.scene import Scene


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have these tests take turns: they wait more than they compute, and other workers are to compute meanwhile."""
    item.add_marker(pytest.mark.xdist_group("chaos"))


@pytest.fixture
def server() -> str:
    return "postgres"


@pytest.fixture
def url(request: pytest.FixtureRequest, server: str) -> str:
    return str(request.getfixturevalue(f"{server}_database"))


@pytest.fixture
def scene(tmp_path: Path, url: str, azurite: str, blob_container: str, without: str) -> Iterator[Scene]:
    with Scene(tmp_path, url, azurite, blob_container, without) as scene:
        yield scene
