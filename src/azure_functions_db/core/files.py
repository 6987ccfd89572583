"""Files that survive a crash, and folders that cannot be read told from empty ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_whole(path: Path, content: bytes, *, by_way_of: str) -> None:
    """Put the content in place so that a crash leaves either the old file or the new one.

    It is written under another suffix first, which nobody else may be using at the same time.
    """
    unfinished = path.with_suffix(by_way_of)
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _sync_directory(path.parent)


def listed(directory: Path) -> list[Path]:
    """Return what is in a directory, nothing if there is none; unlike a pattern, it says when it may not look."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":
        return  # Windows keeps no handle on a directory and needs none.
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
