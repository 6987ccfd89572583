"""Files that survive a crash and are their owner's alone; the one place that makes, reads and replaces them.

What is made here is 0600, in folders that are 0700 where they were not there before. No link is followed
in the place of a file: whoever may write into the folder could otherwise choose what is read or overwritten.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILE, _FOLDER = 0o600, 0o700
# Windows has neither; a pipe in the place of a file must not be waited for.
_NO_SURPRISES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

# A holder works on a few small files. Who takes longer is stopped, or is no process of this library.
PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.005
_LOCKS = Path("/proc/locks")


def replace_whole(path: Path, content: bytes, *, by_way_of: str) -> None:
    """Put the content in place so that a crash leaves either the old file or the new one.

    It is written under another suffix first, which nobody else may be using at the same time.
    """
    unfinished = path.with_suffix(by_way_of)
    _refuse_others(path)
    _refuse_others(unfinished)
    unfinished.unlink(missing_ok=True)  # what a crash has left
    write_new(unfinished, content)
    unfinished.replace(path)
    _sync_directory(path.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not be there yet; one that cannot be finished is removed again."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        try:
            _write(descriptor, content)
        except BaseException as failure:
            path.unlink(missing_ok=True)
            if isinstance(failure, OSError):
                failure.filename = str(path)  # which the system does not say of a write
            raise


def read_whole(path: Path) -> bytes | None:
    """Return what is in a file, None where there is none."""
    try:
        with _opened(path, os.O_RDONLY) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    except FileNotFoundError:
        return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; the system frees it when its process dies, however that happens.

    `TimeoutError` says who holds it, where the system tells, after seconds of waiting.
    """
    with _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        _wait_for(descriptor, path)
        yield
        _unlock(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each for its owner alone; one that is there stays as it is."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(_FOLDER)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        _give_to_owner_of(folder.parent, folder)


def listed(directory: Path) -> list[Path]:
    """Return what is in a directory, nothing if there is none; unlike a pattern, it says when it may not look."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    _refuse_others(path)
    descriptor = os.open(path, flags | _NO_SURPRISES, _FILE)
    try:
        if flags & os.O_CREAT:
            _give_to_owner_of(path.parent, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_others(path: Path) -> None:
    """Refuse what is neither a file nor absent, in words; the flags of opening refuse what appears after this."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "there is a link in the place of a file, and links are not followed", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "there is something else in the place of a file", str(path))


def _write(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _give_to_owner_of(folder: Path, made: int | Path) -> None:
    """Let root's files belong to whoever the folder belongs to: an operator must not lock the app out."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    with suppress(OSError):  # not every file system knows owners
        owner = folder.stat()
        os.chown(made, owner.st_uid, owner.st_gid)


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":
        return  # Windows keeps no handle on a directory and needs none.
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
