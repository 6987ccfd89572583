"""A table of a PostgreSQL database, its slot, and pollers that read it."""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import create_engine, text

from azure_functions_db import EngineProvider, MemoryStateStore, PollTrigger, PostgresLogicalSource, RowChange
from azure_functions_db.core.errors import DbError

COLUMNS = "id int PRIMARY KEY, v text"


class Scene:
    """One test's table; ``%t`` in a statement stands for its name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.table = f"t_{secrets.token_hex(4)}"
        self.engine = create_engine(url)
        self.provider = EngineProvider()
        self.store = MemoryStateStore()
        self.slots = [self.table]

    def close(self) -> None:
        for slot in self.slots:
            try:
                self.source(slot=slot).drop_stream()
            except DbError:  # the table may be gone: what is left goes with the database
                self.run(
                    f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'"
                )
        self.provider.dispose_all()
        self.engine.dispose()

    def run(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement.replace("%t", self.table).replace("%", "%%"))

    def each(self, *statements: str) -> None:
        """Run statements in a transaction each."""
        for statement in statements:
            self.run(statement)

    def value(self, query: str, **values: Any) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(query.replace("%t", self.table)), values).scalar()

    def rows(self, query: str = "SELECT * FROM %t") -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(text(query.replace("%t", self.table))).mappings()]

    def source(self, **options: Any) -> PostgresLogicalSource:
        slot = options.setdefault("slot", self.table)
        if slot not in self.slots:
            self.slots.append(slot)
        chosen: dict[str, Any] = {"url": self.url, "tables": self.table, "engine_provider": self.provider} | options
        return PostgresLogicalSource(**chosen)

    def streaming(self, **options: Any) -> PostgresLogicalSource:
        """A source whose slot begins now, without a snapshot."""
        source = self.source(snapshot="never", **options)
        source.create_stream()
        return source

    def delivered(self, source: Any, **options: Any) -> list[RowChange]:
        """What one tick hands to its handler."""
        events: list[RowChange] = []
        self.poller(source, **options).run(timer=None, handler=events.extend)
        return events

    def poller(self, source: Any, **options: Any) -> PollTrigger:
        chosen: dict[str, Any] = {"checkpoint_store": self.store, "max_batches_per_tick": 1000} | options
        return PollTrigger(name="poller", source=source, **chosen)

    def told(self, source: Any, **options: Any) -> list[tuple[str, Any]]:
        """Operation and row of what one tick hands out; of a delete the key."""
        return [(event.op, dict(event.after or event.pk)) for event in self.delivered(source, **options)]


def mirrored(events: list[RowChange], into: dict[Any, Any]) -> None:
    """Apply changes to a copy of the table."""
    for event in events:
        key = tuple(event.pk.values())
        match event.op:
            case "truncate":
                into.clear()
            case "delete":
                into.pop(key, None)
            case _:
                into[key] = {**into.get(key, {}), **dict(event.after or {})}
