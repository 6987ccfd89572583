"""Pollers' names that no store could keep are refused where they are written, before anything is contacted."""

from __future__ import annotations

from typing import Any

import pytest

from azure_functions_db import (
    BlobCheckpointStore,
    BlobQuarantine,
    ConfigurationError,
    DbBindings,
    FileStateStore,
    MemoryStateStore,
    SqlAlchemySource,
    SqlStateStore,
    TableStateStore,
)

URL = "postgresql+psycopg://nobody@127.0.0.1:9/nowhere"
STORES: dict[str, Any] = {
    "memory": MemoryStateStore,
    "file": lambda **options: FileStateStore("/nowhere", **options),
    "blob": BlobCheckpointStore,
    "table": TableStateStore,
    "sql": lambda **options: SqlStateStore(url=URL, **options),
}
db = DbBindings()


def poll(name: Any, kind: str = "memory", **options: Any) -> None:
    source = SqlAlchemySource(url=URL, table="orders", cursor_column="version", pk_columns=["id"])

    @db.trigger(arg_name="events", source=source, name=name, checkpoint_store=STORES[kind](), **options)
    def changed(timer: Any, events: Any) -> None: ...


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("name", ["x" * 201, "ö" * 34, "x y" * 41])
def test_a_name_that_is_too_long_for_its_store(kind: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is too long: 20[0-9] of 200 characters"):
        poll(name, kind)


def test_a_name_that_is_too_long_with_its_partition() -> None:
    poll("x" * 192, partitions=9)
    with pytest.raises(ConfigurationError, match="is too long"):
        poll("x" * 192, partitions=10)


@pytest.mark.parametrize("name", ["caf\udce9", 5, b"orders"])
def test_a_name_that_is_no_text(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="poller name"):
        poll(name)


@pytest.mark.parametrize("kind", STORES)
def test_an_apps_name_that_is_too_long(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"app_name .* is too long"):
        STORES[kind](app_name="x" * 201)
    with pytest.raises(ConfigurationError, match=r"app_name .* is too long"):
        BlobQuarantine(app_name="x" * 201)
