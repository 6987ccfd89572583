"""The processes of the pollers: started, killed, frozen, brought back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.poller import Task, main
from tests.support.nursery import nursery

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess


class Fleet:
    """Poller processes of one folder, each known by the name in its task."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, ForkServerProcess] = {}
        self._tasks: dict[str, Task] = {}
        self.deaths: list[str] = []
        """Processes that ended without having been told to."""

    @property
    def names(self) -> list[str]:
        return sorted(self._tasks)

    def start(self, task: Task) -> None:
        self._tasks[task.who] = task
        self._running[task.who] = process = nursery.Process(target=main, args=(task, self._errors_of(task.who)))
        process.start()

    def kill(self, who: str) -> None:
        """End a process as the loss of its machine would: with no chance to tidy up."""
        self._note_end_of(who)
        process = self._running.pop(who)
        process.kill()
        process.join()

    def freeze(self, who: str) -> None:
        self._signal(who, signal.SIGSTOP)

    def thaw(self, who: str) -> None:
        self._signal(who, signal.SIGCONT)

    def revive(self) -> None:
        """Start again what is not running; note what ended by itself."""
        self.note_deaths()
        for who in self._tasks.keys() - self._running.keys():
            self.start(self._tasks[who])

    def note_deaths(self) -> None:
        for who, process in list(self._running.items()):
            if process.exitcode is not None:
                self._note_end_of(who)
                del self._running[who]

    def dismiss(self, patience: float = 30) -> None:
        """Ask all to stop, and note who does not do so well."""
        (self._folder / "stop").touch()
        for who, process in self._running.items():
            process.join(patience)
            if process.exitcode is None:
                process.kill()
                process.join()
            if process.exitcode:
                self._note_end_of(who)
        self._running.clear()

    def abandon(self) -> None:
        """Kill whatever still runs."""
        for who in list(self._running):
            self.kill(who)

    def _note_end_of(self, who: str) -> None:
        code = self._running[who].exitcode
        if code is not None:
            self.deaths.append(f"{who} ended with {code}: {self._errors_of(who).read_text()[-2000:]}")

    def _signal(self, who: str, number: int) -> None:
        pid = self._running[who].pid
        assert pid is not None, "it was started"
        with suppress(ProcessLookupError):  # whoever has ended by itself is noted elsewhere
            os.kill(pid, number)

    def _errors_of(self, who: str) -> Path:
        return self._folder / f"{who}.errors"
