"""A process that polls until it is killed; what its handler saw goes to a file, line by line."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from azure_functions_db import FileStateStore, PollTrigger, SqlAlchemySource

if TYPE_CHECKING:
    from azure_functions_db import PollContext, RowChange


class Journal:
    """Appends whole lines, each in one write, so that a kill cannot tear them apart."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def main(folder: Path, url: str, ttl: float, handler_seconds: float) -> None:
    journal = Journal(folder / "journal")

    def handler(events: list[RowChange], context: PollContext) -> None:
        journal.write("enter", os.getpid(), time.monotonic_ns())
        time.sleep(handler_seconds)
        seen = " ".join(f"{event.pk['id']!r}:{event.cursor!r}" for event in events)
        journal.write("saw", context.batch_id, seen)
        journal.write("leave", os.getpid(), time.monotonic_ns())

    trigger = PollTrigger(
        name="orders",
        source=SqlAlchemySource(
            url=url, table="orders", cursor_column="version", pk_columns=["id"], in_flight="ignore", name="orders"
        ),
        checkpoint_store=FileStateStore(folder / "state"),
        batch_size=200,
        max_batches_per_tick=3,
        lease_ttl_seconds=ttl,
    )
    while not (folder / "stop").exists():
        if trigger.run(timer=None, handler=handler) == 0:
            time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
