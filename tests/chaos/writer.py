"""Writers that go on when their server went away."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from tests.chaos.poller import is_poison
from tests.integration.traffic import Writer
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from sqlalchemy import Connection


class StubbornWriter(Writer):
    """Its ``committed`` is the log of what the server has acknowledged, ``spans`` tells of when each was written."""

    spans: dict[tuple[int, int], tuple[float, float]]
    """By number and version: the moments before the first and after the last statement of its transaction."""

    def __init__(self, url: str, seed: int, until: threading.Event) -> None:
        super().__init__(url, seed, until)
        self.spans = {}

    def write(self) -> None:
        while not self._until.is_set():
            with suppress(DBAPIError):
                super().write()
            self._until.wait(0.1)
        wait_for(self._said_last_words, 60, "a writer cannot end")

    def _one_transaction(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        began = time.time()
        try:
            super()._one_transaction(connection, work)
        finally:
            self.spans |= dict.fromkeys(self._written.items(), (began, time.time()))

    def _said_last_words(self) -> bool:
        """End with a good row: a poison row with nothing after it cannot be told from an outage."""
        with suppress(DBAPIError), self._engine.connect() as connection:
            self._written = {}
            while all(map(is_poison, self._written.values())):
                self.insert_at_once(connection)
            connection.commit()
            self.committed |= self._written
            return True
        return False
