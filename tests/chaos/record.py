"""What the processes of one folder write down, and how tests hold a process at a place."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.integration.trigger.worker import Journal


class Record:
    """One process's pen: every line says who wrote it."""

    def __init__(self, folder: Path, poller: str, who: str) -> None:
        self._journal = Journal(folder / f"{poller}.journal")
        self._who = who

    def __call__(self, what: str, **facts: Any) -> None:
        self._journal.write(json.dumps({"what": what, "who": self._who, **facts}))


def entries(folder: Path, poller: str, what: str = "") -> list[dict[str, Any]]:
    """All that was written about a poller, in the order of writing; of one kind where it is named."""
    path = folder / f"{poller}.journal"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    # The last line may still be on its way.
    return [json.loads(line) for line in lines if line.startswith(f'{{"what": "{what}') and line.endswith("\n")]


class Gates:
    """Places at which a process waits for as long as somebody keeps a gate closed."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder = folder
        self._who = who

    def close(self, place: str) -> None:
        self._gate(place).touch()

    def open(self, place: str) -> None:
        self._gate(place).unlink()

    def is_closed(self, place: str) -> bool:
        return self._gate(place).exists()

    def wait(self, place: str, record: Record) -> None:
        if self.is_closed(place):
            record("waits", place=place)
        while self.is_closed(place):
            time.sleep(0.01)

    def _gate(self, place: str) -> Path:
        return self._folder / f"{self._who}.{place}.closed"
