"""What people see: nothing is wider than the terminal, nothing has codes that a file should not have."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import warm
from tests.integration.cli.shops import AZFDB

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """A shop with everything that can be shown: state, waiting rows, a quarantined row, a lease."""
    shop.sell(1, 2, 3, 4, 5)
    for _ in range(2):  # the first one ends behind the row that it puts aside
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


@pytest.mark.parametrize("columns", [80, 200])
def test_a_real_terminal_of_this_width(busy: Shop, columns: int) -> None:
    code, status = on_terminal(busy, columns, "status")
    assert code == 0
    head = CODES.sub("", status[0]).split()
    assert head[0] == ("poller" if columns == 200 else "orders"), "a table where it fits, else a block for each poller"
    assert any("position" in line for line in status)

    code, doctor = on_terminal(busy, columns, "doctor")
    assert code == 0
    assert any("\x1b[32mok" in line for line in doctor), "a terminal gets colours"

    code, filled = on_terminal(busy, columns, "backfill", "orders", "--as", "again", "--rate", "8")
    assert code == 0
    assert any("4/5" in line and "/s, " in line and line.rstrip().endswith("left") for line in filled), filled
    assert "again: the stretch of orders is complete; 5 row(s)" in filled[-1]

    for line in [*status, *doctor, *filled]:
        assert len(CODES.sub("", line)) <= columns


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize(
    "goal", [("--to-beginning",), ("--to-end",), ("--to-cursor", "2", "--pk", "id=2")], ids=" ".join
)
def test_what_a_reset_would_do_is_seen_at_a_glance(busy: Shop, goal: tuple[str, ...], columns: int) -> None:
    told = busy.azfdb("reset", "orders", *goal, COLUMNS=str(columns))
    assert told.code == 2, "nobody has confirmed it"
    assert len(told.out.splitlines()) < 24, "the question is seen, too"
    [place] = [line.split() for line in told.out.splitlines() if line.startswith("position ")]
    assert place[1:3] == ["5", "id=5"]
    assert place[3:] == {"--to-beginning": ["-"], "--to-end": ["7", "id=7"], "--to-cursor": ["2", "id=2"]}[goal[0]]
    assert "row(s) will come again" in told.out
    assert "The document before will be kept in /" in " ".join(told.out.split())


def on_terminal(shop: Shop, columns: int, *words: str) -> tuple[int, list[str]]:
    """Run the command line on a terminal; return its exit code and every line that was ever drawn."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**shop.environment, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS"):
        environment.pop(name, None)
    shown, terminal = b"", Path(os.ttyname(follower))
    process = warm.started(words, shop.folder, environment, (terminal, terminal, terminal))
    while leader in select.select([leader, process.sentinel], [], [], 60)[0]:
        shown += os.read(leader, 4096)
    process.join(1)
    code = process.exitcode
    os.close(leader)
    os.close(follower)
    assert code is not None, f"azfdb {' '.join(words)} did not end"
    drawn = [line for line in re.split(r"[\r\n]+", shown.decode()) if CODES.sub("", line).strip()]
    return code, [line for line in drawn if not line.startswith(("an app may", "a handler may"))]


def test_completion_is_offered_for_shells(busy: Shop) -> None:
    # Which shell asks is told by the processes above: here it is always this one, which stays to see the end.
    asked = ["bash", "-c", f"{AZFDB} --show-completion; exit $?"]
    done = subprocess.run(asked, env=busy.environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "complete_bash" in done.stdout
    assert completed(busy, "azfdb qua") == "quarantine"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("azfdb reset --app . or", "orders"),
        ("azfdb status --app . o", "orders"),
        ("azfdb quarantine list --app . --poller o", "orders"),
        ("azfdb inspect --app . none", ""),
        ("azfdb inspect --app nowhere or", ""),
        ("azfdb inspect --store file:///nowhere or", ""),
    ],
)
def test_pollers_are_completed_from_the_app_alone(shop: Shop, line: str, offered: str) -> None:
    assert completed(shop, line, SHOP_DB="postgresql+psycopg://nobody@127.0.0.1:9/nowhere") == offered


def test_completing_runs_no_app_that_was_not_named(shop: Shop) -> None:
    (shop.folder / "function_app.py").write_text("open('was-run', 'w').close()")
    assert completed(shop, "azfdb reset or") == ""
    assert completed(shop, "azfdb quarantine list --poller o") == ""
    assert not (shop.folder / "was-run").exists()
    assert completed(shop, "azfdb reset or", AZFDB_APP=".") == ""  # named, and it defines no poller
    assert (shop.folder / "was-run").exists()


def completed(shop: Shop, line: str, **environment: str) -> str:
    place = str(len(line.split()) - 1)
    done = shop.azfdb(_AZFDB_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=place, **environment)
    assert done.err == ""
    return done.out.strip()
