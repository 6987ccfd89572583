"""One set of running servers, recorded in a folder so that any later command can find or stop it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Lock
from typing import TypeVar

from tools.services.azurite import Azurite
from tools.services.cosmos import Cosmos
from tools.services.mariadb import MariaDb
from tools.services.postgres import Postgres, Postgres18
from tools.services.processes import Process, start_time
from tools.services.server import CHECKOUT, ELSEWHERE, Server, roomy_memory

ROOT = CHECKOUT / ".services"
SERVERS: tuple[type[Server], ...] = (Postgres, Postgres18, MariaDb, Azurite, Cosmos)
ATTEMPTS = 3  # a free port can be taken by somebody else before the server has it
PATIENCE = 120.0

S = TypeVar("S", bound=Server)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Only one command of this checkout looks at and changes the set of instances at a time."""
    ROOT.mkdir(exist_ok=True)
    with (ROOT / "lock").open("w") as handle:
        flock(handle, LOCK_EX)
        yield


class Instance:
    """The servers of one folder below `.services/`, which leads into memory where there is room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = Lock()
        self._processes: list[Process] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._settings: dict[str, str] = {}

    @classmethod
    def recorded(cls, folder: Path) -> Instance:
        instance = cls(folder)
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((folder / "instance.json").read_text())
            instance._processes = [Process(**process) for process in record["processes"]]
            instance._settings = record["settings"]
        return instance

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables that tell tests where the servers are."""
        return dict(self._settings)

    def temporary(self) -> Path:
        """A folder for whatever else is thrown away with the servers."""
        folder = self.folder.resolve() / "tmp"
        folder.mkdir(exist_ok=True)
        return folder

    def is_running(self) -> bool:
        names = {process.name for process in self._processes if process.is_alive()}
        return bool(self._settings) and names >= {server.name for server in SERVERS}

    def is_owned(self) -> bool:
        """Is the command that started this instance still there to stop it?"""
        return any(process.name == "owner" and process.is_alive() for process in self._processes)

    def claim(self) -> None:
        """Create the folder and note the current process as the one that will stop the servers."""
        self._make_folder()
        self._note(Process.current())

    def disown(self) -> None:
        """Let the servers outlive the current process."""
        self._processes = [process for process in self._processes if process.name != "owner"]
        self._write()

    def start(self) -> None:
        """Start all servers side by side; when one fails, the caller stops the others."""
        with ThreadPoolExecutor() as pool:
            for server, _ in pool.map(self.start_one, SERVERS):
                self._settings |= server.settings()
        self._write()

    def stop(self) -> None:
        """Stop every recorded process except the owner, and throw the data away."""
        servers = [process for process in self._processes if process.name != "owner"]
        with ThreadPoolExecutor(max_workers=len(servers) or 1) as pool:
            list(pool.map(Process.stop, servers))
        for child in self._children:
            child.wait()
        for link in self.folder.glob(f"*/*{ELSEWHERE}"):
            shutil.rmtree(link.resolve(), ignore_errors=True)
        shutil.rmtree(self.folder.resolve(), ignore_errors=True)
        if self.folder.is_symlink():
            self.folder.unlink()

    def start_one(self, kind: type[S]) -> tuple[S, Process]:
        """Start a new server of this kind."""
        for attempt in range(ATTEMPTS):
            server = kind(self.folder.resolve() / f"{kind.name}-{attempt}")
            server.folder.mkdir()
            server.prepare()
            process = self.launch(server)
            if process:
                return server, process
            print(f"{kind.name} did not start:\n{server.log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        raise RuntimeError(f"{kind.name} did not start in {ATTEMPTS} attempts")

    def launch(self, server: Server) -> Process | None:
        """Start a prepared server, for the first time or again; None when it does not become ready."""
        child = self._spawn(server)
        self._children.append(child)
        process = Process(server.name, child.pid, start_time(child.pid) or 0, server.stop_signal)
        self._note(process)
        return process if self._becomes_ready(server, child) else None

    @staticmethod
    def _spawn(server: Server) -> subprocess.Popen[bytes]:
        with server.log.open("wb") as log:
            return subprocess.Popen(
                server.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we stop the servers ourselves
                env=os.environ | server.environment(),
                user=server.user,
                cwd="/",
            )

    @staticmethod
    def _becomes_ready(server: Server, child: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while child.poll() is None and time.monotonic() < deadline:
            if server.is_ready():
                return True
            time.sleep(0.05)
        return False

    def _make_folder(self) -> None:
        memory = roomy_memory()
        if memory is None:
            self.folder.mkdir(parents=True)
            return
        place = Path(tempfile.mkdtemp(prefix="azfdb-services-", dir=memory))
        place.chmod(0o711)  # PostgreSQL's user walks through it
        self.folder.symlink_to(place)

    def _note(self, process: Process) -> None:
        self._processes.append(process)
        self._write()

    def _write(self) -> None:
        """Replace the record in one step, readable by its owner alone as it holds the passwords."""
        with self._writing:
            record = {"processes": [asdict(process) for process in self._processes], "settings": self._settings}
            draft = self.folder / "instance.json.new"
            draft.touch(mode=0o600)
            draft.write_text(json.dumps(record, indent=2))
            draft.replace(self.folder / "instance.json")


def sweep() -> None:
    """Stop what an earlier command left behind when it was killed."""
    for folder in ROOT.iterdir():
        instance = Instance.recorded(folder)
        is_instance = folder.is_dir() or folder.is_symlink()  # after a reboot, a link to nowhere
        if is_instance and not instance.is_owned() and not (folder.name == "up" and instance.is_running()):
            instance.stop()
