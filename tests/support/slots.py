"""Databases of PostgreSQL servers whose log is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, make_url, text

from tests.conftest import temporary_database

SERVERS = ["postgres_url", "postgres18_url"]
"""The fixtures of the servers that every promise about the log is tried on."""


@contextmanager
def logged_database(server: str) -> Iterator[str]:
    """A new database whose commits are in the log when they return; its slots are dropped with it."""
    with temporary_database(server, "DROP DATABASE {name} WITH (FORCE)") as url:
        name = make_url(url).database
        _execute(server, f"ALTER DATABASE {name} SET synchronous_commit = on")
        try:
            yield url
        finally:
            drop_slots(server, str(name))


def drop_slots(server: str, database: str) -> None:
    """Drop the slots of a database, whoever reads them."""
    readers = (
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE database = :name AND active"
    )
    slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = :name"
    for statement in (readers, slots):
        _execute(server, statement, name=database)


def _execute(url: str, statement: str, **values: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement), values)
    engine.dispose()
