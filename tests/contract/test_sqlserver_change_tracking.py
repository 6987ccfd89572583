from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from azure_functions_db import EngineProvider, SqlServerChangeTrackingSource
from azure_functions_db.core.types import Change as StreamChange
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact


class TestSqlServerChangeTracking(SourceContract):
    """The stand-in of SQL Server, or a real one where there is one."""

    reads_by_cursor = False

    @pytest.fixture
    def new_source(self, sql_server: Any, provider: EngineProvider) -> NewSource:
        sql_server.run("CREATE TABLE [dbo].[rows_] ([id] INT NOT NULL PRIMARY KEY, [value] NVARCHAR(20) NULL)")
        sql_server.track("rows_")
        start = sql_server.current()
        return lambda: SqlServerChangeTrackingSource(
            url=sql_server.url(), table="rows_", snapshot="never", start_at=start, engine_provider=provider
        )

    @pytest.fixture
    def transact(self, sql_server: Any) -> Transact:
        there: set[int] = set()

        def statement(key: int, value: str | None) -> str:
            if value is None:
                there.discard(key)
                return f"DELETE FROM dbo.rows_ WHERE id = {key}"
            if key in there:
                return f"UPDATE dbo.rows_ SET value = N'{value}' WHERE id = {key}"
            there.add(key)
            return f"INSERT INTO dbo.rows_ (id, value) VALUES ({key}, N'{value}')"

        return lambda *changes: sql_server.run(*(statement(key, value) for key, value in changes))

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
    def lose(self, sql_server: Any) -> Callable[[], None]:
        return lambda: sql_server.lose("rows_")
