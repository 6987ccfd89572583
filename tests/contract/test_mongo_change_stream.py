from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

from azure_functions_db import MongoChangeStreamSource
from azure_functions_db.core.types import Change as StreamChange
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact, delivered, opened
from tests.support.mongo import fail_streams

if TYPE_CHECKING:
    from pymongo.collection import Collection


class TestMongoChangeStream(SourceContract):
    """The stream of one collection; each test begins where the collection does."""

    reads_by_cursor = False
    keeps_history = True

    @pytest.fixture
    def rows(self, mongo_uri: str) -> Iterator[Collection[Any]]:
        with MongoClient[Any](mongo_uri) as client:
            client.drop_database("contract")
            yield client["contract"].create_collection("rows", changeStreamPreAndPostImages={"enabled": True})

    @pytest.fixture
    def new_source(self, rows: Collection[Any], mongo_uri: str) -> NewSource:
        with rows.database.client.start_session() as session:
            rows.find_one({}, session=session)
            now = session.operation_time
        assert now is not None
        return lambda: MongoChangeStreamSource(
            uri=mongo_uri,
            database="contract",
            collection="rows",
            snapshot="never",
            start_at=f"{now.time}:{now.inc}",
            full_document_before_change="whenAvailable",
        )

    @pytest.fixture
    def transact(self, rows: Collection[Any]) -> Transact:
        def transact(*changes: tuple[int, str | None]) -> None:
            with rows.database.client.start_session() as session, session.start_transaction():
                for key, value in changes:
                    if value is None:
                        rows.delete_one({"_id": key}, session=session)
                    else:
                        rows.replace_one({"_id": key}, {"value": value}, upsert=True, session=session)

        return transact

    @pytest.fixture
    def change(self, transact: Transact) -> Change:
        return lambda key, value: transact((key, value))

    @pytest.fixture
    def told(self) -> Told:
        def told(record: Any) -> tuple[int, str]:
            row: Any = record.after if isinstance(record, StreamChange) else record
            return row["_id"], row["value"]

        return told

    @pytest.fixture
    def lose(self, rows: Collection[Any]) -> Callable[[], None]:
        return lambda: fail_streams(rows.database.client, 286)

    def test_a_second_reader_is_sent_away_and_harms_nothing(self, new_source: NewSource, change: Change) -> None:
        """Not this source: a log has as many readers as like to read it, and the lease sees to one for each poller."""
        change(1, "new")
        reader = opened(new_source())
        assert len(reader.fetch_changes({}, 10).records) == 1
        assert len(delivered(new_source(), MemoryStateStore())) == 1
        reader.close()
