from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.postgres_log.scene import Scene
from tests.support.slots import SERVERS, logged_database


@pytest.fixture(scope="module", params=SERVERS)
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database that the tests of one file share, on each server in turn."""
    with logged_database(request.getfixturevalue(request.param)) as url:
        yield url


@pytest.fixture
def scene(database: str) -> Iterator[Scene]:
    """A table of one's own in it, with a slot of the same name."""
    scene = Scene(database)
    yield scene
    scene.close()
