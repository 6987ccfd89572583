"""What people see: nothing is wider than the terminal, nothing has codes that a file should not have."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.shops import AZFDB

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """A shop with everything that can be shown: state, waiting rows, a quarantined row, a lease."""
    shop.sell(1, 2, 3, 4, 5)
    shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    shop.sell(6, 7)
    return shop


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("doctor",),
        ("inspect", "orders"),
        ("tail", "orders"),
        ("quarantine", "list"),
        ("reset", "orders", "--to-beginning", "--yes"),
    ],
    ids=" ".join,
)
def test_a_screen_fits_its_terminal(busy: Shop, words: tuple[str, ...], columns: int) -> None:
    told = busy.azfdb(*words, COLUMNS=str(columns))
    lines = told.out.splitlines()
    assert lines
    assert max(len(line) for line in lines if ".azfdb/backups" not in line) <= columns
    assert "\x1b" not in told.out
    assert not any(line != line.rstrip() for line in lines)


def test_a_terminal_gets_colours_and_its_own_width(busy: Shop) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**busy.environment, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    shown = b""
    with subprocess.Popen([str(AZFDB), "doctor"], cwd=busy.folder, env=environment, stdout=follower) as process:
        os.close(follower)
        try:
            while part := os.read(leader, 4096):
                shown += part
        except OSError:
            pass  # Linux ends a terminal whose other side is closed with an error
        assert process.wait(30) == 0
    os.close(leader)
    assert b"\x1b[32mok" in shown


def test_completion_is_offered_for_shells(busy: Shop) -> None:
    done = busy.azfdb("--show-completion", "bash", _AZFDB_COMPLETE="")
    assert done.code == 0
    completed = busy.azfdb(_AZFDB_COMPLETE="complete_bash", COMP_WORDS="azfdb qua", COMP_CWORD="1")
    assert completed.out.strip() == "quarantine"
