"""What every server has in common."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
ELSEWHERE = "elsewhere"  # a link in a server's folder to data that had to be kept outside of it
ROOM = 8 << 30


class Server(ABC):
    """A server program: prepare it, start its command, wait for `ready` in its log, then ask for its settings."""

    name: str
    ready: str
    user: str | None = None
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"

    @abstractmethod
    def prepare(self) -> None:
        """Create what the server needs before its first start."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """The environment variables by which tests find the server, once it is ready."""

    def environment(self) -> dict[str, str]:
        """What the server itself wants to see in its environment."""
        return {}

    def is_ready(self) -> bool:
        return self.ready in self.log.read_text(errors="replace")


def roomy_memory() -> Path | None:
    """The system's folder in memory, where there is plenty of it: a server there never waits for a busy disk."""
    folder, facts = Path("/dev/shm"), Path("/proc/meminfo")
    if not os.access(folder, os.W_OK) or not facts.exists():
        return None
    [available] = [line.split()[1] for line in facts.read_text().splitlines() if line.startswith("MemAvailable:")]
    room = min(int(available) * 1024, shutil.disk_usage(folder).free)
    return folder if room > ROOM else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def run_quietly(command: list[str], user: str | None = None) -> None:
    """Run a preparation step and show its output only when it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, user=user, cwd="/", check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed with {done.returncode}:\n{done.stdout}")
