"""The command line in a child of a process that has everything imported: a tenth of the time of a new one."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from azure_functions_db.cli.main import main
from tests.support.nursery import nursery
from tests.support.schemas import check_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.context import ForkServerProcess

_CAPABILITY_VERSION = 0x20080522


def run(words: tuple[str, ...], folder: Path, environment: Mapping[str, str], stdin: str) -> tuple[int, str, str]:
    """Run the command line in a process of its own; return its exit code and what it printed."""
    out, err, given = folder / ".out", folder / ".err", folder / ".in"
    given.write_text(stdin)
    child = started(words, folder, environment, (given, out, err))
    child.join(60)
    assert child.exitcode is not None, f"azfdb {' '.join(words)} did not end"
    if child.exitcode >= 0:  # what was killed may have said nothing
        check_json(words, out.read_text(), err.read_text())
    return child.exitcode, out.read_text(), err.read_text()


def started(
    words: tuple[str, ...], folder: Path, environment: Mapping[str, str], streams: tuple[Path, Path, Path]
) -> ForkServerProcess:
    """Start the command line with these for its standard streams."""
    child = nursery.Process(target=_child, args=(words, folder, dict(environment), streams))
    child.start()
    return child


def _child(
    words: tuple[str, ...], folder: Path, environment: Mapping[str, str], streams: tuple[Path, Path, Path]
) -> None:
    for number, (path, mode) in enumerate(zip(streams, ("r", "w", "w"), strict=True)):
        with path.open(mode) as file:
            os.dup2(file.fileno(), number)
    _obey_modes()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["azfdb", *words]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 - the new streams
    main()


def _obey_modes() -> None:
    """Give up what lets root read and write files whatever their modes say; others have no such right."""
    header, none = struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "the rights of root cannot be given up")
