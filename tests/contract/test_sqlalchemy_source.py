from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told

TABLE = "CREATE TABLE rows_ (id integer PRIMARY KEY, value varchar(20), version bigint)"
INDEX = "CREATE INDEX rows_version ON rows_ (version, id)"


class OnSqlite:
    @pytest.fixture
    def url(self, sqlite_database: str) -> str:
        return sqlite_database


class OnPostgres:
    @pytest.fixture
    def url(self, postgres_database: str) -> str:
        return postgres_database


class OnMariaDb:
    @pytest.fixture
    def url(self, mariadb_database: str) -> str:
        return mariadb_database


class SqlAlchemyContract(SourceContract):
    """A table whose version column grows with every change."""

    definition: dict[str, Any] = {"table": "rows_"}  # noqa: RUF012 - read only

    @pytest.fixture
    def engine(self, url: str, provider: EngineProvider) -> Engine:
        engine = provider.get_engine(DbConfig(connection_url=url))
        with engine.begin() as connection:
            connection.execute(text(TABLE))
            connection.execute(text(INDEX))
        return engine

    @pytest.fixture
    def new_source(self, engine: Engine, url: str, provider: EngineProvider) -> NewSource:
        return lambda: SqlAlchemySource(
            url=url,
            cursor_column="version",
            pk_columns=["id"],
            engine_provider=provider,
            horizon_wait_seconds=20,  # other tests on the same server may be in the way for a moment
            **self.definition,
        )

    @pytest.fixture
    def change(self, engine: Engine) -> Change:
        def change(key: int, value: str) -> None:
            with engine.begin() as connection:
                version = connection.execute(text("SELECT coalesce(max(version), 0) + 1 FROM rows_")).scalar_one()
                connection.execute(text("DELETE FROM rows_ WHERE id = :key"), {"key": key})
                row = {"key": key, "value": value, "version": version}
                connection.execute(text("INSERT INTO rows_ VALUES (:key, :value, :version)"), row)

        return change

    @pytest.fixture
    def told(self) -> Told:
        return lambda record: (record["id"], record["value"])


class TestSqlite(OnSqlite, SqlAlchemyContract):
    pass


class TestPostgres(OnPostgres, SqlAlchemyContract):
    pass


class TestMariaDb(OnMariaDb, SqlAlchemyContract):
    pass


class TestSqlServer(SqlAlchemyContract):
    """By a `rowversion`, which the server itself counts up."""

    @pytest.fixture
    def url(self, sql_server: Any) -> str:
        sql_server.run(
            "CREATE TABLE [dbo].[rows_] ([id] INT NOT NULL PRIMARY KEY, [value] NVARCHAR(20) NULL, "
            "[version] ROWVERSION NOT NULL)",
            "CREATE INDEX [rows_version] ON [dbo].[rows_] ([version], [id])",
        )
        return str(sql_server.url())

    @pytest.fixture
    def engine(self, url: str, provider: EngineProvider) -> Engine:
        return provider.get_engine(DbConfig(connection_url=url))

    @pytest.fixture
    def change(self, sql_server: Any) -> Change:
        return lambda key, value: sql_server.run(
            f"DELETE FROM dbo.rows_ WHERE id = {key}", f"INSERT INTO dbo.rows_ (id, value) VALUES ({key}, N'{value}')"
        )


class TestDuckDb(SqlAlchemyContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"duckdb:///{tmp_path / 'test.duckdb'}"


class TestQueryOnPostgres(TestPostgres):
    definition = {"query": "SELECT id, value, version FROM rows_ -- all of them\n;"}  # noqa: RUF012 - read only


class TestQueryOnSqlite(TestSqlite):
    definition = {"query": "SELECT * FROM rows_ WHERE id >= :least", "parameters": {"least": 0}}  # noqa: RUF012 - read only
