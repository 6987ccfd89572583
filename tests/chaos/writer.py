"""Writers that go on when their server went away."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy.exc import DBAPIError

from tests.chaos.poller import is_poison
from tests.integration.traffic import Writer


class StubbornWriter(Writer):
    """Its ``committed`` is the log of what the server has acknowledged."""

    def write(self) -> None:
        while not self._until.is_set():
            with suppress(DBAPIError):
                super().write()
            self._until.wait(0.1)
        self._say_last_words()

    def _say_last_words(self) -> None:
        """End with a good row: a poison row with nothing after it cannot be told from an outage."""
        with self._engine.begin() as connection:
            self._written = {}
            self.insert_at_once(connection)
            while any(map(is_poison, self._written.values())):
                self.insert_at_once(connection)
        self.committed |= self._written
