from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from azure_functions_db.core.types import Change as StreamChange
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact
from azure_functions_db.testing.stream import MemoryLog, MemoryStreamSource


class TestMemoryStream(SourceContract):
    """A log with one reader: the second implementation of the port, and the first of a stream."""

    reads_by_cursor = False
    keeps_history = True
    whole = False

    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog()

    @pytest.fixture
    def new_source(self, log: MemoryLog) -> NewSource:
        return lambda: MemoryStreamSource(log, whole_transactions=self.whole)

    @pytest.fixture
    def transact(self, log: MemoryLog) -> Transact:
        return lambda *changes: log.commit(
            *((key, None if value is None else {"id": key, "value": value}) for key, value in changes)
        )

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
    def lose(self, log: MemoryLog) -> Callable[[], None]:
        return log.forget


class TestWholeTransactions(TestMemoryStream):
    whole = True
