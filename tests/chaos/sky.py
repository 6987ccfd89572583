"""What the weather does to a process from within: its clock and its way to the storage."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
from pathlib import Path
from typing import Any

from tests.support.storage import FAULTS, FaultyTransport


class Sky:
    """A file that the weather writes and all pollers look at."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sky.json"
        self._turning = threading.Lock()

    def turn(self, **changes: Any) -> None:
        with self._turning:
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps(self._now() | changes))
            draft.replace(self._path)

    def clock_of(self, who: str) -> dt.datetime:
        """The time by the clock of one process, which is off by as much as the weather says."""
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self._now().get(f"clock of {who}", 0.0))

    def storage_fault_of(self, who: str) -> str | None:
        """A fault for the next request: always in an outage or when cut off, else as often as the weather says."""
        now = self._now()
        if now.get("outage") or now.get("cut off") == who:
            return "timeout"
        return random.choice(FAULTS) if random.random() < now.get("storage faults", 0.0) else None

    def _now(self) -> dict[str, Any]:
        return dict(json.loads(self._path.read_text())) if self._path.exists() else {}


class StormyTransport(FaultyTransport):
    """A way to the storage that is as reliable as the sky."""

    def __init__(self, sky: Sky, who: str) -> None:
        super().__init__()
        self._sky = sky
        self._who = who

    def next_fault(self) -> str | None:
        return self._sky.storage_fault_of(self._who)
