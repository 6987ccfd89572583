"""A lock that processes of one machine share through a file."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from azure_functions_db.core.files import kept_open

if TYPE_CHECKING:
    from collections.abc import Iterator

# A holder writes one small file. Who takes longer is stopped, or is no process of this library.
PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.005
_LOCKS = Path("/proc/locks")

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; the system frees it when its process dies, however that happens.

    `TimeoutError` says who holds it, where the system tells, after seconds of waiting.
    """
    with kept_open(path) as descriptor:
        _wait_for(descriptor, path)
        yield
        _unlock(descriptor)


def _wait_for(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _is_locked(descriptor):
        if time.monotonic() >= deadline:
            held = f"its lock has been held for {PATIENCE_SECONDS:g} seconds by {_holder(descriptor)}"
            raise TimeoutError(errno.ETIMEDOUT, held, str(path))
        time.sleep(_PAUSE_SECONDS)


def _is_locked(descriptor: int) -> bool:
    try:
        _lock(descriptor)
    except (BlockingIOError, PermissionError):  # POSIX and Windows say it in different words
        return False
    return True


def _holder(descriptor: int) -> str:
    """Return who holds the lock of an open file, as far as Linux tells."""
    inode = f":{os.fstat(descriptor).st_ino}"
    try:
        locks = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        locks = []
    # "1: FLOCK ADVISORY WRITE 4711 fd:01:131094 0 EOF"; a process in another container has no number here
    holders = [f"process {lock[4]}" for lock in locks if len(lock) > 5 and lock[5].endswith(inode) and lock[4] != "0"]
    return " and ".join(dict.fromkeys(holders)) or "another process"
