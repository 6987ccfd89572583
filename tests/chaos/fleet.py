"""The processes of the pollers: started, killed, frozen, brought back."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tools.services.server import CHECKOUT

if TYPE_CHECKING:
    from tests.chaos.poller import Task


class Fleet:
    """Poller processes of one folder, each known by the name in its task."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: dict[str, Task] = {}
        self.deaths: list[str] = []
        """Processes that ended without having been told to."""

    @property
    def names(self) -> list[str]:
        return sorted(self._tasks)

    def start(self, task: Task) -> None:
        self._tasks[task.who] = task
        with self._errors_of(task.who).open("ab") as errors:
            self._running[task.who] = subprocess.Popen(
                task.command(), cwd=CHECKOUT, stdin=subprocess.PIPE, stderr=errors
            )

    def kill(self, who: str) -> None:
        """End a process as the loss of its machine would: with no chance to tidy up."""
        self._note_end_of(who)
        process = self._running.pop(who)
        process.kill()
        process.communicate()  # it is waited for, and its pipe closed

    def freeze(self, who: str) -> None:
        self._running[who].send_signal(signal.SIGSTOP)

    def thaw(self, who: str) -> None:
        self._running[who].send_signal(signal.SIGCONT)

    def revive(self) -> None:
        """Start again what is not running; note what ended by itself."""
        self.note_deaths()
        for who in self._tasks.keys() - self._running.keys():
            self.start(self._tasks[who])

    def note_deaths(self) -> None:
        for who, process in list(self._running.items()):
            if process.poll() is not None:
                self._note_end_of(who)
                self._running.pop(who).communicate()

    def dismiss(self, patience: float = 30) -> None:
        """Ask all to stop, and note who does not do so well."""
        (self._folder / "stop").touch()
        for who, process in self._running.items():
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()
            if process.returncode:
                self._note_end_of(who)
        self._running.clear()

    def abandon(self) -> None:
        """Kill whatever still runs."""
        for who in list(self._running):
            self.kill(who)

    def _note_end_of(self, who: str) -> None:
        code = self._running[who].poll()
        if code is not None:
            self.deaths.append(f"{who} ended with {code}: {self._errors_of(who).read_text()[-2000:]}")

    def _errors_of(self, who: str) -> Path:
        return self._folder / f"{who}.errors"
