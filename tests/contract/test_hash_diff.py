"""The hash diff as a change source, on each database and with each place for its snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import BlobSnapshots, DbConfig, EngineProvider, HashDiffSource, SqlSnapshots
from azure_functions_db.core.types import Change as SourceChange
from azure_functions_db.sources.hashdiff.snapshots import MemorySnapshots, Snapshots
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact, opened
from tests.contract.test_sqlalchemy_source import OnMariaDb, OnPostgres, OnSqlite

TABLE = "CREATE TABLE rows_ (id integer PRIMARY KEY, value varchar(20))"


class HashDiffContract(SourceContract):
    """A table with a key and nothing that grows."""

    reads_by_cursor = False
    options: dict[str, Any] = {"table": "rows_", "keep_rows": True}  # noqa: RUF012 - read only

    @pytest.fixture
    def snapshots(self) -> Snapshots:
        return MemorySnapshots()

    @pytest.fixture
    def engine(self, url: str, provider: EngineProvider) -> Engine:
        engine = provider.get_engine(DbConfig(connection_url=url))
        with engine.begin() as connection:
            connection.execute(text(TABLE))
        return engine

    @pytest.fixture
    def new_source(self, engine: Engine, url: str, provider: EngineProvider, snapshots: Snapshots) -> NewSource:
        return lambda: HashDiffSource(
            url=url, pk_columns=["id"], name="rows", snapshots=snapshots, engine_provider=provider, **self.options
        )

    @pytest.fixture
    def transact(self, engine: Engine) -> Transact:
        def transact(*changes: tuple[int, str | None]) -> None:
            with engine.begin() as connection:
                for key, value in changes:
                    connection.execute(text("DELETE FROM rows_ WHERE id = :key"), {"key": key})
                    if value is not None:
                        row = {"key": key, "value": value}
                        connection.execute(text("INSERT INTO rows_ VALUES (:key, :value)"), row)

        return transact

    @pytest.fixture
    def change(self, transact: Transact) -> Change:
        return lambda key, value: transact((key, value))

    @pytest.fixture
    def told(self) -> Told:
        def told(record: Any) -> tuple[int, str]:
            row: Any = record.after or record.before if isinstance(record, SourceChange) else record
            return row["id"], row["value"]

        return told

    @pytest.fixture
    def lose(self, new_source: NewSource) -> Callable[[], None]:
        return lambda: new_source().discard_snapshot()

    def test_changes_come_in_their_order(self, new_source: NewSource, change: Change, told: Told) -> None:
        """What lies between two scans has no order but that of the keys."""
        for key in (2, 1, 3):
            change(key, "new")
        result = opened(new_source()).fetch_changes({}, 10)
        assert [told(record)[0] for record in result.records] == [1, 2, 3]

    def test_a_deleted_row_is_a_delete(self, new_source: NewSource, transact: Transact) -> None:
        """Between two scans, not within one."""
        transact((1, "old"))
        source = new_source()
        checkpoint = source.fetch_changes({}, 10).next_checkpoint
        transact((1, None))
        [deleted] = source.fetch_changes(checkpoint, 10).records
        assert (deleted.op, deleted.key, deleted.after) == ("delete", {"id": 1}, None)

    def test_an_update_has_its_before_image(self, new_source: NewSource, transact: Transact, told: Told) -> None:
        """Between two scans, not within one."""
        transact((1, "old"))
        source = new_source()
        checkpoint = source.fetch_changes({}, 10).next_checkpoint
        transact((1, "new"))
        [updated] = source.fetch_changes(checkpoint, 10).records
        assert (updated.op, updated.before, updated.after) == (
            "update",
            {"id": 1, "value": "old"},
            {"id": 1, "value": "new"},
        )

    def test_a_second_reader_is_sent_away_and_harms_nothing(self, new_source: NewSource, change: Change) -> None:
        """It is let in: what it writes is valid only if its own checkpoint is committed."""
        change(1, "new")
        one, other = opened(new_source()), opened(new_source())
        first, second = one.fetch_changes({}, 10), other.fetch_changes({}, 10)
        assert list(first.records) == list(second.records)
        one.acknowledge(first.next_checkpoint)
        change(2, "new")
        assert [record.key for record in one.fetch_changes(first.next_checkpoint, 10).records] == [{"id": 2}]


class TestSqlite(OnSqlite, HashDiffContract):
    pass


class TestSqliteWithSnapshotsBeside(TestSqlite):
    @pytest.fixture
    def snapshots(self, url: str, provider: EngineProvider) -> Snapshots:
        return SqlSnapshots(url=url, engine_provider=provider)


class TestTinyBlocks(TestSqlite):
    options = {"table": "rows_", "keep_rows": True, "block_rows": 1}  # noqa: RUF012 - read only


class TestQueryOnSqlite(TestSqlite):
    options = {"query": "SELECT * FROM rows_ WHERE id >= :least", "parameters": {"least": 0}, "keep_rows": True}  # noqa: RUF012 - read only


class TestPostgres(OnPostgres, HashDiffContract):
    @pytest.fixture
    def snapshots(self, url: str, provider: EngineProvider) -> Snapshots:
        return SqlSnapshots(url=url, engine_provider=provider)


class TestQueryOnPostgres(TestPostgres):
    options = {"query": "SELECT id, value FROM rows_ -- all of them\n;", "keep_rows": True}  # noqa: RUF012 - read only


class TestPostgresWithSnapshotsInBlobs(TestPostgres):
    @pytest.fixture
    def snapshots(self, azurite: str, blob_container: str) -> Snapshots:
        from azure.storage.blob import ContainerClient

        return BlobSnapshots(container_client=ContainerClient.from_connection_string(azurite, blob_container))


class TestMariaDb(OnMariaDb, HashDiffContract):
    @pytest.fixture
    def snapshots(self, url: str, provider: EngineProvider) -> Snapshots:
        return SqlSnapshots(url=url, engine_provider=provider)
