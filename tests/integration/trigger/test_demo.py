from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_the_demo_survives_its_crash_and_tells_so() -> None:
    command = Path(sys.executable).with_name("azfdb")
    played = subprocess.run([command, "demo"], capture_output=True, text=True, timeout=100, check=False)
    assert played.returncode == 0, played.stderr
    last = played.stdout.strip().splitlines()[-1]
    told = re.fullmatch(r"written (\d+), delivered (\d+), lost 0, duplicates \d+, quarantined 1", last)
    assert told, played.stdout
    assert told[1] == told[2]
