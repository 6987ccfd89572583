from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from azure_functions_db import EngineProvider, MySqlBinlogSource
from azure_functions_db.core.types import Change as StreamChange
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact, delivered, opened
from tests.support.binlog import purge


class TestMySqlBinlog(SourceContract):
    """The log of MariaDB; each test begins where the log ends."""

    reads_by_cursor = False
    keeps_history = True

    @pytest.fixture
    def engine(self, mariadb_database: str) -> Any:
        engine = create_engine(mariadb_database)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE rows_ (id int PRIMARY KEY, value varchar(20))"))
        yield engine
        engine.dispose()

    @pytest.fixture
    def new_source(self, engine: Engine, mariadb_database: str, provider: EngineProvider) -> NewSource:
        with engine.connect() as connection:
            start = connection.execute(text("SELECT @@gtid_binlog_pos")).scalar_one()
        return lambda: MySqlBinlogSource(
            url=mariadb_database, tables=["rows_"], snapshot="never", start_at=start, engine_provider=provider
        )

    @pytest.fixture
    def transact(self, engine: Engine) -> Transact:
        def transact(*changes: tuple[int, str | None]) -> None:
            with engine.begin() as connection:
                for key, value in changes:
                    statement = "DELETE FROM rows_ WHERE id = :key" if value is None else UPSERT
                    connection.execute(text(statement), {"key": key, "value": value})

        return transact

    @pytest.fixture
    def change(self, transact: Transact) -> Change:
        return lambda key, value: transact((key, value))

    @pytest.fixture
    def told(self) -> Told:
        def told(record: Any) -> tuple[int, str]:
            row: Any = record.after if isinstance(record, StreamChange) else record
            return row["id"], row["value"]

        return told

    @pytest.fixture
    def lose(self, engine: Engine) -> Callable[[], None]:
        return lambda: purge(engine)

    def test_a_second_reader_is_sent_away_and_harms_nothing(self, new_source: NewSource, change: Change) -> None:
        """Not this source: a log has as many readers as like to read it, and the lease sees to one for each poller."""
        change(1, "new")
        reader = opened(new_source())
        assert len(reader.fetch_changes({}, 10).records) == 1
        assert len(delivered(new_source(), MemoryStateStore())) == 1
        reader.close()


UPSERT = "INSERT INTO rows_ VALUES (:key, :value) ON DUPLICATE KEY UPDATE value = :value"
