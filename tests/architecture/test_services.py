"""The services that the tests run against have the settings that the tests rely on."""

from __future__ import annotations

import pytest
from azure.storage.blob import ContainerClient
from sqlalchemy import create_engine, text


def scalar(url: str, statement: str) -> object:
    engine = create_engine(url)
    with engine.connect() as connection:
        value = connection.execute(text(statement)).scalar()
    engine.dispose()
    return value


def test_postgres_can_decode_its_log(postgres_database: str) -> None:
    assert scalar(postgres_database, "SHOW wal_level") == "logical"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("log_bin", 1),
        ("binlog_format", "ROW"),
        ("binlog_row_image", "FULL"),
        ("binlog_row_metadata", "FULL"),
    ],
)
def test_mariadb_writes_a_full_row_binlog(mariadb_database: str, variable: str, value: object) -> None:
    assert scalar(mariadb_database, f"SELECT @@global.{variable}") == value


def test_databases_start_empty(database_url: str) -> None:
    from sqlalchemy import inspect

    engine = create_engine(database_url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


def test_blobs_can_be_written_and_read(azurite: str, blob_container: str) -> None:
    with ContainerClient.from_connection_string(azurite, blob_container) as container:
        container.upload_blob("greeting", b"hello")
        assert container.download_blob("greeting").readall() == b"hello"
