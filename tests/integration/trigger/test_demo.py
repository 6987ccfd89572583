from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOLD = ("starts and polls", "is killed", "starts and waits", "has the lease", "fails", "is put aside", "accounted for")
SUM = re.compile(r"written (\d+) = delivered (\d+) \+ overtaken (\d+) \+ quarantined 1 \+ lost 0; delivered again \d+")


@pytest.mark.parametrize("columns", [80, 200])
def test_the_demo_survives_its_crash_and_tells_its_story(columns: int) -> None:
    command = ["env", f"COLUMNS={columns}", str(Path(sys.executable).with_name("azfdb")), "demo"]
    played = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert played.returncode == 0, played.stderr
    lines = played.stdout.splitlines()
    assert "\x1b" not in played.stdout
    events = [line for line in lines if re.match(r" *\d+\.\d s  ", line)]
    assert [any(words in line for line in events) for words in TOLD] == [True] * len(TOLD), played.stdout
    assert [float(line.split()[0]) for line in events] == sorted(float(line.split()[0]) for line in events)
    first, second = (next(line for line in lines if line.startswith(f"poller {number}  ")) for number in (1, 2))
    assert first.endswith("✗"), "the first one ends where it was killed"
    assert re.match(r"poller 2 +░+▶", second), "the second one waits, then resumes"
    assert "●" in second
    numbers = SUM.fullmatch(lines[-1])
    assert numbers, lines[-1]
    assert int(numbers[1]) == int(numbers[2]) + int(numbers[3]) + 1
    assert max(len(line) for line in lines[:-1]) <= columns


def test_a_demo_that_is_interrupted_says_nothing_and_leaves_nobody_behind() -> None:
    command = [str(Path(sys.executable).with_name("azfdb")), "demo"]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=unbuffered, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if "has the lease" in line)  # it is at work, not only about to begin
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
        _, complaints = demo.communicate(timeout=60)  # ends when the last one who could write has ended
    assert (demo.returncode, complaints) == (130, "")
