"""The three shops that every command is tried in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.shelves import Blobs, Files, Tables
from tests.integration.cli.shops import opened

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop

KINDS = ["sqlite_and_files", "postgres_and_blobs", "mariadb_and_its_tables"]


def sqlite_and_files(request: pytest.FixtureRequest, folder: Path) -> Shop:
    state, sink = folder / "state", folder / "quarantine"
    shop = opened(
        folder,
        request.getfixturevalue("sqlite_database"),
        store=("from azure_functions_db import FileStateStore", f"FileStateStore({str(state)!r})", f"file://{state}"),
        sink=("from azure_functions_db import FileQuarantine", f"FileQuarantine({str(sink)!r})", f"file://{sink}"),
        shelf=Files(state, sink),
    )
    state.mkdir()
    sink.mkdir()
    return shop


def postgres_and_blobs(request: pytest.FixtureRequest, folder: Path) -> Shop:
    container, storage = request.getfixturevalue("blob_container"), request.getfixturevalue("azurite")
    return opened(
        folder,
        request.getfixturevalue("postgres_database"),
        store=(
            "from azure_functions_db import BlobCheckpointStore",
            f"BlobCheckpointStore(connection='SHOP_STORAGE', container={container!r})",
            f"azureblob://SHOP_STORAGE/{container}",
        ),
        sink=(
            "from azure_functions_db import BlobQuarantine",
            f"BlobQuarantine(connection='SHOP_STORAGE', container={container!r})",
            f"azureblob://SHOP_STORAGE/{container}",
        ),
        shelf=Blobs(storage, container),
        SHOP_STORAGE=storage,
    )


def mariadb_and_its_tables(request: pytest.FixtureRequest, folder: Path) -> Shop:
    database = request.getfixturevalue("mariadb_database")
    return opened(
        folder,
        database,
        store=("from azure_functions_db import SqlStateStore", "SqlStateStore(url='%SHOP_STATE%')", database),
        sink=(
            "from azure_functions_db import SqlQuarantine",
            "SqlQuarantine(url='%SHOP_STATE%', table='bad_rows')",
            f"{database}#bad_rows",
        ),
        shelf=Tables(database, "azfdb_state", "bad_rows"),
        SHOP_STATE=database,
    )


@pytest.fixture(params=KINDS)
def any_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop of each kind in turn; of one kind where a test names it."""
    shop: Shop = globals()[request.param](request, tmp_path / "shop")
    yield shop
    shop.engine.dispose()


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop with SQLite and files."""
    shop = sqlite_and_files(request, tmp_path / "shop")
    yield shop
    shop.engine.dispose()


@pytest.fixture
def shop_on_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop with PostgreSQL and blobs."""
    shop = postgres_and_blobs(request, tmp_path / "shop")
    yield shop
    shop.engine.dispose()


@pytest.fixture
def used_shop(any_shop: Shop) -> Shop:
    """A shop whose poller has come to order 4, with order 5 waiting and order 2 in quarantine."""
    any_shop.sell(1, 2, 3, 4, 5)
    any_shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    return any_shop
