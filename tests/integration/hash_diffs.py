"""A table that is scanned, and a target that its changes are applied to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event, text

from azure_functions_db import DbConfig, EngineProvider, HashDiffSource
from azure_functions_db.sources.hashdiff.snapshots import MemorySnapshots, Snapshots

if TYPE_CHECKING:
    from azure_functions_db.core.types import Change, CheckpointJson


class Target:
    """What somebody has who applied every change, and the ids of the changes by what they say."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.ids: dict[str, str] = {}
        self.told: list[Change] = []

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            key = tuple(change.key.values())
            said = repr((change.op, key, change.after))
            assert self.ids.setdefault(change.position, said) == said, "one id for two changes"
            self.told.append(change)
            if change.op == "delete":
                self.rows.pop(key, None)
            else:
                self.rows[key] = change.after


class Poller:
    """Scans as a tick does: acknowledge what was loaded, then fetch, handle, commit, acknowledge."""

    def __init__(self, source: Callable[[], HashDiffSource], step: Callable[[str], None] = lambda _name: None) -> None:
        self.source = source
        self.step = step
        self.checkpoint: CheckpointJson = {}
        self.target = Target()

    def scan(self, limit: int = 100, between: Callable[[], object] = lambda: None) -> list[Change]:
        """Run to the end of a scan; return what it told."""
        reader, before = self.source().open(), len(self.target.told)
        if self.checkpoint:
            reader.acknowledge(self.checkpoint)
        more: bool | None = True
        while more:
            page = reader.fetch_changes(self.checkpoint, limit)
            assert len(page.records) <= limit
            self.step("before the handler")
            self.target.apply(page.records)
            self.step("before the commit")
            if page.next_checkpoint != self.checkpoint:
                self.checkpoint = json.loads(json.dumps(page.next_checkpoint))  # as a store keeps it
                self.step("after the commit")
                reader.acknowledge(self.checkpoint)
            between()
            more = page.more
        return self.target.told[before:]


class Table:
    """A table of a database, and sources over it."""

    def __init__(self, url: str, provider: EngineProvider, ddl: str, keys: list[str], **options: Any) -> None:
        self.url, self.provider, self.keys = url, provider, keys
        self.snapshots: Snapshots = MemorySnapshots()
        self.options = {"table": "items", "name": "items", **options}
        self.run(ddl)

    @property
    def engine(self) -> Engine:
        return self.provider.get_engine(DbConfig(connection_url=self.url))

    def run(self, statement: str, **parameters: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), parameters)

    def source(self, **options: Any) -> HashDiffSource:
        chosen = {"snapshots": self.snapshots, **self.options, **options}
        return HashDiffSource(url=self.url, pk_columns=self.keys, engine_provider=self.provider, **chosen)

    def rows(self) -> dict[Any, Any]:
        """Return the whole table as its rows are now."""
        changes = self.source(snapshots=MemorySnapshots()).fetch_changes({}, 1_000_000).records
        with self.engine.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM items")).scalar_one() == len(changes)
        return {tuple(change.key.values()): change.after for change in changes}

    @contextmanager
    def watched(self, notice: Callable[[str], None]) -> Iterator[None]:
        """Call something before every statement."""

        def before(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
            notice(f"before {statement}")

        event.listen(self.engine, "before_cursor_execute", before)
        try:
            yield
        finally:
            event.remove(self.engine, "before_cursor_execute", before)
