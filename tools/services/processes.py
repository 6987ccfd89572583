"""Processes that are known by their id and start time, so that a reused id is never taken for one of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


def start_time(pid: int) -> int | None:
    """When a running process was started, in clock ticks since boot; None for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


@dataclass(frozen=True)
class Process:
    """One running process, recognisable after the program that started it has gone."""

    name: str
    pid: int
    started: int
    stop_signal: int = signal.SIGTERM

    @classmethod
    def current(cls) -> Process:
        return cls("owner", os.getpid(), start_time(os.getpid()) or 0)

    def is_alive(self) -> bool:
        return start_time(self.pid) == self.started

    def stop(self, patience: float = 10) -> None:
        """Ask the process to end, by force when that is not heeded."""
        for number in (self.stop_signal, signal.SIGKILL):
            if self.is_alive():
                self._send(number)
            if self._ended_within(patience):
                break
        self._reap()

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _reap(self) -> None:
        """Leave no zombie when the process is a child of ours."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def _ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.is_alive()
