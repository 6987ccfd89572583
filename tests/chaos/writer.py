"""Writers that go on when their server went away."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy.exc import DBAPIError

from tests.chaos.poller import is_poison
from tests.integration.traffic import Writer
from tests.support.waiting import wait_for


class StubbornWriter(Writer):
    """Its ``committed`` is the log of what the server has acknowledged."""

    def write(self) -> None:
        while not self._until.is_set():
            with suppress(DBAPIError):
                super().write()
            self._until.wait(0.1)
        wait_for(self._said_last_words, 60, "a writer cannot end")

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
